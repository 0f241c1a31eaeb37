"""Where tests of a real Kubernetes find its programs, and what they say where these are missing.

A lab is a folder with a script `lab.py` that makes nodes. That of the oldest Kubernetes is
$HETERO_LAB, or `shared/kube` in or beside this checkout; its programs are in $KUBE_ASSETS, or
packed in that folder. That of a late Kubernetes is `shared/kube136`; it takes its programs from
$KUBE136_ASSETS, or from ~/.cache/hetero/kubernetes-1.36.
"""

import functools
import lzma
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import completed

ROOT = Path(__file__).parents[2]
#: What the reason of a skip begins with where a late Kubernetes' programs are missing: the one
#: reason that `--no-skips` accepts.
LATE_IS_MISSING = "Kubernetes 1.36 is not on this machine"
_PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


def script(lab: str = "kube") -> Path | None:
    """Return the script that makes nodes, None if there is none."""
    named = os.environ.get("HETERO_LAB") if lab == "kube" else None
    parents = (ROOT, ROOT.parent)
    folders = [Path(named)] if named else [parent / "shared" / lab for parent in parents]
    scripts = (folder / "lab.py" for folder in folders)
    return next((path for path in scripts if path.exists()), None)


#: The labs of a control plane: that of the oldest version, and of a late one if it is there.
LABS = ("kube", *(["kube136"] if script("kube136") else []))


def minor(folder: Path) -> int:
    """Return which Kubernetes 1.N the programs in a folder are."""
    argv = (folder / "kube-apiserver", "--version")
    output = completed(argv, check=True).stdout
    version = re.search(r"v1\.(\d+)\.", output)
    assert version, output
    return int(version[1])


@functools.cache
def lacks_late() -> str | None:
    """Return what of its programs a late Kubernetes lacks, in one line; None if nothing.

    None as well where there is no lab of it: then it is the lab that is missing.
    """
    if script("kube136") is None:
        return None
    question = "import lab, sys; sys.exit(lab.lacks())"
    return _lab("kube136", "-c", question).stderr.strip() or None


def binaries(folder: Path, lab: str = "kube") -> Path:
    """Return the folder of a lab's programs, unpacked into `folder` if need be; or skip."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: install the Debian packages that .ci/run names")
    if lab == "kube136":
        return _late_binaries()
    if not shutil.which("etcd"):
        pytest.skip("needs etcd: install the Debian packages that .ci/run names")
    if "KUBE_ASSETS" in os.environ:
        return Path(os.environ["KUBE_ASSETS"])
    lab_script = script()
    packed = lab_script.with_name("hyper.xz") if lab_script else None
    if packed is None or not packed.exists():
        pytest.skip(
            "needs Kubernetes: set KUBE_ASSETS to a folder with kube-apiserver, kube-scheduler, "
            "kube-controller-manager, kubelet and kube-proxy, or HETERO_LAB to the lab's folder"
        )
    # One program that is all of them, by the name it is called by.
    _unpack(packed, folder / "hyper")
    for part in _PARTS:
        (folder / part).symlink_to("hyper")
    return folder


def supervisor() -> Path:
    """Return what runs kube-scheduler in its container, built if need be."""
    target = "deploy/build/hetero-supervisor"
    subprocess.run(["make", "--silent", target], cwd=ROOT, check=True)
    return ROOT / target


def _late_binaries() -> Path:
    """Return a late Kubernetes' programs, with etcd and a container runtime; or skip.

    They are kept in the checkout: etcd and the runtime are fetched, and a pod mounts nothing else.
    """
    if script("kube136") is None:
        pytest.skip("needs the lab of a late Kubernetes: shared/kube136 in or beside this checkout")
    if reason := lacks_late():
        pytest.skip(f"{LATE_IS_MISSING}: {reason}")
    folder = ROOT / ".kube136"
    assets = _lab("kube136", "lab.py", "assets", str(folder))
    if assets.returncode:
        pytest.skip(f"needs etcd and a container runtime of Debian: {assets.stderr.strip()}")
    return folder


def _lab(lab: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a lab's folder."""
    lab_script = script(lab)
    assert lab_script is not None
    return completed(
        [sys.executable, *arguments],
        cwd=lab_script.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _unpack(packed: Path, program: Path) -> None:
    with lzma.open(packed) as source, program.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    program.chmod(0o755)
