"""Runs the attacks under a grant, on a card where there is one and else on a simulated one.

make attacks; `PYTHONPATH=tests/limiters:tests/simulator/machine .venv/bin/python
tests/attacks/attacks.py NAME...` runs those that are named. With limiters/build/faults first in
PYTHONPATH (make -C limiters faults) HETERO_FAULT names what is taken out of the limiter meanwhile
(test_attack_faults.py: which attack sees which).
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Any
from uuid import UUID

import attrs
import hetero_simulator
from simulated import Machine
from tenancy import CONTEXT, MIB, UUIDS, Grant, Rack, Terms, meanwhile

HERE = Path(__file__).parent
MEMORY, CORE = 64 * MIB, 30
#: Of a grant where contexts count. It has one on an H100, of 518 MiB; on a simulated card, where
#: there is room for ten, eight.
WITH_CONTEXTS = 768 * MIB
LIMITS = {"ATTACK_MEMORY": str(MEMORY), "ATTACK_CORE": str(CORE)}
#: Steps per second of the honest program alone on a simulated card.
WHOLE = 2000
#: Seconds within which an attack that cannot be held is to be seen, and when that is given up.
SOON, LATE = 60, 150
#: Seconds after which a program is given up; held.py ends what it runs before.
LONGEST = 210


@attrs.frozen
class Attack:
    """A program, and the row of the audit that it is."""

    name: str
    what: str
    held: bool = True
    """False: nothing in user space can hold it."""
    flags: tuple[str, ...] = ()
    contexts: int = 0
    """How many each of its processes has, where the card is asked what it holds (held.py)."""
    counted: bool = False
    """The card is asked so, and contexts count: all that it holds is to be within the limit."""
    cards: int = 1
    """How many the grant has."""
    resized: bool = False
    """Its core is set while it runs, as it asks: it measures itself by its rate without a limit."""
    works: bool = False
    """It goes on to launch beside an honest program, which is to have its half all the same."""


ATTACKS = (
    Attack("libc_dlsym", "libc's dlsym, by dlsym"),
    Attack("libc_dlvsym", "libc's dlsym, by dlvsym"),
    Attack(
        "own_functions",
        "the program's own access(), open(), clock_gettime() …",
        True,
        ("-rdynamic",),
    ),
    Attack("unnoticed_forks", "children by clone and _Fork"),
    Attack("closed_files", "siblings that close the limiter's descriptors"),
    Attack("reused_numbers", "its own files under the limiter's numbers, and a fork"),
    Attack("no_more_files", "RLIMIT_NOFILE 0 before the first launch"),
    Attack("nvml_readers", "1030 processes that only read NVML"),
    Attack("stopped_sibling", "memory freed while a sibling is stopped in the region's lock"),
    Attack("in_constructor", "first launch in a constructor, last in a destructor"),
    Attack("exit_handler", "twenty small fills in an exit handler"),
    Attack("endless_exit", "all work in an exit handler"),
    Attack("signal_handler", "launches in signal handlers"),
    Attack("exported_blocks", "blocks in descriptors, imports and other processes", contexts=1),
    Attack("outliving_graphs", "memory that outlives its graph", contexts=1),
    Attack("module_arrays", "arrays that modules declare", contexts=1),
    Attack("pools_of_a_byte", "what pools reserve for a byte", contexts=1),
    Attack("local_memory", "arrays that the threads of kernels have", contexts=2),
    Attack("context_limits", "stacks, heaps and printf's queues", contexts=1),
    Attack("sparse_arrays", "blocks that only sparse arrays refer to", contexts=1),
    Attack("blocked_frees", "memory freed behind work that does not end", contexts=1),
    Attack("ended_owners", "memory whose owner ended or freed it", contexts=1),
    Attack("managed_pools", "managed memory of pools", contexts=1),
    Attack("raw_lookup", "the driver's lookup by all its names", contexts=1),
    Attack("other_contexts", "memory of contexts that end", contexts=2),
    Attack("rounded_sizes", "sizes that take more than they are", contexts=1),
    Attack("retained_blocks", "blocks retained while they are unmapped", contexts=1),
    Attack("graph_nodes", "nodes and branches of graphs", contexts=1),
    Attack("seldom_doors", "calls that few programs make", contexts=1),
    Attack("early_charges", "what is charged before the card has it", contexts=1),
    Attack("page_tables", "page tables of far addresses", contexts=1),
    Attack("changing_arguments", "arguments that another thread changes", contexts=1),
    Attack("racing_pools", "ordered memory while captures end and pools change", contexts=1),
    Attack("many_contexts", "contexts of many processes, and of one", counted=True),
    Attack("ended_management", "NVML ended more often than begun", contexts=1),
    Attack("honest_memory", "honest use of all these", contexts=1),
    Attack("hidden_captures", "captures begun by other names"),
    Attack("private_loader", "a private copy of ld.so", held=False),
    Attack("mounted_over", "a mount over /etc/hetero", held=False),
)

#: Those that try to get more time by what they launch, which take long.
OF_TIME = (
    Attack("long_kernels", "kernels of 400 ms"),
    Attack("rare_long_kernels", "small kernels, and seldom a long one"),
    Attack("long_graphs", "graphs of 4000 kernels"),
    Attack("many_streams", "1000 streams"),
    Attack("late_captures", "captures begun behind work that has no fence yet"),
    Attack("ungated_work", "work by seldom used calls", resized=True),
    Attack("frozen_thread", "the limiter's thread, frozen by a debugger"),
    Attack("changing_streams", "streams that change between two looks"),
    Attack("ended_contexts", "contexts that end with work in them"),
    Attack("own_events", "the limiter's events, destroyed or recorded anew"),
    Attack("many_launchers", "long kernels by 64 threads at once"),
    Attack("many_exits", "work in the exit handlers of several processes"),
    Attack("several_devices", "launches on two cards at once", cards=2),
)

#: Those that try to keep an honest program from the card, of tests/attacks/test_arbiter.py.
OF_OTHERS = (
    Attack("stuck_launcher", "a launcher kept in a signal handler at the gate"),
    Attack("shared_files", "locks and leases on all that it can open"),
    Attack("late_sleeper", "the limiter's thread, made to sleep late", works=True),
    Attack("working_exit", "work in an exit handler", works=True),
    Attack("floods", "calls that pass no gate, of eight kinds at once", works=True),
)
BY_NAME = {attack.name: attack for attack in (*ATTACKS, *OF_TIME)}


class Card(Machine):
    """A machine with a card, as `Machine` is one without."""

    def __init__(self) -> None:
        """It has no rack."""

    def environment(self, **more: str) -> dict[str, str]:
        """Return this program's environment, with more."""
        return {**os.environ, **more}


