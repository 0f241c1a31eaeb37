"""The limiter for Ascend in front of each shape of the simulated runtime: its memory.

What the limiter holds as all of ours do is in test_isolation.py. The runtime and its driver keep
books of their own, and DCMI shows the card's.
"""

import time
from pathlib import Path

import hetero_limiters
import hetero_simulator
import pytest
from ascend import SHAPES, Ascend
from tenancy import MIB, Grant, Rack, Terms, in_front

LIMITER = hetero_limiters.library("acl")
#: The first four words of a die are its UUID.
DIES = ("11111111 22222222 33333333 44444444 55555555", "A B C D E")
UUIDS = ("11111111-22222222-33333333-44444444", "0000000A-0000000B-0000000C-0000000D")
CARDS = "".join(
    f"\n[device]\nvendor = ascend\nmodel = 910B3\nmemory = 1 GiB\ncore = 20\nuuid = {die}\n"
    for die in DIES
)
KERNEL = "\n[kernel spin]\ntime = 0 us\nper_arg0 = 1 us\n"
#: Before a program: the codes of three calls that allocate so many bytes, and what is charged.
ASKED = """
import pathlib, struct
def charged(device=0):
    region = pathlib.Path(os.environ["HETERO_GRANT"]).with_name("usage").read_bytes()
    return struct.unpack_from("<Q", region, 128 + 128 * device)[0]
OVER = {"acl": 207001, "rt": 207001, "hal": 6}
def asked(size, free=True):
    answers, pointer = {}, c_uint64()
    calls = {"acl": (acl, "aclrtMallocAlign32", "aclrtFree", 0),
             "rt": (rt, "rtMalloc", "rtFree", 0, 0),
             "hal": (hal, "halMemAlloc", "halMemFree", 1 << 20)}
    for name, (library, call, release, *arguments) in calls.items():
        answers[name] = library.code(call, byref(pointer), size, *arguments)
        if free and not answers[name]:
            getattr(library, release)(pointer)
    return answers
acl.aclInit(None)
acl.aclrtSetDevice(0)
"""


def racked(directory: Path, shape: str) -> Rack:
    """Two cards of 1 GiB; programs have the prelude of Ascend's machine."""
    return Rack(directory, Ascend(directory, shape, CARDS + KERNEL), api="math")


def granted(rack: Rack, memory: int = 64, core: int = 100, name: str = "grant") -> Grant:
    terms = Terms(memory=memory * MIB, core=core * 100, uuid=UUIDS[0])
    return rack.grant(terms, name=name, limiter=LIMITER)


@pytest.fixture(params=SHAPES)
def rack(tmp_path: Path, request: pytest.FixtureRequest) -> Rack:
    return racked(tmp_path, request.param)


def test_each_layer_says_its_own_code_at_the_limit(rack: Rack) -> None:
    program = """
within = asked(32 * MIB)
acl.aclrtMallocAlign32(byref(c_uint64()), 62 * MIB, 0)
say([within, asked(4 * MIB) == OVER, asked(2 * MIB)["hal"], info()])
"""
    within = {"acl": 0, "rt": 0, "hal": 0}
    assert [within, True, 0, [2 * MIB, 64 * MIB]] == granted(rack).run(ASKED + program)


