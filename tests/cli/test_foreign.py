"""What programs without a grant hold is said by every view, and is no room for a request."""

import json
import re
import subprocess
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import next_line

from .conftest import Begin, Run

#: Two cards whose driver names who uses them, two of one that names nobody, and three sick ones.
RACK = """
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
context = 500 MiB
[device]
vendor = nvidia
model = NVIDIA Large
memory = 32 GiB
context = 500 MiB
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 50 GiB
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 3 GiB
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = ecc
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = lost
[device]
vendor = nvidia
model = NVIDIA Small
memory = 16 GiB
health = hot
[kernel spin]
time = 2 us
per_arg0 = 1 ns
"""
#: Numbers in the inventory, which is by vendor.
USED_ASCEND, IDLE_ASCEND, SMALL, LARGE, ECC, LOST, HOT = range(7)
#: And their names.
NAMES = ("ascend:0", "ascend:1", *(f"nvidia:{index}" for index in range(5)))


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    rack = tmp_path / "world.rack"
    rack.write_text(RACK)
    return {**environ, "HETERO_RACK": str(rack), "PYTHONPATH": "", "COLUMNS": "120"}


@pytest.fixture
def foreign(begin: Begin) -> "subprocess.Popen[str]":
    """A program without a grant that holds 12 GiB of the smaller card, and a context."""
    job = str(hetero_simulator.job("cuda"))
    drivers = str(hetero_simulator.fake_drivers())
    program = begin(job, "--seconds", "600", "--memory", "12GiB", LD_LIBRARY_PATH=drivers)
    next_line(program)
    return program


def items(hetero: Run, *words: str) -> list[dict[str, object]]:
    listed = json.loads(hetero(*words, "--json").stdout)["items"]
    assert isinstance(listed, list)
    return listed


