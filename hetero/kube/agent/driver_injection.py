"""How a container of a pod gets its cards' driver: as files, by CDI, or from its own runtime."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from attrs import define, evolve, field

from hetero.container.cdi import Specs
from hetero.container.edits import driver_files
from hetero.container.pin import without_driver
from hetero.kube.api.client import Plain
from hetero.model import Edits

log = logging.getLogger(__name__)

#: The first kubelet that passes a plugin's CDI names on without being told to.
_KNOWS_CDI = (1, 29)


class InjectionWay(str, Enum):
    """Who brings the driver into a container."""

    FILES = "files"  # the agent: device nodes and files as the vendor declares them
    CDI = "cdi"  # the container runtime, by the specs of the node
    RUNTIME = "runtime"  # the vendor's own runtime


@define(eq=False)
class DriverInjection:
    """Brings drivers into containers, on a node whose files are seen at `root`."""

    way: InjectionWay = InjectionWay.FILES
    root: Path = Path("/")
    _by_name: bool = field(init=False, default=False)  # whether the kubelet passes CDI names on

    def note_kubelet(self, kubelet: Mapping[str, str]) -> None:
        """Note what the node says of its kubelet (`nodeInfo`)."""
        version = kubelet.get("kubeletVersion", "")
        found = re.match(r"v(\d+)\.(\d+)", version)
        self._by_name = found is not None and tuple(map(int, found.groups())) >= _KNOWS_CDI

    def into(self, pod: Plain, edits: Edits) -> Edits:
        """Return what a container of the pod is given of the vendors' edits."""
        if self.way is InjectionWay.RUNTIME or pod["spec"].get("runtimeClassName"):
            return without_driver(edits)
        if self.way is InjectionWay.CDI and self._described(edits):
            return evolve(edits, files=(), device_nodes=())
        files = tuple(driver_files(edits.files, root=self.root))
        return evolve(edits, cdi=(), files=(), mounts=edits.mounts + files)

    def _described(self, edits: Edits) -> bool:
        """Return whether CDI brings all the cards; why not is logged, since files do then."""
        if not edits.cdi:
            return False
        specs = Specs(tuple(self.root / path for path in ("etc/cdi", "run/cdi", "var/run/cdi")))
        missing = [name for name in edits.cdi if not specs.present(name)]
        if missing:
            log.warning("no CDI spec of this node has %s: files it is", ", ".join(missing))
        elif not self._by_name:
            log.warning("the kubelet is older than 1.29 and passes no CDI names on: files it is")
        return not missing and self._by_name
