"""An image made by hand: this machine's C library, busybox, and two programs that use a driver."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import hetero_simulator

from tests.programs import completed

NAME = "local/job:1"

#: What `nvidia-smi` shows of the first card's memory, asked as it asks.
_SMI = """
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device;
    if (!nvml)
        return puts(dlerror()), 1;
    int (*init)(void) = dlsym(nvml, "nvmlInit_v2");
    int (*find)(unsigned, void **) = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    int (*memory)(void *, unsigned long long *) = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    unsigned long long answer[3];
    if (init() || find(0, &device) || memory(device, answer))
        return puts("no answer"), 1;
    printf("%llu MiB\\n", answer[0] >> 20);
    return 0;
}
"""
#: A library of the image's own that its own /etc/ld.so.preload names: it marks its processes.
_OWN = """
#include <stdlib.h>
__attribute__((constructor)) static void mark(void) { setenv("OWN_PRELOAD", "kept", 1); }
"""
#: Says what the mark is; dynamically linked, unlike busybox.
_MARKED = """
#include <stdio.h>
#include <stdlib.h>
int main(void) { return puts(getenv("OWN_PRELOAD") ? getenv("OWN_PRELOAD") : "none") < 0; }
"""
_SHELL = ("cat", "env", "grep", "id", "ls", "sh", "sleep", "su", "touch", "true")


def root_filesystem(directory: Path) -> Path:
    """Return a directory with everything an image of ours has in it."""
    root = directory / "rootfs"
    for name in ("dev", "proc", "sys", "tmp", "etc", "bin", "opt", "root"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root::0:0::/root:/bin/sh\nuser::1000:1000::/tmp:/bin/sh\n")
    _copy(_busybox(), root / "bin/busybox")
    for name in _SHELL:
        (root / "bin" / name).symlink_to("busybox")
    _copy(hetero_simulator.job("cuda"), root / "bin/job")
    for name, source, flags in (
        ("bin/nvidia-smi", _SMI, ["-ldl"]),
        ("bin/marked", _MARKED, []),
        ("opt/own.so", _OWN, ["-shared", "-fPIC"]),
    ):
        subprocess.run(
            ["cc", "-x", "c", "-", "-o", str(root / name), *flags],
            input=source,
            text=True,
            check=True,
        )
    for program in ("bin/job", "bin/nvidia-smi"):
        for library in _linked(root / program):
            _copy(library, root / str(library).lstrip("/"))
    # What the limiter needs of the C library beyond what the programs do.
    for name in ("libdl.so.2", "libpthread.so.0"):
        near = next(path for path in _linked(root / "bin/job") if path.name == "libc.so.6")
        _copy(near.with_name(name), root / str(near.with_name(name)).lstrip("/"))
    return root


def write_image(root: Path, path: Path, *, name: str = NAME) -> None:
    """Write the OCI archive of an image with the one layer `root`."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        layer.add(root, ".")
    blobs: dict[str, bytes] = {}

    def blob(contents: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(contents).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = contents
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(contents),
        }

    layer_blob = blob(raw.getvalue(), "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer_blob],
    }
    named = {
        **blob(json.dumps(manifest).encode(), "manifest.v1+json"),
        "annotations": {
            "org.opencontainers.image.ref.name": name,
            "io.containerd.image.name": f"docker.io/{name}",
        },
    }
    blobs["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    with tarfile.open(path, "w") as archive:
        for name, contents in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))


def _busybox() -> Path:
    return next(path for path in map(Path, ("/bin/busybox", "/usr/bin/busybox")) if path.exists())


def _linked(program: Path) -> Iterator[Path]:
    listed = completed(["ldd", str(program)], check=True)
    for word in listed.stdout.split():
        if word.startswith("/"):
            yield Path(word)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    target.chmod(0o755)
