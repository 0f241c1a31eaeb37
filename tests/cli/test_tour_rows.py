"""Rows of the second tour of the command line, each as a person met it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import hetero_simulator
import pytest
from make_picture import RECORD

from hetero.cli._render import age
from hetero.model import codec
from hetero.node.demo import PLACED_ASKS, Demo, placed_vendors
from hetero.node.demo import RACK as DEMO_RACK
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.rack_check import cards_of_rack
from hetero.node.view.observe import NodeView
from hetero.registry.registry import Registry
from hetero.registry.vendor_row import VendorRow, addressable
from tests.programs import next_line

from .conftest import Begin, Run
from .test_demo import figureless

ROOT = Path(__file__).parents[2]
SAVED = ("simulate", "--cluster", str(ROOT / "tests/kube/clusters/saved.json"))
CARD = "[device]\nvendor = nvidia\nmodel = NVIDIA L4\nmemory = 23034 MiB\n"


@pytest.mark.parametrize("milliseconds", [0, 60, 120, 250])
def test_row_12_an_early_ctrl_c_says_nothing(
    environ: Mapping[str, str], command: tuple[str, ...], milliseconds: int
) -> None:
    # What comes before the first lines of `hetero.start` is the interpreter's
    script = f"""
import os, signal, sys, threading, time
def interrupt():
    while not hasattr(sys.modules.get("hetero.start"), "main"):
        time.sleep(0.001)
    if not os.fork():  # a process, which goes on when this one is the program that was asked for
        time.sleep({milliseconds} / 1000)
        os.kill(os.getppid(), signal.SIGINT)
        os._exit(0)
threading.Thread(target=interrupt).start()
{command[-1]}
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "-q", "--memory", "1Gi", "--", "sleep", "5"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode in (-signal.SIGINT, 130)
    assert "" == done.stderr.strip()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# nothing\n", "it has no [device]"),
        (
            CARD.replace("memory = 23034 MiB\n", ""),
            "line 1: [device] without memory: expected a size such as 23034 MiB",
        ),
        (CARD.replace("23034 MiB", "-4 GiB"), "line 4: [device] memory = -4 GiB: expected a size"),
        (CARD.replace("23034 MiB", "23"), "line 4: [device] memory = 23: expected a size such as"),
        (CARD.replace("23034 MiB", "99999999999 GiB"), "line 4: [device] memory = 99999999999 Gi"),
        (CARD + "power = lots\n", "line 5: [device] power = lots: expected whole watts from 0"),
        (CARD + "mig = 9g.1gb x99\n", "line 5: [device] mig = 9g.1gb x99: expected instances "),
        (CARD + "links = 0:NV18\n", "line 5: link '0:NV18' is to the card itself"),
        (CARD + "links = 7:NV18\n", "line 5: link '7:NV18' is to no card: "),
        (CARD + "links = NV18\n", "line 5: [device] links = NV18: expected peers such as 1:NV18"),
        (2 * (CARD + "uuid = GPU-1\n"), "line 10: uuid GPU-1 is in line 5, too"),
        (65 * CARD, "line 257: it has 65 cards, at most 64"),
        (CARD + "model = NVIDIA L40\n", "line 5: model was said in line 3 already"),
    ],
)
def test_row_13_a_rack_that_means_nothing_is_refused_with_its_line(
    hetero: Run, tmp_path: Path, text: str, fault: str
) -> None:
    rack = tmp_path / "x.rack"
    rack.write_text(text)

    done = hetero("inventory", "--json", HETERO_RACK=str(rack))

    assert done.stderr.startswith(f"hetero: HETERO_RACK={rack} is no rack file: {fault}")
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert 2 == json.loads(done.stdout)["code"]  # row 30: it is JSON, too


def test_row_13_racks_of_64_cards_and_all_shipped_ones_are_taken(tmp_path: Path) -> None:
    rack = tmp_path / "x.rack"
    rack.write_text(64 * CARD)
    for path in (rack, *hetero_simulator.racks().values()):
        cards_of_rack(path, hetero_simulator.rack_keys)


