"""Four simulated cards of 32 GiB, shared by containers that podman starts through the runtime."""

import json
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .conftest import Machine, Podman, until

pytestmark = pytest.mark.containers


def asked(text: str) -> list[str]:
    return ["--env", f"HETERO={text}"]


def log(machine: Machine, subject: str) -> list[str]:
    return [
        event["says"] for event in json.loads(machine.output("log", subject, "--json"))["items"]
    ]


#: A step takes a millisecond of the card, which is not measured first: a busy machine stretches it.
JOB = ("job", "--memory", "64MiB", "--iterations", "1000000", "--in-flight", "32")


def rate(podman: Podman, core: int | None) -> float:
    share = "" if core is None else f",core={core}"
    output = podman.output(asked(f"0:mem=1Gi{share}"), *JOB, "--warmup", "0.3", "--seconds", "2")
    return float(json.loads(output.splitlines()[-1])["rate"])


def test_3276_mib_are_shown_and_a_job_that_needs_more_is_out_of_memory(podman: Podman) -> None:
    assert "3276 MiB\n" == podman.output(asked("0:mem=3276Mi"), "nvidia-smi")

    done = podman.run(asked("0:mem=3276Mi"), "job", "--alloc", "7600MiB")

    assert (1, "CUDA_ERROR_OUT_OF_MEMORY") == (done.returncode, json.loads(done.stdout)["error"])


def test_8192_mib_are_enough_for_the_job(podman: Podman) -> None:
    done = podman.run(asked("0:mem=8192Mi"), "job", "--alloc", "7600MiB")

    assert (0, "") == (done.returncode, done.stderr)


def test_the_older_form_is_understood(podman: Podman) -> None:
    seed = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=2,MEM=3276,WEIGHT=10:PGPU=1,MEM=8192,WEIGHT=20"
    with podman.standing(["--env", f"EGPU={seed}"]):
        (grant,) = json.loads(podman.machine.output("ps", "--json"))["items"]

    asked = [(share["number"], share["memory"] >> 20, share["core"]) for share in grant["shares"]]
    assert [(2, 3276, 10), (1, 8192, 20)] == asked


@pytest.mark.measured
def test_throughput_is_in_proportion_to_core(podman: Podman) -> None:
    whole = rate(podman, None)

    shares = {core: 100 * rate(podman, core) / whole for core in (10, 50, 100)}

    assert {10: 10, 50: 50, 100: 100} == pytest.approx(shares, abs=8)


def test_more_memory_than_a_card_has_is_not_created_and_the_log_says_why(podman: Podman) -> None:
    done = podman.run(["--name", "large", *asked("count=1,mem=40960Mi")], "true")

    assert 126 == done.returncode
    assert "0 of 4 devices: 4 too small" in done.stderr
    assert 1 == done.stderr.count("\n")
    assert [
        "asked HETERO=count=1,mem=40960Mi",
        "refused, nothing was taken: 0 of 4 devices: 4 too small (40 GiB wanted, largest 32)",
    ] == log(podman.machine, "large")
    assert podman.machine.output("ps").endswith("no grants stand\n")


def test_a_container_finds_no_memory_where_three_have_taken_it(podman: Podman) -> None:
    with ExitStack() as stack:
        for card in range(3):
            stack.enter_context(podman.standing(asked(f"{card}:mem=32Gi")))

        refused = podman.run(asked("2:mem=1Gi"), "true")
        elsewhere = podman.run(asked("3:mem=1Gi"), "true")

    assert (126, 0) == (refused.returncode, elsewhere.returncode)
    assert "lack memory" in refused.stderr


def test_core_110_is_refused_before_anything_is_reserved(podman: Podman) -> None:
    done = podman.run(["--name", "greedy", *asked("0:mem=1Gi,core=110")], "true")

    assert 126 == done.returncode
    assert "core '110' is not a percentage" in done.stderr
    assert not any("admitted" in says for says in log(podman.machine, "greedy"))


def test_a_container_finds_no_core_where_three_have_taken_it(podman: Podman) -> None:
    with ExitStack() as stack:
        for core in (25, 25, 50):
            stack.enter_context(podman.standing(asked(f"0:mem=1Gi,core={core}")))

        done = podman.run(asked("0:mem=1Gi,core=1"), "true")

    assert 126 == done.returncode
    assert "lack core" in done.stderr


def test_removing_hetero_while_a_container_uses_it_is_refused_with_its_name(
    podman: Podman,
) -> None:
    prefix = ("--prefix", str(podman.machine.directory))
    with podman.standing(asked("0:mem=1Gi"), name="owner"):
        for command in (("doctor", "--uninstall-check"), ("runtime", "uninstall", *prefix)):
            done = podman.machine.hetero(*command)

            assert 3 == done.returncode
            assert "owner" in done.stderr
    done = podman.machine.hetero("runtime", "uninstall", *prefix, "--yes")
    assert (0, False) == (done.returncode, Path(podman.machine.runtime).exists())


@pytest.mark.measured
def test_a_limit_changed_while_it_runs_takes_hold_within_a_second(podman: Podman) -> None:
    command = [*podman.command(*asked("0:mem=1Gi,core=20")), *JOB, "--seconds", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        before = [json.loads(process.stdout.readline())["steps"] for _ in range(2)][-1]
        (grant,) = json.loads(podman.machine.output("ps", "--json", "--seconds", "0.05"))["items"]
        podman.machine.output("resize", grant["id"], "--core", "80")
        changed = time.monotonic()
        process.stdout.readline()  # the second in which it was changed
        while time.monotonic() - changed < 0.9:
            process.stdout.readline()
        after = json.loads(process.stdout.readline())["steps"]
        process.stdout.read()

    assert 4 == pytest.approx(after / before, abs=0.8)


def test_ps_names_the_container_and_forgets_it_when_it_is_deleted(podman: Podman) -> None:
    with podman.standing(asked("0:mem=1Gi"), name="named"):
        (grant,) = json.loads(podman.machine.output("ps", "--json"))["items"]
        (container,) = grant["containers"]

        assert ("named", "docker.io/local/job:1") == (container["name"], container["image"])
        assert container["id"][:12] in podman.machine.output("ps", "--wide")
    assert until(lambda: podman.machine.output("ps").endswith("no grants stand\n"), within=5)


def test_a_stopped_container_frees_its_grant_and_takes_one_again_when_started(
    podman: Podman,
) -> None:
    name = "again"
    command = podman.command("--name", name, "--detach", *asked("0:mem=32Gi"))
    command.remove("--rm")
    subprocess.run([*command, "sleep", "1000"], check=True, capture_output=True)
    try:
        podman("stop", "--time", "0", name)
        assert until(lambda: podman.machine.output("ps").endswith("no grants stand\n"), within=5)

        assert 0 == podman("start", name).returncode
        assert "32768 MiB\n" == podman("exec", name, "nvidia-smi").stdout
    finally:
        podman("rm", "--force", "--time", "0", name)
