"""What a card of each vendor gives for a request is what the commands say, in percent."""

import json
import re
import shutil
from pathlib import Path

import hetero_simulator

from tests.cli.conftest import Begin, Run
from tests.programs import next_line

SEVEN = {"HETERO_RACK": "seven", "PYTHONPATH": ""}


def test_second_tour_8_and_newcomer_a2_a_partition_shows_its_core_wherever_it_is_shown(
    hetero: Run, command: tuple[str, ...], tmp_path: Path
) -> None:
    """6 GiB of a 910B3 come with 5 of its 20 AI cores."""
    rack = {**SEVEN, "HETERO_RACK": shutil.copy(hetero_simulator.rack("seven"), tmp_path)}
    asked = ("run", "--vendor", "ascend", "--memory", "6Gi", "--", *command)
    ran = hetero(*asked, "ps", "--json", **rack)
    (grant,) = json.loads(ran.stdout)["items"]
    shown = hetero(*asked, "inventory", "--wide", **rack).stdout

    assert "  memory 16 GiB  core 25 %, by template vir05_1c_16g\n" in ran.stderr
    assert 25 == grant["shares"][0]["core"]
    assert "no limit" not in shown
    assert 2 == shown.count("25 % (5/20)")  # of the card, and of the grant below it
    assert "left: 3 × vir05_1c_16g or 1 × vir10_3c_32g" in shown


def test_second_tour_7_and_newcomer_a3_core_is_in_percent_whatever_units_a_card_has(
    hetero: Run,
) -> None:
    """A 910B3 has 20 AI cores, and 30 % are more than its template of 5 has."""
    words = ("fit", "--vendor", "ascend", "--memory", "3000Mi", "--core", "30")
    shown = hetero(*words, "--explain", **SEVEN).stdout
    (piece,) = json.loads(hetero(*words, "--json", **SEVEN).stdout)["items"]

    assert ("vir10_3c_32g", 50) == (piece["template"], piece["core"])
    assert "vir10_3c_32g  50 %  32 GiB" in shown
    assert "fits, would have 32 GiB memory and 50 % of the core left" in shown


def test_second_tour_6_a_whole_card_for_a_part_is_given_with_a_sentence(
    hetero: Run, tmp_path: Path
) -> None:
    rack = {**SEVEN, "HETERO_RACK": shutil.copy(hetero_simulator.rack("seven"), tmp_path)}
    several = ("--vendor", "ascend", "--count", "2", "--memory", "1Gi", "--core", "30")
    why = "910B3 is given whole for a part of it: ascend gives several devices only whole\n"
    much = ("fit", "--vendor", "ascend", "--memory", "1Gi", "--core", "80")

    assert hetero("run", *several, "--", "true", **rack).stderr.endswith(why)
    assert hetero("fit", *several, **rack).stdout.endswith(why)
    assert [why.rstrip()] == json.loads(hetero("fit", *several, "--json", **rack).stdout)["notes"]
    assert [] == json.loads(hetero("fit", *several, "--whole", "--json", **rack).stdout)["notes"]
    assert "no part of it has the memory and core asked" in hetero(*much, **rack).stdout


def test_a_share_whose_sizes_take_the_card_exclusively_says_so_and_nothing_more_is_free(
    hetero: Run, command: tuple[str, ...], tmp_path: Path
) -> None:
    """An S4000 has 16 core groups: 99 % of them are all of them."""
    rack = {**SEVEN, "HETERO_RACK": shutil.copy(hetero_simulator.rack("mthreads"), tmp_path)}
    asked = ("--memory", "8Gi", "--core", "99", "--device", "0")
    why = (
        "MTT S4000 is taken exclusively: the smallest of its sizes with the core asked is all of it"
    )
    part = hetero("fit", "--memory", "8Gi", "--core", "90", "--device", "0", **rack)
    ran = hetero("run", *asked, "--", *command, "inventory", "--json", **rack)

    assert why in hetero("fit", *asked, **rack).stdout
    assert [why] == json.loads(hetero("fit", *asked, "--json", **rack).stdout)["notes"]
    assert why in ran.stderr
    listed = json.loads(ran.stdout)["items"][0]
    assert (0, 0) == (listed["memory_free"], listed["core"] - listed["core_held"])
    assert "exclusively" not in part.stdout


def test_cards_in_mig_mode_are_no_devices_beside_whole_ones(hetero: Run, tmp_path: Path) -> None:
    """Two cards beside one in MIG mode are two, and two beside two are two of either kind."""
    plain = "[device]\nvendor = nvidia\nmodel = NVIDIA H200\nmemory = 143771 MiB\n"
    cut = plain + "mig = 1g.18gb x2\n"

    def parts(*cards: str, count: int) -> list[str | None]:
        rack = tmp_path / "rack"
        rack.write_text("".join(cards))
        variables = {"HETERO_RACK": str(rack), "PYTHONPATH": ""}
        answer = hetero("fit", "--count", str(count), "--json", **variables)
        return [piece["part"] for piece in json.loads(answer.stdout)["items"]]

    assert [] == parts(plain, cut, plain, count=3)
    assert [None, None] == parts(plain, cut, plain, count=2)
    assert all(part is not None for part in parts(cut, plain, cut, count=2))


def test_newcomer_a16_percentages_have_a_decimal_at_most_and_room_has_the_units_of_requests(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    rack = {"HETERO_RACK": "seven"}
    ask = ("run", "--vendor", "hygon", "--memory", "10Gi", "--core", "4")
    next_line(begin(*command, *ask, "--", "sh", "-c", "echo ready; sleep 600", **rack))

    inventory = hetero("inventory", "--vendor", "hygon", **rack).stdout
    explained = hetero("fit", "--memory", "10Gi", "--core", "97", "--explain", **rack).stdout

    assert "4.2 %" in inventory
    for text in (inventory, explained):
        assert not re.search(r"\d\.\d\d+ %", text)
        assert not re.search(r"\d{4,} MiB memory", text)
    assert "hygon:0 K100-AI: 95.8 % of the core free, 97.5 % asked" in explained
    assert "hygon:1 K100-AI: fits, would have 53.9 GiB memory and 2.5 % of the" in explained
