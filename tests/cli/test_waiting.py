"""hetero run --wait: real processes in a queue that ends with them."""

import getpass
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hetero.node.card_book import CardBook
from tests.programs import next_line

from .conftest import Begin, Run

#: All of the 8 GiB of one card.
CARD = ("--device", "T-4", "--memory", "8Gi")


def until(happened: Callable[[], Any], within_s: float = 30) -> Any:
    """Return the first true answer; fail if there is none in time."""
    deadline_s = time.monotonic() + within_s
    while not (answer := happened()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return answer


@pytest.fixture
def queue(hetero: Run) -> Callable[[], list[dict[str, Any]]]:
    """Return what waits, as ps says."""

    def waiting() -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = json.loads(hetero("ps", "--json").stdout)["waiting"]
        return requests

    return waiting


@pytest.fixture
def held(begin: Begin, command: tuple[str, ...]) -> "subprocess.Popen[str]":
    """A program that has the card until its standard input ends."""
    program = begin(*command, "run", "-q", *CARD, "--", "sh", "-c", "echo holds; read line")
    assert "holds\n" == next_line(program)
    return program


def stops(program: "subprocess.Popen[str]") -> None:
    """End a program that reads a line."""
    assert program.stdin
    program.stdin.write("\n")
    program.stdin.flush()


Queue = Callable[[], list[dict[str, Any]]]


def test_second_tour_19_who_came_first_is_served_first(
    begin: Begin, command: tuple[str, ...], queue: Queue, held: "subprocess.Popen[str]"
) -> None:
    waiting: list[subprocess.Popen[str]] = []
    for name in ("first", "second", "third"):
        script = f"echo {name}; read line"
        words = ("run", "--wait", "--label", name, *CARD, "--", "sh", "-c", script)
        waiting.append(begin(*command, *words))
        until(lambda: len(waiting) == len(queue()))

    assert ["first", "second", "third"] == [request["label"] for request in queue()]
    assert [1, 2, 3] == [request["place"] for request in queue()]
    stops(held)
    for name, program in zip(("first", "second", "third"), waiting, strict=True):
        assert f"{name}\n" == next_line(program)
        assert name not in [request["label"] for request in queue()]
        stops(program)
        assert 0 == program.wait(30)


def test_what_is_asked_stands_in_ps(
    begin: Begin, command: tuple[str, ...], hetero: Run, queue: Queue, held: object
) -> None:
    program = begin(*command, "run", "--wait", "--label", "train", *CARD, "--core", "50", "true")
    (request,) = until(queue)

    text = hetero("ps").stdout
    assert (8 << 30, 50.0, [program.pid]) == (
        request["memory"],
        request["core"],
        request["processes"],
    )
    for word in ("w1", "train", "8 GiB, 50 %, card T-4", "true"):
        assert word in text


def test_a_process_that_is_killed_leaves_the_queue(
    begin: Begin, command: tuple[str, ...], queue: Queue, held: "subprocess.Popen[str]"
) -> None:
    killed = begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)
    behind = begin(*command, "run", "--wait", *CARD, "--", "echo", "served")
    until(lambda: len(queue()) == 2)

    killed.kill()
    killed.wait()

    assert ["echo"] == [request["command"][0] for request in queue()]
    stops(held)
    assert "served\n" == next_line(behind)


def test_ctrl_c_ends_the_wait_at_once(
    begin: Begin, command: tuple[str, ...], queue: Queue, held: object
) -> None:
    program = begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)

    began_s = time.monotonic()
    program.send_signal(signal.SIGINT)

    assert 130 == program.wait(30)
    assert time.monotonic() - began_s < 5
    assert [] == queue()


def test_when_the_time_is_over_it_is_refused_with_the_reason(hetero: Run, held: object) -> None:
    done = hetero("run", "--wait=1", *CARD, "--", "true")

    first_line, last_line = done.stderr.splitlines()
    assert 3 == done.returncode
    assert first_line.startswith("hetero: w1 waits, place 1 in the queue: 0 of 5 devices: 1 ")
    assert last_line.startswith("hetero: waited ")
    assert "place 1 in the queue: 0 of 5 devices" in last_line


