"""Where the pods of the chart run, what they ask of their nodes, and how long they stay."""

from typing import Any

import pytest

from tests.kube.test_chart import chart


def pods(part: Any, account: str = "") -> list[Any]:
    """Return the specs of all pods in some of the chart; of an account's alone, if one is named."""
    if isinstance(part, list):
        return [one for each in part for one in pods(each, account)]
    if not isinstance(part, dict):
        return []
    named = part.get("serviceAccountName")
    own = [part] if named and account in named else []
    return own + [one for each in part.values() for one in pods(each, account)]


#: Nodes of the control plane alone.
PLACED = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
}


def test_who_may_read_the_key_is_kept_on_the_nodes_that_the_values_say() -> None:
    """Who is root there has the key that signs: schedulers, and jobs that make and rotate it."""
    made = chart(scheduler=PLACED)
    keys = [*pods(made, "hetero-scheduler"), *pods(made, "hetero-certificates")]

    assert [PLACED] * 4 == [{name: spec.get(name) for name in PLACED} for spec in keys]


def test_replicas_are_where_the_values_say_and_else_apart() -> None:
    own: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}

    def placed(part: str, **values_of_part: Any) -> Any:
        values: dict[str, Any] = {part: values_of_part}
        (spec,) = pods(chart(**values), f"hetero-{part}")
        return {name: spec.get(name) for name in (*PLACED, "affinity")}

    for part in ("scheduler", "webhook"):
        unsaid = placed(part)
        assert {"podAntiAffinity"} == unsaid["affinity"].keys()
        assert (None, None) == (unsaid["nodeSelector"], unsaid["tolerations"])
        assert {**PLACED, "affinity": own} == placed(part, **PLACED, affinity=own)


def test_no_container_of_ours_is_put_behind_pods_that_ask_for_processor_time() -> None:
    """A kubelet gives those that ask for none next to none of it, and ends them first."""
    specs = pods(chart())
    asked = [
        (spec["serviceAccountName"], {*container.get("resources", {}).get("requests", {})})
        for spec in specs
        for container in (*spec["containers"], *spec.get("initContainers", ()))
    ]

    assert 6 == len(specs)
    assert [] == [one for one in asked if one[1] != {"cpu", "memory"}]
    assert {
        "hetero-agent": "system-node-critical",
        **dict.fromkeys(
            ("hetero-certificates", "hetero-scheduler", "hetero-webhook"), "system-cluster-critical"
        ),
    } == {spec["serviceAccountName"]: spec["priorityClassName"] for spec in specs}


@pytest.mark.parametrize(("kubernetes", "seconds"), [("1.20", None), ("1.21", 600)])
def test_pods_of_ours_that_have_ended_go_where_kubernetes_can_have_them_go(
    kubernetes: str, seconds: int | None
) -> None:
    made = [m["spec"] for m in chart(kubernetes=kubernetes) if m["kind"] in ("CronJob", "Job")]
    jobs = [spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec for spec in made]

    assert [seconds] * 3 == [spec.get("ttlSecondsAfterFinished") for spec in jobs]


@pytest.mark.parametrize("allocation", ["classic", "dra", "both"])
def test_no_pod_of_ours_has_data_that_a_drain_would_ask_about(allocation: str) -> None:
    """`kubectl drain` leaves out DaemonSets, and refuses any other pod that has an emptyDir."""
    specs = pods([m for m in chart(allocation=allocation) if m["kind"] != "DaemonSet"])

    assert 4 <= len(specs)
    volumes = [volume for spec in specs for volume in spec.get("volumes", ())]
    assert [] == [volume for volume in volumes if "emptyDir" in volume]