def card_uuids() -> tuple[str, ...]:
    """Return the UUIDs of this machine's cards, in CUDA's order; none where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count, uuid, uuids = ctypes.c_int(), (ctypes.c_ubyte * 16)(), []
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    for ordinal in range(count.value):
        driver.cuDeviceGetUuid_v2(uuid, ordinal)
        uuids.append(f"GPU-{UUID(bytes=bytes(uuid))}")
    return tuple(uuids)


def simulated_rack(attack: Attack, directory: Path) -> Rack:
    """Return as many simulated cards as the attack needs.

    A context takes more than the limit on them, as on a card, and a copy takes longer there than
    the bytes that it moves here.
    """
    return Rack.of(directory, attack.cards, "context = 96 MiB\nbandwidth = 1 GB/s")


def grant_for(attack: Attack, rack: Rack, uuids: tuple[str, ...] = UUIDS) -> Grant:
    """Return a grant of the limits on the first of these cards.

    Where memory is measured it has all of the time.
    Those of time have memory for their streams.
    """
    core = 100 * (100 if attack.contexts or attack.counted else CORE)
    memory = WITH_CONTEXTS if attack.counted else MEMORY if attack not in OF_TIME else 16 * MEMORY
    flags = CONTEXT if attack.counted else 0
    terms = (
        Terms(memory=memory, core=core, uuid=uuid, flags=flags) for uuid in uuids[: attack.cards]
    )
    return rack.grant(*terms, name=attack.name)


def built(attack: Attack, directory: Path) -> list[str]:
    """Compile a program; return the command that runs it."""
    source, program = HERE / f"{attack.name}.c", directory / f"{attack.name}.run"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", *attack.flags]
    libraries = [str(source), "-ldl", "-pthread"]
    subprocess.run(["cc", *flags, "-o", program, *libraries], check=True)
    if "LIBRARY" not in source.read_text():
        return [str(program)]
    library = str(program.with_suffix(".so"))
    shared = ["-shared", "-fPIC", "-DLIBRARY"]
    subprocess.run(["cc", *flags, *shared, "-o", library, *libraries], check=True)
    return [str(program), library]


def start(attack: Attack, grant: Grant, directory: Path) -> subprocess.Popen[str]:
    """Start a program under the grant, and what asks the card beside it where that is wished."""
    memory = {"ATTACK_MEMORY": str(grant.terms[0].memory)} if attack.counted else {}
    environ, command = {**grant.environment, **LIMITS, **memory}, built(attack, directory)
    if attack.resized:
        environ["ATTACK_WANTED"] = str(directory / f"{attack.name}.wanted")
    if attack.contexts > 0 or attack.counted:
        environ["ATTACK_PRELOAD"] = environ.pop("LD_PRELOAD")
        ask = (sys.executable, str(HERE / "held.py"), grant.terms[0].uuid, str(attack.contexts))
        command = [*ask, *command]
    process = grant.rack.machine.spawn(command, **environ)
    if attack.resized:
        wanted = Path(environ["ATTACK_WANTED"])
        Thread(target=resize, args=(process, grant, wanted), daemon=True).start()
    return process


def resize(process: subprocess.Popen[str], grant: Grant, wanted: Path) -> None:
    """Set the core to what a program writes into a file, and remove the file, until it ends."""
    while process.poll() is None:
        if wanted.exists():
            core = 100 * int(wanted.read_text())
            grant.set(*(attrs.evolve(terms, core=core) for terms in grant.terms))
            wanted.unlink()
        time.sleep(0.002)


def report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a program says at its end: whether the limit was held, and what it got."""
    try:
        out, errors = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        return {"held": False, "got": f"it did not end within {LONGEST} s"}
    lines = out.splitlines()
    if process.returncode != 0 or not lines:
        return {"held": False, "got": f"exit {process.returncode}: {out}{errors}".strip()}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def honest_result(attack: Attack, directory: Path) -> dict[str, Any]:
    """Return what an honest program gets beside one that has the other half of a simulated card.

    It is held if the honest one has its share at once, and the other is charged for what it
    launched before it began to wait or to hold files, and no more, unless it goes on to work.
    """
    rack = Rack.of(directory)
    attacker, honest = (
        rack.grant(Terms(memory=MEMORY, core=5000), name=name) for name in ("attacker", "honest")
    )
    with meanwhile(start(attack, attacker, directory)):
        time.sleep(1)
        words = ("--kernel-us", "500", "--in-flight", "8", "--warmup", "1", "--seconds", "3")
        with honest.job(*words) as job:
            killer = Timer(20, job.kill)
            killer.start()
            out, _ = job.communicate()
            killer.cancel()
    if job.returncode != 0:
        return {"held": False, "got": "the honest one has not ended after 20 s"}
    got = 100 * json.loads(out.splitlines()[-1])["rate"] / WHOLE
    charged = attacker.usage().gpu_ns / 1e9
    held = abs(got - 50) <= 5 and (attack.works or charged < 0.5)
    return {"held": held, "got": f"{got:.1f} of 50 beside it; charged {charged:.2f} s"}


