"""Which nodes have an agent that serves: the kubelet of another fails each pod for good.

An agent is a pod of the agent's service account. It serves while its containers are ready, which
its kubelet reports and the API server forwards at once. While the API server is away nothing
changes.
"""

from __future__ import annotations

from attrs import define, field

from hetero.kube.objects.kinds import Pod

#: What the other nodes say.
AWAY = "have no agent that serves"


@define(eq=False)
class Agents:
    """The agents of a cluster; `account` is the user name of their service account."""

    account: str
    _serving: dict[str, set[str]] = field(factory=dict)  # UIDs of ready pods, by their node

    def pods_listed(self, uids: set[str]) -> None:
        """Forget all pods but these."""
        for ready_uids in self._serving.values():
            ready_uids &= uids

    def pod_changed(self, event: str, pod: Pod) -> str | None:
        """Record a pod; return its node if it is an agent."""
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
        """Return why a node takes no pods, None if its agent serves."""
        return None if self._serving.get(node) else AWAY


def _ready(pod: Pod) -> bool:
    """Return whether a pod's kubelet reports its containers as ready, and it is not deleted.

    The condition `Ready` also follows the node controller, which clears it on nodes that it has not
    heard of: all of them after the API server was away. kube-scheduler avoids such nodes itself.
    """
    containers = pod.status.container_statuses
    are_ready = bool(containers) and all(status.ready for status in containers)
    return are_ready and pod.metadata.deletion_timestamp is None
