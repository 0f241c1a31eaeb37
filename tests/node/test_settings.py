"""The node's settings file: what it may say, and the line for everything else."""

from decimal import Decimal
from pathlib import Path

import pytest
from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Counters,
    Device,
    DeviceAllocation,
    Enforcement,
    Fractional,
    Inventory,
    OnBypass,
    OnExcess,
    Refusal,
    Request,
    Template,
    Templated,
    Whole,
)
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.node.ledger.grant_file import limit_of
from hetero.node.settings import NodeSettings, OnDebt, Quota, load_settings, read_settings
from hetero.placement import fit
from hetero.testing import rack


def load(tmp_path: Path, text: str) -> NodeSettings:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return load_settings({"HETERO_CONFIG": str(path)})


def test_nothing_said_is_one_card_for_one_card(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    (device,) = rack(16 * GiB)

    assert NodeSettings() == settings
    assert device == settings.scaled(device)


def test_scaling_is_exact(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scale]\nmemory = 1.1\ncore = 3\n")
    (device,) = rack(10 * GiB)
    scaled = settings.scaled(device)

    assert NodeSettings(memory_scale=Decimal("1.1"), core_scale=Decimal(3)) == settings
    assert {CORE: 300, MEMORY: 11 * GiB, SLOTS: 10} == scaled.capacity
    assert (100, 10 * GiB) == (scaled.of_card(CORE), scaled.of_card(MEMORY))


def test_what_a_grant_is_told_follows_from_the_settings(tmp_path: Path) -> None:
    settings = load(tmp_path, "[scale]\nmemory = 2\n[count]\ncontext = false\n")
    (card,) = rack(16 * GiB)
    grant = DeviceAllocation(device=card.uuid, vendor="memory", takes={MEMORY: GiB}, core=None)

    beyond = limit_of(grant, settings.scaled(card), context=settings.context)
    plain = limit_of(grant, card, context=NodeSettings().context)

    assert (True, False) == (beyond.spill, beyond.context)
    assert (False, True) == (plain.spill, plain.context)


def test_below_one_the_rest_of_a_card_is_given_to_nobody(tmp_path: Path) -> None:
    (device,) = rack(16 * GiB)
    half = load(tmp_path, "[scale]\nmemory = 0.5\ncore = 0.5\n").scaled(device)
    inventory = Inventory((half,))

    def got(**ask: int) -> Counters | str:
        answer = fit(inventory, Request(asks=(Ask(**ask),)))  # type: ignore[arg-type]
        return answer.sentence if isinstance(answer, Refusal) else answer.pieces[0].takes

    assert {CORE: 50, MEMORY: 8 * GiB, SLOTS: 10} == half.capacity
    assert {CORE: 50, MEMORY: 8 * GiB, SLOTS: 10} == got()
    assert {CORE: 30, MEMORY: 4 * GiB, SLOTS: 1} == got(memory_percent=50, core=30)
    assert "too small" in str(got(memory=9 * GiB))
    assert "60 %" in str(got(memory=GiB, core=60))


def test_a_whole_card_is_never_promised_twice(tmp_path: Path) -> None:
    (device,) = rack(16 * GiB, granularity=Whole())

    assert device == load(tmp_path, "[scale]\nmemory = 2").scaled(device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale = 2", r"write \[scale\]"),
        ("[scale]\nmemroy = 2", "unknown key 'memroy'"),
        ("[sclae]\nmemory = 2", "unknown key 'sclae'"),
        ("[scale]\nmemory = 0", "is not a number from 0.01 to 100"),
        ("[scale]\nmemory = -1", "is not a number from 0.01 to 100"),
        ("[scale]\ncore = 101", "is not a number from 0.01 to 100"),
        ("[scale]\ncore = true", "is not a number from 0.01 to 100"),
        ('[scale]\ncore = "2"', "is not a number from 0.01 to 100"),
        ("[scale]\ncore = nan", "is not a number from 0.01 to 100"),
        ("[cards]\nmemory = 119", 'cards.memory 119 is not a size: write "40Gi"'),
        ('[cards]\nmemory = "50%"', "cards.memory '50%' is not a size"),
        ("count = 1", r"write \[count\]"),
        ("[count]\ncontext = 1", "count.context 1 is not true or false"),
        ("[count]\ncontexts = true", "unknown key 'contexts'"),
        ("[vendors]\nallows = []", "unknown key 'allows'"),
        ('[vendors]\nallow = "hetero-a"', "is not a list of names of distributions"),
        ("[cards]\nmax_sharers = 0", "cards.max_sharers 0 is not a whole number from 1 to 1000"),
        ("[cards]\nmax_sharers = true", "cards.max_sharers True is not a whole number"),
        ("[cards]\nexclude = [1.5]", "cards.exclude .* is not a list of UUIDs and numbers"),
        ('[cards]\nexclude = [""]', "cards.exclude has an empty name, which means nothing: leave"),
        ('[cards]\nexclude = ""', "cards.exclude has an empty name"),
        ('[cards]\nexclude = ["GPU-1", " \\t"]', "cards.exclude has an empty name"),
        ('[cards.sharing]\n"" = "mps"', "cards.sharing has an empty name"),
        ('[cards]\nsoft = [" "]', "cards.soft has an empty name"),
        ('[vendors]\nallow = [""]', "vendors.allow has an empty name"),
        ('[heterod]\nignore = [""]', "heterod.ignore has an empty name"),
        ('[cards]\nsoft = "zephyr"', "cards.soft 'zephyr' is not a list of names of vendors"),
        (
            '[cards]\npartitioned = "some"',
            "cards.partitioned 'some' is none of mixed, single, none",
        ),
        ("quota = 1", r"write \[quota\]"),
        ("[quota]\nmemory = 40", 'quota.memory 40 is not a size: write "40Gi"'),
        ('[quota]\nmemory = "much"', "memory 'much' is not a size"),
        ("[quota]\ncore = -1", "quota.core -1 is not a whole number, 0 or more"),
        ("[quota]\ngrants = true", "quota.grants True is not a whole number"),
        ("[quota.users]\nalice = 3", r"write \[quota.users.alice\]"),
        ("[quota.groups.lab]\ncores = 3", "unknown key 'cores'"),
        (
            '[heterod]\non_excess = "end"',
            "heterod.on_excess 'end' is none of report, refuse, kill",
        ),
        ('[heterod]\non_bypass = "refuse"', "'refuse' is none of report, kill"),
        ('[heterod]\non_debt = "kill"', "'kill' is none of report, end"),
        ('[heterod]\nignore = "agentd"', "is not a list of names of executables"),
        ("[heterod]\non-excess = 1", "unknown key 'on-excess'"),
        ("[scale", "node.toml: Expected ']'"),
    ],
)
def test_anything_else_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        load(tmp_path, text)

    assert str(tmp_path / "node.toml") in str(raised.value)