@contextmanager
def standing(*words: str | Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Have a program run until the block ends, the hard way, and its children with it."""
    with subprocess.Popen(
        words, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it ended, and was waited for
                os.killpg(process.pid, signal.SIGKILL)


def seen(attack: Attack, machine: Machine, directory: Path) -> float:
    """Return after how many seconds `hetero doctor --watch` tells of the time that it takes.

    It runs by `hetero run`, beside a program that keeps to its share.
    """
    state = {"HETERO_STATE": str(directory / "state"), "ATTACK_SECONDS": str(LATE)}
    environ = machine.environment(**state, **LIMITS)
    hetero = (sys.executable, "-m", "hetero.cli")
    share = (*hetero, "run", "--quiet", "--memory", "64Mi", "--core", str(CORE), "--")
    job = (hetero_simulator.job("cuda"), "--seconds", str(LATE), "--memory", "1MiB")
    with (
        standing(*hetero, "doctor", "--watch", **environ) as watch,
        standing(*share, *job, **environ) as neighbour,
    ):
        assert neighbour.stdout is not None
        assert watch.stdout is not None
        neighbour.stdout.readline()  # it has its memory
        begun = time.monotonic()
        with standing(*share, *built(attack, directory), **environ):
            patience = Timer(LATE, watch.kill)
            patience.start()
            sighting = next((line for line in watch.stdout if " of the time of " in line), None)
            patience.cancel()
    return time.monotonic() - begun if sighting else float("inf")


def main() -> int:
    """Print a table of what each program got; 1 if a limit was not held, or seen, that can be.

    2 where one was asked for that is not there.
    """
    unknown = [name for name in sys.argv[1:] if name not in BY_NAME]
    if unknown:
        print(
            f"{', '.join(unknown)}: no such attack; there are {', '.join(BY_NAME)}", file=sys.stderr
        )
        return 2
    chosen = [BY_NAME[name] for name in sys.argv[1:]] or [*ATTACKS, *OF_TIME]
    uuids, missed = card_uuids(), 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rack = Rack(directory, Card()) if uuids else Rack.of(directory)
        if not uuids:
            print("no card is here: on the simulated driver")
        for attack in chosen:
            if uuids and attack.cards > len(uuids):
                print(f"{attack.name:16} not run    {attack.what}")
                continue
            if not uuids:
                (directory / "racks" / attack.name).mkdir(parents=True)
                rack = simulated_rack(attack, directory / "racks" / attack.name)
            grant = grant_for(attack, rack, uuids or UUIDS)
            answer = report_of(start(attack, grant, directory))
            word = "held" if answer["held"] else "NOT HELD" if attack.held else "not closed"
            missed += attack.held and not answer["held"]
            print(f"{attack.name:16} {word:10} {attack.what}: {answer['got']}", flush=True)
        for attack in chosen:
            if not attack.held:
                after = seen(attack, rack.machine, directory)
                missed += after > SOON
                print(f"{attack.name:16} seen after {after:.0f} s of {SOON}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
