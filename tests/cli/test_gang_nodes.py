"""A gang of two nodes as people start it: `hetero run --gang NAME --row 1/2` on each of them.

A node is a directory of its own with a card of its own. All processes have a clock in common that
no load of the machine disturbs; the time of day is another on each node.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import hetero_simulator
import pytest

from .conftest import Begin

CARD = "[device]\nvendor = nvidia\nmodel = Card\nmemory = 32 GiB\n"
SPIN = "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
RANK = Path(__file__).with_name("gang_rank.py")
#: Steps before those that are timed, and those.
STEPS = ("20", "50")
#: Have programs alone the clock, and none that starts them: one of a node, or both of one node.
PRELOADED = 'export VIRTUAL_CLOCK=$1; shift; LD_PRELOAD=$0:$LD_PRELOAD exec "$@"'
BOTH = (
    "export VIRTUAL_CLOCK=$1; shift; export LD_PRELOAD=$0:$LD_PRELOAD; p=$1; r=$2; shift 2;"
    '"$p" "$r" 1 1 "$@" >/dev/null & exec "$p" "$r" 0 0 "$@"'
)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(begin: Begin, command: tuple[str, ...]) -> Start:
    """Start ranks on the node of a directory."""

    def run(
        node: Path, script: str, *rank: object, share: str, clock: str, skew: int = 0
    ) -> subprocess.Popen[str]:
        limits = ["run", "-q", "--memory", "4Gi", *share.split(), "--", "sh", "-c", script]
        words = [str(hetero_simulator.clock()), clock, command[0], str(RANK), *map(str, rank)]
        return begin(
            *command,
            *limits,
            *words,
            *STEPS,
            HETERO_STATE=str(node / "state"),
            HETERO_RACK=str(node / "rack"),
            PYTHONPATH="",
            VIRTUAL_SKEW=str(skew),
        )

    return run


def made(node: Path, cards: int) -> Path:
    node.mkdir()
    (node / "rack").write_text(CARD * cards + SPIN)
    return node


def rate(program: subprocess.Popen[str]) -> float:
    return float(program.communicate(timeout=60)[0])


def on_one_node(start: Start, node: Path, core: int) -> float:
    share = f"--count 2 --core {core}"
    clock = f"2:{node}/clock"
    return rate(start(made(node, 2), BOTH, 2, node, share=share, clock=clock))


def gang(
    start: Start, nodes: list[Path], folder: Path, share: str, *, of: int, skew: int
) -> Callable[[], float]:
    """Start a gang of a process on each node; return what waits for it and gives its rate."""
    folder.mkdir()
    clock = f"{of}:{nodes[0]}/clock"
    ranks = [
        start(node, PRELOADED, 0, rank, 2, folder, share=share, clock=clock, skew=rank * skew)
        for rank, node in enumerate(nodes)
    ]
    return lambda: min(map(rate, ranks))


def test_a_gang_of_two_nodes_has_its_share_whatever_their_clocks_say(
    start: Start, tmp_path: Path
) -> None:
    alone, half = (on_one_node(start, tmp_path / f"one-{core}", core) for core in (100, 50))
    on_one = 100 * half / alone
    assert pytest.approx(50, abs=3) == on_one
    for skew in (0, 1, 5):
        nodes = [made(tmp_path / f"node-{skew}-{number}", 1) for number in range(2)]
        share = "--core 50 --gang us --row 1/2"
        ends = gang(start, nodes, tmp_path / f"us-{skew}", share, of=2, skew=skew * 10**6)
        got = 100 * ends() / alone
        print(f"clocks apart by {skew} ms: {got:.2f}, and {on_one:.2f} on one node")
        assert pytest.approx(on_one, abs=4) == got


def test_two_gangs_of_the_same_two_nodes_go_on_beside_each_other(
    start: Start, tmp_path: Path
) -> None:
    alone = on_one_node(start, tmp_path / "one", 100)
    nodes = [made(tmp_path / f"node-{number}", 1) for number in range(2)]
    ends = [
        gang(start, nodes, tmp_path / name, f"--core 50 --gang {name} --row {row}", of=4, skew=0)
        for name, row in (("us", "1/2"), ("them", "2/2"))
    ]
    got = [100 * end() / alone for end in ends]
    print(f"beside each other: {got[0]:.2f} + {got[1]:.2f}")
    assert 30 < sum(got)
