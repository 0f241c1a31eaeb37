"""Runs make when the distribution is built or installed, so that its native parts are there."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Builds into hetero_limiters/lib, where an editable install and a wheel both find it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        subprocess.run(["make", "--no-print-directory", "-C", self.root], check=True)
        if version != "editable":  # native code: one wheel a platform, any Python
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
            lib = Path(self.root, "hetero_limiters/lib")
            built = [
                lib / "layouts",
                *lib.glob("libhetero-*.so"),
            ]  # and nothing an older build left
            build_data["force_include"] = {
                str(path): f"hetero_limiters/lib/{path.name}" for path in built
            }


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