def test_quotas_are_of_each_user_of_named_users_and_of_groups(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[quota]\nmemory = "40Gi"\ncore = 100\n[quota.users.alice]\nmemory = "80Gi"\n'
        "[quota.groups.lab]\ncore = 300\ngrants = 0\n",
    )

    assert Quota(memory=40 * GiB, core=100, grants=64) == settings.quota
    assert {"alice": Quota(memory=80 * GiB, grants=64)} == settings.user_quotas
    assert {"lab": Quota(core=300, grants=0)} == settings.group_quotas
    assert Quota(grants=64) == load(tmp_path, "").quota


def test_what_becomes_of_excess_where_a_grant_does_not_say(tmp_path: Path) -> None:
    text = '[heterod]\non_excess = "report"\non_bypass = "kill"\nignore = ["agentd", "/opt/a"]\n'
    stated, unsaid = load(tmp_path, text), NodeSettings()

    assert (OnExcess.REPORT, OnBypass.KILL) == (stated.on_excess, stated.on_bypass)
    assert ("agentd", "/opt/a") == stated.ignore
    assert (OnExcess.REFUSE, OnBypass.REPORT, None) == (
        unsaid.on_excess,
        unsaid.on_bypass,
        unsaid.ignore,
    )


def test_who_owes_others_and_goes_on_is_told_and_where_the_settings_say_so_ended(
    tmp_path: Path,
) -> None:
    assert OnDebt.REPORT is NodeSettings().on_debt
    assert OnDebt.END is load(tmp_path, '[heterod]\non_debt = "end"\n').on_debt


