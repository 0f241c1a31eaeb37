"""What a demanding user met on a first tour of the command line, by the number of its row."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hetero_simulator
import jsonschema
import pytest

from tests.programs import completed

from .conftest import Run
from .window import Window

ROOT = Path(__file__).parent.parent.parent
SCHEMAS = json.loads((ROOT / "docs" / "json.schema.json").read_text())
#: What `hetero top` sends to begin with, and at the end.
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
WIDTHS = (40, 60, 80, 120, 200, 250)

Tenant = Callable[..., str]


Open = Callable[..., Window]


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Five simulated cards of one vendor, two of which say how hot they are."""
    card_settings = "memory = 140 GiB\npower = 412\ntemperature = 61\n"
    cards = "".join(
        f"[device]\nvendor = nvidia\nmodel = Card {n}\n{card_settings}" for n in range(5)
    )
    kernel = "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
    (tmp_path / "five.rack").write_text(cards + kernel)
    clean = {name: value for name, value in environ.items() if name != "COLUMNS"}
    return {**clean, "HETERO_RACK": str(tmp_path / "five.rack"), "PYTHONPATH": ""}


@pytest.fixture
def window(environ: Mapping[str, str], command: tuple[str, ...]) -> Iterator[Open]:
    """Run a command line in a terminal."""
    opened: list[Window] = []

    def start(*words: str, columns: int = 100, lines: int = 40, **more: str) -> Window:
        opened.append(Window((*command, *words), {**environ, **more}, columns, lines))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def tenant(environ: Mapping[str, str], command: tuple[str, ...]) -> Iterator[Tenant]:
    """Start a program with a share; return its grant's id once the program runs."""
    programs: list[subprocess.Popen[str]] = []

    def start(*flags: str, program: str = "echo ready; read end", **more: str) -> str:
        words = ("run", *flags, "--", "sh", "-c", f'echo "$HETERO_GRANT"; {program}')
        programs.append(
            subprocess.Popen(
                [*command, *words],
                env={**environ, **more},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        )
        assert programs[-1].stdout
        grant = programs[-1].stdout.readline()
        assert "ready\n" == programs[-1].stdout.readline()
        return Path(grant).parent.parent.name

    yield start
    for started in programs:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


JOB = f"{hetero_simulator.job('cuda')} --seconds 600 --iterations 1000 --memory"


def busy(memory: str) -> str:
    """Return the program that holds so much memory and keeps its card busy, as its line says."""
    return f"{JOB} {memory} | {{ read line; echo ready; exec cat >/dev/null; }}"


# --- the rows ---------------------------------------------------------------------------------


def test_row_01_escape_codes_are_shown_and_never_sent(
    hetero: Run, window: Open, tenant: Tenant
) -> None:
    tenant(
        "--memory", "1Gi", "--label", "\x1b[31;7mX\x1b]0;owned\x07", program="echo ready; read \x9b"
    )

    for words in (("ps",), ("inventory",), ("top", "--once"), ("ps", "--json")):
        printed = hetero(*words).stdout
        assert "owned" in printed
        assert "\x1b" not in printed
        assert "\x07" not in printed
    seen = window("ps", columns=200).whole()
    assert "\\x1b[31;7mX\\x1b]0;owned\\x07" in seen
    assert {"\x1b[1m", "\x1b[33m", "\x1b[0m"} >= set(re.findall(r"\x1b[^m]*m?", seen))


def test_row_01_an_error_shows_what_it_names_escaped(hetero: Run) -> None:
    done = hetero("release", "\x1b[2J")

    assert 4 == done.returncode
    assert "\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("columns", WIDTHS)
def test_rows_04_and_05_columns_are_dropped_and_no_number_is_cut(
    window: Open, tenant: Tenant, columns: int
) -> None:
    grant = tenant("--memory", "40Gi", "--core", "50", "--label", "a label of four words")

    ps = window("ps", columns=columns).whole().splitlines()
    inventory = window("inventory", columns=columns).whole().splitlines()

    plain = [re.sub(r"\x1b\[\d*m", "", line) for line in (*ps, *inventory)]
    assert [] == [line for line in plain if len(line) > columns]
    (row,) = [line for line in plain[: len(ps)] if grant in line]
    assert "50 %" in row
    assert "–/40 GiB" in row or "0/40 GiB" in row
    card = next(line for line in plain[len(ps) :] if line.startswith("nvidia:0 "))
    assert " 50 %" in card
    assert "100 of 140 GiB" in card
    head = next(line for line in plain if re.match("(card +)?grant  ", line))
    assert set(re.split(r"  +", head.strip())) <= {
        *("card", "grant", "name", "user", "core used", "memory used", "policy", "age", "pids"),
        "command",
    }


def test_row_04_at_80_columns_user_policy_and_age_give_way(window: Open, tenant: Tenant) -> None:
    tenant("--memory", "40Gi", "--core", "50", "--label", "trainer of it")

    head = window("ps", columns=80).whole().splitlines()[1]
    wide = window("ps", "--wide", columns=80).whole().splitlines()[1]

    columns = ["card", "grant", "name", "core used", "memory used", "command"]
    assert columns == re.split(r"  +", re.sub(r"\x1b\[\d*m", "", head).strip())
    assert {"user", "policy", "age"} <= set(re.sub(r"\x1b\[\d*m", "", wide).split())


def test_row_09_refusals_are_seen_where_people_look(
    hetero: Run, window: Open, tenant: Tenant
) -> None:
    tenant("--memory", "2Gi", program=f"{JOB} 3GiB; {JOB} 3GiB; echo ready; read end")

    (share,) = json.loads(hetero("ps", "--json").stdout)["items"][0]["shares"]
    assert 2 == share["denied"]
    for words in (("ps",), ("top", "--once"), ("inventory",)):
        assert "2 refused" in hetero(*words).stdout
    assert "\x1b[1;31m2 refused\x1b[0m" in window("ps", columns=200).whole()


def test_row_09_a_refused_program_is_told_once_on_its_standard_error(hetero: Run) -> None:
    flags = ("run", "--memory", "2Gi", "--", "sh", "-c")
    message = hetero(*flags, f"{JOB} 3GiB").stderr
    silent = hetero(*flags, f"{JOB} 3GiB", HETERO_LOG="off").stderr

    line = r"hetero\[\d+\]: device 0: 3072 MiB refused: 2 of 2048 MiB of the grant are in use.*"
    assert 1 == len(re.findall(line, message))
    assert "refused" not in silent


def test_row_11_top_is_asked_by_keys(window: Open, tenant: Tenant) -> None:
    small = tenant("--memory", "1Gi", "--core", "10", program=busy("128MiB"))
    large = tenant("--memory", "2Gi", "--core", "10", program=busy("1GiB"))
    top = window("top", "--interval", "60", columns=160)

    first = top.read(lambda screen: large in screen)
    assert first.startswith(ENTER)
    assert first.index(small) < first.index(large)  # by device, the oldest first
    assert re.search(r"\d+ %  \x1b\[3[12]m[█▉▊▋▌▍▎▏·]{10}\x1b", first)
    assert "61 °C" in first
    assert "412 W" in first
    for word in ("user", "age", "policy", "fixed", "q quit"):
        assert word in first
    top.type("ss")
    by_memory = top.read(lambda screen: "by memory" in screen and screen.count(small) == 2)
    assert by_memory.rindex(large) < by_memory.rindex(small)
    top.type("?")
    assert "scroll" in top.read(lambda screen: "PgUp" in screen)
    top.type("q")
    assert LEAVE in top.read(lambda screen: LEAVE in screen)
    assert 0 == top.program.wait(60)
    assert top.before == top.modes()


def test_row_11_top_scrolls_and_meets_a_new_size(window: Open) -> None:
    top = window("top", "--interval", "60", lines=5)
    top.read(lambda screen: "Card 0" in screen)

    top.type("e")
    top.read(lambda screen: "Card 2" in screen and "Card 3" not in screen)
    top.type("\x1b[B\x1b[B")
    assert "q quit" in top.read(lambda screen: "Card 4" in screen)  # the first line stays
    top.resize(40, 20)
    top.shown = ""
    frame = top.read(lambda screen: "no grants stand" in screen).rpartition("\x1b[H")[2]
    assert max(len(re.sub(r"\x1b\[[?\d]*\w", "", line)) for line in frame.split("\r\n")) <= 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_11_a_terminal_is_given_back_as_it_was(window: Open, number: int) -> None:
    top = window("top")
    top.read(lambda screen: "no grants stand" in screen)

    top.program.send_signal(number)

    assert LEAVE in top.read(lambda screen: LEAVE in screen)
    assert {signal.SIGTERM: 143, signal.SIGINT: 0}[signal.Signals(number)] == top.program.wait(60)
    assert top.before == top.modes()


def test_row_12_top_says_the_policy_and_what_truly_keeps_it(hetero: Run, tenant: Tenant) -> None:
    tenant("--memory", "1Gi", "--policy", "off")
    tenant("--memory", "1Gi", "--core", "10", "--policy", "elastic")

    rows = [line.split() for line in hetero("top", "--once").stdout.splitlines()]
    view = json.loads(hetero("top", "--once", "--json").stdout)

    assert any({"off", "nothing"} <= set(row) for row in rows)
    assert any({"elastic", "limiter"} <= set(row) for row in rows)
    assert ["none", "preload"] == sorted(
        grant["shares"][0]["enforcement"] for grant in view["grants"]
    )


def test_row_12_what_top_shows_of_a_share_is_a_mean_of_ten_seconds(
    hetero: Run, tenant: Tenant
) -> None:
    """The first document is the mean since the grant began; later ones span what came between."""
    tenant("--memory", "1Gi", "--core", "20", program=busy("128MiB"))

    (grant,) = json.loads(hetero("top", "--once", "--json").stdout)["grants"]
    assert 0 < grant["shares"][0]["core_used"] <= 30


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "en_US.ISO-8859-1"},
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX"},
        {"PYTHONIOENCODING": "ascii"},
    ],
    ids=str,
)
def test_row_13_a_locale_without_our_signs_gets_ascii(
    hetero: Run, tenant: Tenant, locale: dict[str, str]
) -> None:
    tenant("--memory", "1Gi", "--core", "10", "--label", "模型", PYTHONUTF8="1")

    for words in (("ps",), ("inventory",), ("top", "--once"), ("vendors",), ("doctor",)):
        done = hetero(*words, PYTHONUTF8="0", **locale)
        assert (0, "") == (done.returncode, done.stderr)
        assert done.stdout.isascii()
    assert "-/1 GiB" in hetero("ps", PYTHONUTF8="0", **locale).stdout
    assert "\\u6a21\\u578b" in hetero("ps", PYTHONUTF8="0", **locale).stdout


