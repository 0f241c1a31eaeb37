"""What is charged by the driver's figure of a process stays so, whatever becomes of the figure."""

from pathlib import Path

import hetero_simulator
import pytest
import tenancy
from tenancy import CONTEXT, MIB, Grant, Rack, Terms, in_front

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = ("lost_figure_ignored", "surplus_ends_passed_on", "unknown_sizes_uncharged")

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
    """And it neither begins NVML anew nor refuses what it has no figure for."""
    monkeypatch.setenv("HETERO_FAULT", "surplus_ends_passed_on")
    grant = Rack.of(tmp_path).grant(
        Terms(memory=64 * MIB), name="faulty", limiter=tenancy.with_faults("cuda")
    )
    answers, (made, _) = grant.run(f"{STREAMS}{ENDS}\nstart()\nsay([ends(3), streams()])")
    assert 0 in answers
    assert 400 == made


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


# --- no library at all ----------------------------------------------------------------------------


@pytest.fixture
def without_management(tmp_path: Path) -> str:
    """The folder of a container that has the driver's library and not NVML."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(hetero_simulator.fake_drivers() / "libcuda.so.1")
    return str(folder)


def test_a_container_without_the_management_library_has_streams_at_their_largest_size(
    tmp_path: Path, without_management: str
) -> None:
    """All that the card took for them is charged: what it has free less than before says so."""
    terms = Terms(memory=62 * MIB, flags=CONTEXT, context=2 * MIB)
    missing, made, charged_mib, taken = (
        Rack.of(tmp_path)
        .grant(terms)
        .run(
            f"""{STREAMS}
try:
    missing = not ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    missing = True
start()
made, charged = streams()
launch(spin_kernel(), 1)
call("cuCtxSynchronize")
say([missing, made, charged, take("plain", {2 * MIB})])
""",
            LD_LIBRARY_PATH=without_management,
        )
    )
    assert (True, 120, 60, 2) == (missing, made, charged_mib, taken)


# --- lists that are long, or another one ----------------------------------------------------------

#: NVML in front of the simulated one: LISTS=crowd has 600 processes of others in front of each
#: list, as on a card that many share, and LISTS=mps has all in the list of MPS's clients. The other
#: library's functions are found in its table, since a lookup by name has the limiter's answer.
LISTS = r"""
#include "own_function.h"
#include <stdlib.h>
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } row;
typedef int list(void *, unsigned *, row *);
enum { CROWD = 600, INSUFFICIENT_SIZE = 7 };
static int is(const char *lists) { return !strcmp(getenv("LISTS"), lists); }
static int none(unsigned *count) { return *count = 0; }
static int answer(void *device, unsigned *count, row *rows)
{
    const char *name = "nvmlDeviceGetComputeRunningProcesses_v3";
    list *real = (list *)own_function("Xibnvidia-ml.so.1", name);
    unsigned others = is("crowd") ? CROWD : 0, own = *count > others ? *count - others : 0;
    int code = real(device, &own, rows ? rows + others : 0);
    int fits = code == 0 && *count >= others + own;
    *count = others + own;
    for (unsigned index = 0; fits && index < others; index++)
        rows[index] = (row){1000000 + index, 1 << 20, ~0u, ~0u};
    return fits || code != 0 ? code : INSUFFICIENT_SIZE;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, row *rows)
{
    return is("mps") ? none(count) : answer(device, count, rows);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, row *rows)
{
    return is("mps") ? answer(device, count, rows) : none(count);
}
"""
FLAGS = ("-D_GNU_SOURCE", f"-I{Path(__file__).parent}", "-ldl")


@pytest.mark.parametrize("lists", ["crowd", "mps"])
def test_a_figure_is_found_among_600_processes_and_in_the_list_of_ones_own_mps_daemon(
    streams_of_a_grant: Grant, tmp_path: Path, lists: str
) -> None:
    drivers = hetero_simulator.fake_drivers()
    front = in_front(tmp_path, drivers / "libnvidia-ml.so.1", LISTS, *FLAGS).parent
    program = f"{STREAMS}\nstart()\nsay(streams())"
    expected = streams_of_a_grant.run(program)
    assert 100 < expected[0] < 400
    among_others = streams_of_a_grant.run(
        program, LISTS=lists, LD_LIBRARY_PATH=f"{front}:{drivers}"
    )
    assert expected == among_others


# --- excess ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "expected"), [(0, [0, 4, 2]), (CONTEXT, [2])])
def test_what_others_took_past_the_limiter_the_next_process_is_refused_in_each_way(
    tmp_path: Path, flags: int, expected: list[int]
) -> None:
    """Memory, and all streams but those of a context's first block; else the context itself."""
    terms = Terms(memory=64 * MIB, flags=flags, context=2 * MIB, excess=64 * MIB)
    program = f"""{STREAMS}
call("cuInit", 0)
context = c_void_p()
code = cuda.cuDevicePrimaryCtxRetain(byref(context), c_int(0))
def rest():
    call("cuCtxSetCurrent", context)
    return [streams()[0], take("plain", {2 * MIB})]
say([code, *([] if code else rest())])
"""
    assert expected == Rack.of(tmp_path).grant(terms).run(program)
