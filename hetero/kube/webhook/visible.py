"""Keeps containers from naming cards to a vendor's own runtime, past scheduler and agent.

Such a runtime, where it is a node's default, brings each card that a container's variable names, or
its mounts, and the variable of a pod counts more than the agent's. Who may name them is asked of
the API server, as of the other policies (`rights`). What a ConfigMap brings into a container by
`envFrom` is not seen here.
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
_KINDS = ("containers", "initContainers", "ephemeralContainers")


@frozen(kw_only=True)
class VisibleDevices:
    """What runtimes of these vendors are told; `hide` has containers told so that ask for none."""

    vendors: tuple[Vendor, ...]
    hide: bool = False

    def named(self, pod: Plain, *, known: Iterable[str] = ()) -> Iterator[str]:
        """Yield the containers that name cards by themselves, but for those that are known."""
        for _, container in containers(pod):
            if container["name"] not in known and any(
                self._names(vendor, container) for vendor in self.vendors
            ):
                yield container["name"]

    def patches(
        self, pod: Plain, every: Iterable[Asked], *, known: Collection[str] = ()
    ) -> Iterator[Plain]:
        """Yield what hides a vendor's cards from the containers that ask for none of them.

        Beside a container that asks all are told, elsewhere where the cluster is set so. Those
        that are known stay as they are.
        """
        asking = {(vendor, one.container) for one in every for vendor in one.request.vendor.include}
        if not asking and not self.hide:
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
            if one["name"] in vendor.runtime and (
                one.get("valueFrom") or (said and said not in vendor.runtime_none)
            ):
                return True
        below = vendor.runtime_mounts
        return below is not None and any(
            f"{path}/".startswith(f"{below}/") for path in mounted(container)
        )


def containers(pod: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield each container of a pod with its path there."""
    for kind in _KINDS:
        for number, container in enumerate(pod["spec"].get(kind) or ()):
            yield f"/spec/{kind}/{number}", container