#: What a program holds, as the limiter and the card count it, of calls that take and give back.
TAKERS = """
import random
PHYSICAL = lambda pages: Property(0, 0, pages, 0, 1, 0)
def physical(size, pages):
    handle, room = c_uint64(), c_uint64()
    code = acl.code("aclrtMallocPhysical", byref(handle), size, byref(PHYSICAL(pages)), 0)
    if code:
        return code
    acl.aclrtReserveMemAddress(byref(room), size, 0, None, 0)
    acl.aclrtMapMem(room, size, 0, handle, 0)
    acl.aclrtFreePhysical(handle)
    return lambda: (acl.aclrtUnmapMem(room), acl.aclrtReleaseMemAddress(room))
def by_pointer(library, name, free, *arguments):
    def take(size):
        pointer = c_uint64()
        code = library.code(name, byref(pointer), size, *arguments)
        return code or (lambda: getattr(library, free)(pointer.value))
    return take
def pooled(size):
    pointer = c_uint64()
    code = acl.code("aclrtMemPoolMallocAsync", byref(pointer), size, pool, 0)
    return code or (lambda: (acl.aclrtMemPoolFreeAsync(pointer, 0), acl.aclrtSynchronizeStream(0)))
pool = acl.made("aclrtMemPoolCreate", None)
#: Where the policy or the size says in what pages memory lies; and others, which are charged as if
#: those of more than 1 MiB were huge.
EXACT = [
    *(by_pointer(acl, "aclrtMalloc", "aclrtFree", policy) for policy in (0, 1, 2, 4)),
    *(by_pointer(acl, f"aclrtMalloc{end}", "aclrtFree", 0) for end in ("Align32", "Cached")),
    *(by_pointer(acl, f"aclrtMalloc{end}", "aclrtFree", 0, None)
      for end in ("WithCfg", "ForTaskScheduler")),
    pooled,
    lambda size: physical(-(-size // (2 * MIB)) * 2 * MIB, 4),
    *(by_pointer(rt, name, "rtFree", 0, 0) for name in ("rtMalloc", "rtMallocCached")),
    by_pointer(rt, "rtMemAlloc", "rtFree", 0, 0, None),
    by_pointer(rt, "rtMemAllocManaged", "rtFree", 0, 0),
]
OTHERS = [
    by_pointer(hal, "halMemAlloc", "halMemFree", 0),
    by_pointer(hal, "halMemAllocInner", "halMemFreeInner", 0),
]
HOST = [by_pointer(acl, "aclrtMallocHost", "aclrtFreeHost"),
        by_pointer(hal, "halMemAlloc", "halMemFree", 2 << 10)]
"""


def used(grant: Grant) -> int:
    return grant.usage().used


@pytest.mark.parametrize("kinds", ["EXACT", "EXACT + OTHERS"])
def test_what_is_charged_is_what_the_card_has_of_the_process(rack: Rack, kinds: str) -> None:
    """Random calls of all functions that allocate, in random sizes, up to the limit and back."""
    program = """
dice, held, codes, differences = random.Random(SEED), [], set(), set()
context = used() or 0
for _ in range(600):
    if held and dice.random() < 0.45:
        held.pop(dice.randrange(len(held)))()
    else:
        size = dice.choice((1, 5000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 21 * MIB))
        taken = dice.choice(KINDS)(dice.randint(1, size) + (size > MIB) * MIB)
        if callable(taken):
            held.append(taken)
        else:
            codes.add(taken)
    differences.add(charged() - (used() - context))
for free in held:
    free()
say([sorted(codes), sorted(differences), charged()])
"""
    for seed in range(2):
        grant = granted(rack, name=f"grant{seed}")
        tried = program.replace("SEED", str(seed)).replace("KINDS", f"HOST + {kinds}")
        codes, differences, left = grant.run(ASKED + TAKERS + tried)
        assert 207001 in codes
        assert set(codes) <= {6, 207001}
        assert min(differences) == 0
        assert kinds != "EXACT" or [0] == differences
        assert 0 == left


def test_physical_memory_is_charged_until_its_last_handle_and_mapping_go(rack: Rack) -> None:
    program = """
handle, room, host, far = (c_uint64() for _ in range(4))
answers = []
acl.aclrtMallocPhysical(byref(handle), 4 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
acl.aclrtMallocPhysical(byref(host), 400 * MIB, byref(Property(0, 0, 4, 0, 0, 0)), 0)
acl.aclrtReserveMemAddress(byref(room), 640 * MIB, 0, None, 0)
acl.aclrtMapMem(room, 4 * MIB, 0, handle, 0)
answers.append(charged() // MIB)
acl.aclrtFreePhysical(handle)
answers.append(charged() // MIB)
again = c_uint64()
acl.aclrtMemRetainAllocationHandle(room, byref(again))
acl.aclrtUnmapMem(room)
answers.append(charged() // MIB)
acl.aclrtFreePhysical(again)
answers.append(charged() // MIB)
over = acl.code("aclrtMallocPhysical", byref(far), 66 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
foreign = acl.code("aclrtMallocPhysical", byref(far), 2 * MIB, byref(Property(0, 0, 4, 1, 1, 0)), 0)
say([answers, over, foreign])
"""
    answers = granted(rack).run(ASKED + program)
    assert [[4, 4, 4, 0], 207001, 207001] == answers


