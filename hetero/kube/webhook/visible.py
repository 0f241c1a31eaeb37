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
from hetero.kube.words.pod_request import ContainerRequest
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

    def named(self, pod: Pod, *, known_names: Iterable[str] = ()) -> Iterator[str]:
        """Yield the containers that name cards by themselves, but for those that are known.

        What annotations name is the first container's.
        """
        has_annotation = bool(self.annotated(pod))
        for position, (_, container) in enumerate(containers(pod)):
            if container.name not in known_names and (
                (has_annotation and not position)
                or any(self._names(vendor, container) for vendor in self.vendors)
            ):
                yield container.name

    def annotated(self, pod: Pod) -> dict[str, str]:
        """Return the pod's annotations that name CDI devices of the vendors'."""
        return {
            annotation: cdi_names
            for annotation, cdi_names in pod.metadata.annotations.items()
            if f".{annotation.partition('/')[0]}".endswith(f".{_CDI}") and self._cdi(cdi_names)
        }

    def patches(
        self,
        pod: Pod,
        container_requests: Iterable[ContainerRequest],
        *,
        known_names: Collection[str] = (),
        runtime_class: str | None = None,
    ) -> Iterator[Plain]:
        """Yield what hides a vendor's cards from the containers that ask for none of them.

        Beside a container that asks all are told, elsewhere where the cluster is set so, or the
        pod's runtime class (`runtime_class` unless it names one). Where such a runtime runs all
        pods, those are told whose ConfigMap might name cards. Those that are known stay as they
        are. Where a ConfigMap might say otherwise a container that asks is told of its own.
        Of a vendor whose cards somebody else gives it, a container is told nothing.
        """
        requests_by_vendor_and_container = {
            (vendor, container_request.container): container_request
            for container_request in container_requests
            for vendor in container_request.request.vendor.include
        }
        runtime_class = pod.spec.runtime_class_name or runtime_class
        has_runtime = runtime_class in self.runtime_classes
        hides_all = self.hide or has_runtime
        asked_vendors = {vendor for vendor, _ in requests_by_vendor_and_container}
        for path, container in containers(pod):
            if container.name in known_names:
                continue
            from_maps = self.way.by_default_runtime and container.env_from
            if not (asked_vendors or hides_all or from_maps):
                continue
            variable_names = [variable.name for variable in container.env]
            variables = (
                variable
                for vendor in self.vendors
                if (
                    container_request := requests_by_vendor_and_container.get(
                        (vendor.name, container.name)
                    )
                )
                or not _served(vendor, pod, container)
                for variable in self._told(
                    vendor,
                    container,
                    container_request,
                    is_meant=hides_all or vendor.name in asked_vendors,
                    has_class=bool(runtime_class),
                )
            )
            added = [variable for variable in variables if variable["name"] not in variable_names]
            if not variable_names and added:
                yield {"op": "add", "path": f"{path}/env", "value": added}
                continue
            for entry in added:
                yield {"op": "add", "path": f"{path}/env/-", "value": entry}

    def _told(
        self,
        vendor: Vendor,
        container: Container,
        container_request: ContainerRequest | None,
        *,
        is_meant: bool,
        has_class: bool,
    ) -> Iterator[Plain]:
        """Yield the variables of a vendor's runtime that a container has to name.

        What a vendor's hook says, on the node, a container that asks for its devices does not name.
        """
        from_maps = bool(container.env_from)
        if not container_request:
            yield from _hiding(vendor, is_meant=is_meant or from_maps)
            return
        if not from_maps:
            return
        runtime = vendor.runtime
        for variable in runtime.unsaid:
            yield {"name": variable, "value": ""}
        for variable in runtime.variables:
            if self.way is InjectionWay.VOLUME_MOUNTS and runtime.mounts:
                yield {"name": variable, "value": runtime.mounts}
            elif self.way.by_cdi and runtime.none and not has_class:
                yield {"name": variable, "value": runtime.none[0]}
            else:
                yield noted_variable(container.name, variable)
        if runtime.template and _takes_template(vendor, container_request):
            yield noted_variable(container.name, runtime.template)

    def _names(self, vendor: Vendor, container: Container) -> bool:
        runtime = vendor.runtime
        harmless_values = ("", *runtime.none, runtime.mounts)
        for variable in container.env:
            if variable.name in (*runtime.variables, *runtime.options) and (
                not is_noted(container.name, variable)
                if variable.value_from
                else (variable.value or "") not in harmless_values
            ):
                return True
        mount_root = runtime.mounts
        return mount_root is not None and any(
            f"{path}/".startswith(f"{mount_root}/") for path in mounted(container)
        )

    def _cdi(self, names_text: str) -> bool:
        """Whether names of CDI devices are of a vendor's, by the domain of its kind, or of ours.

        Ours are shares, and what claims were given: another's as well.
        """
        cdi_domains = {
            DRIVER,
            *(kind.partition("/")[0] for vendor in self.vendors if (kind := vendor.container.cdi)),
        }
        kinds_named = {cdi_name.strip().partition("/")[0] for cdi_name in names_text.split(",")}
        return any(
            f".{kind}".endswith(f".{domain}") for kind in kinds_named for domain in cdi_domains
        )


def _served(vendor: Vendor, pod: Pod, container: Container) -> bool:
    """Whether somebody else's plugin gives a container cards of the vendor's.

    What such a plugin says counts less than the container's own variables. A scheduler has found
    the resource on a node, which passes over those that only add to a number of cards. Who names
    the node is started there whether it has the resource or not.
    """
    if pod.spec.node_name:
        return False
    resource_names = vendor.resource_names
    added_resources = {resource for names in resource_names for resource in names.resources} - {
        names.count for names in resource_names
    }
    domains = {
        *vendor.resource_domains,
        *(names.count.partition("/")[0] for names in resource_names),
    }
    return any(
        "/" in resource
        and resource not in added_resources
        and amount != "0"
        and any(f".{resource.partition('/')[0]}".endswith(f".{domain}") for domain in domains)
        for resource, amount in container.resources.amounts.items()
    )


def _hiding(vendor: Vendor, *, is_meant: bool) -> Iterator[Plain]:
    """Yield the variables by which a vendor's runtime brings no card.

    A runtime that has no word for none takes an empty value for it, where its cards are meant
    (`is_meant`). So do options, by which some runtimes name cards.
    """
    text_by_variable = vendor.runtime.hiding
    if is_meant:
        read_variables = (*vendor.runtime.variables, *vendor.runtime.options)
        text_by_variable = {**dict.fromkeys(read_variables, ""), **text_by_variable}
    for variable, variable_text in text_by_variable.items():
        yield {"name": variable, "value": variable_text}


def _takes_template(vendor: Vendor, container_request: ContainerRequest) -> bool:
    """Whether a container is given a part of a card by a template, rather than cards.

    Its variable is then the template's name. Where it could not be, on a card of another menu, the
    runtime starts nothing.
    """
    ask = container_request.request.asks[0]
    if container_request.count > 1 or ask.memory is None or ask.core == ask.core_of:
        return False
    return any(
        template.takes[MEMORY] >= ask.memory
        for model in vendor.models
        if isinstance(model.granularity, Templated)
        and container_request.request.model.allows(model.match)
        for template in model.granularity.menu
    )


def containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    """Yield each container of a pod with its path there."""
    spec = pod.spec
    for list_name, group in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for position, container in enumerate(group):
            yield f"/spec/{list_name}/{position}", container
