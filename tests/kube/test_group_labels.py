"""The label by which a pod is in a group stays once the pod is bound."""

from typing import Any

import pytest

from hetero.kube.words.pod import POD_GROUP
from tests.kube.test_pod_request import pod
from tests.kube.test_webhook import SHARE, admit


@pytest.mark.parametrize(("was", "now"), [("a", "b"), ("a", None), (None, "a")])
@pytest.mark.parametrize("scheduler", ["hetero-scheduler", "tenants-own"])
def test_a_pod_that_is_bound_stays_in_its_group(
    was: str | None, now: str | None, scheduler: str
) -> None:
    """A scheduler that starts finds the group's row by it."""

    def of(group: str | None, **rest: str) -> dict[str, Any]:
        made = pod(SHARE)
        made["metadata"]["labels"] = {"app": now, **({POD_GROUP: group} if group else {})}
        made["spec"] |= {"schedulerName": scheduler, **rest}
        return made

    def change(**rest: str) -> Any:
        return admit(of(now, **rest), operation="UPDATE", oldObject=of(was, **rest))

    refusal = f"hetero: label {POD_GROUP} stays as it is once a pod is bound"
    refused = change(nodeName="n1")
    assert (scheduler == "tenants-own") is refused["allowed"]
    assert refused["allowed"] or refused["status"]["message"].startswith(refusal)
    assert change()["allowed"]
    old = of(was, nodeName="n1")
    old["metadata"]["labels"]["app"] = "old"
    assert admit(of(was, nodeName="n1"), operation="UPDATE", oldObject=old)["allowed"]
