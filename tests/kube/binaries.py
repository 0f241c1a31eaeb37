"""Where tests of a real Kubernetes find it, and what they say where it is not to be had.

Its binaries are those in the folder $KUBE_ASSETS names, or the one packed beside the script
`lab.py`, which makes nodes; its folder is $HETERO_LAB, or `shared/kube` in or beside this checkout.
`shared/kube136`, if it is there, has those of a later Kubernetes, with its etcd.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


def script(lab: str = "kube") -> Path | None:
    """Return the script that makes nodes, None if there is none."""
    named = os.environ.get("HETERO_LAB") if lab == "kube" else None
    folders = [Path(named)] if named else [here / "shared" / lab for here in (ROOT, ROOT.parent)]
    return next((one / "lab.py" for one in folders if (one / "lab.py").exists()), None)


#: The labs of a control plane: that of the oldest version, and of a late one if it is there.
LABS = ("kube", *(["kube136"] if script("kube136") else []))


def minor(folder: Path) -> int:
    """Return which Kubernetes 1.N the binaries in a folder are."""
    argv = (folder / "kube-apiserver", "--version")
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found = re.search(r"v1\.(\d+)\.", said)
    assert found, said
    return int(found[1])


def binaries(folder: Path, lab: str = "kube") -> Path:
    """Return the folder of a lab's binaries, unpacked into `folder` if need be; or skip."""
    if not shutil.which("etcd") or not shutil.which("openssl"):
        pytest.skip("needs etcd and openssl: install the Debian packages that .ci/run names")
    if "KUBE_ASSETS" in os.environ and lab == "kube":
        return Path(os.environ["KUBE_ASSETS"])
    found = script(lab)
    packed = found.with_name("hyper.xz") if found else None
    if packed is None or not packed.exists():
        pytest.skip(
            "needs Kubernetes: set KUBE_ASSETS to a folder with kube-apiserver, kube-scheduler, "
            "kube-controller-manager, kubelet and kube-proxy, or HETERO_LAB to the lab's folder"
        )
    # One program that is all of them, by the name it is called by.
    _unpack(packed, folder / "hyper")
    if packed.with_name("etcd.xz").exists():
        _unpack(packed.with_name("etcd.xz"), folder / "etcd")
    for part in _PARTS:
        (folder / part).symlink_to("hyper")
    return folder


def supervisor() -> Path:
    """Return what runs kube-scheduler in its container, built if need be."""
    target = "deploy/build/hetero-supervisor"
    subprocess.run(["make", "--silent", target], cwd=ROOT, check=True)
    return ROOT / target


def node_binaries(lab: str) -> Path:
    """Return the folder of a late lab's binaries, with its container runtime; or skip.

    They are kept in the checkout: they take a while to unpack, and the runtime is fetched.
    """
    found, folder = script(lab), ROOT / f".{lab}"
    assert found is not None
    made = subprocess.run(
        [sys.executable, "lab.py", "assets", str(folder)],
        cwd=found.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"needs a container runtime for {lab}: {made.stderr.strip()}")
    return folder


def _unpack(packed: Path, program: Path) -> None:
    with lzma.open(packed) as source, program.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    program.chmod(0o755)