def test_a_settings_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load_settings({"HETERO_CONFIG": str(tmp_path / "nothing.toml")})


# --- cards ----------------------------------------------------------------------------------------


def slots(settings: NodeSettings, device: Device, *, limited: bool) -> int:
    (offered,) = settings.offered([device], limiter_vendors={"memory"} if limited else set())
    return offered.capacity[SLOTS]


def test_a_card_of_our_limiter_may_be_split_further_and_one_its_driver_cuts_only_less(
    tmp_path: Path,
) -> None:
    (card,) = rack(16 * GiB, slots=10)
    more, less = (load(tmp_path, f"[cards]\nmax_sharers = {split}") for split in (20, 5))

    assert (20, 5) == (slots(more, card, limited=True), slots(less, card, limited=True))
    assert (10, 5) == (slots(more, card, limited=False), slots(less, card, limited=False))
    cut = evolve(card, enforcement=Enforcement.PARTITION)
    assert 10 == slots(more, cut, limited=True)


def test_a_card_that_is_whole_or_has_a_menu_is_not_split(tmp_path: Path) -> None:
    (whole,) = rack(16 * GiB, granularity=Whole(), slots=1)

    assert 1 == slots(load(tmp_path, "[cards]\nmax_sharers = 5"), whole, limited=True)


def test_cards_may_be_left_out_by_uuid_by_number_and_by_vendor_and_index(tmp_path: Path) -> None:
    settings = load(tmp_path, '[cards]\nexclude = ["memory-0", 2, "memory:3"]')
    offered = settings.offered(rack(GiB, GiB, GiB, GiB, GiB), limiter_vendors=set())

    assert ["memory-1", "memory-4"] == [device.uuid for device in offered if device.usable]


def mixed() -> list[Device]:
    """Return the cards of three vendors, in the order in which views number them."""
    cards = [("one", 0), ("one", 1), ("two", 0), ("two", 1), ("three", 0)]
    (card,) = rack(GiB)
    return [
        evolve(card, vendor=vendor, index=index, uuid=f"{vendor}-{index}")
        for vendor, index in cards
    ]


def test_an_excluded_card_keeps_its_place_so_that_no_other_gets_its_number(tmp_path: Path) -> None:
    cards = mixed()
    offered = load(tmp_path, '[cards]\nexclude = ["one:0"]').offered(cards, limiter_vendors=set())

    assert [card.uuid for card in cards] == [card.uuid for card in offered]
    assert ("excluded by the node's settings", False) == (offered[0].cordon, offered[0].usable)
    assert [None] * 4 == [card.cordon for card in offered[1:]]


def test_a_number_of_a_view_excludes_that_card_whatever_its_driver_calls_it(
    tmp_path: Path,
) -> None:
    offered = load(tmp_path, "[cards]\nexclude = [3]").offered(mixed(), limiter_vendors=set())

    assert ["two-1"] == [card.uuid for card in offered if card.cordon is not None]


@pytest.mark.parametrize(
    ("entry", "choices"),
    [
        ("0", '"one:0", "two:0", "three:0"'),
        ('"1"', '"one:1", "two:1"'),
        ('"two-"', '"two-0", "two-1"'),
    ],
)
def test_an_entry_that_may_be_of_several_cards_is_refused_with_their_names(
    tmp_path: Path, entry: str, choices: str
) -> None:
    for table in (f"[cards]\nexclude = [{entry}]", f'[cards.sharing]\n{entry} = "mps"'):
        with pytest.raises(BadInput, match=f"may be any of {choices}: write which one it is"):
            load(tmp_path, table).offered(mixed(), limiter_vendors=set())


