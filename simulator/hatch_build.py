"""Runs make when the distribution is built or installed, so that its native parts are there."""

from __future__ import annotations

import subprocess
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Builds into hetero_simulator/lib, where an editable install and a wheel both find it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        subprocess.run(["make", "--no-print-directory", "-C", self.root], check=True)
        if version != "editable":  # native code: one wheel a platform, any Python
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
