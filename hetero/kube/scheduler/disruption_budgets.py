"""Says who may be evicted together: the API's dry run answers for each pod alone."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from hetero.kube.client.api import ApiCalls, Plain
from hetero.kube.words.label_selector import selects
from hetero.kube.words.pod import full_name


@define(eq=False)
class DisruptionBudgets:
    """The PodDisruptionBudgets of a cluster as of now, and how many pods each lets go."""

    budgets: list[Plain]

    @classmethod
    async def read(cls, api: ApiCalls, version: str) -> DisruptionBudgets:
        """Return what the API of policy/`version` has. Raises `ApiError`."""
        found = (await api.get(f"/apis/policy/{version}/poddisruptionbudgets"))["items"]
        # An empty selector chooses all pods of its namespace in v1, and none in v1beta1.
        none: tuple[Plain | None, ...] = (None, {}) if version == "v1beta1" else (None,)
        return cls([budget for budget in found if budget["spec"].get("selector") not in none])

    def protected(self, pods: Iterable[Plain]) -> set[str]:
        """Return the UIDs of those of the pods that may not all go, empty if they may.

        A pod that is not ready counts nothing, as in the API: the dry run says whether it may go.
        """
        ready = [pod for pod in pods if _is_ready(pod)]
        found: set[str] = set()
        for budget in self.budgets:
            mine = {pod["metadata"]["uid"] for pod in ready if _covers(budget, pod)}
            if len(mine) > ((budget.get("status") or {}).get("disruptionsAllowed") or 0):
                found |= mine
        return found


def _is_ready(pod: Plain) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _covers(budget: Plain, pod: Plain) -> bool:
    namespace, _ = full_name(pod)
    labels = pod["metadata"].get("labels") or {}
    same = namespace == budget["metadata"]["namespace"]
    return same and selects(budget["spec"]["selector"], labels)