def test_a_runtime_whose_calls_of_the_driver_are_not_seen_gets_no_memory(tmp_path: Path) -> None:
    """Not even in small pieces."""
    program = """
pointer = c_uint64()
pieces = {acl.code("aclrtMalloc", byref(pointer), 600 * 1024, 0) for _ in range(8)}
say([asked(4 * MIB), used(), sorted(pieces)])
"""
    answers, held, pieces = granted(racked(tmp_path, "cann9-closed")).run(ASKED + program)
    assert {"acl": 207001, "rt": 207001, "hal": 0} == answers
    assert [0, 207001] == pieces
    assert held <= 2 * MIB


def test_each_door_to_the_driver_leads_to_the_limiter(rack: Rack) -> None:
    """By dlsym on a library's own handle, by its path, by the driver's second names."""
    program = """
maps = [line.split()[-1] for line in open("/proc/self/maps")]
path = next(path for path in maps if path.endswith("libascendcl.so"))
by_path, pointer = CDLL(path, mode=os.RTLD_LOCAL), c_uint64()
libc = CDLL(None)
libc.dlsym.restype, libc.dlsym.argtypes = c_void_p, (c_void_p, c_char_p)
def over(handle, name, *arguments):
    address = libc.dlsym(handle, name)
    return CFUNCTYPE(c_int, *[c_void_p, c_uint64, *[c_uint64] * len(arguments)])(address)(
        addressof(pointer), 80 * MIB, *arguments)
say([over(by_path._handle, b"aclrtMalloc", 0), over(rt.library._handle, b"rtMalloc", 0, 0),
     over(acl.library._handle, b"rtMalloc", 0, 0), over(None, b"aclrtMallocAlign32", 0),
     over(hal.library._handle, b"halMemAlloc", 0),
     over(hal.library._handle, b"halMemAllocInner", 0),
     hal.code("halMemAllocInner", byref(pointer), 80 * MIB, 0), charged()])
"""
    assert [*[207001] * 4, 6, 6, 6, 0] == granted(rack).run(ASKED + program)


def test_a_program_finds_the_driver_s_folder_by_the_address_of_its_functions(rack: Rack) -> None:
    """As MindSpore does, which would look for its toolkit beside the limiter."""
    program = """
class Info(Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("symbol", c_void_p)]
libc, info, map = CDLL(None), Info(), c_void_p()
address = cast(acl.library.aclrtMalloc, c_void_p)
assert libc.dladdr(address, byref(info))
first = info.file.decode(), info.name.decode()
assert libc.dladdr1(address, byref(info), byref(map), 2)
own = cast(CDLL(os.environ["LD_PRELOAD"]).dlsym, c_void_p)
assert libc.dladdr(own, byref(info))
say([first, info.file.decode()])
"""
    (file, name), own = granted(rack).run(ASKED + program)
    assert isinstance(rack.machine, Ascend)
    assert f"{rack.machine.shape}/libascendcl.so" == "/".join(Path(file).parts[-2:])
    assert "aclrtMalloc" == name
    assert str(LIMITER) == own


@pytest.mark.parametrize("reset", ["aclrtResetDevice(0)", "aclrtResetDeviceForce(0)"])
def test_what_goes_with_its_device_is_the_grants_again(rack: Rack, reset: str) -> None:
    """The runtime frees none of it. A reset that is only counted ends nothing."""
    program = f"""
acl.made("aclrtMallocAlign32", 60 * MIB, 0)
acl.aclrtSetDevice(0)
answers = []
if "Force" not in {reset!r}:
    acl.{reset}
    acl.aclrtSetDevice(0)
    answers.append(asked(20 * MIB)["acl"])
    acl.{reset}
acl.{reset}
answers += [used(), charged() // MIB]
acl.aclrtSetDevice(0)
answers += [charged(), asked(60 * MIB, free=False)["acl"], used() // MIB, asked(20 * MIB)["acl"]]
say(answers)
"""
    counted = [207001] if "Force" not in reset else []
    assert [*counted, None, 60, 0, 0, 60, 207001] == granted(rack).run(ASKED + program)