def test_row_14_the_sample_trace_is_replayed_with_default_options(hetero: Run) -> None:
    done = hetero("simulate", "--trace", str(ROOT / "examples/trace.json"), "--jobs", "1")

    assert 0 == done.returncode
    assert "fragmentation " in done.stdout
    assert "hetero: fgd and bestfit know cards of one size only: left out\n" in done.stderr


@pytest.mark.parametrize("name", ["77", "०", "GPU-nosuch"])
def test_row_15_a_device_that_is_not_here_is_not_an_empty_table(hetero: Run, name: str) -> None:
    sentence = f"no device {name!r} here: `hetero inventory` lists those there are"

    text, document = hetero("ps", "--device", name), hetero("ps", "--device", name, "--json")

    assert (4, f"hetero: {sentence}\n") == (text.returncode, text.stderr)
    assert (4, sentence) == (document.returncode, json.loads(document.stdout)["error"])


def test_row_15_a_device_without_grants_is_no_fault(hetero: Run) -> None:
    done = hetero("ps", "--device", "1")

    assert (0, "no grants stand on device 1\n") == (done.returncode, done.stdout)


@pytest.mark.parametrize("name", ["1", "testing:1", "TESTING:1", "T-1"])
def test_a_card_is_known_by_number_vendor_index_and_uuid_in_every_command(
    hetero: Run, command: tuple[str, ...], name: str
) -> None:
    """What inventory shows of a card, ps, top, describe, fit, run, cordon and log take."""
    own = ("run", "-q", "--memory", "1Gi", "--device", name, "--", *command)
    (grant,) = json.loads(hetero(*own, "ps", "--device", name, "--json").stdout)["items"]
    documents = [
        json.loads(hetero(*words, "--json").stdout)["items"]
        for words in (
            ("inventory", "--device", name),
            ("top", "--once", "--device", name),
            ("describe", name),
            ("cordon", name),
            ("uncordon", name),
        )
    ]

    assert ["T-1"] == [share["device"] for share in grant["shares"]]
    assert [["T-1"]] * 5 == [[card["uuid"] for card in items] for items in documents]
    (piece,) = json.loads(hetero("fit", "--memory", "1Gi", "--device", name, "--json").stdout)[
        "items"
    ]
    assert "T-1" == piece["device"]
    assert "of testing:1: " in hetero("log", "--device", name).stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--memory", "3"), 2), (("--memory", "100Gi"), 3), (("--device", "77"), 4)],
    ids=str,
)
def test_run_with_json_says_as_json_what_went_wrong(
    hetero: Run, words: tuple[str, ...], code: int
) -> None:
    done = hetero("run", "--json", *words, "--", "true")
    document, line = done.stderr.splitlines()

    assert code == done.returncode
    assert ("hetero.error", code) == tuple(json.loads(document)[key] for key in ("schema", "code"))
    assert f"hetero: {json.loads(document)['error']}" == line


def test_run_and_fit_name_cards_as_people_see_them(hetero: Run) -> None:
    asked = ("--memory", "1Gi", "--device", "2")

    assert "  testing:2 T1000  memory 1 GiB" in hetero("run", *asked, "--", "true").stderr
    assert "testing:2 T1000  share" in hetero("fit", *asked).stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_row_21_a_program_runs_whatever_descriptors_are_closed(
    environ: Mapping[str, str], command: tuple[str, ...], closed: str
) -> None:
    line = f'"$@" run --memory 1Gi -- sh -c "exit 7" {closed}'
    done = subprocess.run(["sh", "-c", line, "sh", *command], env=environ, check=False)

    assert 7 == done.returncode


def test_row_22_a_clock_that_was_set_back_makes_no_age_below_nothing() -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=2)

    assert "0 s" == age(later.isoformat())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_row_23_a_demo_that_is_ended_leaves_no_folder(
    begin: Begin, command: tuple[str, ...], tmp_path: Path, number: int
) -> None:
    program = begin(*command, "demo", TMPDIR=str(tmp_path))
    assert "SIMULATED" in next_line(program)
    assert list(tmp_path.glob("hetero-*"))

    program.send_signal(number)

    assert -number == program.wait(30)
    assert [] == list(tmp_path.glob("hetero-*"))


