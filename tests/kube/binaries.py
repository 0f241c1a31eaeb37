"""Where tests of a real Kubernetes find it, and what they say where it is not to be had.

Its binaries are those in the folder $KUBE_ASSETS names, or the one packed beside the script
`lab.py`, which makes nodes; its folder is $HETERO_LAB, or `shared/kube` in or beside this checkout.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


def script() -> Path | None:
    """Return the script that makes nodes, None if there is none."""
    named = os.environ.get("HETERO_LAB")
    folders = [Path(named)] if named else [ROOT / "shared/kube", ROOT.parent / "shared/kube"]
    return next((one / "lab.py" for one in folders if (one / "lab.py").exists()), None)


def minor(folder: Path) -> int:
    """Return which Kubernetes 1.N the binaries in a folder are."""
    argv = (folder / "kube-apiserver", "--version")
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found = re.search(r"v1\.(\d+)\.", said)
    assert found, said
    return int(found[1])


def binaries(folder: Path) -> Path:
    """Return the folder of Kubernetes' binaries, unpacked into `folder` if need be; or skip."""
    if not shutil.which("etcd") or not shutil.which("openssl"):
        pytest.skip("needs etcd and openssl: install the Debian packages that .ci/run names")
    if "KUBE_ASSETS" in os.environ:
        return Path(os.environ["KUBE_ASSETS"])
    found = script()
    packed = found.with_name("hyper.xz") if found else None
    if packed is None or not packed.exists():
        pytest.skip(
            "needs Kubernetes: set KUBE_ASSETS to a folder with kube-apiserver, kube-scheduler, "
            "kube-controller-manager, kubelet and kube-proxy, or HETERO_LAB to the lab's folder"
        )
    # One program that is all of them, by the name it is called by.
    with lzma.open(packed) as source, (folder / "hyper").open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    (folder / "hyper").chmod(0o755)
    for part in _PARTS:
        (folder / part).symlink_to("hyper")
    return folder
