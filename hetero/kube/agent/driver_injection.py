"""Injects the driver of a container's cards: as files, by CDI, or by the vendor's own runtime."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from attrs import define, evolve, field

from hetero.container.cdi import Specs
from hetero.container.edits import driver_files
from hetero.container.pin import without_driver
from hetero.kube.objects.kinds import NodeInfo, Pod
from hetero.kube.words.runtime_variables import InjectionWay
from hetero.model import Edits, Mount
from hetero.plugin.vendor import Vendor

log = logging.getLogger(__name__)

#: The first kubelet that passes a plugin's CDI names on without being told to.
_FIRST_CDI_VERSION = (1, 29)


@define(eq=False)
class DriverInjection:
    """Injects drivers into containers of a node whose file system is mounted at `root`.

    `driver_root` is the node's path of the root directory of a container that brings a driver,
    where there is one. What is there goes before the node's own files.
    """

    way: InjectionWay = InjectionWay.FILES
    root: Path = Path("/")
    driver_root: str = ""
    _by_name: bool = field(init=False, default=False)  # whether the kubelet passes CDI names on

    def note_kubelet(self, kubelet: NodeInfo) -> None:
        """Record the kubelet's version, from the Node object."""
        version_match = re.match(r"v(\d+)\.(\d+)", kubelet.kubelet_version)
        self._by_name = (
            version_match is not None
            and tuple(map(int, version_match.groups())) >= _FIRST_CDI_VERSION
        )

    def into(self, pod: Pod, edits: Edits, vendors: Iterable[Vendor] = ()) -> Edits:
        """Return the vendors' edits with the driver injected, for a container of the pod.

        They override an image's own settings for a runtime.
        """
        injecting_vendors = (
            vendor
            for vendor in vendors
            if not edits.env.keys().isdisjoint((*vendor.runtime.variables, *vendor.visible))
        )
        unset_variables = dict.fromkeys(
            (variable for vendor in injecting_vendors for variable in vendor.runtime.unsaid), ""
        )
        edits = evolve(edits, env={**unset_variables, **edits.env})
        is_by_runtime = self.way in (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS)
        if is_by_runtime or pod.spec.runtime_class_name:
            return without_driver(self._told(edits, vendors))
        if self.way is not InjectionWay.FILES and self._described(edits):
            env = dict(edits.env)
            for vendor in vendors:  # a runtime of its own that is there as well adds nothing
                env |= {
                    variable: variable_value
                    for variable, variable_value in vendor.runtime.hiding.items()
                    if variable in env
                }
            return evolve(edits, env=env, files=(), device_nodes=())
        return evolve(
            edits,
            cdi=(),
            files=(),
            mounts=edits.mounts + self._files(edits.files),
            device_nodes=tuple(map(self._device_node, edits.device_nodes)),
        )

    def annotations(self, edits: Edits, *, grant_id: str) -> dict[str, str]:
        """Return the annotations that name a container's CDI devices, if that is the way."""
        if self.way is not InjectionWay.CDI_ANNOTATIONS or not edits.cdi:
            return {}
        return {f"cdi.k8s.io/hetero_{grant_id}": ",".join(edits.cdi)}

    def _files(self, file_names: tuple[str, ...]) -> tuple[Mount, ...]:
        node_mounts = tuple(driver_files(file_names, root=self.root))
        if not self.driver_root:
            return node_mounts
        root_mounts = tuple(
            evolve(mount, source=self.driver_root + mount.source)
            for mount in driver_files(file_names, root=self._own_root)
        )
        targets = {mount.target for mount in root_mounts}
        return root_mounts + tuple(mount for mount in node_mounts if mount.target not in targets)

    def _device_node(self, path: str) -> str:
        """Return a device node, by where the driver's container has it if it does."""
        has_it = bool(self.driver_root) and (self._own_root / path.lstrip("/")).exists()
        return f"{self.driver_root}{path}:{path}" if has_it else path

    @property
    def _own_root(self) -> Path:
        return self.root / self.driver_root.lstrip("/")

    def _told(self, edits: Edits, vendors: Iterable[Vendor]) -> Edits:
        """Return the edits with mounts in place of a variable's devices, if that is the way."""
        if self.way is not InjectionWay.VOLUME_MOUNTS:
            return edits
        env, mounts = dict(edits.env), list(edits.mounts)
        for vendor in vendors:
            runtime = vendor.runtime
            for variable in runtime.variables if runtime.mounts else ():
                device_list = env.get(variable, "")
                if device_list and device_list not in runtime.none:
                    targets = (f"{runtime.mounts}/{device}" for device in device_list.split(","))
                    mounts += [Mount("/dev/null", target) for target in targets]
                    env[variable] = str(runtime.mounts)
        return evolve(edits, env=env, mounts=tuple(mounts))

    def _described(self, edits: Edits) -> bool:
        """Return whether CDI injects all the cards. If not, the reason is logged, and files do."""
        if not edits.cdi:
            return False
        specs = Specs(tuple(self.root / path for path in ("etc/cdi", "run/cdi", "var/run/cdi")))
        missing_names = [cdi_name for cdi_name in edits.cdi if not specs.present(cdi_name)]
        if missing_names:
            log.warning("no CDI spec of this node has %s: files it is", ", ".join(missing_names))
        has_passed_names = self._by_name or self.way is InjectionWay.CDI_ANNOTATIONS
        if not missing_names and not has_passed_names:
            log.warning("the kubelet is older than 1.29 and passes no CDI names on: files it is")
        return not missing_names and has_passed_names
