"""Children of fork: what they hold, and that none waits for a thread that it does not have."""

import re

from tenancy import LIMITER, MIB, Grant

LIMITERS = LIMITER.parents[2]


def test_a_forked_child_has_an_account_of_its_own(grant: Grant) -> None:
    amounts = grant.run(f"""
import os
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    start()
    held = take("plain", {20 * MIB}) > 1000
    os.write(ready[1], b"1" if held else b"0")
    os.read(go[0], 1)
    os._exit(0)
start()
seen = [os.read(ready[0], 1).decode(), info()[0] >> 20]
take("plain", {30 * MIB})
seen.append(info()[0] >> 20)
os.write(go[1], b"x")
os.waitpid(child, 0)
seen.append(info()[0] >> 20)
say(seen)
""")
    assert ["1", 44, 14, 34] == amounts


def test_a_child_forked_amid_calls_of_other_threads_answers_each_call(grant: Grant) -> None:
    """CUDA works in no such child: the driver answers that it is not initialised.

    A limiter that waits there for a thread that the child does not have would hang it for good.
    """
    answered = grant.run("""
import os, signal
context, over, file = start(), False, c_int()
address, again, other = c_uint64(), c_uint64(), c_void_p()
call("cuMemAddressReserve", byref(address), 2 << 20, 0, 0, 0)
held = {path: take(path, 2 << 20) for path in ("plain", "pool", "block", "array", "graph")}
def mapping():
    cuda.cuMemMap(address, c_size_t(2 << 20), c_size_t(0), c_uint64(held["block"]), c_uint64(0))
    cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address.value))
    cuda.cuMemRelease(again)
    cuda.cuMemUnmap(address, c_size_t(2 << 20))
def paths():
    for path in held:
        try:
            give(path, take(path, 3000))
        except (Refused, ctypes.ArgumentError, TypeError):
            pass
def others():
    info(), cuda.cuCtxSetLimit(c_int(0), c_size_t(2048)), spin_kernel()
    cuda.cuStreamCreate(byref(other), c_uint(1)), cuda.cuStreamDestroy_v2(other)
WORK = (mapping, mapping, paths, others)
def race(number):
    call("cuCtxSetCurrent", context)
    while not over:
        WORK[number]()
def in_child():
    signal.alarm(10)
    try:
        for work in WORK:
            work()
    except (Refused, AssertionError):
        pass
    os._exit(0)
racing = threading.Thread(target=in_threads, args=(4, race))
racing.start()
ends = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        in_child()
    ends.append(os.waitpid(child, 0)[1])
    if ends[-1] != 0:
        break
over = True
racing.join()
say(ends)
""")
    assert [0] * 30 == answered


def test_each_lock_of_the_limiters_is_renewed_in_a_child() -> None:
    """By their sources: a thread that the child does not have may have held it at the fork."""
    sources = {file: file.read_text() for file in sorted(LIMITERS.glob("*/*.c"))}
    function = re.compile(r"^(?:static )?void (\w+_after_fork|forget_parent)\(.*?^}", re.M | re.S)
    lock = re.compile(r"^static .*?(\w+)(?:\[\w+\])? = .*PTHREAD_\w+_INITIALIZER", re.M)
    locks, held, uncalled = 0, [], []
    for file, text in sources.items():
        in_child = "".join(each[0] for each in function.finditer(text))
        for name in lock.findall(text):
            locks += 1
            if not re.search(rf"\b{name}\b", in_child) or "mutex" not in in_child.lower():
                held.append((file.name, name))
        for name in function.findall(text):
            if not any(re.search(rf"(?<!void )\b{name}\b", each) for each in sources.values()):
                uncalled.append(name)
    assert ([], []) == (held, uncalled)
    assert locks >= 15


def test_a_child_that_outlives_its_parent_does_not_hold_the_parents_memory(grant: Grant) -> None:
    used_mib = grant.run(f"""
import os
start()
take("plain", {50 * MIB})
if os.fork() == 0:
    os.close(1), os.close(2)
    import time
    time.sleep(2)
    os._exit(0)
say(info()[0] >> 20)
""")
    assert 14 == used_mib
    assert 64 == grant.run("start(); say(info()[0] >> 20)")
