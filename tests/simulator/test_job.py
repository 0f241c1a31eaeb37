"""hetero-job-cuda, and by it how simulated cards share their time."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from simulated import GIB, Machine

from tests.programs import next_line


def finished(process: Any) -> list[dict[str, Any]]:
    out, error = process.communicate(timeout=30)
    assert "" == error
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.measured
def test_one_job_alone_has_the_whole_card(machine: Machine) -> None:
    *seconds, whole = finished(
        machine.job("--iterations", "498", "--seconds", "1.5", "--memory", "256MiB")
    )
    assert [1] == [each["second"] for each in seconds]
    assert {"steps", "seconds", "rate", "memory", "iterations"} == set(whole)
    assert 256 << 20 == whole["memory"]
    assert 2000 == pytest.approx(whole["rate"], rel=0.05)


@pytest.mark.measured
def test_a_job_finds_the_length_it_was_asked_for_even_beside_another(machine: Machine) -> None:
    jobs = [machine.job("--kernel-us", "400", "--seconds", "1.5") for _ in range(2)]
    first, other = (finished(job)[-1]["rate"] for job in jobs)
    lost = 150 / (2090 + 150)  # a change in a time slice and a change
    assert 2500 * (1 - lost) == pytest.approx(first + other, rel=0.1)
    assert first == pytest.approx(other, rel=0.15)


@pytest.mark.measured
def test_a_job_of_graphs_takes_as_long_as_its_kernels(machine: Machine) -> None:
    whole = finished(
        machine.job("--graph", "10", "--iterations", "98", "--seconds", "1", "--in-flight", "2")
    )[-1]
    assert 1000 == pytest.approx(whole["rate"], rel=0.05)


@pytest.mark.measured
def test_a_cooperative_job_takes_as_long_as_its_kernels(machine: Machine) -> None:
    options = ("--cooperative", "--iterations", "998", "--seconds", "1")
    whole = finished(machine.job(*options))[-1]
    assert 1000 == pytest.approx(whole["rate"], rel=0.05)


@pytest.mark.measured
def test_a_cued_job_runs_each_time_until_it_is_told_and_rests_between_steps(
    machine: Machine,
) -> None:
    with machine.job("--cued", "--iterations", "498", "--in-flight", "1") as job:
        assert job.stdin is not None
        assert {"ready": True} == json.loads(next_line(job))
        for rest in (0, 0.05):
            until = time.monotonic() + 0.5
            print(until, rest, file=job.stdin, flush=True)
            first, *steps = json.loads(next_line(job))
            assert [0, 0] == first[1:]
            assert steps[-2][0] < until <= steps[-1][0]
            assert {1} == {count for _, count, _ in steps}
            apart = [later[0] - sooner[0] for sooner, later in pairwise(steps)]
            assert rest < min(apart)
            assert 0.0005 <= min(took for _, _, took in steps) < 0.05


def test_a_job_says_how_an_allocation_went(machine: Machine) -> None:
    job = machine.job("--alloc", "1GiB", "--alloc", "1.001GiB", "--alloc", "1MB")
    assert [
        {"allocated": GIB},
        {"error": "CUDA_ERROR_OUT_OF_MEMORY", "code": 2},
        {"allocated": 1_000_000},
    ] == finished(job)
    assert 1 == job.returncode


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bogus"], "--bogus: unknown, or without its value (--help lists the options)"),
        (["--memory", "lots"], "--memory: expected a size such as 1GiB or 500MB, not 'lots'"),
        (["--seconds", "x"], "--seconds: expected a number of at least 0, not 'x'"),
        (["--in-flight", "0"], "--in-flight: expected a number of at least 1, not '0'"),
        (
            ["--graph", "2", "--cooperative"],
            "--graph and --cooperative: a step is one or the other",
        ),
        (["more"], "'more': not an option (--help lists them)"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    machine: Machine, options: list[str], message: str
) -> None:
    job = machine.job(*options)
    out, error = job.communicate(timeout=30)
    assert (2, "", f"hetero-job-cuda: {message}\n") == (job.returncode, out, error)


def test_a_job_without_a_device_says_so(machine: Machine) -> None:
    machine.rack.write_text("")
    job = machine.job("--seconds", "1")
    out, error = job.communicate(timeout=30)
    assert (1, "", "hetero-job-cuda: cuInit: CUDA_ERROR_NO_DEVICE (100)\n") == (
        job.returncode,
        out,
        error,
    )