def test_what_no_card_can_give_is_refused_at_once(hetero: Run) -> None:
    done = hetero("run", "--wait", "--memory", "99Gi", "--", "true")

    assert (3, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "too small" in done.stderr


@pytest.mark.parametrize("place", [1, 2])
def test_who_waits_does_so_through_a_cordon_and_is_served_soon_after_it(
    begin: Begin, command: tuple[str, ...], hetero: Run, queue: Queue, place: int
) -> None:
    hetero("cordon", "T-4", "--reason", "new fan")
    if place == 2:  # behind one that waits for another card
        hetero("cordon", "T-3")
        begin(*command, "run", "--wait", "--device", "T-3", "--", "true")
        until(queue)
    program = begin(*command, "run", "--wait", "-q", *CARD, "--", "echo", "served")
    until(lambda: len(queue()) == place)
    elsewhere = hetero("run", "-q", "--device", "T-2", "--", "echo", "passed")
    at_once = hetero("run", *CARD, "--", "true")
    for_a_second = hetero("run", "--wait=1", *CARD, "--", "true")
    assert place == len(queue())
    time.sleep(3)  # it has looked, and looks again when something changes

    began_s = time.monotonic()
    hetero("uncordon", "T-4")
    assert "served\n" == next_line(program)

    assert time.monotonic() - began_s < 6
    assert "passed\n" == elsewhere.stdout
    assert (3, 1) == (at_once.returncode, len(at_once.stderr.splitlines()))
    assert ": 1 cordoned (new fan), " in at_once.stderr
    assert 3 == for_a_second.returncode
    assert f"place {place + 1} in the queue: " in for_a_second.stderr.splitlines()[-1]


def test_who_waits_does_so_for_a_sick_card_and_takes_it_once_it_is_well(
    begin: Begin, command: tuple[str, ...], hetero: Run, queue: Queue, environ: dict[str, str]
) -> None:
    book = CardBook(Path(environ["HETERO_STATE"]) / "persistent")
    book.note({"T-4": "Xid 48: reset the card"}, module=None)
    program = begin(*command, "run", "--wait", *CARD, "--", "echo", "served")
    (request,) = until(queue)
    assert 1 == request["place"]

    assert 0 == hetero("health", "clear", "T-4").returncode

    assert "served\n" == next_line(program)


def test_what_the_settings_exclude_is_not_waited_for(
    hetero: Run, environ: dict[str, str], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('[cards]\nexclude = ["T-4"]\n')
    environ["HETERO_CONFIG"] = str(settings)

    done = hetero("run", "--wait", *CARD, "--", "true")

    assert (3, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "excluded" in done.stderr


def test_who_does_not_wait_does_not_pass_either(
    begin: Begin, command: tuple[str, ...], hetero: Run, queue: Queue
) -> None:
    half = ("--device", "T-4", "--memory", "4Gi")
    holder = begin(*command, "run", "-q", *half, "--", "sh", "-c", "echo holds; read line")
    assert "holds\n" == next_line(holder)
    begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)

    refused = hetero("run", *half, "--", "true")
    elsewhere = hetero("run", "--memory", "12Gi", "--", "echo", "passed")

    first = f"w1 of {getpass.getuser()} waits for what it would take"
    waiting_text = f"{first} (`hetero ps`): --wait waits behind"
    assert (3, f"hetero: {waiting_text}\n") == (refused.returncode, refused.stderr)
    assert waiting_text in hetero("fit", *half).stderr + hetero("fit", *half).stdout
    assert "passed\n" == elsewhere.stdout


def test_what_is_kept_for_the_queue_is_free_in_no_view(
    begin: Begin, command: tuple[str, ...], hetero: Run, queue: Queue
) -> None:
    half = ("--device", "T-4", "--memory", "4Gi")
    holder = begin(*command, "run", "-q", *half, "--", "sh", "-c", "echo holds; read line")
    assert "holds\n" == next_line(holder)
    begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)
    (card,) = json.loads(hetero("inventory", "--device", "testing:4", "--json").stdout)["items"]
    waits = f"w1 of {getpass.getuser()} (8 GiB, card T-4) waits: what is kept for it is not free"

    assert (4 << 30, 0) == (card["memory_held"], card["memory_free"])
    for words in (("inventory",), ("describe", "4"), ("top", "--once")):
        assert waits in hetero(*words).stdout
    assert "0 of 8 GiB" in hetero("inventory").stdout
    assert (
        "4 T1000: cordoned (kept for requests that wait)"
        in hetero("fit", *half, "--explain").stdout
    )


def test_a_request_that_waits_is_released_and_logged_by_its_name(
    begin: Begin,
    command: tuple[str, ...],
    hetero: Run,
    queue: Queue,
    held: "subprocess.Popen[str]",
) -> None:
    waiting = begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)

    log = json.loads(hetero("log", "w1", "--json").stdout)["items"]
    released = hetero("release", "w1")

    assert [("w1", f"{getpass.getuser()} waits: true")] == [
        (event["grant"], event["says"]) for event in log
    ]
    assert (0, "request w1 left the queue\n") == (released.returncode, released.stdout)
    assert -signal.SIGTERM == waiting.wait(30)
    assert [] == queue()
    assert held.poll() is None


def test_a_process_that_is_stopped_holds_up_nobody_for_long(
    begin: Begin,
    command: tuple[str, ...],
    hetero: Run,
    queue: Queue,
    held: "subprocess.Popen[str]",
    environ: Mapping[str, str],
) -> None:
    program = begin(*command, "run", "--wait", *CARD, "--", "true")
    until(queue)
    program.send_signal(signal.SIGSTOP)
    stops(held)
    held.wait()
    assert 3 == hetero("run", *CARD, "--", "true").returncode

    (alive,) = Path(environ["HETERO_STATE"]).glob("queue/*/alive")
    long_ago_s = time.time() - 100
    os.utime(alive, (long_ago_s, long_ago_s))

    assert 0 == hetero("run", *CARD, "--", "true").returncode
    assert queue()[0]["stopped"]


def test_the_wait_flag_of_the_program_is_the_programs(hetero: Run) -> None:
    done = hetero("run", "-q", "--wait", "--memory", "1Gi", "echo", "--wait", "--wait=5")

    assert "--wait --wait=5\n" == done.stdout


@pytest.mark.parametrize("text", ["soon", "0", "-3", "", "1y", "9" * 40])
def test_what_is_no_time_is_refused(hetero: Run, text: str) -> None:
    done = hetero("run", f"--wait={text}", "--", "true")

    assert 2 == done.returncode
    assert done.stderr.startswith(f"hetero: --wait {text!r} is no time: write 90, 90s, 10m")


def test_those_who_wait_take_next_to_no_processor_time(
    begin: Begin, command: tuple[str, ...], queue: Queue, held: object
) -> None:
    programs = [begin(*command, "run", "--wait", "-q", *CARD, "--", "true") for _ in range(6)]
    until(lambda: len(queue()) == len(programs))

    def ticks() -> int:
        stats = [Path(f"/proc/{program.pid}/stat").read_text() for program in programs]
        return sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats)

    time.sleep(1)
    before = ticks()
    time.sleep(4)

    # A hundredth of a second each; a poll of 0.1 s would take ten times as much.
    assert (ticks() - before) / os.sysconf("SC_CLK_TCK") < 0.5
