"""What holds for every test: no wall-clock deadlines, which a busy machine would miss."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("hetero", deadline=None)
settings.load_profile("hetero")