def test_second_tour_2_what_others_hold_of_a_card_is_not_free(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    shown = hetero("inventory").stdout
    card = items(hetero, "inventory")[SMALL]

    held = (12 << 30) + (500 << 20)
    assert (16 << 30) - held == card["memory_free"]
    assert 0 == card["memory_held"]
    use = card["foreign"]
    assert isinstance(use, dict)
    assert (held, False) == (use["memory"], use["estimated"])
    (process,) = use["processes"]
    assert (foreign.pid, "hetero-job-cuda") == (process["pid"], process["program"])
    assert process["user"]
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    (row,) = [row for row in rows if row.startswith(f"{NAMES[SMALL]} ")]
    (below,) = [row for row in rows if " no grant " in row and str(foreign.pid) in row]
    assert "3.5 of 16 GiB 0 12.4 GiB 12.4 GiB" in row  # free, given, used, of others
    assert rows.index(row) + 1 == rows.index(below)
    assert f"└ no grant {process['user']} " in below
    assert f"12.4 GiB {foreign.pid} hetero-job-cuda" in below


def test_a_card_with_room_in_fact_is_taken_and_one_without_is_refused_with_who_holds_it(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    uuids = [card["uuid"] for card in items(hetero, "inventory")]
    asked = ("--vendor", "nvidia", "--memory", "10Gi")
    on_card = (*asked, "--device", str(SMALL))

    (free_choice,) = items(hetero, "fit", *asked)
    refused = hetero("fit", *on_card)
    run = hetero("run", *on_card, "--", "true")
    anyway = hetero("run", "--anyway", *on_card, "--", "true")

    assert uuids[LARGE] == free_choice["device"]
    assert (3, 3, 0) == (refused.returncode, run.returncode, anyway.returncode)
    for words in (
        f"{NAMES[SMALL]} (Small) has 3.5 GiB free",
        f"process {foreign.pid} (hetero-job-cuda of ",
        "holds 12.4 GiB without a grant",
        "ask for less, end that, or take it with --anyway",
    ):
        assert words in refused.stderr
        assert words in run.stderr
    assert "holds 12.4 GiB without a grant" in anyway.stderr
    assert 0 == hetero("run", "--device", str(SMALL), "--memory", "3Gi", "--", "true").returncode
    assert [] == items(hetero, "ps")


def test_a_refusal_for_what_others_hold_is_fits_own_document(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    done = hetero("fit", "--device", str(SMALL), "--memory", "10Gi", "--explain", "--json")
    document = json.loads(done.stdout)

    assert (3, "hetero.fit", []) == (done.returncode, document["schema"], document["items"])
    assert f"process {foreign.pid} " in document["refusal"]
    shown = hetero("fit", "--device", str(SMALL), "--memory", "10Gi", "--explain").stdout
    assert f"{NAMES[SMALL]} Small: 3.5 of 16 GiB memory free, 10 GiB asked" in shown


def test_what_a_granted_program_holds_is_not_foreign_and_neither_is_its_context(
    hetero: Run, begin: Begin, command: tuple[str, ...], foreign: "subprocess.Popen[str]"
) -> None:
    job = str(hetero_simulator.job("cuda"))
    limits = ("--vendor", "nvidia", "--device", str(SMALL), "--memory", "2Gi")
    next_line(begin(*command, "run", *limits, "--", job, "--seconds", "600", "--memory", "1GiB"))

    card = items(hetero, "inventory")[SMALL]

    use = card["foreign"]
    assert isinstance(use, dict)
    assert [foreign.pid] == [process["pid"] for process in use["processes"]]
    assert (12 << 30) + (500 << 20) == use["memory"]
    assert (2 << 30) - (500 << 20) == card["memory_free"]


def test_ps_all_top_and_doctor_name_programs_without_a_grant(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    document = json.loads(hetero("ps", "--all", "--json").stdout)
    held = {view["number"]: view for view in document["foreign"]}
    rows = [line.split() for line in hetero("ps", "--all").stdout.splitlines()]
    doctor = " ".join(hetero("doctor").stdout.split())

    assert {SMALL, USED_ASCEND} == held.keys()
    assert [foreign.pid] == [process["pid"] for process in held[SMALL]["processes"]]
    assert [NAMES[SMALL], str(foreign.pid)] in [row[:2] for row in rows]
    assert json.loads(hetero("ps", "--json").stdout)["foreign"] is None
    assert f"process {foreign.pid}" not in hetero("ps").stdout
    assert f"{NAMES[SMALL]}: process {foreign.pid} " in hetero("top", "--once").stdout
    assert f"process {foreign.pid} note hetero-job-cuda of " in doctor


def test_where_the_driver_names_nobody_there_is_an_estimate_that_says_so(hetero: Run) -> None:
    cards = items(hetero, "inventory")
    used, idle = cards[USED_ASCEND], cards[IDLE_ASCEND]
    refused = hetero("fit", "--device", str(USED_ASCEND), "--memory", "30Gi")
    (free_choice,) = items(hetero, "fit", "--vendor", "ascend", "--memory", "30Gi")

    nothing: dict[str, object] = {
        "memory": 0,
        "core": None,
        "estimated": True,
        "processes": [],
        "overuse": 0,
    }
    assert {**nothing, "memory": 50 << 30} == used["foreign"]
    assert 0 == used["memory_free"]  # of the 14 GiB that are left, no template is cut
    # What a driver keeps of an idle card is nobody's.
    assert {**nothing, "estimated": False} == idle["foreign"]
    assert 64 << 30 == idle["memory_free"]
    assert 3 == refused.returncode
    assert "has 14 GiB free: about 50 GiB in use beyond what is granted" in refused.stderr
    assert "by whom is not known" in refused.stderr
    assert idle["uuid"] == free_choice["device"]
    assert "~50 GiB" in hetero("inventory").stdout


def test_less_is_advised_only_where_the_card_has_a_smaller_share_to_give(
    hetero: Run, tmp_path: Path
) -> None:
    """The smallest template of a 910B3 has 16 GiB."""
    rack = tmp_path / "full.rack"
    rack.write_text(RACK.replace("used = 50 GiB", "used = 60 GiB").replace("used = 3 GiB", ""))
    words = ("fit", "--device", str(USED_ASCEND), "--memory")
    least = hetero(*words, "1Gi", HETERO_RACK=str(rack))
    template = hetero("fit", "--device", str(USED_ASCEND), "--memory", "30Gi")

    assert (3, 3) == (least.returncode, template.returncode)
    assert "is not known; end that, or take it with --anyway" in least.stderr
    assert "is not known; ask for less, end that, or" not in least.stderr
    assert "ask for less" not in template.stderr  # of the 14 GiB that are left, no template is cut


def test_a_grant_grows_into_what_others_hold_only_anyway_and_the_note_is_of_now(
    hetero: Run,
    begin: Begin,
    command: tuple[str, ...],
    foreign: "subprocess.Popen[str]",
) -> None:
    ask = ("--device", str(SMALL), "--memory", "2Gi", "--label", "grows")
    next_line(begin(*command, "run", *ask, "--", "sh", "-c", "echo ready; sleep 600"))
    refused = hetero("resize", "grows", "--memory", "10Gi")
    assert 3 == refused.returncode
    assert f"stays as it is: {NAMES[SMALL]}: process {foreign.pid} (" in refused.stderr
    assert "ask for less, end that, or take it with --anyway" in refused.stderr
    assert 0 == hetero("resize", "grows", "--memory", "3Gi").returncode

    grown = hetero("resize", "grows", "--memory", "10Gi", "--anyway")
    same = hetero("resize", "grows", "--core", "50")
    foreign.kill()
    foreign.wait()
    alone = hetero("resize", "grows", "--core", "60")
    assert (0, 0, 0) == (grown.returncode, same.returncode, alone.returncode)
    assert "holds 12.4 GiB without a grant" in grown.stdout
    assert "holds 12.4 GiB without a grant" in same.stdout
    assert "without a grant" not in alone.stdout


def test_sick_cards_stand_first_in_a_word_and_nothing_is_offered_of_them(hetero: Run) -> None:
    inventory = hetero("inventory").stdout.splitlines()
    top = hetero("top", "--once").stdout.splitlines()
    cards = items(hetero, "inventory")

    words = {ECC: "ecc", LOST: "lost", HOT: "hot"}
    titles = [line for line in inventory if "not well: nothing is given" in line]
    first = inventory.index(titles[0]) + 1
    assert inventory[first - 3].split()[0] == "card"
    for number, line in zip(words, inventory[first : first + 6 : 2], strict=True):
        cells = line.split()
        assert [NAMES[number], "Small"] == cells[:2]
        assert (2, words[number]) == (cells.count("–"), cells[-1])  # neither core nor memory
        assert 0 == cards[number]["memory_free"]
    assert [NAMES[number] for number in words] == [line.split()[0] for line in top[2:5]]
    inventory_text = "\n".join(inventory)
    assert (
        f"{NAMES[ECC]}: 1 uncorrected memory errors: reset the card: nothing is given"
        in inventory_text
    )
    assert (
        f"{NAMES[HOT]}: too hot: the hardware slows it down: nothing is given of it"
        in inventory_text
    )


def test_the_json_of_these_views_is_as_the_schema_says(
    hetero: Run, foreign: "subprocess.Popen[str]"
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "json.schema.json").read_text())
    for words in (("inventory",), ("ps", "--all"), ("ps",), ("top", "--once")):
        jsonschema.validate(json.loads(hetero(*words, "--json").stdout), schema)


#: 4194303 is no PID of this machine, as another PID namespace's are not.
OTHERS = """
[device]
vendor = amd
model = Instinct MI300X
memory = 64 GiB
used = 41 GiB
processes = 4194303:40960
[device]
vendor = ascend
model = 910B3
memory = 64 GiB
used = 43 GiB
processes = 4194302:1024 4194303:39936
[device]
vendor = cambricon
model = MLU370-X8
memory = 24 GiB
used = 20 GiB
processes = 4194303:20000
[device]
vendor = mthreads
model = MTT S4000
memory = 48 GiB
used = 30 GiB
busy = 40
"""


def test_a_process_is_named_where_the_driver_names_it_although_nobody_can_look_into_it(
    hetero: Run, tmp_path: Path
) -> None:
    (tmp_path / "others.rack").write_text(OTHERS)
    rack = str(tmp_path / "others.rack")

    amd = hetero("fit", "--vendor", "amd", "--memory", "30Gi", HETERO_RACK=rack)
    ascend = hetero("fit", "--vendor", "ascend", "--memory", "30Gi", HETERO_RACK=rack)
    cambricon = hetero("fit", "--vendor", "cambricon", "--memory", "8Gi", HETERO_RACK=rack)
    mthreads = hetero("fit", "--vendor", "mthreads", "--memory", "32Gi", HETERO_RACK=rack)

    refused = (amd, ascend, cambricon, mthreads)
    assert [3, 3, 3, 3] == [done.returncode for done in refused]
    assert "has 24 GiB free: process 4194303 holds 40 GiB without a grant" in amd.stderr
    assert "has 24 GiB free: process 4194303 and 1 more hold 40 GiB without" in ascend.stderr
    assert "process 4194303 holds 19.5 GiB without a grant" in cambricon.stderr
    assert "has 18 GiB free: about 30 GiB in use beyond what is granted" in mthreads.stderr
    assert "and uses 40 % of the time, by whom is not known" in mthreads.stderr


def test_second_tour_11_what_a_grant_without_a_limiter_takes_is_what_the_driver_counts(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    job = (str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", "3GiB")
    flags = ("--vendor", "nvidia", "--device", str(SMALL), "--memory", "2Gi", "--policy", "off")
    next_line(begin(*command, "run", *flags, "--", *job))

    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [(3 << 30) + (500 << 20)] == [share["memory_used"] for share in grant["shares"]]
    for words in (("ps",), ("inventory",), ("top", "--once")):
        assert "3.4/2 GiB" in hetero(*words).stdout
    card = json.loads(hetero("inventory", "--json").stdout)["items"][SMALL]
    beyond = (1 << 30) + (500 << 20)
    assert (0, beyond) == (card["foreign"]["memory"], card["foreign"]["overuse"])
    assert (14 << 30) - beyond == card["memory_free"]
    on_card = ("fit", "--vendor", "nvidia", "--device", str(SMALL), "--memory")
    refused = hetero(*on_card, "13Gi")
    assert (0, 3) == (hetero(*on_card, "12Gi").returncode, refused.returncode)
    assert "grants without a limiter hold 1.4 GiB beyond their size" in refused.stderr
    assert "hold 1.4 GiB beyond their size" in hetero("doctor").stdout


def test_a_grant_does_not_grow_into_what_another_holds_beyond_its_size(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    on_card = ("--device", str(SMALL), "--memory", "2Gi")
    job = (str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", "9GiB")
    next_line(begin(*command, "run", *on_card, "--policy", "off", "--", *job))
    held = (*on_card, "--label", "grows", "--", "sh", "-c", "echo ready; sleep 600")
    next_line(begin(*command, "run", *held))
    refused = hetero("resize", "grows", "--memory", "10Gi")

    assert (3, 0) == (refused.returncode, hetero("resize", "grows", "--memory", "5Gi").returncode)
    assert "grants without a limiter hold 7.4 GiB beyond their size; ask for" in refused.stderr


#: A driver that lists no process: a full card, one that others keep busy, and a free one.
UNLISTED = """
[device]
vendor = amd
model = AMD Instinct MI210
memory = 64 GiB
used = 60 GiB
[device]
vendor = amd
model = AMD Instinct MI210
memory = 64 GiB
used = 2 GiB
busy = 90
[device]
vendor = amd
model = AMD Instinct MI300X
memory = 192 GiB
"""


def test_a_full_card_whose_driver_lists_no_process_is_not_free(hetero: Run, tmp_path: Path) -> None:
    (tmp_path / "unlisted.rack").write_text(UNLISTED)
    rack = str(tmp_path / "unlisted.rack")
    listed = json.loads(hetero("inventory", "--json", HETERO_RACK=rack).stdout)["items"]
    refused = hetero("fit", "--device", "0", "--memory", "30Gi", HETERO_RACK=rack)

    assert [4 << 30, 64 << 30, 192 << 30] == [card["memory_free"] for card in listed]
    assert 3 == refused.returncode
    assert "has 4 GiB free: about 60 GiB in use beyond what is granted" in refused.stderr


def test_a_refusal_of_a_card_that_was_named_speaks_of_no_other(hetero: Run, tmp_path: Path) -> None:
    (tmp_path / "full.rack").write_text(UNLISTED.replace("used = 2 GiB", "used = 50 GiB"))
    words = ("fit", "--device", "1", "--memory", "30Gi")
    refused = hetero(*words, HETERO_RACK=str(tmp_path / "full.rack"))
    explained = hetero(*words, "--explain", HETERO_RACK=str(tmp_path / "full.rack"))

    assert (3, 3) == (refused.returncode, explained.returncode)
    assert "hetero: amd:1 (Instinct MI210) has 14 GiB free: about 50 GiB" in refused.stderr
    assert "amd:0" not in refused.stderr
    assert "amd:0 Instinct MI210: not chosen\n" in explained.stdout


def test_among_cards_with_room_that_which_others_keep_less_busy_is_taken(
    hetero: Run, tmp_path: Path
) -> None:
    """Packing alone would take the small cards."""
    (tmp_path / "unlisted.rack").write_text(UNLISTED)
    (tmp_path / "busy.rack").write_text(UNLISTED + "busy = 50\n")
    (tmp_path / "alike.rack").write_text(UNLISTED + "busy = 95\n")
    held = UNLISTED.replace("used = 2 GiB", "used = 20 GiB")
    (tmp_path / "held.rack").write_text(held + "used = 20 GiB\nbusy = 50\n")

    def card_of(rack: str) -> object:
        words = ("fit", "--memory", "30Gi", "--json")
        done = hetero(*words, HETERO_RACK=str(tmp_path / rack))
        (piece,) = json.loads(done.stdout)["items"]
        cards = json.loads(hetero("inventory", "--json", HETERO_RACK=str(tmp_path / rack)).stdout)[
            "items"
        ]
        return next(card["number"] for card in cards if card["uuid"] == piece["device"])

    racks = ("unlisted.rack", "busy.rack", "held.rack", "alike.rack")
    assert [2, 2, 2, 1] == [card_of(rack) for rack in racks]


#: An H200 as its driver shows it: of 143,771 MiB it keeps 590 for itself.
H200 = """
[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
reserved = 590 MiB
compute = 9.0
context = 518 MiB
"""
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "users.md"


def same_in_every_run(text: str) -> list[str]:
    """Return the words of a transcript but for users, PIDs and how busy the card is."""
    words = re.sub(r"\b(process )?\d+(?= \(| note| hetero-job)|\d+ %", "", " ".join(text.split()))
    return re.sub(r"\broot\b|\b\w+(?= holds)", "", words).split()


def test_the_guide_shows_what_is_said_of_a_card_of_which_another_program_holds_60_gib(
    hetero: Run, begin: Begin, tmp_path: Path
) -> None:
    transcript = GUIDE.read_text().partition("Every line below comes from a simulated card")[2]
    shown = transcript.split("```console\n")[1].split("```")[0]
    (tmp_path / "h200.rack").write_text(H200)
    in_rack = {"HETERO_RACK": str(tmp_path / "h200.rack"), "COLUMNS": "110"}
    drivers = {"LD_LIBRARY_PATH": str(hetero_simulator.fake_drivers())}
    job = (str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", "61532MiB")
    next_line(begin(*job, **in_rack, **drivers))

    for part in shown.split("$ hetero ")[1:]:
        words, _, expected = part.partition("\n")
        done = hetero(*words.split(), **in_rack)
        printed = done.stdout + done.stderr
        for section in expected.split("[...]\n"):
            assert " ".join(same_in_every_run(section)) in " ".join(same_in_every_run(printed))