def test_row_13_a_state_directory_that_takes_no_file_is_one_sentence(
    hetero: Run, tmp_path: Path
) -> None:
    """As on a file system that is full or read-only: a place that takes no file of anybody."""
    for state in ("/proc/self/hetero", "/sys/kernel"):
        for words in (("run", "--", "true"), ("ps",), ("doctor",)):
            done = hetero(*words, HETERO_STATE=state)
            assert "Traceback" not in done.stderr
            assert done.stderr.count("\n") <= 1
        doctor = json.loads(hetero("doctor", "--json", HETERO_STATE=state).stdout)
        (finding,) = [one for one in doctor["items"] if one["subject"] == "state"]
        assert "bad" == finding["verdict"]
        assert "HETERO_STATE" in finding["says"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("mount -o remount,ro $HETERO_STATE", "Read-only file system"),
        ("cat /dev/zero >$HETERO_STATE/much 2>/dev/null", "No space left on device"),
    ],
    ids=["read-only", "full"],
)
def test_row_13_a_file_system_that_takes_nothing_is_one_sentence(
    environ: Mapping[str, str], command: tuple[str, ...], tmp_path: Path, spoil: str, why: str
) -> None:
    """On a file system of the test's own, in a mount namespace of its own."""
    place = tmp_path / "small"
    place.mkdir()
    python, _, code = command
    script = f"""
    mount -t tmpfs -o size=128k tmpfs $HETERO_STATE; chmod 700 $HETERO_STATE
    hetero() {{ {python} -c '{code}' "$@"; }}
    hetero ps >/dev/null; {spoil}
    hetero run -- true; echo "code $?" >&2
    hetero doctor --json
    """
    done = completed(
        ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", script],
        env={**environ, "HETERO_STATE": str(place)},
    )

    (state,) = [one for one in json.loads(done.stdout)["items"] if one["subject"] == "state"]
    assert ("bad", True) == (state["verdict"], why in state["says"])
    message, code = done.stderr.splitlines()
    assert (True, "code 2") == (message.startswith("hetero: ") and why in message, code)