def test_a_reset_that_ends_nothing_gives_nothing_back(rack: Rack) -> None:
    """A context of the program's own keeps the memory."""
    program = """
acl.made("aclrtCreateContext", 0)
acl.aclrtSetDevice(0)
acl.aclrtResetDevice(0)
acl.made("aclrtMallocAlign32", 60 * MIB, 0)
acl.aclrtResetDevice(0)
acl.aclrtSetDevice(0)
say([asked(20 * MIB)["acl"], charged() // MIB, (used() + MIB) // MIB])
"""
    answers = granted(rack).run(ASKED + program)
    assert [207001, 60] == answers[:2]
    assert answers[2] >= 60


def test_what_others_free_after_a_reset_that_was_only_counted_is_not_ours(rack: Rack) -> None:
    others = ASKED + "acl.made('aclrtMallocAlign32', 300 * MIB, 0)\nsay(0)\nsys.stdin.readline()"
    program = (
        ASKED
        + """
acl.aclrtSetDevice(0)
acl.made("aclrtMallocAlign32", 60 * MIB, 0)
acl.aclrtDestroyContext(acl.made("aclrtCreateContext", 0))
acl.aclrtSetDevice(0)
acl.aclrtResetDevice(0)
print(flush=True)
sys.stdin.readline()
acl.aclrtSetDevice(0)
say([charged() // MIB, asked(20 * MIB)["acl"]])
"""
    )
    with rack.start(others) as other, granted(rack).start(program) as process:
        assert other.stdout
        assert process.stdout
        other.stdout.readline()
        process.stdout.readline()
        other.communicate("\n")
        answers, errors = process.communicate("\n")
    assert "[60, 207001]\n" == answers, errors


#: A runtime that has a code of its own for being out of memory.
OTHER_CODES = """
int rtMalloc(void **pointer, unsigned long bytes, unsigned type, unsigned short module);
int aclrtMalloc(void **pointer, unsigned long bytes, int policy)
{
    return rtMalloc(pointer, bytes, (unsigned)policy << 24, 0) ? 300000 : 0;
}
"""


def fronted(directory: Path) -> Rack:
    """Return cards whose runtime has other codes."""
    shape = hetero_simulator.fake_drivers() / "cann8"
    front = in_front(directory, shape / "libascendcl.so", OTHER_CODES).parent
    (front / "libruntime.so").symlink_to(shape / "libruntime.so")
    return racked(directory, str(front))


def test_a_refusal_has_the_code_of_no_memory_whatever_the_runtime_makes_of_it(
    tmp_path: Path,
) -> None:
    program = """
say([acl.code("aclrtMalloc", byref(c_uint64()), size, 0) for size in (80 * MIB, 2 * MIB, 1 << 49)])
"""
    assert [207001, 0, 300000] == granted(fronted(tmp_path)).run(ASKED + program)


