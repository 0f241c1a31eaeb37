"""How a program under measurement is started, heard and ended."""

import os
import time

import pytest
from hetero_benchmarks.trial import Machine, Program

from hetero.model.errors import HeteroError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv("HETERO_RACK", raising=False)
    return Machine(
        card="Card",
        uuid="CARD-1",
        memory=1 << 30,
        driver=None,
        simulated=False,
        date="2026-01-01T00:00:00+00:00",
        kernel="6.1",
        processors=2,
        versions={},
    )


def _shell(script: str, machine: Machine, *, patience: float = 30) -> Program:
    return Program(("sh", "-c", script), machine, None, name="gemm at 30 %", patience=patience)


def test_a_native_program_meets_the_measured_card_alone(machine: Machine) -> None:
    with _shell("echo $CUDA_VISIBLE_DEVICES $LD_PRELOAD", machine) as program:
        assert ["CARD-1\n"] == list(program.lines())


def test_a_program_is_told_when_to_go_on(machine: Machine) -> None:
    with _shell("echo ready; read word; echo got $word", machine) as program:
        assert "ready\n" == program.line()
        program.tell("cue")
        assert ["got cue\n"] == list(program.lines())


def test_a_program_that_fails_is_named_with_its_last_words(machine: Machine) -> None:
    script = "echo a warning >&2; echo no PyTorch here >&2; exit 3"

    with _shell(script, machine) as program, pytest.raises(HeteroError) as raised:
        program.line()

    assert "gemm at 30 % ended with status 3: no PyTorch here" == str(raised.value)


def test_a_program_that_fails_after_its_output_is_not_taken_for_a_good_one(
    machine: Machine,
) -> None:
    with _shell("echo 1; exit 1", machine) as program, pytest.raises(HeteroError):
        list(program.lines())


def test_a_program_that_hangs_is_killed_and_said_to(machine: Machine) -> None:
    hung = pytest.raises(HeteroError, match="hung and was killed")

    with _shell("exec sleep 600", machine, patience=0.2) as program, hung:
        program.line()


def test_a_program_that_is_borne_with_is_not_killed(machine: Machine) -> None:
    with _shell("read word; echo $word", machine, patience=0.2) as program:
        program.bear(None)
        time.sleep(0.4)
        program.tell("still here")
        assert "still here\n" == program.line()


def test_a_program_does_not_outlive_its_block(machine: Machine) -> None:
    with _shell("echo $$; exec sleep 600", machine) as program:
        pid = int(program.line())

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
