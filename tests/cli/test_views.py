"""The commands that show things: for people within 100 columns, for programs as JSON."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import hetero.cli as hetero_cli
from tests.programs import completed, next_line
from tests.registry.installed import install

from .conftest import Run


@pytest.fixture
def sleeper(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> Iterator[subprocess.Popen[str]]:
    """A program that holds 3000 MiB and 30 % of device 1 and runs until it is told to end."""
    program = subprocess.Popen(
        [*command, "run", "--device", "1:mem=3000Mi,core=30", "--label", "the sleeper",
         "--", "sh", "-c", "echo ready; read end"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert "ready\n" == next_line(program)
    yield program
    program.kill()
    program.communicate()


def test_inventory_shows_every_device_and_who_holds_what(
    hetero: Run, sleeper: subprocess.Popen[str]
) -> None:
    done = hetero("inventory")
    lines = [line.split() for line in done.stdout.splitlines()]

    assert 0 == done.returncode, done.stderr
    rows = [" ".join(line) for line in lines]
    assert rows[0].endswith(": 5 cards of 1 vendor free 470 of 500 % core, 69 of 72 GiB 1 grant")
    columns = "card model granularity core given busy memory free given used kept by health"
    assert columns == rows[1]
    assert "grant name user core used memory used policy age pids command" == rows[2]
    assert "testing" == rows[3]
    assert "testing:1 T1000 1 %, 1 MiB 30 % 25 % 13 of 16 GiB 2.9 GiB 1 GiB nothing ! ok" == rows[5]
    assert rows[6].startswith("└ ")
    assert "the sleeper" in rows[6]
    assert str(sleeper.pid) in lines[6]
    assert "testing:4 T1000 1 %, 1 MiB 0 % 25 % 8 of 8 GiB 0 1 GiB nothing ! ok" == rows[9]
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_inventory_is_the_same_value_as_json(hetero: Run, sleeper: subprocess.Popen[str]) -> None:
    view = json.loads(hetero("inventory", "--json").stdout)

    device = view["items"][1]
    assert ("hetero.node", 2) == (view["schema"], view["version"])
    assert [f"T-{n}" for n in range(5)] == [row["uuid"] for row in view["items"]]
    assert (30, 3000 << 20, 1) == tuple(device[f"{of}_held"] for of in ("core", "memory", "slots"))
    assert (1 << 30, 25, None) == tuple(
        device[key] for key in ("memory_used", "core_used", "processes")
    )
    (grant,) = view["grants"]
    assert [grant["id"]] == device["grants"]
    assert [sleeper.pid] == grant["processes"]
    assert None is view["simulated"]


def test_ps_shows_a_dash_for_what_is_not_known(hetero: Run, sleeper: subprocess.Popen[str]) -> None:
    assert "–/2.9 GiB" in hetero("ps").stdout
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    (share,) = grant["shares"]
    assert (None, None, 30) == (share["memory_used"], share["core_used"], share["core"])


def test_watching_goes_on_until_it_is_interrupted(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [*command, "inventory", "--watch"], env=environ, stdout=subprocess.PIPE, text=True
    ) as watch:
        tables = 0
        while tables < 2:
            tables += next_line(watch).startswith("card")
        watch.send_signal(signal.SIGINT)

        assert 0 == watch.wait(10)


def test_vendors_shows_a_broken_one_as_a_row(hetero: Run, environ: Mapping[str, str]) -> None:
    install(Path(environ["PYTHONPATH"]), "wrong", "import no_such_module")

    rows = {row["name"]: row for row in json.loads(hetero("vendors", "--json").stdout)["items"]}

    assert ("ok", 5, "hetero-testing 1.0") == tuple(
        rows["testing"][key] for key in ("state", "devices", "source")
    )
    assert "broken" == rows["wrong"]["state"]
    assert "no_such_module" in rows["wrong"]["reason"]
    assert "no_such_module" in hetero("vendors").stdout
    assert "no_such_module" in hetero("inventory").stdout
    assert 4 == hetero("run", "--vendor", "wrong", "--", "true").returncode
    assert 0 == hetero("run", "--", "true").returncode


def test_fit_takes_nothing(hetero: Run) -> None:
    done = hetero("fit", "--count", "5", "--memory", "8Gi", "--core", "100", "--json")

    assert 5 == len(json.loads(done.stdout)["items"])
    assert "no grants stand\n" == hetero("ps").stdout


def test_fit_says_why_not(hetero: Run) -> None:
    arguments = ("fit", "--memory", "10Gi", "--count", "5")
    short, long = hetero(*arguments), hetero(*arguments, "--explain")

    lack = "1 too small (10 GiB wanted, largest 8)"
    assert (3, "", f"hetero: 4 of 5 devices fit (5 needed): {lack}\n") == (
        short.returncode,
        short.stdout,
        short.stderr,
    )
    assert 3 == long.returncode
    assert "testing:4 T1000: 8 of 8 GiB memory free, 10 GiB asked" in long.stdout
    assert (
        "testing:1 T1000: fits, would have 6 GiB memory and 100 % of the core left" in long.stdout
    )


def test_fit_explains_what_it_would_take(hetero: Run) -> None:
    arguments = ("fit", "--memory", "1Gi", "--explain", "--json")
    (taken,) = [v for v in json.loads(hetero(*arguments).stdout)["verdicts"] if v["chosen"]]
    (shown,) = [
        line for line in hetero(*arguments[:-1]).stdout.splitlines() if line.endswith("(taken)")
    ]

    assert shown.startswith(f"testing:{taken['position']} {taken['model']}: fits, would have ")


def test_release_is_refused_until_forced(hetero: Run, sleeper: subprocess.Popen[str]) -> None:
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]

    refused = hetero("release", grant["id"])
    forced = hetero("release", "--force", grant["id"][:4])

    assert 3 == refused.returncode
    assert f"in use by process {sleeper.pid} (sh)" in refused.stderr
    assert (0, "") == (forced.returncode, forced.stderr)
    assert -signal.SIGTERM == sleeper.wait(10)
    assert "no grants stand\n" == hetero("ps").stdout
    assert 4 == hetero("release", grant["id"]).returncode


def test_set_needs_something_to_set_and_a_limiter_to_do_it(
    hetero: Run, sleeper: subprocess.Popen[str]
) -> None:
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]

    assert 2 == hetero("resize", grant["id"]).returncode
    refused = hetero("resize", grant["id"], "--core", "20")
    assert 3 == refused.returncode
    assert "runs without a limiter" in refused.stderr
    assert 4 == hetero("resize", "0000", "--core", "20").returncode


def test_doctor_says_what_is_well_and_what_to_do(
    hetero: Run, environ: Mapping[str, str], sleeper: subprocess.Popen[str]
) -> None:
    well = hetero("doctor")
    assert 0 == well.returncode
    assert "1 grants stand, nothing stale" in well.stdout

    state = Path(environ["HETERO_STATE"])
    (entry,) = state.glob("grants/*/allocation.json")
    entry.write_text("{")
    ill = hetero("doctor")
    assert 1 == ill.returncode
    assert f"hetero release --force {entry.parent.name}" in " ".join(ill.stdout.split())
    sleeper.communicate("end\n")
    assert 0 == hetero("doctor").returncode


def test_doctor_names_what_keeps_shares_as_the_tables_do(hetero: Run) -> None:
    rack = {"HETERO_RACK": "seven", "PYTHONPATH": ""}
    doctor = json.loads(hetero("doctor", "--json", **rack).stdout)["items"]
    tables = hetero("inventory", COLUMNS="200", **rack).stdout

    means_shown = {one["says"].split()[-1] for one in doctor if "shares are kept by" in one["says"]}
    assert {"limiter", "partition"} == means_shown
    assert all(f" {means} " in tables for means in means_shown)


def test_doctor_and_run_tell_of_a_state_directory_that_cannot_be(hetero: Run) -> None:
    doctor = hetero("doctor", HETERO_STATE="/proc/hetero")
    run = hetero("run", "--", "true", HETERO_STATE="/proc/hetero")

    assert (1, 2) == (doctor.returncode, run.returncode)
    assert "set HETERO_STATE" in " ".join(doctor.stdout.split())
    assert "set HETERO_STATE" in run.stderr


def test_uninstalling_is_refused_while_grants_stand(
    hetero: Run, sleeper: subprocess.Popen[str]
) -> None:
    refused = hetero("doctor", "--uninstall-check")
    assert 3 == refused.returncode
    assert "sh -c 'echo ready; read end'" in refused.stderr

    sleeper.communicate("end\n")
    assert 0 == hetero("doctor", "--uninstall-check").returncode


def test_a_broken_settings_file_is_one_line(hetero: Run, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[scale]\nmemroy = 2\n")
    done = hetero("inventory", HETERO_CONFIG=str(tmp_path / "node.toml"))

    assert 2 == done.returncode
    assert "unknown key 'memroy'" in done.stderr


def test_scaling_is_a_setting_of_the_node(hetero: Run, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[scale]\nmemory = 2\n")

    scaled = hetero("fit", "--memory", "31Gi", HETERO_CONFIG=str(tmp_path / "node.toml"))
    assert (0, 3) == (scaled.returncode, hetero("fit", "--memory", "31Gi").returncode)


@pytest.mark.parametrize(
    "name",
    ["", "inventory", "vendors", "fit", "run", "ps", "resize", "release", "doctor", "bench"],
)
def test_help_teaches_with_an_example(hetero: Run, name: str) -> None:
    done = hetero(*filter(None, [name, "--help"]))

    assert 0 == done.returncode
    assert f"  hetero {name}" in done.stdout.replace("Usage: hetero", "") or name == "vendors"


def test_help_names_every_command_with_all_it_says_of_itself(hetero: Run) -> None:
    help_text = hetero("--help", COLUMNS="100").stdout
    lines = [line.split()[:1] for line in help_text.splitlines()]
    commands = {
        path.stem for path in Path(hetero_cli.__file__).parent.glob("*.py") if path.stem[0] != "_"
    }

    assert set() == {name for name in commands if lines.count([name]) != 1}
    assert "..." not in help_text.partition("Commands:")[2]
    assert max(map(len, help_text.splitlines())) <= 100


def test_the_version_is_told(hetero: Run) -> None:
    assert hetero("--version").stdout.startswith("hetero ")


@pytest.mark.parametrize("module", ["hetero", "hetero.cli"])
def test_the_package_is_the_command_line_where_no_script_is_installed(
    hetero: Run, environ: Mapping[str, str], module: str
) -> None:
    for option in ("--version", "--help"):
        done = completed([sys.executable, "-m", module, option], env=environ)
        assert (0, hetero(option).stdout) == (done.returncode, done.stdout), done.stderr


def test_bench_lists_what_is_installed_and_runs_it(hetero: Run, environ: Mapping[str, str]) -> None:
    site = Path(environ["PYTHONPATH"])
    (site / "speed.py").write_text("def main(argv):\n    print(*argv)\n    return 5\n")
    metadata = site / "speed-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: speed\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hetero.bench]\nspeed = speed:main\n")

    assert "speed" in hetero("bench").stdout.split()
    done = hetero("bench", "speed", "--seconds", "2", "--help")
    assert (5, "--seconds 2 --help\n") == (done.returncode, done.stdout)
    assert 4 == hetero("bench", "nothing").returncode


def test_a_benchmark_sends_no_code_to_a_terminal(hetero: Run, environ: Mapping[str, str]) -> None:
    site = Path(environ["PYTHONPATH"])
    (site / "loud.py").write_text("def main(argv):\n    print('\\x1b[31mred')\n    return 0\n")
    metadata = site / "loud-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hetero.bench]\nloud = loud:main\n")

    assert "\\x1b[31mred\n" == hetero("bench", "loud").stdout


def test_a_reader_that_has_seen_enough_is_no_error(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [*command, "inventory", "--watch"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as watch:
        assert watch.stdout
        assert watch.stderr
        watch.stdout.close()

        assert b"" == watch.stderr.read()
        assert 0 == watch.wait(10)


@pytest.mark.parametrize("words", [("ps", "--json"), ("--version",), ("completion", "bash")])
def test_rich_is_imported_only_where_something_is_drawn(
    environ: Mapping[str, str], words: tuple[str, ...]
) -> None:
    script = (
        "import sys; from hetero.cli import main\n"
        "try: main()\n"
        "finally: print(*(name for name in sys.modules if name == 'rich'), file=sys.stderr)"
    )
    done = completed([sys.executable, "-c", script, *words], env=environ, check=True)

    assert "\n" == done.stderr


def test_run_imports_no_table_and_no_other_command(environ: Mapping[str, str]) -> None:
    done = completed(
        [sys.executable, "-X", "importtime", "-m", "hetero.cli.run"], env=environ, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    assert {"hetero.node.node"} <= loaded
    assert set() == {name for name in loaded if name.split(".")[0] == "rich"}
    assert "hetero.cli.inventory" not in loaded