def test_memory_that_another_process_has_open_stays_charged_until_that_is_over(rack: Rack) -> None:
    """The maker is charged, and not who opens it. When the maker frees it, the card still has it.

    So it stays charged while the maker runs.
    """
    grant = granted(rack)
    opens = (
        ASKED
        + """
pointer = c_uint64()
acl.aclrtIpcMemImportByKey(byref(pointer), sys.stdin.readline().strip().encode(), 0)
print(charged() // MIB, flush=True)
sys.stdin.readline()
"""
    )
    program = (
        ASKED
        + """
def shared(size):
    key = create_string_buffer(65)
    pointer = acl.made("aclrtMallocAlign32", size, 0)
    acl.aclrtIpcMemGetExportKey(pointer, size, key, 65, 1)
    return pointer, key.value.decode()
first, name = shared(20 * MIB)
second, _ = shared(8 * MIB)
print(name, flush=True)
sys.stdin.readline()
acl.aclrtFree(second)
answers = [charged() // MIB]
acl.aclrtFree(first)
say(answers + [charged() // MIB])
"""
    )
    with grant.start(program) as maker, grant.start(opens) as other:
        assert maker.stdin
        assert maker.stdout
        assert other.stdin
        assert other.stdout
        other.stdin.write(maker.stdout.readline())
        other.stdin.flush()
        assert "28\n" == other.stdout.readline()
        maker.stdin.write("\n")
        maker.stdin.flush()
        answers = maker.stdout.readline()
        other.stdin.write("\n")
        other.stdin.flush()
        assert "[20, 20]\n" == answers, maker.communicate()[1]
        maker.wait()
        other.wait()
    assert 0 == granted_used_by_a_new_process(grant)


def granted_used_by_a_new_process(grant: Grant) -> int:
    """Return what is charged to a grant once a process has looked, which sweeps the dead."""
    charged: int = grant.run(ASKED + "info(); say(charged())")
    return charged


def test_a_device_is_the_grants_by_its_uuid_whatever_its_id(rack: Rack) -> None:
    """Logical ids are those of the container, and a user's count what the variable lists."""
    grant = rack.grant(
        Terms(memory=64 * MIB, uuid=UUIDS[1]),
        Terms(memory=32 * MIB, uuid=UUIDS[0]),
        limiter=LIMITER,
    )
    program = """
answers = [info()[1] // MIB, asked(40 * MIB)["acl"]]
answers.append(hal.code("halMemAlloc", byref(c_uint64()), 40 * MIB, 1))
answers.append(hal.code("halMemAlloc", byref(c_uint64()), 40 * MIB, 0))
acl.aclrtSetDevice(1)
say(answers + [info()[1] // MIB, asked(40 * MIB)["acl"], charged() // MIB, charged(1)])
"""
    variable = {"ASCEND_RT_VISIBLE_DEVICES": "1,0"}
    answers = grant.run(ASKED + program, **variable)
    assert [64, 0, 0, 6, 32, 207001, 40, 0] == answers


def test_a_card_that_is_not_granted_gives_no_memory_and_takes_no_work(rack: Rack) -> None:
    program = """
acl.aclrtSetDevice(1)
work = kernel()
say([asked(MIB), info(), launch(work, 10), used(1) or 0])
"""
    refused = {"acl": 207001, "rt": 207001, "hal": 0}  # hal was asked for the first
    assert [refused, [0, 0], 207000, 0] == granted(rack).run(ASKED + program)


def test_a_thread_that_set_no_device_has_none(rack: Rack) -> None:
    """Hal's call says the device all the same."""
    program = """
answers = []
def elsewhere():
    answers.append(asked(80 * MIB))
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
say(answers)
"""
    assert [{"acl": 107002, "rt": 107002, "hal": 6}] == granted(rack).run(ASKED + program)


def test_a_forked_child_has_no_memory_of_its_parents(rack: Rack) -> None:
    program = """
held = acl.made("aclrtMallocAlign32", 40 * MIB, 0)
ends, starts = os.pipe()
if not os.fork():
    acl.aclrtSetDevice(0)
    code = hal.code("halMemFree", held)
    os.write(starts, json.dumps([code, asked(32 * MIB)["acl"], asked(20 * MIB, free=False)["acl"],
                                 charged() // MIB]).encode())
    os._exit(0)
os.wait()
child = json.loads(os.read(ends, 1000))
say([child, asked(40 * MIB)["acl"], asked(24 * MIB)["acl"], charged() // MIB])
"""
    answers = granted(rack).run(ASKED + program)
    assert [[3, 207001, 0, 60], 207001, 0, 40] == answers