def test_row_14_a_pipe_gets_one_record_a_line(hetero: Run, tenant: Tenant) -> None:
    long = "x" * 300
    tenant("--memory", "1Gi", "--label", long)

    (line,) = [line for line in hetero("ps").stdout.splitlines() if long in line]
    assert line.startswith("nvidia:0 ")
    vendors = json.loads(hetero("vendors", "--json").stdout)["items"]
    lines = hetero("vendors").stdout.splitlines()
    assert 1 + len(vendors) == len(lines)
    assert all(
        one["reason"] is None or any(one["reason"] in line for line in lines) for one in vendors
    )


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_row_21_a_dumb_terminal_gets_frames(window: Open, kind: str) -> None:
    top = window("top", "--interval", "0.1", TERM=kind)

    assert "\x1b" not in top.read(lambda screen: screen.count("no grants stand") > 1)


def test_row_21_no_colour_where_none_is_wanted(window: Open) -> None:
    assert "\x1b" in window("inventory").whole()
    assert "\x1b" not in window("inventory", NO_COLOR="1").whole()
    assert "\x1b" not in window("inventory", TERM="dumb").whole()


@pytest.mark.parametrize(
    "words",
    [
        ("ps",),
        ("ps", "--seconds", "0.05"),
        ("inventory",),
        ("top", "--once"),
        ("fit", "--memory", "3Gi", "--core", "30"),
        ("fit", "--memory", "3Gi", "--explain"),
        ("fit", "--memory", "9999Gi"),
        ("fit", "--vendor", "acme"),
        ("fit", "--memory", "3000"),
        ("simulate", "--cluster", "nothing.json"),
        ("vendors",),
        ("doctor",),
        ("log",),
        ("share", "ls"),
    ],
    ids=" ".join,
)
def test_row_25_every_document_is_as_its_schema_says(
    hetero: Run, tenant: Tenant, words: tuple[str, ...]
) -> None:
    tenant("--memory", "1Gi", "--core", "10", "--device", "0", program=busy("128MiB"))
    document = json.loads(hetero(*words, "--json").stdout)

    jsonschema.validate(document, SCHEMAS)
    name = document["schema"].removeprefix("hetero.")
    jsonschema.validate(document, {**SCHEMAS, "oneOf": [{"$ref": f"#/$defs/{name}"}]})
    assert isinstance(document["items"], list)


