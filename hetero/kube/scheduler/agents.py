"""Which nodes have an agent that serves: the kubelet of another would end each pod for good.

An agent is a pod of the agent's service account, and serves while the containers of that pod are
ready. Its kubelet says so, and the API server tells of it at once. While the API server is away all
stays as it was.
"""

from __future__ import annotations

from attrs import define, field

from hetero.kube.objects.kinds import Pod

#: What the other nodes say.
AWAY = "have no agent that serves"


@define(eq=False)
class Agents:
    """The agents of a cluster; `account` is the user that their pods are."""

    account: str
    _serving: dict[str, set[str]] = field(factory=dict)  # UIDs of ready pods, by their node

    def pods_listed(self, uids: set[str]) -> None:
        """Forget all pods but these."""
        for ready_uids in self._serving.values():
            ready_uids &= uids

    def pod_changed(self, event: str, pod: Pod) -> str | None:
        """Note a pod; return its node if it is an agent."""
        metadata, node = pod.metadata, pod.spec.node_name
        user = f"system:serviceaccount:{metadata.namespace}:{pod.spec.service_account_name}"
        if user != self.account or not node:
            return None
        ready_uids = self._serving.setdefault(node, set())
        if event != "DELETED" and _ready(pod):
            ready_uids.add(metadata.uid)
        else:
            ready_uids.discard(metadata.uid)
        return node

    def why_shut(self, node: str) -> str | None:
        """Return why a node is to take nobody, None if its agent serves."""
        return None if self._serving.get(node) else AWAY


def _ready(pod: Pod) -> bool:
    """Whether a pod's containers are ready, by its kubelet, and it is not being ended.

    Its condition `Ready` also says what the node controller takes for true of a node that was not
    heard of, all of them after the API server was away. Such nodes are kube-scheduler's to avoid.
    """
    containers = pod.status.container_statuses
    are_ready = bool(containers) and all(status.ready for status in containers)
    return are_ready and pod.metadata.deletion_timestamp is None