def test_memory_of_a_pool_is_charged_until_the_driver_has_it_back(rack: Rack) -> None:
    program = """
def pooled(size):
    return acl.made("aclrtMemPoolMallocAsync", size, pool, 0)
pool = acl.made("aclrtMemPoolCreate", None)
acl.aclrtMemPoolSetAttr(pool, 0, byref(c_uint64(MIB << 20)))
pointer = pooled(30 * MIB)
acl.aclrtMemPoolFreeAsync(pointer, 0)
acl.aclrtSynchronizeStream(0)
kept = charged() // MIB
over = acl.code("aclrtMemPoolMallocAsync", byref(c_uint64()), 36 * MIB, pool, 0)
acl.aclrtMemPoolTrimTo(pool, 0)
say([kept, over, charged(), asked(60 * MIB)["acl"]])
"""
    assert [30, 207001, 0, 0] == granted(rack).run(ASKED + program)


def test_an_imported_block_is_its_makers_until_nobody_has_it(rack: Rack) -> None:
    """Physical memory, by a number that another process imports."""
    grant = granted(rack)
    program = (
        ASKED
        + """
handle, number = c_uint64(), c_uint64()
acl.aclrtMallocPhysical(byref(handle), 20 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
acl.aclrtMemExportToShareableHandle(handle, 0, 1, byref(number))
print(number.value, flush=True)
sys.stdin.readline()
acl.aclrtFreePhysical(handle)
print(charged() // MIB, flush=True)
sys.stdin.readline()
handle = c_uint64()
acl.aclrtMallocPhysical(byref(handle), 4 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
acl.aclrtMemExportToShareableHandle(handle, 0, 1, byref(number))
acl.aclrtFreePhysical(handle)
say(charged() // MIB)
"""
    )
    imports = (
        ASKED
        + """
handle = c_uint64()
acl.aclrtMemImportFromShareableHandle(int(sys.stdin.readline()), 0, byref(handle))
print(charged() // MIB, flush=True)
sys.stdin.readline()
acl.aclrtFreePhysical(handle)
say(charged() // MIB)
"""
    )
    with grant.start(program) as maker, grant.start(imports) as other:
        assert maker.stdin
        assert maker.stdout
        assert other.stdin
        assert other.stdout
        other.stdin.write(maker.stdout.readline())
        other.stdin.flush()
        imported = other.stdout.readline()
        maker.stdin.write("\n")
        maker.stdin.flush()
        freed = maker.stdout.readline()
        left, _ = other.communicate("\n", timeout=60)
        ended, errors = maker.communicate("\n", timeout=60)
    assert ["20\n", "20\n", "20\n", "20\n"] == [imported, freed, left, ended], errors
    assert 0 == granted_used_by_a_new_process(grant)


def test_threads_that_take_and_give_back_at_once_leave_nothing(rack: Rack) -> None:
    program = """
most, codes = [0], set()
def work(seed):
    acl.aclrtSetDevice(0)
    dice, held = random.Random(seed), []
    for _ in range(150):
        if held and dice.random() < 0.5:
            held.pop()()
        taken = dice.choice(EXACT)(dice.randint(1, 6 * MIB))
        codes.add(taken) if not callable(taken) else held.append(taken)
        most[0] = max(most[0], charged())
    for free in held:
        free()
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say([most[0] <= 64 * MIB, sorted(codes), charged()])
"""
    assert [True, [207001], 0] == granted(rack).run(ASKED + TAKERS + program)


def kill_processes(rack: Rack, count: int) -> None:
    """Kill processes at any moment of their calls."""
    grant = granted(rack)
    program = (
        ASKED
        + TAKERS
        + """
print(flush=True)
dice, held = random.Random(), []
while True:
    if held and dice.random() < 0.5:
        held.pop(dice.randrange(len(held)))()
    taken = dice.choice(EXACT)(dice.randint(1, 9 * MIB))
    if callable(taken):
        held.append(taken)
"""
    )
    for number in range(count):
        with grant.start(program) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(0.01 * (number % 10))
            process.kill()
            process.communicate()
    assert 0 == granted_used_by_a_new_process(grant)


def test_memory_of_killed_processes_is_the_grants_again(rack: Rack) -> None:
    kill_processes(rack, 10)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_memory_of_250_killed_processes_is_the_grants_again(rack: Rack) -> None:
    """Of each shape of the runtime."""
    kill_processes(rack, 250)
