"""`hetero describe` and `hetero topo`: one card, and how cards are connected."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from rich import cells

from hetero.cli import topo
from hetero.cli._draw import layout
from hetero.model import Link
from hetero.model.units import GiB
from hetero.node.view.topology import connections
from hetero.testing import rack
from tests.cli.conftest import Begin, Run
from tests.cli.streams import Stream, console
from tests.cli.test_inventory import card, view
from tests.programs import next_line

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "json.schema.json").read_text())
MACHINE = """
[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
mig = 2g.35gb x1, 1g.18gb x3
numa = 0
pci = 0000:18:00.0
links = 1:NV18
power = 412
power_limit = 700
temperature = 61
[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
numa = 0
pci = 0000:19:00.0
[device]
vendor = nvidia
model = NVIDIA L4
memory = 23034 MiB
numa = 1
links = 0:SYS
[device]
vendor = nvidia
model = NVIDIA L4
memory = 23034 MiB
numa = 1
health = ecc
"""


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "three.rack").write_text(MACHINE)
    (tmp_path / "node.toml").write_text("[heterod]\non_bypass = 'kill'\n")
    return {
        **environ,
        "HETERO_RACK": str(tmp_path / "three.rack"),
        "HETERO_CONFIG": str(tmp_path / "node.toml"),
        "PYTHONPATH": "",
    }


def words_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_card_is_described_with_all_that_is_known_of_it(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    program = ("sh", "-c", "echo ready; exec sleep 600")
    asked = ("run", "--device", "0", "--memory", "17Gi", "--label", "migjob", "--", *program)
    assert "ready\n" == next_line(begin(*command, *asked))
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]

    lines = words_of(hetero("describe", "nvidia:0").stdout)
    for fact in (
        "nvidia:0 H200",
        "health ok",
        "NUMA node 0",
        "PCI 0000:18:00.0",
        "driver 580.159.04",
        "granularity 1g.18gb +1",
        "kept by partition",
        "slots 1 of 4",
        "temperature 61 °C",
        "power 412 W of 700 W",
        "link NV18 to nvidia:1",
        "link SYS to nvidia:2",
        "heterod.on_bypass kill",
    ):
        assert fact in lines
    assert any(re.fullmatch(r"core ▓+·+ 28.6 % \(2/7\) granted, . busy", line) for line in lines)
    (taken,) = [line for line in lines if line.startswith("2g.35gb 28.6 %")]
    assert re.fullmatch(r"2g.35gb 28.6 % 32.5 GiB 0 migjob MIG-\S+", taken)
    assert 3 == sum(bool(re.match(r"1g.18gb 14.3 % 16.7 GiB 1 MIG-", line)) for line in lines)
    assert any(line.startswith(f"nvidia:0 {grant['id']} migjob ") for line in lines)


def test_a_card_of_which_nothing_is_given_says_why(hetero: Run) -> None:
    lines = words_of(hetero("describe", "3").stdout)

    assert "health 1 uncorrected memory errors: reset the card" in lines
    memory = "0 of 22.4 GiB free, 0 MiB granted, 0 MiB used, 518 MiB for each context as declared"
    assert any(line.endswith(f"{memory}, not measured") for line in lines)


@pytest.mark.parametrize("words", [("describe", "0"), ("topo",)], ids=" ".join)
def test_the_documents_are_as_the_schema_says(hetero: Run, words: tuple[str, ...]) -> None:
    document = json.loads(hetero(*words, "--json").stdout)

    jsonschema.validate(document, SCHEMA)
    first = document["items"][0]
    connected = document.get("connections") or first["connections"]
    assert {1: "NV18", 2: "SYS", 3: "sys"} == {each["number"]: each["kind"] for each in connected}


def test_a_card_that_is_not_there_is_one_line(hetero: Run) -> None:
    done = hetero("describe", "77")

    assert (4, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert "no card '77' here" in done.stderr


def test_topo_shows_every_pair_and_explains_its_words(hetero: Run) -> None:
    lines = words_of(hetero("topo").stdout)

    assert "card model 0 1 2 3 NUMA" in lines
    assert "nvidia:0 H200 X NV18 SYS sys 0" in lines
    assert "nvidia:1 H200 NV18 X SYS sys 0" in lines
    assert "nvidia:2 L4 SYS SYS X node 1" in lines
    assert "SYS over the link between NUMA nodes" in lines
    assert "sys no link is known: on other NUMA nodes" in lines
    assert "NV18 links of the vendor's own" in lines


def test_what_no_driver_says_of_two_cards_is_told_by_numa_or_not_at_all() -> None:
    first, second = rack(GiB, GiB, numa=0, links=(Link("memory-1", "PIX", 5),))
    (third,) = rack(GiB, vendor="other", numa=1)
    (fourth,) = rack(GiB, vendor="unplaced")
    rows = [card(number, each) for number, each in enumerate((first, second, third, fourth))]

    kinds = [[each.kind for each in connections(row, rows)] for row in rows]
    assert ["PIX", "sys", None] == kinds[0]
    assert ["node", "sys", None] == kinds[1]
    assert ["sys", "sys", None] == kinds[2]
    assert [None] * 3 == kinds[3]


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_matrix_that_is_too_wide_goes_on_below(columns: int) -> None:
    devices = rack(*[GiB] * 64, model="H200", numa=0)
    rows = [card(number, each) for number, each in enumerate(devices)]
    parts = topo.render(view(rows), columns=columns)

    assert isinstance(parts, list)
    matrices = [part for part in parts if hasattr(part, "columns")]
    shown = [name for part in matrices for name in part.columns if name.isdecimal()]
    assert list(map(str, range(64))) == shown
    assert all(64 == len(part.rows) for part in matrices)
    drawn_lines = layout(parts, console(Stream(live=True), TERM="xterm", COLUMNS=str(columns)))
    lengths = [sum(cells.cell_len(piece.text) for piece in line) for line in drawn_lines]
    assert columns >= max(lengths)
