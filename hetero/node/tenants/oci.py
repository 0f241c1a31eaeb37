"""Reads the state that an OCI runtime keeps of a container, as runc or crun write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class RuntimeState(NamedTuple):
    """A container's bundle, and its first process; None where the runtime does not say."""

    bundle: Path | None
    pid: int | None


def runtime_state(state_dir: Path) -> RuntimeState:
    """Return what the runtime's directory of a container's state contains."""
    # runc says where the bundle is by a label, crun outright.
    runc_state, crun_state = read_json(state_dir / "state.json"), read_json(state_dir / "status")
    labels = (runc_state.get("config") or {}).get("labels") or ()
    bundle_paths = [label[7:] for label in labels if label.startswith("bundle=")]
    bundle = crun_state.get("bundle") or next(iter(bundle_paths), None)
    return RuntimeState(
        Path(bundle) if bundle else None,
        runc_state.get("init_process_pid") or crun_state.get("pid"),
    )


def read_json(path: Path, *, default: Any = None) -> Any:
    """Return the JSON in a file, the default (an empty object) where there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {} if default is None else default