def test_an_entry_that_names_no_card_is_a_sentence_and_excludes_nothing(tmp_path: Path) -> None:
    settings = load(tmp_path, '[cards]\nexclude = ["GPU-gone", "two:7", 4]')
    offered = settings.offered(mixed(), limiter_vendors=set())

    assert ["three-0"] == [card.uuid for card in offered if not card.usable]
    assert (
        "cards.exclude names 'GPU-gone', and no card of this machine is that: "
        "`hetero inventory --wide` lists them",
        "cards.exclude names 'two:7', and no card of this machine is that: "
        "`hetero inventory --wide` lists them",
    ) == settings.unmatched(mixed(), ())


def partitioned(uuid: str, *shapes: str) -> Device:
    """Return a card that is cut into these shapes, or a plain one without any."""
    (card,) = rack(16 * GiB)
    if not shapes:
        return evolve(card, uuid=uuid)
    menu = tuple(Template(name, {CORE: 1, MEMORY: GiB}, part=name) for name in shapes)
    return evolve(card, uuid=uuid, granularity=Templated(menu, whole=False))


@pytest.mark.parametrize(
    ("parts", "usable"),
    [
        ("mixed", {"plain": True, "alike": True, "uneven": True}),
        ("none", {"plain": True, "alike": False, "uneven": False}),
        ("single", {"plain": False, "alike": True, "uneven": False}),
    ],
)
def test_partitioned_cards_are_given_as_the_node_wants(
    tmp_path: Path, parts: str, usable: dict[str, bool]
) -> None:
    cards = [
        partitioned("plain"),
        partitioned("alike", "1g", "1g"),
        partitioned("uneven", "1g", "3g"),
    ]
    offered = load(tmp_path, f'[cards]\npartitioned = "{parts}"').offered(
        cards, limiter_vendors=set()
    )

    assert usable == {device.uuid: device.usable for device in offered}
    counted = {device.uuid for device in offered if getattr(device.granularity, "counted", False)}
    assert counted == ({"alike", "uneven"} if parts == "single" else set())
    excluded = {device.uuid for device in offered if device.excluded}  # another plugin may serve it
    assert excluded == ({"alike", "uneven"} if parts == "none" else set())


def test_single_leaves_cards_alone_that_nobody_partitions(tmp_path: Path) -> None:
    settings = load(tmp_path, '[cards]\npartitioned = "single"')

    assert settings.offered(rack(GiB), limiter_vendors=set())[0].usable


def test_what_is_said_here_goes_before_what_the_cluster_says(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("[cards]\nmax_sharers = 3\n")
    cluster = read_settings({"cards": {"max_sharers": 7}, "scale": {"memory": 1.5}})
    settings = load_settings({"HETERO_CONFIG": str(path)}, cluster)

    assert (3, Decimal("1.5")) == (settings.max_sharers, settings.memory_scale)


def test_the_settings_that_the_documents_show_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/isolation.md").read_text()
    _, _, rest = text.partition("```toml\n# /etc/hetero/node.toml\n[scale]")
    shown, _, _ = rest.partition("```")

    settings = load(tmp_path, f"[scale]{shown}")

    assert (Decimal("1.5"), 20, False) == (
        settings.memory_scale,
        settings.max_sharers,
        settings.context,
    )


def test_cards_that_are_cut_are_shared_softly_where_the_settings_say_so(tmp_path: Path) -> None:
    (cut,) = rack(16 * GiB, vendor="cutting", granularity=Whole(), core=16, slots=4)
    settings = load(tmp_path, '[cards]\nsoft = ["cutting"]')

    (soft,) = settings.offered([cut], limiter_vendors={"cutting"})
    (hard,) = NodeSettings().offered([cut], limiter_vendors={"cutting"})

    assert cut == hard
    assert (Fractional(), Enforcement.PRELOAD) == (soft.granularity, soft.enforcement)
    # Both a percentage and one of the vendor's own 16 units are whole numbers of these.
    assert {CORE: 400, MEMORY: 16 * GiB, SLOTS: 10} == soft.capacity


def test_a_part_of_a_card_is_never_shared_softly(tmp_path: Path) -> None:
    menu = (Template("half", {MEMORY: 8 * GiB, CORE: 50}, part="P-1"),)
    (parts,) = rack(16 * GiB, vendor="cutting", granularity=Templated(menu, whole=False))

    assert (parts,) == NodeSettings(soft=("cutting",)).offered([parts], limiter_vendors=set())
