"""Checks PodDisruptionBudgets for sets of pods: the API's dry run answers for each pod alone."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from hetero.kube.client.api import ApiCalls
from hetero.kube.objects.kinds import DisruptionBudget, LabelSelector, Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.words.label_selector import selects


@define(eq=False)
class DisruptionBudgets:
    """The PodDisruptionBudgets of a cluster at one moment, and what each allows."""

    budgets: list[DisruptionBudget]

    @classmethod
    async def read(cls, api: ApiCalls, version: str) -> DisruptionBudgets:
        """Return the budgets of the API policy/`version`. Raises `ApiError`."""
        answer = await api.get(f"/apis/policy/{version}/poddisruptionbudgets")
        # An empty selector chooses all pods of its namespace in v1, and none in v1beta1.
        none = (None, LabelSelector()) if version == "v1beta1" else (None,)
        budgets = read_all(DisruptionBudget, answer["items"])
        return cls([budget for budget in budgets if budget.spec.selector not in none])

    def protected(self, pods: Iterable[Pod]) -> set[str]:
        """Return the UIDs of pods whose budgets forbid evicting all of them, none if they allow it.

        A pod that is not ready is not counted, as in the API: the dry run answers for it.
        """
        ready = [pod for pod in pods if pod.status.is_true("Ready")]
        protected: set[str] = set()
        for budget in self.budgets:
            covered = {pod.metadata.uid for pod in ready if _covers(budget, pod)}
            if len(covered) > budget.status.disruptions_allowed:
                protected |= covered
        return protected


def _covers(budget: DisruptionBudget, pod: Pod) -> bool:
    selector, same = budget.spec.selector, pod.metadata.namespace == budget.metadata.namespace
    return same and selector is not None and selects(selector, pod.metadata.labels)
