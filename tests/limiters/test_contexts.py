"""With its flag a grant pays for all that the driver counts: contexts, code, of each process."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import tenancy
from tenancy import CONTEXT, MIB, Grant, Rack, Terms, meanwhile

from tests.programs import next_line

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = (
    "contexts_uncharged",
    "lost_figure_ignored",
    "surplus_ends_passed_on",
    "unknown_sizes_uncharged",
)

#: What a context takes on the simulated card, and what the node says that it does.
TAKEN = 100 * MIB
MAKE = """
def context():
    made = c_void_p()
    code = cuda.cuCtxCreate_v2(byref(made), c_uint(0), c_int(0))
    return made if code == 0 else code
"""
#: A program that makes the primary context, says its answer and keeps it.
ONE_CONTEXT = """
call("cuInit", 0)
say(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)))
input()
"""
#: NVML as a program has it, and so many of its ends.
ENDS = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def ends(count):
    return [nvml.nvmlShutdown() for _ in range(count)]
"""
#: How many of 400 streams are made, and what they are charged.
STREAMS = """
def streams():
    before, made, stream = info()[0], 0, c_void_p()
    while made < 400 and cuda.cuStreamCreate(byref(stream), c_uint(1)) == 0:
        made += 1
    return [made, before - info()[0] >> 20]
"""


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A card of 1 GiB on which a context takes 100 MiB."""
    return Rack.of(tmp_path, more=f"context = {TAKEN // MIB} MiB")


def granted(rack: Rack, mib: int, context: int = TAKEN, name: str = "grant") -> Grant:
    return rack.grant(Terms(memory=mib * MIB, flags=CONTEXT, context=context), name=name)


def test_each_context_of_a_process_is_charged(rack: Rack) -> None:
    code = f"""{MAKE}
start()
free = [info()[0] >> 20]
for _ in range(3):
    context()
    free.append(info()[0] >> 20)
say(free)
"""
    assert [300, 200, 100, 0] == granted(rack, 400).run(code)


def test_without_the_flag_contexts_are_not_charged(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=200 * MIB, context=TAKEN))
    assert [200, True] == grant.run(f"""{MAKE}
start(), context(), context()
say([info()[0] >> 20, take("plain", {200 * MIB}) > 1000])
""")


def test_each_process_has_a_context_of_its_own_charged(rack: Rack) -> None:
    grant = granted(rack, 350)
    with ExitStack() as programs:
        answers = []
        for _ in range(4):
            program = grant.start(ONE_CONTEXT)
            programs.enter_context(meanwhile(program))
            answers.append(next_line(program))
        assert (["0\n"] * 3 + ["2\n"], 300 * MIB) == (answers, grant.usage().used)


def test_the_driver_is_not_asked_for_a_context_that_does_not_fit(rack: Rack) -> None:
    grant = granted(rack, 150)
    assert [2, 2] == grant.run(f"""{MAKE}
start()
say([context(), context()])
""")
    assert (100 * MIB, 2) == (grant.usage().peak, grant.usage().denied)


def test_what_a_context_takes_beyond_what_the_node_says_is_charged(rack: Rack) -> None:
    assert [100, 0] == granted(rack, 200, context=60 * MIB, name="a little").run(f"""{MAKE}
start()
free = [info()[0] >> 20]
context()
say([*free, info()[0] >> 20])
""")
    assert [2, 2] == granted(rack, 70, context=60 * MIB, name="too little").run(f"""{MAKE}
call("cuInit", 0)
say([context(), cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0))])
""")


def test_what_the_node_does_not_know_is_charged_as_the_driver_counts_it(rack: Rack) -> None:
    assert [150, 50] == granted(rack, 250, context=0).run(f"""{MAKE}
start()
free = [info()[0] >> 20]
context()
say([*free, info()[0] >> 20])
""")


def test_what_the_node_says_too_much_is_room_for_what_has_no_size(rack: Rack) -> None:
    """Streams and code are charged by the process's figure, which is below the charge then."""
    assert [80, 80] == granted(rack, 200, context=120 * MIB).run("""
start()
free = [info()[0] >> 20]
call("cuStreamCreate", byref(c_void_p()), c_uint(1))
say([*free, info()[0] >> 20])
""")


def test_a_context_that_ends_gives_its_memory_back_but_the_last(rack: Rack) -> None:
    """The driver keeps part of the last one, so its charge stays for the next."""
    grant = granted(rack, 300)
    assert [100, 200, 200] == grant.run(f"""{MAKE}
start()
own = context()
free = [info()[0] >> 20]
call("cuCtxDestroy_v2", own)
free.append(info()[0] >> 20)
call("cuDevicePrimaryCtxRelease_v2", c_int(0))
start()
say([*free, info()[0] >> 20])
""")
    assert 200 * MIB == grant.usage().peak


def test_a_primary_context_that_stands_needs_no_room(rack: Rack) -> None:
    assert [0, 0] == granted(rack, 150).run(f"""
start()
take("plain", {50 * MIB})
say([cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)), info()[0]])
""")


def test_threads_that_retain_the_primary_context_at_once_need_room_for_one(rack: Rack) -> None:
    assert [0] * 8 == granted(rack, 110).run("""
call("cuInit", 0)
answers = []
def retain(number):
    answers.append(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)))
in_threads(8, retain)
say(answers)
""")


