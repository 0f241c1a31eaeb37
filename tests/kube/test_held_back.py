"""Cards that wait for older grants: nothing new of them is given, and each view says why."""

from pathlib import Path

from attrs import evolve
from racks import threaded_registry

from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import snapshot
from hetero.kube.words.annotations import INVENTORY, published
from hetero.model import CORE
from hetero.node.ledger.ledger import ALLOCATION
from hetero.node.settings import NodeSettings, Sharing
from hetero.node.view.observe import observe_node
from tests.kube.site import Site, differences, pod_of
from tests.kube.site_cards import ALL, Card, tell
from tests.kube.world import until


def cordon_by_vendor(it: Site) -> dict[str, str | None]:
    """Return why nothing new is given of the cards, by vendor, as the node's inventory says."""
    notes = it.at.api.nodes["n1"]["metadata"]["annotations"]
    devices, _ = published(notes[INVENTORY], node="n1")
    return {device.vendor: device.cordon for device in devices}


async def changed(it: Site, settings: NodeSettings) -> None:
    """Start the agent anew with other settings of its node."""
    vendors = threaded_registry("nvidia", "hygon", "mthreads", soft=settings.soft)
    it.at.node = evolve(it.at.node, settings=settings, registry=vendors)
    await it.restart_agent()


async def expect_held_back(it: Site, card: Card, reason: str) -> None:
    """Expect that no pod is bound to a card and views say why, until the pod `old` has ended."""
    await until(lambda: reason in (cordon_by_vendor(it)[card.vendor] or ""), seconds=5)
    for number in range(2):
        refusal = await it.apply(pod_of(f"new-{number}", card.part(2)))
        assert refusal
        assert reason in refusal
    async with Api(Access(server=it.at.url)).open() as api:
        (member,) = (await snapshot(api)).nodes
    for row in (*member.devices, *observe_node(it.at.node).devices):
        if row.device.vendor == card.vendor:
            assert reason in (row.device.condition or "")


async def expect_core(it: Site, percent_by_vendor: dict[str, int]) -> None:
    """Expect that all books say so much core of the cards, in the units that these have now."""
    books = await it.settled()
    assert [] == differences(books)
    for device in it.at.agent.discovery.devices:
        percent = 100 * books["scheduler"][device.uuid][CORE] / device.of_card(CORE)
        assert percent_by_vendor.get(device.vendor, 0) == round(percent), device.vendor


async def _soft(it: Site, _: Card) -> None:
    cards = [ALL["hygon"], ALL["mthreads"]]
    older = [pod_of(f"old-{card.vendor}", card.part(2)) for card in cards]
    for pod in older:
        assert None is await it.apply(pod)
    await changed(it, NodeSettings(soft=("hygon", "mthreads")))
    for card in cards:
        await expect_held_back(it, card, f"cards.soft was changed for {card.vendor}")

    await expect_core(it, {"hygon": 24, "mthreads": 25})
    assert None is await it.apply(pod_of("other", ALL["nvidia"].part(2)))
    await it.end(older[0])
    await until(lambda: cordon_by_vendor(it)["hygon"] is None)
    assert cordon_by_vendor(it)["mthreads"]
    await it.end(older[1])
    await until(lambda: cordon_by_vendor(it)["mthreads"] is None)


def test_cards_that_were_cut_before_soft_wait_and_others_do_not(tmp_path: Path) -> None:
    tell(_soft, tmp_path, *(ALL[kind] for kind in ("nvidia", "hygon", "mthreads")), seconds=40)


async def _hard(it: Site, card: Card) -> None:
    await changed(it, NodeSettings(soft=("hygon",)))
    await until(lambda: it.scheduler.cache.inventory.devices("n1")[0].of_card(CORE) > 120)
    for number in range(4):
        assert None is await it.apply(pod_of(f"old-{number}", card.part(2)))
    await changed(it, NodeSettings())
    await expect_held_back(it, card, "cards.soft was changed for hygon")

    await expect_core(it, {"hygon": 93})  # of 96 percent, each share rounded down


def test_shares_of_before_a_card_is_cut_are_no_more_than_the_card(tmp_path: Path) -> None:
    """A card has more units of core while a limiter shares it than when it is cut."""
    tell(_hard, tmp_path, ALL["hygon"], seconds=40)


async def _sharing(it: Site, card: Card) -> None:
    old = pod_of("old", card.part(2))
    assert None is await it.apply(old)
    await changed(it, NodeSettings(sharing={"*": Sharing.MPS}))
    await expect_held_back(it, card, "cards.sharing was changed for it")

    assert None is await it.apply(pod_of("other", ALL["hygon"].part(2)))
    await it.end(old)
    await until(lambda: cordon_by_vendor(it)[card.vendor] is None)


def test_a_card_that_is_to_be_shared_by_a_service_waits_for_older_grants(tmp_path: Path) -> None:
    tell(_sharing, tmp_path, ALL["nvidia"], ALL["hygon"], seconds=40)


async def _unreadable(it: Site, card: Card) -> None:
    assert None is await it.apply(pod_of("old", card.part(2)))
    (grant,) = it.at.node.snapshot().grants
    entry = it.at.node.ledger.directory(grant.id) / ALLOCATION
    entry_text = entry.read_text()
    entry.write_text("{")
    await expect_held_back(it, card, f"grant {grant.id} stands but cannot be read")
    await expect_held_back(it, ALL["hygon"], f"grant {grant.id} stands but cannot be read")

    entry.write_text(entry_text)
    await until(lambda: not any(cordon_by_vendor(it).values()))
    assert None is await it.apply(pod_of("next", card.part(2)))


def test_a_grant_that_cannot_be_read_holds_back_all_cards_of_its_node(tmp_path: Path) -> None:
    tell(_unreadable, tmp_path, ALL["nvidia"], ALL["hygon"], seconds=40)
