"""Keeps containers from naming cards to a vendor's own runtime, past scheduler and agent.

Such a runtime, where it is a node's default or the pod's runtime class, brings each card that a
container's variable names, or its mounts, or CDI annotations, and the variable of a pod counts more
than the agent's. Who may name them is asked of the API server, as of the other policies (`rights`).
What a ConfigMap brings into a container by `envFrom` is not seen here: what is hidden stays so,
since a container's own variable counts more, but a container with a share is told by the agent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from attrs import frozen

from hetero.kube.api.client import Plain
from hetero.kube.api.pod import mounted
from hetero.kube.api.pod_request import Asked
from hetero.plugin.vendor import Vendor

#: The policy that a container uses which names cards by itself.
POLICY = "visible-devices"
#: Where pods' annotations name CDI devices to runtimes that look there, or below a domain of it.
_CDI = "cdi.k8s.io"
_KINDS = ("containers", "initContainers", "ephemeralContainers")


@frozen(kw_only=True)
class VisibleDevices:
    """What runtimes of these vendors are told.

    `hide` has containers told so that ask for no card; those of pods with one of `runtime_classes`,
    by which such a runtime runs them, are told so in any case.
    """

    vendors: tuple[Vendor, ...]
    hide: bool = False
    runtime_classes: Collection[str] = ()

    def named(self, pod: Plain, *, known: Iterable[str] = ()) -> Iterator[str]:
        """Yield the containers that name cards by themselves, but for those that are known.

        What annotations name is the first container's.
        """
        by_annotation = bool(self.annotated(pod))
        for number, (_, container) in enumerate(containers(pod)):
            if container["name"] not in known and (
                (by_annotation and not number)
                or any(self._names(vendor, container) for vendor in self.vendors)
            ):
                yield container["name"]

    def annotated(self, pod: Plain) -> dict[str, str]:
        """Return the pod's annotations that name CDI devices of the vendors'."""
        notes = (pod["metadata"].get("annotations") or {}).items()
        return {
            name: said
            for name, said in notes
            if f".{name.partition('/')[0]}".endswith(f".{_CDI}") and self._cdi(said)
        }

    def patches(
        self, pod: Plain, every: Iterable[Asked], *, known: Collection[str] = ()
    ) -> Iterator[Plain]:
        """Yield what hides a vendor's cards from the containers that ask for none of them.

        Beside a container that asks all are told, elsewhere where the cluster is set so, or the
        pod's runtime class. Those that are known stay as they are.
        """
        asking = {(vendor, one.container) for one in every for vendor in one.request.vendor.include}
        by_runtime = pod["spec"].get("runtimeClassName") in self.runtime_classes
        if not asking and not self.hide and not by_runtime:
            return
        for where, container in containers(pod):
            if container["name"] in known:
                continue
            variables = [one["name"] for one in container.get("env") or ()]
            hiding = {
                name: text
                for vendor in self.vendors
                if (vendor.name, container["name"]) not in asking
                for name, text in vendor.runtime_hiding.items()
                if name not in variables
            }
            made = [{"name": name, "value": text} for name, text in hiding.items()]
            if not variables and made:
                yield {"op": "add", "path": f"{where}/env", "value": made}
                continue
            for one in made:
                yield {"op": "add", "path": f"{where}/env/-", "value": one}

    def _names(self, vendor: Vendor, container: Plain) -> bool:
        for one in container.get("env") or ():
            said = one.get("value") or ""
            if one["name"] in (*vendor.runtime, *vendor.runtime_options) and (
                one.get("valueFrom") or (said and said not in vendor.runtime_none)
            ):
                return True
        below = vendor.runtime_mounts
        return below is not None and any(
            f"{path}/".startswith(f"{below}/") for path in mounted(container)
        )

    def _cdi(self, said: str) -> bool:
        """Whether names of CDI devices are of a vendor's: of the domain that its kind has."""
        domains = {vendor.cdi.partition("/")[0] for vendor in self.vendors if vendor.cdi}
        kinds = {one.strip().partition("/")[0] for one in said.split(",")}
        return any(f".{kind}".endswith(f".{domain}") for kind in kinds for domain in domains)


def containers(pod: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield each container of a pod with its path there."""
    for kind in _KINDS:
        for number, container in enumerate(pod["spec"].get(kind) or ()):
            yield f"/spec/{kind}/{number}", container