def test_a_context_that_the_driver_refuses_is_not_charged(rack: Rack) -> None:
    grant = granted(rack, 2000)
    with meanwhile(program := rack.start(f"start()\ntake('plain', {800 * MIB})\nsay(1)\ninput()")):
        next_line(program)
        refused = grant.start(f"{MAKE}\nstart()\nsay(context())\ninput()")
        with meanwhile(refused):
            assert ("2\n", 100 * MIB) == (next_line(refused), grant.usage().used)


def test_with_a_fault_contexts_are_beyond_the_limit(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", tenancy.with_faults("cuda"))
    monkeypatch.setenv("HETERO_FAULT", "contexts_uncharged")
    grant = granted(rack, 64)
    program = grant.start(ONE_CONTEXT)
    with meanwhile(program):
        assert "0\n" == next_line(program)


@pytest.fixture
def streams_of_a_grant(tmp_path: Path) -> Grant:
    return Rack.of(tmp_path).grant(Terms(memory=64 * MIB))


def test_ends_of_nvml_that_no_start_precedes_do_not_end_the_limiters(
    streams_of_a_grant: Grant,
) -> None:
    """NVML itself answers that it is not initialised."""
    answers, (made, charged_mib) = streams_of_a_grant.run(f"""{STREAMS}{ENDS}
start()
say([ends(3), streams()])
""")
    assert [1, 1, 1] == answers
    assert 100 < made < 400
    assert 60 <= charged_mib <= 64


def test_each_start_of_nvml_has_one_end(streams_of_a_grant: Grant) -> None:
    assert [[0, 0, 0], [0, 0, 0, 1]] == streams_of_a_grant.run(f"""{ENDS}
start()
say([[nvml.nvmlInit(), nvml.nvmlInit_v2(), nvml.nvmlInitWithFlags(0)], ends(4)])
""")


#: From the eighth question on NVML has no figure of the process.
LOST = "\n[fault]\ncall = nvmlDeviceGetComputeRunningProcesses_v3\ndoes = vanish 8"


@pytest.mark.parametrize(("fault", "made"), [(None, False), ("lost_figure_ignored", True)])
def test_what_is_charged_by_a_figure_that_is_lost_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None, made: bool
) -> None:
    rack = Rack.of(tmp_path)
    rack.machine.rack.write_text(rack.machine.rack.read_text() + LOST)
    if fault:
        monkeypatch.setenv("HETERO_FAULT", fault)
    grant = rack.grant(
        Terms(memory=64 * MIB), limiter=tenancy.with_faults("cuda") if fault else None
    )
    count, allocated = grant.run(f"""{STREAMS}
start()
say([streams()[0], take("plain", {2 * MIB}) > 1000])
""")
    assert (made, True) == (count == 400, allocated)
    assert 0 < count


def test_with_a_fault_a_surplus_end_blinds_the_limiter(
    streams_of_a_grant: Grant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It asks for NVML anew only where the driver says that it is not initialised."""
    monkeypatch.setenv("HETERO_FAULT", "surplus_ends_passed_on")
    grant = Rack.of(tmp_path).grant(
        Terms(memory=64 * MIB), name="faulty", limiter=tenancy.with_faults("cuda")
    )
    assert 0 in grant.run(f"{ENDS}\nstart()\nsay(ends(3))")


#: As in a container without the management library.
UNKNOWN = "\n[fault]\ncall = nvmlDeviceGet*RunningProcesses*\ndoes = missing"
#: Arrays of one column of 8000 bytes, until one is refused: at most 200.
ARRAYS = """
def arrays():
    made, array, shape = 0, c_void_p(), (ctypes.c_size_t * 3)(1, 8000, 1 << 32 | 1)
    while made < 200 and cuda.cuArrayCreate_v2(byref(array), shape) == 0:
        made += 1
    return made
"""


@pytest.mark.parametrize(
    ("fault", "expected"), [(None, [120, 60, 0]), ("unknown_sizes_uncharged", [400, 0, 60])]
)
def test_streams_without_a_figure_are_charged_by_the_largest_size_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None, expected: list[int]
) -> None:
    """Two MiB for four of them."""
    rack = Rack.of(tmp_path)
    rack.machine.rack.write_text(rack.machine.rack.read_text() + UNKNOWN)
    if fault:
        monkeypatch.setenv("HETERO_FAULT", fault)
    terms = Terms(memory=62 * MIB, flags=CONTEXT, context=2 * MIB)
    grant = rack.grant(terms, limiter=tenancy.with_faults("cuda") if fault else None)
    answers = grant.run(f"""{STREAMS}
start()
say([*streams(), info()[0] >> 20])
""")
    assert expected == answers


def test_streams_without_a_figure_are_given_back_with_the_last_context(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    rack.machine.rack.write_text(rack.machine.rack.read_text() + UNKNOWN)
    terms = Terms(memory=62 * MIB, flags=CONTEXT, context=2 * MIB)
    assert [[120, 60], 60] == rack.grant(terms).run(f"""{STREAMS}
start()
first = streams()
call("cuDevicePrimaryCtxRelease_v2", c_int(0))
start()
say([first, info()[0] >> 20])
""")


def test_rows_of_arrays_without_a_figure_are_charged_as_they_are_laid_out(tmp_path: Path) -> None:
    """Eight thousand rows of a byte take 512 kB, and so 32 MiB have 65 of them."""
    rack = Rack.of(tmp_path)
    rack.machine.rack.write_text(rack.machine.rack.read_text() + UNKNOWN)
    grant = rack.grant(Terms(memory=34 * MIB, flags=CONTEXT, context=2 * MIB))
    made = grant.run(f"{ARRAYS}\nstart()\nsay(arrays())")
    assert 60 <= made <= 65
