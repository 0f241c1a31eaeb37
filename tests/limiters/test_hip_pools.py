"""The limiter for HIP on pools of runtimes that keep what hipFree frees, as later than Debian's do.

In front of the simulated runtime of HIP 7, with functions in front of that.
"""

from pathlib import Path

from tenancy import MIB, Terms, in_front
from test_hip_later import SEVEN, UUID, answers_of, granted

#: A pool of the program's own.
POOL = """
import ctypes
class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "place", "device")]
    _fields_ += [("none", c_void_p), ("reserved", ctypes.c_char * 64)]
on, pool = stream(), c_void_p()
call("hipMemPoolCreate", byref(pool), byref(Properties(1, 0, 1, 0)))
def of_pool():
    got = c_void_p()
    answer = code("hipMallocFromPoolAsync", byref(got), 32 * MIB, pool, on)
    assert answer in (0, OUT_OF_MEMORY)
    return got if answer == 0 else None
"""


def test_what_of_a_pool_is_freed_at_once_is_had_again(tmp_path: Path) -> None:
    """A pool keeps it, with the rest in use; AMD's runtime 5.2.3 does not (test_hip.py)."""
    program = f"""
{POOL}
kept, freed = of_pool(), of_pool()
call("hipFree", freed)
say([memory()[0], malloc(30 * MIB) > 0])
"""
    assert [32, True] == answers_of(granted(tmp_path), program)


#: A runtime whose hipFree waits, when the pool has the memory already, until `waiting` is 0.
WAITS = """
#include <unistd.h>
int hipFreeAsync(void *, void *), hipDeviceSynchronize(void);
volatile unsigned freed, waiting = 1;
int hipFree(void *pointer)
{
    int answer = hipFreeAsync(pointer, 0);
    freed++;
    for (int i = 0; waiting && i < 10000; i++)
        usleep(1000);
    return waiting ? -1 : answer + hipDeviceSynchronize();
}
"""


def test_what_a_thread_takes_of_a_pool_while_another_frees_stays_charged(
    tmp_path: Path,
) -> None:
    """And it does not wait for the other, which waits for the device."""
    program = f"""
import threading
{POOL}
freed, waiting = (c_uint.in_dll(hip, name) for name in ("freed", "waiting"))
first = of_pool()
other = threading.Thread(target=call, args=("hipFree", first))
other.start()
until = time.monotonic() + 10
while not freed.value and time.monotonic() < until:
    time.sleep(0.001)
second = of_pool()
waiting.value = 0
other.join(10)
free, more = memory()[0], [of_pool(), of_pool()]
say([free, [each is not None for each in more], on_card() // MIB])
"""
    runtime = in_front(tmp_path, SEVEN, WAITS)
    answers = granted(tmp_path).run(program, CALLS_PATH=str(runtime), HETERO_LOG="off")
    assert [32, [True, False], 64] == answers


#: A runtime in which the pool gives back what it keeps while memory is taken of it.
GIVES_BACK = """
int hipMemPoolTrimTo(void *, unsigned long), hipDeviceSetMemPool(int, void *);
int hipMallocAsync(void **, unsigned long, void *);
int hipMallocFromPoolAsync(void **at, unsigned long bytes, void *pool, void *stream)
{
    hipMemPoolTrimTo(pool, 0);
    return hipDeviceSetMemPool(0, pool) + hipMallocAsync(at, bytes, stream);
}
"""


def test_memory_is_had_of_a_pool_that_gives_back_what_it_keeps_meanwhile(tmp_path: Path) -> None:
    """As where another thread waits for a stream: the pool has less after the call than before."""
    program = f"""
{POOL}
first, second = of_pool(), of_pool()
call("hipFreeAsync", first, on)
call("hipFreeAsync", second, on)
third = of_pool()
say([third is not None, memory()[0], on_card() // MIB, malloc(90 * MIB) > 0])
"""
    runtime = in_front(tmp_path, SEVEN, GIVES_BACK)
    grant = granted(tmp_path)
    grant.set(Terms(memory=128 * MIB, core=9000, uuid=UUID))
    answers = grant.run(program, CALLS_PATH=str(runtime), HETERO_LOG="off")
    assert [True, 96, 32, True] == answers
