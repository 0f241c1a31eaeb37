"""The picture of a machine's cards, as `hetero inventory` draws it in a terminal and in a pipe."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from attrs import evolve

from hetero.cli import _fleet, _json, _top_tables, inventory
from hetero.cli._draw import draw
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Device,
    DeviceAllocation,
    Enforcement,
    Link,
    Policy,
    Priority,
    Template,
    Templated,
    Usage,
)
from hetero.model.units import GiB, rounded_memory
from hetero.node.foreign import ForeignProcess, ForeignUse
from hetero.node.view.chosen import Choice
from hetero.node.view.observe import DeviceView, GrantView, NodeView, Share
from hetero.node.view.templates import template_views
from hetero.node.view.totals import totals
from hetero.testing import rack
from tests.cli.conftest import Run
from tests.cli.streams import Stream, console

WIDTHS = (60, 80, 100, 120, 160, 200)
SINCE = "2026-01-01T00:00:00+00:00"


def card(number: int, device: Device, **facts: Any) -> DeviceView:
    """Return a view of a card of which nothing is held, unless `facts` say otherwise."""
    usage = Usage(memory=0, core=0.0, temperature=35, power=80.0, power_limit=700.0)
    plain = {"held": dict.fromkeys(device.capacity, 0), "usage": usage, "grants": ()}
    return DeviceView(device_number=number, device=device, **{**plain, **facts})


def eight(**facts: Any) -> tuple[Device, ...]:
    return rack(*[140 * GiB] * 8, model="H1", enforcement=Enforcement.PRELOAD, **facts)


def grant(name: str, *numbers: int, core: float | None = 50, memory: int = 40 * GiB) -> GrantView:
    shares = tuple(
        Share(
            device=f"memory-{number}",
            card=f"memory:{number}",
            device_number=number,
            memory_bytes=memory,
            core_percent=core,
            memory_used_bytes=GiB,
        )
        for number in numbers
    )
    return GrantView(
        id=f"{name:0>8}"[:8],
        label=name,
        user="alice",
        command=("python", "train.py"),
        since_utc=SINCE,
        policy=Policy.FIXED,
        priority=Priority.LOW,
        processes=(4242,),
        shares=shares,
    )


def view(devices: Sequence[DeviceView], grants: Sequence[GrantView] = ()) -> NodeView:
    return NodeView(
        devices=tuple(devices),
        grants=tuple(grants),
        unreadable=(),
        vendors=(),
        rack_file=None,
        host="box",
    )


def drawn(
    shown: NodeView, columns: int | None = 100, *, live: bool = True, wide: bool = False
) -> list[str]:
    """Return the lines that a terminal of so many columns gets, or a pipe."""
    stream = Stream(live=live)
    size = {"COLUMNS": str(columns)} if columns else {}
    part = inventory.render(shown, wide=wide, folded=live)
    draw(part, console(stream, TERM="xterm", NO_COLOR="1", **size), wide=wide)
    return stream.getvalue().splitlines()


def busy_card(number: int = 0) -> DeviceView:
    """Return a card of 140 GiB with 70 % and 70 GiB granted, of which 50 % and 42 GiB are used.

    A program without a grant holds 28 GiB.
    """
    process = ForeignProcess(pid=77, memory=28 * GiB, user="carl", program="bare.py")
    return card(
        number,
        eight()[number],
        held={CORE: 70, MEMORY: 70 * GiB, SLOTS: 2},
        usage=Usage(memory=70 * GiB, core=0.5, temperature=61, power=412.0, power_limit=700.0),
        grants=("00trainer",),
        foreign=ForeignUse(memory=28 * GiB, processes=(process,)),
    )


def test_bars_tell_apart_what_is_used_granted_held_by_others_and_free() -> None:
    lines = drawn(view([busy_card()], [grant("trainer", 0)]), 200)
    (row,) = [line for line in lines if line.startswith("memory:0 ")]

    assert ["█████▓▓···", "███▓▓▒▒···"] == re.findall("[█▓▒·]{10}", row)
    assert "42 of 140 GiB  70 GiB  70 GiB  28 GiB" in row  # free, given, used, of others
    assert "61 °C  412/700 W" in row
    assert "█ granted and in use   ▓ granted   ▒ in use without a grant   · free" in lines


def test_grants_and_programs_without_one_hang_below_their_card() -> None:
    devices = [busy_card(), *(card(number, eight()[number]) for number in range(1, 3))]
    lines = drawn(view(devices, [grant("trainer", 0), grant("pair", 1, 2)]), 120)
    names = [line.split()[:2] for line in lines if line.strip()]

    first = names.index(["memory:0", "H1"])
    assert [
        ["memory:0", "H1"],
        ["├", "0trainer"],
        ["└", "no"],
        ["memory:1", "H1"],
        ["└", "0000pair"],
        ["memory:2", "H1"],
        ["└", "0000pair"],
    ] == names[first : first + 7]
    (foreign,) = [line for line in lines if "no grant" in line]
    assert re.search(r"carl +28 GiB +77 +bare\.py", foreign)


def test_a_pipe_gets_a_line_for_each_card_and_no_bar() -> None:
    lines = drawn(view([card(number, each) for number, each in enumerate(eight())]), live=False)

    assert [f"memory:{number}" for number in range(8)] == [
        line.split()[0] for line in lines if line.startswith("memory:")
    ]
    assert not re.search("[█▓▒·]", "\n".join(lines))
    assert "\x1b" not in "\n".join(lines)


def test_idle_cards_that_are_alike_are_one_line_with_their_numbers() -> None:
    cards = [card(number, each) for number, each in enumerate(eight())]
    cards[0] = busy_card()
    cards[2] = evolve(cards[2], usage=evolve(cards[2].usage, core=0.4))
    cards[4] = evolve(cards[4], usage=evolve(cards[4].usage, temperature=39))
    lines = drawn(view(cards, [grant("trainer", 0)]))

    assert "5 idle: memory:1 3–6" not in lines
    (idle,) = [line for line in lines if "idle" in line]
    assert idle.startswith(
        "6 idle: memory:1 3–7   H1   1 %, 1 MiB   140 of 140 GiB each   35–39 °C   "
    )
    rows = [line.split()[0] for line in lines if line.startswith("memory:")]
    assert ["memory:0", "memory:2"] == rows
    assert 8 == sum(line.startswith("memory:") for line in drawn(view(cards), wide=True))


def test_cards_that_differ_or_are_cordoned_or_two_are_not_folded() -> None:
    cards = [card(number, each) for number, each in enumerate(eight()[:4])]
    cards[3] = evolve(cards[3], device=evolve(cards[3].device, cordon="loud fan"))

    assert ["3 idle: memory:0–2"] == [line[:18] for line in drawn(view(cards)) if "idle" in line]
    assert not [line for line in drawn(view(cards[1:])) if "idle" in line]


def test_second_tour_3_and_4_sick_cards_come_first_in_a_word_with_their_sentence_below() -> None:
    sentence = "nvmlDeviceGetMigMode: error 15 (GPU is lost)"
    devices = [card(number, each) for number, each in enumerate(eight())]
    devices[5] = evolve(devices[5], device=evolve(devices[5].device, health=sentence))
    for columns in WIDTHS:
        lines = drawn(view(devices), columns)
        at = lines.index("not well: nothing is given of these")
        assert lines[at + 1].startswith("memory:5 ")
        assert " lost" in lines[at + 1]
        below = " ".join(" ".join(lines[at + 2 : at + 4]).split())
        assert f"memory:5: {sentence}: nothing is given of it" in below
        assert "1 not well" in " ".join(" ".join(lines[:3]).split())
        assert ["7 idle: memory:0–4 6 7"] == [line[:22] for line in lines if "idle" in line]


def test_blocks_are_by_numa_node_and_driver() -> None:
    driver = {"driver": "580.1"}
    near = rack(GiB, GiB, model="A", vendor="one", numa=1, attributes=driver)
    far = rack(GiB, model="B", vendor="two", numa=0)
    devices = [card(number, each) for number, each in enumerate((*near, *far))]
    lines = drawn(view(devices))

    blocks = [line for line in lines if line.startswith("NUMA")]
    assert ["NUMA 0  two", "NUMA 1  one 580.1"] == blocks
    assert lines[lines.index(blocks[0]) + 1].startswith("two:0 ")
    assert lines[lines.index(blocks[1]) + 1].startswith("one:0 ")


def mig_card(*grants: tuple[str, str]) -> DeviceView:
    takes = {CORE: 1, MEMORY: 16 * GiB}
    menu = [Template(name="1g.18gb", takes={**takes, f"p{n}": 1}, part=f"p{n}") for n in range(3)]
    menu.append(Template(name="2g.35gb", takes={CORE: 2, MEMORY: 32 * GiB, "q": 1}, part="q"))
    device = Device(
        uuid="memory-0",
        vendor="memory",
        model="H1",
        index=0,
        capacity={CORE: 7, MEMORY: 140 * GiB, SLOTS: 4, "p0": 1, "p1": 1, "p2": 1, "q": 1},
        granularity=Templated(tuple(menu), whole=False),
        enforcement=Enforcement.PARTITION,
        health="ok",
    )
    pieces = [
        (holder, DeviceAllocation(device="memory-0", vendor="memory", takes={}, part=part))
        for holder, part in grants
    ]
    held = dict.fromkeys(device.capacity, 0) | {SLOTS: len(grants)}
    for template in menu:
        for counter, amount in template.takes.items():
            held[counter] += amount * (template.part in dict(grants).values())
    made = card(0, device, held=held, grants=tuple(holder for holder, _ in grants))
    return evolve(made, templates=template_views(device, made.free, pieces))


def test_which_partition_of_a_card_is_taken_is_shown() -> None:
    shown = view([mig_card(("00migjob", "p1"))], [grant("migjob", 0)])
    lines = drawn(shown, 120)

    assert (
        "   partitions: 1g.18gb [free]  1g.18gb [migjob]  1g.18gb [free]  2g.35gb [free]" in lines
    )
    free = {each.part: each.free for each in shown.devices[0].templates}
    assert {"p0": 1, "p1": 0, "p2": 1, "q": 1} == free


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"cordon": ""}, "cordoned"),
        ({"cordon": "loud fan"}, "cordoned"),
        ({"health": "2 uncorrected ECC errors"}, "ecc"),
        ({"health": "2 uncorrected ECC errors", "cordon": "loud fan"}, "ecc"),
    ],
)
def test_no_partition_of_a_card_of_which_nothing_is_given_is_called_free(
    facts: dict[str, Any], word: str
) -> None:
    mixed = mig_card(("00migjob", "p1"))
    shown = evolve(mixed, device=evolve(mixed.device, **facts))
    lines = drawn(view([shown], [grant("migjob", 0)]), 120)

    assert (
        f"   partitions: 1g.18gb [{word}]  1g.18gb [migjob]  1g.18gb [{word}]  2g.35gb [{word}]"
        in lines
    )


def test_free_of_a_partitioned_card_is_what_its_free_instances_have() -> None:
    """Of 140 GiB 80 are in instances, of which one with 16 is taken."""
    shown = view([mig_card(("00migjob", "p1"))], [grant("migjob", 0)])
    (sums,) = totals(shown.devices)
    document = _json.node(shown)
    lines = " ".join(" ".join(drawn(shown, 120)).split())

    assert (64 * GiB, 4) == tuple(shown.devices[0].free[counter] for counter in (MEMORY, CORE))
    assert (64 * GiB, 0) == (sums.memory_free_bytes, sums.whole_count)
    assert 400 / 7 == pytest.approx(sums.core_free_percent)
    assert 64 * GiB == document["items"][0]["memory_free"]
    assert 64 * GiB == document["totals"][0]["memory_free"]
    assert "free 57 of 100 % core, 64 of 140 GiB" in lines


def test_second_tour_9_percentages_have_one_decimal_at_most() -> None:
    lines = drawn(view([mig_card(("00migjob", "q"))]), 200)

    assert "28.6 %" in "\n".join(lines)
    assert not re.search(r"\d\.\d\d+ %", "\n".join(lines))


@pytest.mark.parametrize("columns", WIDTHS)
def test_64_cards_fit_whatever_the_width_and_no_number_is_cut(columns: int) -> None:
    devices = rack(*[143771 << 20] * 64, model="H200", enforcement=Enforcement.PRELOAD)
    links = [
        tuple(Link(peer.uuid, "NV18", 18) for peer in devices if peer != each) for each in devices
    ]
    cards = [
        card(
            number,
            evolve(each, numa=number // 32, links=links[number]),
            held={CORE: 30, MEMORY: 40 * GiB, SLOTS: 1}
            if number % 3
            else dict.fromkeys(each.capacity, 0),
        )
        for number, each in enumerate(devices)
    ]
    lines = drawn(view(cards), columns)

    assert max(map(len, lines)) <= columns
    assert len(lines) <= 64
    rows = [line for line in lines if re.match(r"memory:\d+ +H200 ", line)]
    assert 42 == len(rows)
    assert all("100.4 of 140.4 GiB" in row and " 30 %" in row for row in rows)
    idle = [line for line in lines if " idle: " in line]
    assert 2 == len(idle)
    if columns >= 200:
        assert all(re.search(r"NV18 [\d–]+", row) for row in rows)


def test_at_60_columns_number_model_core_memory_and_health_stay() -> None:
    heads = [
        re.split("  +", next(line for line in drawn(view([shown]), 60) if line.startswith("card")))
        for shown in (card(0, eight(numa=0)[0]), busy_card())
    ]

    first, rest = ["card", "model", "core given"], ["memory free", "others", "health"]
    assert [[*first, "busy", "memory free", "health"], [*first, *rest]] == heads


def test_sums_by_model_stand_where_there_are_several() -> None:
    first_rack = rack(140 * GiB, 140 * GiB, model="A", vendor="one")
    two = rack(64 * GiB, model="B", vendor="two", health="lost")
    devices = [card(number, each) for number, each in enumerate((*first_rack, *two))]
    devices[0] = evolve(devices[0], held={CORE: 30, MEMORY: 40 * GiB, SLOTS: 1})
    lines = [" ".join(line.split()) for line in drawn(view(devices), 120)]

    assert (
        "box: 3 cards of 2 vendors 1 not well free 170 of 300 % core, 240 of 344 GiB 0 grants"
        in lines
    )
    assert "one A 2 1 170 of 200 % 240 of 280 GiB 40 GiB 0" in lines
    assert "two B 1 0 1 0 of 100 % 0 of 64 GiB 0 0" in lines
    assert not [line for line in drawn(view(devices[:2])) if line.startswith("vendor ")]


def test_a_locale_without_our_signs_gets_bars_of_ascii() -> None:
    stream = Stream("ascii", live=True)
    part = inventory.render(view([busy_card()], [grant("trainer", 0)]), folded=True)
    draw(part, console(stream, TERM="xterm", NO_COLOR="1", COLUMNS="120"))

    assert stream.getvalue().isascii()
    assert "#####==..." in stream.getvalue()


@pytest.mark.parametrize(
    ("choice", "numbers"),
    [
        (Choice(), [0, 1, 2]),
        (Choice(vendor="ONE"), [0, 1]),
        (Choice(model="b"), [2]),
        (Choice(device="1"), [1]),
        (Choice(device="one-0"), [0]),
        (Choice(numa=1), [1]),
        (Choice(health="sick"), [2]),
        (Choice(health="lost"), [2]),
        (Choice(health="ok"), [0, 1]),
        (Choice(health="cordoned"), [1]),
        (Choice(vendor="one", health="hot"), []),
    ],
    ids=str,
)
def test_cards_are_chosen_by_vendor_model_name_numa_and_health(
    choice: Choice, numbers: list[int]
) -> None:
    first, second = rack(GiB, GiB, model="A", vendor="one", numa=0)
    (third,) = rack(GiB, model="B", vendor="two", health="fell off the bus")
    devices = (first, evolve(second, numa=1, cordon="fan"), third)
    whole = view([card(number, each) for number, each in enumerate(devices)], [grant("a", 1)])
    chosen = choice.of_node(whole)

    assert numbers == [row.device_number for row in chosen.devices]
    assert (1 in numbers) == bool(chosen.grants)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--vendor", "tseting"),
            "no vendor 'tseting' here (here: testing): did you mean testing?",
        ),
        (("--model", "H100"), "no model 'H100' here (here: T1000)"),
        (("--device", "77"), "no card '77' here (here: 0, 1, 2, 3, 4)"),
        (("--numa", "3"), "no NUMA node '3' here"),
    ],
    ids=str,
)
def test_second_tour_15_a_card_that_is_not_there_is_an_error(
    hetero: Run, words: tuple[str, ...], sentence: str
) -> None:
    done = hetero("inventory", *words)

    assert (4, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert sentence in done.stderr


def test_second_tour_30_without_a_card_it_is_said_how_to_try(
    hetero: Run, environ: dict[str, str], tmp_path: Path
) -> None:
    """And only where that works."""
    hint = "no devices: without a card, try `export HETERO_RACK=mixed`"
    (tmp_path / "simulator").mkdir()
    blocked = tmp_path / "simulator" / "sitecustomize.py"
    blocked.write_text(
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'hetero_simulator' else find(n, *a)\n"
    )

    assert hint in hetero("inventory", PYTHONPATH="").stdout
    without = hetero("inventory", PYTHONPATH=str(blocked.parent)).stdout
    assert "no devices" in without
    assert hint not in without


def test_second_tour_30_a_share_of_a_cluster_has_one_unit_in_all_views() -> None:
    assert "3.9 GiB" == rounded_memory(4000 << 20)
    saved = Path(__file__).parents[1] / "kube" / "clusters" / "saved.json"
    fleet = _fleet.read_fleet(saved, None, Choice(), full=False)
    assert fleet.view
    stream = Stream()
    draw([_fleet.render_fleet(fleet), _top_tables.render_cluster(fleet.view)], console(stream))
    rows = [line for line in stream.getvalue().splitlines() if "stands0" in line]

    assert 2 == len(rows)
    assert all("3.9 GiB" in row for row in rows)


def test_the_json_says_what_the_picture_shows(hetero: Run) -> None:
    document = json.loads(hetero("inventory", "--device", "1", "--json").stdout)

    (device,) = document["items"]
    assert (1, "T-1", False) == (device["number"], device["uuid"], device["idle"])
    assert {"templates", "power_limit", "foreign"} <= device.keys()
    assert document["host"]
    (total,) = document["totals"]
    assert ("testing", "T1000", 1, 16 << 30) == tuple(
        total[key] for key in ("vendor", "model", "devices", "memory_free")
    )


def test_a_choice_of_no_card_says_so_and_nothing_of_drivers(hetero: Run) -> None:
    done = hetero("inventory", "--health", "xid")
    apart = hetero("inventory", "--numa", "9")

    assert 0 == done.returncode
    assert re.search(r"no card is what was asked for \(\d+ cards? here\)", done.stdout)
    assert "absent" not in done.stdout
    assert 4 == apart.returncode
    assert "None" not in apart.stderr


@pytest.mark.parametrize("rack_name", ["seven", "amd"])
def test_cards_of_each_vendor_stand_under_the_version_of_their_driver(
    hetero: Run, rack_name: str
) -> None:
    items = json.loads(hetero("inventory", "--json", HETERO_RACK=rack_name).stdout)["items"]
    text = hetero("inventory", HETERO_RACK=rack_name).stdout
    own_items = [item for item in items if item["vendor"] != "testing"]
    drivers = {(item["vendor"], item["attributes"]["driver"]) for item in own_items}

    assert {"seven": 7, "amd": 1}[rack_name] == len(drivers)
    for vendor, version in drivers:
        assert re.search(rf"^(NUMA \d  )?{vendor} {re.escape(version)}$", text, re.MULTILINE)
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?", version)


@pytest.mark.parametrize("vendor", hetero_simulator.VENDORS)
def test_the_numa_node_of_a_card_of_a_rack_is_seen(
    hetero: Run, tmp_path: Path, vendor: str
) -> None:
    """Also where the driver leaves it to the kernel, and where the rack says no PCI address."""
    models = {"ascend": "910B3", "cambricon": "MLU370-X8", "hygon": "K100_AI"}
    model = models.get(vendor, "Card")
    card = f"[device]\nvendor = {vendor}\nmodel = {model}\nmemory = 24 GiB\n"
    path = tmp_path / "numa.rack"
    path.write_text(f"{card}numa = 3\n{card}{card}numa = 1\npci = 0000:C1:1f.1\n")

    items = json.loads(hetero("inventory", "--json", HETERO_RACK=str(path)).stdout)["items"]

    assert [3, None, 1] == [item["numa"] for item in items if item["vendor"] == vendor]


@pytest.mark.parametrize(
    "words",
    [
        *(("inventory", f"--{name}") for name in ("vendor", "model", "device", "numa", "health")),
        *((command, f"--{name}") for command in ("ps", "top") for name in ("device", "user")),
        ("log", "--device"),
    ],
)
def test_a_filter_that_is_given_twice_is_refused_and_not_half_obeyed(
    hetero: Run, words: tuple[str, str]
) -> None:
    command, option = words
    values = {"--numa": ("0", "1"), "--health": ("ok", "sick")}.get(option, ("a", "b"))
    done = hetero(command, option, values[0], option, values[1])

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"{option} is given 2 times ({', '.join(values)}): give it once" in done.stderr


def test_top_says_by_which_filters_its_cards_and_grants_were_chosen(hetero: Run) -> None:
    (first, *_) = hetero("top", "--once", "--device", "testing:1").stdout.splitlines()
    (unfiltered, *_) = hetero("top", "--once").stdout.splitlines()

    assert "only --device testing:1" == first
    assert "only" not in unfiltered
