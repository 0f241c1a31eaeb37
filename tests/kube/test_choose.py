"""With `choose = "one"` kube-scheduler is told the packer's first choice alone."""

from tests.kube.conftest import card
from tests.kube.fake_api import PODS
from tests.kube.test_scheduler import scenario

WHOLE, PAIR = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}


async def test_filter_answers_the_first_choice_alone_and_bind_takes_it() -> None:
    async with scenario("one", n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        offered = ["n1", "n2", "n3"]
        it.pod("p")
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=offered)
        assert {"NodeNames": ["n1"], "FailedNodes": {}} == answer
        assert {} == await it.bind("p", "n1")

        answer = await it.call("filter", Pod=it.pod("q"), NodeNames=["n2", "n3"])
        assert ["n2"] == answer["NodeNames"]
        answer = await it.call("filter", Pod=it.pod("q"), NodeNames=["n3"])
        assert {"NodeNames": [], "FailedNodes": {"n3": "have no device"}} == answer


async def test_others_are_kept_off_the_nodes_that_a_waiting_pod_wants_whole() -> None:
    two = {node: (card(f"GPU-{node}-0"), card(f"GPU-{node}-1")) for node in ("n1", "n2", "n4")}
    async with scenario("one", **two, n3=(card("GPU-n3"),)) as it:

        async def node_of(name: str, *offered: str, limits: dict[str, str] = WHOLE) -> str | None:
            answer = await it.call("filter", Pod=it.pod(name, limits), NodeNames=offered)
            if answer["NodeNames"]:
                assert {} == await it.bind(name, answer["NodeNames"][0])
            node_name: str | None = next(iter(answer["NodeNames"]), None)
            return node_name

        for number in range(8):  # a cluster where pods end
            assert "n1" == await node_of(f"before{number}", "n1")
            it.api.delete(f"{PODS}/before{number}")
        for node in ("n1", "n2", "n4"):
            assert node == await node_of(f"on-{node}", node)
        assert None is await node_of("pair", "n1", "n2", "n3", limits=PAIR)
        assert "n3" == await node_of("first", "n1", "n2", "n3")
        it.api.delete(f"{PODS}/first")
        it.api.delete(f"{PODS}/pair")
        assert "n1" == await node_of("second", "n1", "n2", "n3")
        assert None is await node_of("other", "n1", "n2", limits=PAIR)
        for node in ("n2", "n4"):
            it.api.delete(f"{PODS}/on-{node}")
        assert "n2" == await node_of("other", "n1", "n2", "n4", limits=PAIR)
