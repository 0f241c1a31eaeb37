"""Asks whether who makes a pod may use the words that take something from its neighbours.

The right is the verb `use` on `policies` of the group hetero.io, by name, in the pod's namespace.
Nobody has it until a RoleBinding gives it: the chart has a ClusterRole for each name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field
from prometheus_client import CollectorRegistry, Counter

from hetero.kube.client.access_review import UserInfo
from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.webhook import visible
from hetero.kube.webhook.request import AdmissionRequest
from hetero.kube.words.pod_request import ContainerRequest, Defaults
from hetero.model import Enforcement, OnBypass, OnExcess, Policy, Priority
from hetero.model.errors import BadInput

#: What each policy lets a container do.
POLICIES = {
    "off": "runs without a limiter or without a core limit",
    "priority-0": "goes first on its card",
    "mps": "is held by a service that its neighbours can end",
    "on-excess-report": "keeps memory past its limit",
    "on-bypass-report": "keeps programs past its limiter",
    visible.POLICY: "names cards to their vendor's runtime by itself",
}
#: Accounts of Kubernetes itself: they make pods for everybody.
_COMPONENTS = ("system:kube-", "system:node:", "system:apiserver")
_ACCOUNT = "system:serviceaccount:"


@define(eq=False)
class Rights:
    """Asks the API server, and counts whom it denied what."""

    api: ApiCalls
    registry: CollectorRegistry = field(init=False, factory=CollectorRegistry)
    _denied: Counter = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._denied = Counter(
            "hetero_webhook_denied",
            "Pods that were refused since nobody may use a policy that they name",
            ("policy",),
            registry=self.registry,
        )
        for policy_name in POLICIES:
            self._denied.labels(policy_name)

    async def expect(
        self, request: AdmissionRequest, containers_and_policies: Iterable[tuple[str, str]]
    ) -> None:
        """Raise `BadInput` unless who asks may use all policies that a pod's containers use.

        `containers_and_policies` are pairs. The right is that of the requesting user, or of the
        pod's service account.
        """
        namespace = request.namespace
        askers, granted_policies = _askers(request), set[str]()
        for container, policy in containers_and_policies:
            if policy in granted_policies:
                continue
            if not await self._any_may(askers, policy, namespace):
                self._denied.labels(policy).inc()
                raise BadInput(_sentence(container, policy, askers, namespace))
            granted_policies.add(policy)

    async def may(self, request: AdmissionRequest, policy: str) -> bool:
        """Return whether who asks may use a policy, as `expect` asks. Raises `BadInput`."""
        return await self._any_may(_askers(request), policy, request.namespace)

    async def _any_may(
        self, askers: tuple[UserInfo, ...], policy_name: str, namespace: str
    ) -> bool:
        attributes = {"namespace": namespace, "verb": "use", "group": "hetero.io", "version": "*"}
        attributes |= {"resource": "policies", "name": policy_name}
        try:
            for user in askers:
                if await user.may(self.api, resourceAttributes=attributes):
                    return True
        except ApiError as error:
            raise BadInput(f"who may use policy {policy_name} cannot be asked: {error}") from None
        return False


def used(
    container_requests: Iterable[ContainerRequest], defaults: Defaults
) -> Iterator[tuple[str, str]]:
    """Yield the containers that use policies by words for their cards, and the policies."""
    for container_request in container_requests:
        for policy in privileged(container_request, defaults):
            yield container_request.container, policy


def privileged(container_request: ContainerRequest, defaults: Defaults) -> Iterator[str]:
    """Yield the policies that a container uses by its own words, not by the cluster's defaults."""
    request = container_request.request
    is_high = request.priority is Priority.HIGH
    is_by_default = defaults.unlimited or (is_high and defaults.high_unlimited)
    if request.policy is Policy.OFF or (container_request.unlimited and not is_by_default):
        yield "off"
    if is_high:
        yield "priority-0"
    is_by_service = Enforcement.SERVICE.value in request.enforcement.include
    if (
        is_by_service
        and request.enforcement != container_request.resource_names.devices.enforcements
    ):
        yield "mps"
    if request.on_excess is OnExcess.REPORT:
        yield "on-excess-report"
    if request.on_bypass is OnBypass.REPORT:
        yield "on-bypass-report"


def _askers(request: AdmissionRequest) -> tuple[UserInfo, ...]:
    """Return whose right counts: the pod's service account's, and who asks unless for others.

    Kubernetes' components, controllers and programs of other namespaces make pods for others, and
    would lend everybody their right. A user who makes pods in a namespace may use its accounts
    anyway.
    """
    pod, namespace, user = request.object, request.namespace, UserInfo.read(request.user_info)
    service_account = UserInfo.service_account(
        namespace, pod.spec.service_account_name or "default"
    )
    owners = pod.metadata.owner_references
    is_controlled = request.operation == "CREATE" and any(owner.controller for owner in owners)
    is_stranger = user.name.startswith(_ACCOUNT) and not user.name.startswith(
        f"{_ACCOUNT}{namespace}:"
    )
    if (
        is_controlled
        or is_stranger
        or user.name.startswith(_COMPONENTS)
        or user.name == service_account.name
    ):
        return (service_account,)
    return (user, service_account)


def _sentence(
    container_name: str, policy_name: str, askers: tuple[UserInfo, ...], namespace: str
) -> str:
    user_names = " nor ".join(user.name for user in askers)
    subject = f"neither {user_names} may" if len(askers) > 1 else f"{user_names} may not"
    return (
        f"container {container_name}: {POLICIES[policy_name]}, and {subject} use policy "
        f"{policy_name} in namespace {namespace}: leave it out, "
        f"or have ClusterRole hetero-use-{policy_name} bound there"
    )
