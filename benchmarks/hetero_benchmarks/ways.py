"""Ways in which programs share a card without hetero, to stand beside its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hetero_simulator

from hetero.model.errors import HeteroError
from hetero_benchmarks.trial import Machine

#: What a program's environment has besides, by the core that it was promised, in percent.
Settings = Callable[[int], Mapping[str, str]]

_CONTROL = "nvidia-cuda-mps-control"
#: Seconds that NVIDIA's program may take to start its daemon or to answer.
_PATIENCE = 20.0


@contextmanager
def driver(_: Machine) -> Iterator[Settings]:
    """Let programs share the card as its driver does by itself."""
    yield lambda _: {}


@contextmanager
def mps(machine: Machine) -> Iterator[Settings]:
    """Let them share it by NVIDIA MPS, with all of its multiprocessors for everybody."""
    path = f"{hetero_simulator.programs()}:" if machine.simulated else ""
    control = shutil.which(_CONTROL, path=path + os.environ.get("PATH", os.defpath))
    if control is None:
        raise HeteroError(f"there is no {_CONTROL} here")
    with tempfile.TemporaryDirectory(prefix="hetero-mps-") as folder:
        names = {f"CUDA_MPS_{name}_DIRECTORY": folder for name in ("PIPE", "LOG")}
        environ = {**os.environ, **names, "CUDA_VISIBLE_DEVICES": machine.uuid}
        try:
            # Its output is no pipe: the daemon would keep that, and nobody would see its end.
            subprocess.run([control, "-d"], env=environ, check=True, timeout=_PATIENCE)
            yield lambda _: names
        except (subprocess.SubprocessError, OSError) as error:
            raise HeteroError(f"{_CONTROL}: {error}") from None
        finally:
            subprocess.run(
                [control],
                env=environ,
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                check=False,
                timeout=_PATIENCE,
            )


def hami_core(library: Path | None) -> Callable[[Machine], AbstractContextManager[Settings]]:
    """Return what lets them share it by HAMi-core, whose library that is (None: it is not here)."""

    @contextmanager
    def preloaded(_: Machine) -> Iterator[Settings]:
        if library is None:
            raise HeteroError("no --hami-core LIBRARY was given")
        with tempfile.TemporaryDirectory(prefix="hetero-hami-") as folder:
            yield lambda core: {
                "LD_PRELOAD": str(library),
                "CUDA_DEVICE_SM_LIMIT": str(core),
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/usage.cache",
                "GPU_CORE_UTILIZATION_POLICY": "FORCE",
            }

    return preloaded
