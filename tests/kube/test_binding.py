"""The binding carries the pod's share: both are there, or neither is."""

from tests.kube.conftest import card
from tests.kube.fake_api import PODS
from tests.kube.test_scheduler import scenario


async def test_a_share_is_written_by_the_binding_itself_in_one_call() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.call("filter", Pod=it.pod("p"), NodeNames=["n1"])
        assert {} == await it.bind("p", "n1")

        assert it.given("p") is not None
        assert [f"POST {PODS}/p/binding"] == [one for one in it.api.calls if f"{PODS}/p" in one]


async def test_neither_a_pod_deleted_since_filter_nor_another_of_its_name_is_bound() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.call("filter", Pod=it.pod("p"), NodeNames=["n1"])
        it.api.delete(f"{PODS}/p")
        other = it.pod("p")
        other["metadata"]["uid"] = "uid-another"
        it.api.put_now(f"{PODS}/p", other)

        assert "pod default/p was replaced" in (await it.bind("p", "n1"))["Error"]
        assert f"POST {PODS}/p/binding" not in it.api.calls
        assert 0 == it.held("GPU-1")


async def test_an_allocation_on_a_pod_that_was_never_bound_takes_nothing() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        it.pod("p")
        await it.bind("p", "n1")
        bound = it.api.objects[f"{PODS}/p"]
        it.api.delete(f"{PODS}/p")
        del bound["spec"]["nodeName"]
        it.api.put_now(f"{PODS}/p", bound)

        assert 0 == it.held("GPU-1")
