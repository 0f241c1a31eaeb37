"""Stands in for NVIDIA's runtime before a node's runc: notes what containers would be given."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

from tests.cluster.lab import Lab

#: Below it NVIDIA's runtime takes mounts of /dev/null for the cards that they are called by.
MOUNTS = "/var/run/nvidia-container-devices"
_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
#: Notes the final environment, mounts and device nodes, then does what was asked.
_STAND_IN = """#!{python} -SE
import json, sys, os
if "create" in sys.argv:
    with open(sys.argv[sys.argv.index("--bundle") + 1] + "/config.json") as file:
        spec = json.load(file)
    notes = spec["annotations"]
    names = [notes.get("io.kubernetes.cri." + one) for one in ("sandbox-name", "container-name")]
    env = dict(one.partition("=")[::2] for one in spec["process"]["env"])
    mounts = [[one["destination"], one["source"]] for one in spec["mounts"]]
    nodes = [one["path"] for one in spec["linux"].get("devices", ())]
    with open("{log}", "a") as file:
        print(json.dumps([*names, env, mounts, nodes]), file=file)
os.execv("{runc}", sys.argv)
"""


@frozen(kw_only=True)
class Given:
    """What a container has when its runtime makes it."""

    env: Mapping[str, str]
    mounts: Mapping[str, str] = field(converter=dict)  # the source of each, by its destination
    nodes: tuple[str, ...] = field(converter=tuple)

    @property
    def by_variable(self) -> str:
        """What the runtime takes the variable for.

        A CUDA image's own says all, and without one an old image (CUDA_VERSION) is given all.
        """
        return self.env.get(_VARIABLE, "all")

    @property
    def by_mounts(self) -> list[str]:
        """What a runtime takes that is set to take mounts and no variable."""
        below = f"{MOUNTS}/"
        null = [where for where, source in self.mounts.items() if source == "/dev/null"]
        return [one.removeprefix(below) for one in null if one.startswith(below)]


@contextmanager
def runtime_of_nvidia(lab: Lab, node: str) -> Iterator[Path]:
    """Have the stand-in be a node's runtime; what it was asked for is in the file (`given`)."""
    runc, log, stand_in = (lab.folder / name for name in ("runc", "given", "stand-in"))
    shutil.copy("/usr/sbin/runc", runc)
    log.write_text("")
    stand_in.write_text(_STAND_IN.format(python=sys.executable, log=log, runc=runc))
    stand_in.chmod(0o755)
    lab.put_over(node, "/usr/sbin/runc", stand_in)
    yield log
    stand_in.write_text(f'#!/bin/sh\nexec {runc} "$@"\n')


def given(log: Path) -> dict[tuple[str, str], Given]:
    """Return what each container was given, by the names of its pod and its own."""
    # What is being written at this moment has no end yet.
    lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = map(json.loads, lines)
    return {
        (name, container): Given(env=env, mounts=mounts, nodes=nodes)
        for name, container, env, mounts, nodes in rows
    }
