"""What short grants with long kernels, and kernels without an end, leave of a card to an honest 60.

All run by `hetero run` on a simulated card, as one user without heterod.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import hetero_simulator
import pytest
from attacks import Attack, built, standing
from attrs import frozen

RACK = """[device]
vendor = nvidia
model = Card
memory = 32 GiB
[kernel spin]
time = 2 us
per_arg0 = 1 ns
[kernel milliseconds]
per_arg0 = 1 ms
"""
#: The honest one's kernels take 2 ms.
WHOLE = 500
HETERO = (sys.executable, "-m", "hetero.cli")


@frozen
class Bench:
    """A simulated card with an honest program of 60, what its environment is, and the attacker."""

    environ: dict[str, str]
    steps: list[int]
    attacker: str

    def left_percent(self, seconds: int) -> float:
        """Return what the honest program has of the card in the next so many whole seconds."""
        first = len(self.steps) + 1
        while len(self.steps) < first + seconds:
            time.sleep(0.1)
        return 100 * sum(self.steps[first : first + seconds]) / seconds / WHOLE


def read_steps(lines: Iterable[str], steps: list[int]) -> None:
    """Append the steps of each second, as the honest program says them."""
    for line in lines:
        steps.append(json.loads(line)["steps"])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "card.rack").write_text(RACK)
    (tmp_path / "node.toml").write_text('[heterod]\non_debt = "end"\n')
    environ = {
        **os.environ,
        "HETERO_RACK": str(tmp_path / "card.rack"),
        "HETERO_STATE": str(tmp_path / "state"),
        "HETERO_CONFIG": str(tmp_path / "node.toml"),
    }
    (attacker,) = built(Attack("one_kernel", "kernels of any length"), tmp_path)
    words = ("--kernel-us", "2000", "--in-flight", "4", "--seconds", "600")
    job = (hetero_simulator.job("cuda"), *words)
    share = ("run", "--quiet", "--memory", "1Gi", "--core", "60")
    with standing(*HETERO, *share, "--", *job, **environ) as honest:
        steps: list[int] = []
        assert honest.stdout is not None
        Thread(target=read_steps, args=(honest.stdout, steps), daemon=True).start()
        bench = Bench(environ, steps, attacker)
        bench.left_percent(1)
        yield bench


@pytest.mark.measured
def test_new_grants_gain_nothing_over_one_that_stands(bench: Bench) -> None:
    hetero = " ".join(HETERO)
    loop = f"while :; do {hetero} run --memory 1Gi --core 1 -- {bench.attacker} 1 1000; done 2>&1"
    with ExitStack() as loops:
        attackers = [
            loops.enter_context(standing("sh", "-c", loop, **bench.environ)) for _ in range(3)
        ]
        left = bench.left_percent(20)
        for attacker in attackers:
            os.killpg(attacker.pid, signal.SIGKILL)
        outputs = [attacker.stdout.read() for attacker in attackers if attacker.stdout]

    print(f"{left:.1f} of 60 beside three loops of 1 % grants")
    assert left >= 54  # 35 without: each second kernel is of another grant
    for output in outputs:
        assert "hetero: waits " in output
        assert " on nvidia:0 (job " in output


@pytest.mark.measured
def test_kernels_without_an_end_are_told_and_ended(bench: Bench) -> None:
    """Six processes of a 10 launch one each, and their program writes into their account."""
    limits = ("run", "--quiet", "--memory", "1Gi", "--core", "10")
    with (
        standing(*HETERO, "doctor", "--watch", **bench.environ) as watch,
        standing(
            *HETERO, *limits, "--", bench.attacker, "6", "400000", "writes", **bench.environ
        ) as six,
    ):
        assert watch.stdout is not None
        killed = next(line for line in watch.stdout if " is killed: owes " in line)
        assert -signal.SIGKILL == six.wait(timeout=60)
        left = bench.left_percent(10)
    print(f"{left:.1f} of 60 in the ten seconds after")
    assert "(of " in killed
    assert "goes on while others have work" in killed
    assert left >= 50