def test_row_27_each_vendor_with_simulated_cards_has_a_demo(hetero: Run) -> None:
    shown = {vendor: hetero("demo", "--vendor", vendor) for vendor in placed_vendors()}

    assert {"ascend", "cambricon", "metax"} == {*shown}
    for vendor, done in shown.items():
        assert (0, "") == (done.returncode, done.stderr)
        assert f"no program runs on {vendor}" in done.stdout
        for _, flags in PLACED_ASKS:
            assert f"hetero fit --vendor {vendor} {flags}".rstrip() in done.stdout
    assert "vir10_3c_32g" in shown["ascend"].stdout


@pytest.mark.measured
def test_row_27_the_vendor_of_the_plain_demo_is_no_other_demo(hetero: Run) -> None:
    done = hetero("demo", "--vendor", "nvidia", "--seconds", "2", PYTHONPATH="")

    assert (0, "") == (done.returncode, done.stderr)
    assert figureless(RECORD.read_text()) == figureless(done.stdout)
    assert "HETERO_RACK=seven hetero inventory" in done.stdout


def test_row_28_and_newcomer_a10_benchmarks_are_listed_with_a_sentence_each(
    hetero: Run, tmp_path: Path
) -> None:
    done = hetero("bench")

    assert 0 == done.returncode
    for name in ("isolation", "memory", "overhead"):
        assert re.search(rf"^{name} +\w.{{20,}}$", done.stdout, re.MULTILINE)

    bare = "import importlib.metadata as m; m.entry_points = lambda **_: []\n"
    script = (
        f"{bare}import sys; sys.argv = ['hetero', 'bench']\nfrom hetero.start import main; main()"
    )
    none = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    sentence = "no benchmarks are installed (none: in hetero's sources, pip install ./benchmarks)"
    assert (4, f"hetero: {sentence}\n") == (none.returncode, none.stderr)


def test_row_29_a_promise_that_cannot_be_shown_here_is_not_broken(
    hetero: Run, one_card: Path
) -> None:
    done = hetero("vendors", "check", "nvidia", HETERO_RACK=str(one_card))

    assert 0 == done.returncode
    assert re.search(r"not shown +the contract needs two usable devices", done.stdout)
    assert "LookupError" not in done.stdout
    last_line = done.stdout.splitlines()[-1]
    kept, unshown, of_all = map(int, re.findall(r"\d+", last_line))
    assert f"{kept} ok, {unshown} not shown of {of_all} promises" == last_line
    assert (of_all, True) == (kept + unshown, unshown > 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fit", "--sm", "0"), "sm '0' is not a percentage: write a whole number from 1 to 99"),
        (("run", "--gang"), "Option '--gang' requires an argument (see `hetero run --help`)"),
    ],
)
def test_row_30_small_ones_say_what_is_so(
    hetero: Run, words: tuple[str, ...], sentence: str
) -> None:
    done = hetero(*words)

    assert (2, f"hetero: {sentence}\n") == (done.returncode, done.stderr)