def test_row_25_core_is_in_percent_of_a_card_everywhere(hetero: Run, tenant: Tenant) -> None:
    tenant("--memory", "1Gi", "--core", "30", program=busy("128MiB"))

    node = json.loads(hetero("inventory", "--json").stdout)
    fit = json.loads(hetero("fit", "--memory", "1Gi", "--core", "30", "--json").stdout)
    (device,) = [one for one in node["items"] if one["grants"]]
    assert (
        30
        == fit["items"][0]["core"]
        == device["core_held"]
        == node["grants"][0]["shares"][0]["core"]
    )
    assert 1 < device["core_used"] <= 100


def test_row_26_grants_stand_by_device_and_age_under_a_line_that_says_what_is_simulated(
    hetero: Run, tenant: Tenant
) -> None:
    given = [tenant("--memory", "1Gi", "--device", number) for number in ("3", "0", "1")]

    lines = hetero("ps").stdout.splitlines()
    assert "simulated by five.rack: no card below is real" == lines[0]
    assert [given[1], given[2], given[0]] == [line.split()[1] for line in lines[2:]]


def test_row_26_a_program_on_two_cards_has_a_row_for_each(hetero: Run, tenant: Tenant) -> None:
    tenant("--count", "2", "--memory", "2Gi", program=busy("1022MiB"))  # and a context's 2

    rows = [line.split() for line in hetero("top", "--once").stdout.splitlines()]
    held = [row for row in rows if "hetero-job-cuda" in row]
    assert [["1", "GiB"]] == [row[1:3] for row in held]


def test_row_26_grants_are_chosen_by_user_and_device_with_short_flags(
    hetero: Run, tenant: Tenant
) -> None:
    first, second = (tenant("--memory", "1Gi", "--device", number) for number in ("0", "1"))

    def ids(*words: str) -> list[str]:
        return [grant["id"] for grant in json.loads(hetero("ps", "-j", *words).stdout)["items"]]

    (user,) = {grant["user"] for grant in json.loads(hetero("ps", "-j").stdout)["items"]}
    assert [first, second] == ids("-u", user)
    assert [] == ids("-u", "nobody-else")
    assert [second] == ids("-d", "1")
