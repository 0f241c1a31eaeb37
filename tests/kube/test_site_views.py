"""What the views and metrics of a node and a cluster say of pods on real vendors' cards."""

from pathlib import Path

from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import snapshot
from hetero.node.view.observe import observe_node
from tests.kube.site import Site, pod_of
from tests.kube.site_cards import CUT, Card, tell


async def _a_template(it: Site, card: Card) -> None:
    assert None is await it.apply(pod_of("pod", card.part(4)))
    async with Api(Access(server=it.at.url)).open() as api:
        (pod,) = (await snapshot(api)).containers
    (grant,) = observe_node(it.at.node).grants
    limits = {
        sample.value
        for metric in it.at.agent.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "hetero_share_core_limit_ratio"
    }

    assert ["vir10_3c_32g"] == [piece.template for piece in pod.allocation.pieces]
    assert (
        [50.0]
        == [share.core_percent for share in pod.shares]
        == [share.core_percent for share in grant.shares]
    )
    assert {0.5} == limits


def test_a_share_that_is_a_template_shows_the_core_that_the_template_has(tmp_path: Path) -> None:
    tell(_a_template, tmp_path, CUT["ascend"])
