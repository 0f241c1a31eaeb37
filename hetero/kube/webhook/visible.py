"""Keeps containers from naming cards to a vendor's own runtime, past scheduler and agent.

Such a runtime, where it is a node's default or the pod's runtime class, brings each card that a
container's variable names, or its mounts, or CDI annotations, and the variable of a pod counts more
than the agent's. Who may name them is asked of the API server, as of the other policies (`rights`).
What a ConfigMap brings into a container by `envFrom` is not seen here, but a variable that the
container names counts more: so the runtimes' are named there (`runtime_variables`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from attrs import frozen

from hetero.kube.dra.offers import DRIVER
from hetero.kube.objects.kinds import Container, Plain, Pod
from hetero.kube.words.pod import mounted
from hetero.kube.words.pod_request import Asked
from hetero.kube.words.runtime_variables import InjectionWay, is_noted, noted_variable
from hetero.model import MEMORY, Templated
from hetero.plugin.vendor import Vendor

#: The policy that a container uses which names cards by itself.
POLICY = "visible-devices"
#: Where pods' annotations name CDI devices to runtimes that look there, or below a domain of it.
_CDI = "cdi.k8s.io"


@frozen(kw_only=True)
class VisibleDevices:
    """What runtimes of these vendors are told.

    `hide` has containers told so that ask for no card; those of pods with one of `runtime_classes`,
    by which such a runtime runs them, are told so in any case. `way` is how agents tell of cards.
    """

    vendors: tuple[Vendor, ...]
    hide: bool = False
    runtime_classes: Collection[str] = ()
    way: InjectionWay = InjectionWay.FILES

    def named(self, pod: Pod, *, known: Iterable[str] = ()) -> Iterator[str]:
        """Yield the containers that name cards by themselves, but for those that are known.

        What annotations name is the first container's.
        """
        by_annotation = bool(self.annotated(pod))
        for number, (_, container) in enumerate(containers(pod)):
            if container.name not in known and (
                (by_annotation and not number)
                or any(self._names(vendor, container) for vendor in self.vendors)
            ):
                yield container.name

    def annotated(self, pod: Pod) -> dict[str, str]:
        """Return the pod's annotations that name CDI devices of the vendors'."""
        return {
            name: said
            for name, said in pod.metadata.annotations.items()
            if f".{name.partition('/')[0]}".endswith(f".{_CDI}") and self._cdi(said)
        }

    def patches(
        self,
        pod: Pod,
        every: Iterable[Asked],
        *,
        known: Collection[str] = (),
        runtime_class: str | None = None,
    ) -> Iterator[Plain]:
        """Yield what hides a vendor's cards from the containers that ask for none of them.

        Beside a container that asks all are told, elsewhere where the cluster is set so, or the
        pod's runtime class (`runtime_class` unless it names one). Where such a runtime runs all
        pods, those are told whose ConfigMap might name cards. Those that are known stay as they
        are. Where a ConfigMap might say otherwise a container that asks is told of its own.
        Of a vendor whose cards somebody else gives it, a container is told nothing.
        """
        asking = {
            (vendor, one.container): one for one in every for vendor in one.request.vendor.include
        }
        runtime_class = pod.spec.runtime_class_name or runtime_class
        by_runtime = runtime_class in self.runtime_classes
        all_hidden = self.hide or by_runtime
        asked = {vendor for vendor, _ in asking}
        for where, container in containers(pod):
            if container.name in known:
                continue
            from_maps = self.way.by_default_runtime and container.env_from
            if not (asked or all_hidden or from_maps):
                continue
            variables = [one.name for one in container.env]
            entries = (
                one
                for vendor in self.vendors
                if (asks := asking.get((vendor.name, container.name)))
                or not _served(vendor, pod, container)
                for one in self._told(
                    vendor,
                    container,
                    asks,
                    meant=all_hidden or vendor.name in asked,
                    by_class=bool(runtime_class),
                )
            )
            made = [one for one in entries if one["name"] not in variables]
            if not variables and made:
                yield {"op": "add", "path": f"{where}/env", "value": made}
                continue
            for entry in made:
                yield {"op": "add", "path": f"{where}/env/-", "value": entry}

    def _told(
        self,
        vendor: Vendor,
        container: Container,
        asks: Asked | None,
        *,
        meant: bool,
        by_class: bool,
    ) -> Iterator[Plain]:
        """Yield the variables of a vendor's runtime that a container has to name.

        What a vendor's hook says, on the node, a container that asks for its devices does not name.
        """
        from_maps = bool(container.env_from)
        if not asks:
            yield from _hiding(vendor, meant=meant or from_maps)
            return
        if not from_maps:
            return
        runtime = vendor.runtime
        for name in runtime.unsaid:
            yield {"name": name, "value": ""}
        for name in runtime.variables:
            if self.way is InjectionWay.VOLUME_MOUNTS and runtime.mounts:
                yield {"name": name, "value": runtime.mounts}
            elif self.way.by_cdi and runtime.none and not by_class:
                yield {"name": name, "value": runtime.none[0]}
            else:
                yield noted_variable(container.name, name)
        if runtime.template and _takes_template(vendor, asks):
            yield noted_variable(container.name, runtime.template)

    def _names(self, vendor: Vendor, container: Container) -> bool:
        runtime = vendor.runtime
        harmless = ("", *runtime.none, runtime.mounts)
        for variable in container.env:
            if variable.name in (*runtime.variables, *runtime.options) and (
                not is_noted(container.name, variable)
                if variable.value_from
                else (variable.value or "") not in harmless
            ):
                return True
        below = runtime.mounts
        return below is not None and any(
            f"{path}/".startswith(f"{below}/") for path in mounted(container)
        )

    def _cdi(self, names: str) -> bool:
        """Whether names of CDI devices are of a vendor's, by the domain of its kind, or of ours.

        Ours are shares, and what claims were given: another's as well.
        """
        domains = {
            DRIVER,
            *(kind.partition("/")[0] for one in self.vendors if (kind := one.container.cdi)),
        }
        kinds = {one.strip().partition("/")[0] for one in names.split(",")}
        return any(f".{kind}".endswith(f".{domain}") for kind in kinds for domain in domains)


def _served(vendor: Vendor, pod: Pod, container: Container) -> bool:
    """Whether somebody else's plugin gives a container cards of the vendor's.

    What such a plugin says counts less than the container's own variables. A scheduler has found
    the resource on a node, which passes over those that only add to a number of cards. Who names
    the node is started there whether it has the resource or not.
    """
    if pod.spec.node_name:
        return False
    names = vendor.resource_names
    adding = {name for one in names for name in one.resources} - {one.count for one in names}
    domains = {*vendor.resource_domains, *(one.count.partition("/")[0] for one in names)}
    return any(
        "/" in name
        and name not in adding
        and amount != "0"
        and any(f".{name.partition('/')[0]}".endswith(f".{domain}") for domain in domains)
        for name, amount in container.resources.amounts.items()
    )


def _hiding(vendor: Vendor, *, meant: bool) -> Iterator[Plain]:
    """Yield the variables by which a vendor's runtime brings no card.

    One that has no word for none takes nothing for it: it is told so where its cards are `meant`.
    So are options, by which some name cards.
    """
    texts = vendor.runtime.hiding
    if meant:
        read = (*vendor.runtime.variables, *vendor.runtime.options)
        texts = {**dict.fromkeys(read, ""), **texts}
    for name, text in texts.items():
        yield {"name": name, "value": text}


def _takes_template(vendor: Vendor, asked: Asked) -> bool:
    """Whether a container is given a part of a card by a template, rather than cards.

    Its variable is then the template's name. Where it could not be, on a card of another menu, the
    runtime starts nothing.
    """
    ask = asked.request.asks[0]
    if asked.count > 1 or ask.memory is None or ask.core == 100:
        return False
    return any(
        template.takes[MEMORY] >= ask.memory
        for model in vendor.models
        if isinstance(model.granularity, Templated) and asked.request.model.allows(model.match)
        for template in model.granularity.menu
    )


def containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    """Yield each container of a pod with its path there."""
    spec = pod.spec
    for kind, some in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for number, container in enumerate(some):
            yield f"/spec/{kind}/{number}", container