def test_row_30_a_vendor_that_is_not_installed_is_told_where_it_is_to_be_soft(
    hetero: Run, tmp_path: Path
) -> None:
    config = tmp_path / "node.toml"
    config.write_text('[cards]\nsoft = ["testin"]\n')
    sentence = (
        "cards.soft names 'testin', and no vendor of that name is installed: did you mean testing?"
    )

    for name in ("inventory", "doctor"):
        assert sentence in " ".join(hetero(name, HETERO_CONFIG=str(config)).stdout.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*SAVED, "--replicas", "1", "--vendor", "nvdia"), "did you mean nvidia?"),
        (("simulate", "--trace", "nofile"), "nofile: no such trace"),
        (("simulate", "--cluster", "cluster.json"), "cluster.json: items[0]: object missing"),
    ],
    ids=["vendor", "trace", "cluster"],
)
def test_row_30_simulate_says_what_and_where(
    hetero: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cluster.json").write_text('{"items": [{}]}')
    done = hetero(*words)

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert sentence in done.stderr


def test_row_30_many_faults_of_one_vendor_are_a_few_and_a_count() -> None:
    row = VendorRow(name="many", source="", state="ok")
    faults = [f"card {number}: error 2" for number in range(64)]
    _, faulty_row = addressable(row, [], faults, {})

    assert faulty_row.reason == (
        "many: discover: card 0: error 2; card 1: error 2; card 2: error 2; and 61 more like these"
    )


def test_row_30_fit_keeps_to_forty_columns(hetero: Run) -> None:
    shown = hetero("fit", "--memory", "1Gi", HETERO_RACK="seven", COLUMNS="40", PYTHONPATH="")

    assert 0 == shown.returncode
    assert 40 >= max(map(len, shown.stdout.splitlines()))


@pytest.mark.parametrize("words", [("ps", "--watch"), ("ps", "--watch", "--json")])
def test_row_30_a_reader_that_ends_is_no_fault(
    begin: Begin, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    program = begin(*command, *words)
    assert next_line(program)
    assert program.stdout
    program.stdout.close()

    assert 0 == program.wait(30)


def test_row_30_a_doctor_that_watches_ends_by_its_signal(
    begin: Begin, command: tuple[str, ...], environ: Mapping[str, str]
) -> None:
    program = begin(*command, "doctor", "--watch")
    deadline_s = time.monotonic() + 30
    caught = 0
    while not caught & 1 << (signal.SIGTERM - 1) and time.monotonic() < deadline_s:
        status = Path(f"/proc/{program.pid}/status").read_text()
        caught = int(re.findall(r"SigCgt:\s*(\w+)", status)[0], 16)
        time.sleep(0.02)
    program.terminate()

    assert -signal.SIGTERM == program.wait(30)


def test_row_a7_that_others_are_not_seen_is_told_once(tmp_path: Path) -> None:
    node = Node(registry=Registry.of(), ledger=Ledger(tmp_path / "state"))

    first_news, second_news = node.unseen_news(), node.unseen_news()

    assert (node.unseen, None) == (first_news, second_news)
    assert "not seen" in (node.unseen or "")


def test_row_a6_what_the_demo_refuses_would_fit_on_its_card_but_for_the_grant(
    hetero: Run, environ: Mapping[str, str]
) -> None:
    mixed = {**environ, "HETERO_RACK": DEMO_RACK}
    view_json = subprocess.run(
        (sys.executable, "-c", "from hetero.node.demo import tell; tell()"),
        env=mixed,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    device = codec.loads(view_json, NodeView, source="test").devices[0].device
    demo = Demo(device, "hetero-job-cuda", mixed)

    ending = demo.over_memory()

    assert f"--device {device.uuid[:12]} --memory {demo.memory}Mi " in ending.command
    assert (1, True) == (ending.code, "CUDA_ERROR_OUT_OF_MEMORY" in ending.output)
    granted = ("--device", device.uuid, "--memory", f"{3 * demo.memory}Mi")
    wanted = ending.command.partition(" -- ")[2].split()
    assert 0 == hetero("run", *granted, "--", *wanted, HETERO_RACK=DEMO_RACK).returncode


@pytest.mark.parametrize("words", [("run", "-m", "1Gi", "--", "true"), ("fit",), ("inventory",)])
def test_row_a11_a_simulated_card_is_advised_only_where_there_is_a_simulator(
    hetero: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['hetero_simulator'] = None\n")

    with_simulator, without = (hetero(*words, PYTHONPATH=path) for path in ("", str(hidden)))

    assert with_simulator.returncode == without.returncode
    text, text_without = (done.stdout + done.stderr for done in (with_simulator, without))
    assert "try `export HETERO_RACK=mixed`" in text
    assert "HETERO_RACK" not in text_without
    assert "no device" in text_without
