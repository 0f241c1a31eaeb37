"""With `choose = "one"` kube-scheduler is told the packer's first choice alone."""

from __future__ import annotations

from tests.kube.conftest import card
from tests.kube.test_scheduler import Running, scenario


def test_filter_answers_the_first_choice_alone_and_bind_takes_it() -> None:
    async def play(it: Running) -> None:
        offered = ["n1", "n2", "n3"]
        it.pod("p")
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=offered)
        assert {"NodeNames": ["n1"], "FailedNodes": {}} == answer
        assert {} == await it.bind("p", "n1")

        answer = await it.call("filter", Pod=it.pod("q"), NodeNames=["n2", "n3"])
        assert ["n2"] == answer["NodeNames"]
        answer = await it.call("filter", Pod=it.pod("q"), NodeNames=["n3"])
        assert {"NodeNames": [], "FailedNodes": {"n3": "have no device"}} == answer

    scenario(play, "one", n1=(card("GPU-1"),), n2=(card("GPU-2"),))
