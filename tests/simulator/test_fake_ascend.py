"""Ascend's simulated driver and both shapes of its runtime: memory, devices, processes."""

import json
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
from ascend import RACK, SHAPES, Ascend
from elftools.elf.elffile import ELFFile
from simulated import GIB, MIB

from tests.programs import next_line

LIMITERS = Path(__file__).parents[2] / "limiters"
START = "acl.aclrtSetDevice(0)\n"


def started(program: str) -> str:
    """Return a program that begins on the first card."""
    return START + dedent(program)


@pytest.fixture(params=SHAPES)
def npus(tmp_path: Path, request: pytest.FixtureRequest) -> Ascend:
    return Ascend(tmp_path, request.param)


def symbols(library: Path, *, undefined: bool) -> set[str]:
    """Return the names that a library needs of others, or those that it has for them."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {each.name for each in table if undefined == (each["st_shndx"] == "SHN_UNDEF")}


def folder_of(npus: Ascend) -> Path:
    """Return the folder of the shape's libraries."""
    return Path(npus.environment()["LD_LIBRARY_PATH"].split(":")[0])


def test_acl_calls_the_runtime_through_symbols_in_cann_8_alone(npus: Ascend) -> None:
    above = symbols(folder_of(npus) / "libascendcl.so", undefined=True)
    below = symbols(folder_of(npus) / "libruntime.so", undefined=True)

    assert ("cann8" == npus.shape) == ("rtSetDevice" in above)
    assert {"halMemAlloc", "halMemFree", "halMemCreate", "halSqTaskSend"} <= below
    assert not {each for each in below if each.startswith(("rt", "acl"))}


@pytest.mark.parametrize(
    ("shape", "of_runtime", "of_driver"),
    [("cann8", 77, 207001), ("cann9", 0, 207001), ("cann9-closed", 0, 0)],
)
def test_what_is_preloaded_is_asked_where_a_shape_passes_symbols(
    tmp_path: Path, shape: str, of_runtime: int, of_driver: int
) -> None:
    codes = []
    for function in ("int rtMalloc(void) { return 77; }", "int halMemAlloc(void) { return 6; }"):
        shim = tmp_path / "shim.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(shim)]
        subprocess.run(command, input=function, text=True, check=True)
        program = started('say(acl.code("aclrtMalloc", byref(c_uint64()), MIB, 0))')
        codes.append(Ascend(tmp_path, shape).run(program, LD_PRELOAD=str(shim)))

    assert [of_runtime, of_driver] == codes


def test_a_closed_runtime_calls_the_driver_through_no_symbol_and_is_charged(
    tmp_path: Path,
) -> None:
    npus = Ascend(tmp_path, "cann9-closed")
    runtime = folder_of(npus) / "libruntime.so"
    both = symbols(runtime, undefined=True) | symbols(runtime, undefined=False)
    answers = npus.run(
        started("""
        malloc(64 * MIB, 2)
        launch(kernel(), 998)
        acl.aclrtSynchronizeDevice()
        say([used(), acl.code("aclrtMalloc", byref(c_uint64()), GIB, 0)])
        """)
    )

    assert not {each for each in both if each.startswith(("hal", "fake_hal"))}
    assert [64 * MIB + 4096, 207001] == answers


def test_the_names_that_these_wheels_need_are_there(npus: Ascend) -> None:
    """What others need besides is media, tables of data and settings (limiters/needed_names.py)."""
    wheels = json.loads((LIMITERS / "acl/clients.json").read_text())["wheels"]
    libraries = ("libascendcl.so", "libruntime.so")
    exported = {
        name
        for library in libraries
        for name in symbols(folder_of(npus) / library, undefined=False)
    }
    needed = {
        name
        for wheel in ("onnxruntime_cann-1.24.4", "triton_ascend-3.2.0")
        for names in wheels[wheel].values()
        for name in names
    }

    assert {"rtDeviceSetLimit"} == needed - exported


def test_memory_is_charged_in_pages_and_refused_at_the_card_s_end(npus: Ascend) -> None:
    """Of 2 MiB and a unit two huge pages; of a byte a normal one."""
    answers = npus.run(
        started("""
        before = info()
        pages = [malloc(2 * MIB), used(), acl.aclrtFree(malloc(1)), used()]
        small = malloc(1)
        held = used()
        rest = malloc(1000 * MIB, 2)
        p, size = byref(c_uint64()), 24 * MIB
        over = [acl.code("aclrtMalloc", p, size, policy) for policy in (0, 1, 2)]
        say([before, pages[1], pages[3], held, over,
             rt.code("rtMalloc", p, size, 0, 0), hal.code("halMemAlloc", p, size, 0),
             info()[0] + used() == GIB])
        """)
    )

    grown = 4 * MIB + 4096
    assert [[GIB, GIB], 4 * MIB, 4 * MIB, grown, [207001] * 3, 207001, 6, True] == answers


def test_what_aligns_to_32_bytes_has_no_unit_more(npus: Ascend) -> None:
    sizes = npus.run(
        started("""
        acl.made("aclrtMallocAlign32", 2 * MIB, 1)
        aligned = used()
        malloc(2 * MIB, 1)
        say([aligned, used() - aligned])
        """)
    )

    assert [2 * MIB, 4 * MIB] == sizes


def test_wrong_calls_have_their_codes(npus: Ascend) -> None:
    codes = npus.run(
        """
        p = byref(c_uint64())
        early = [acl.code("aclFinalize"), acl.code("aclrtMalloc", p, 1, 0),
                 acl.code("aclrtGetDevice", p), acl.code("aclrtSynchronizeStream", 0)]
        acl.aclInit(None)
        acl.aclrtSetDevice(0)
        freed = malloc(1)
        acl.aclrtFree(freed)
        say(early + [acl.code("aclInit", None), acl.code("aclrtSetDevice", 2),
            acl.code("aclrtMalloc", p, 0, 0), acl.code("aclrtFree", 0),
            acl.code("aclrtFree", freed), acl.code("aclrtSynchronizeStream", 8),
            acl.code("aclrtResetDevice", 1)])
        """
    )

    assert [100001, 107002, 107002, 107002] == codes[:4]
    assert [100002, 107001, 100000, 100000, 107000, 107017, 107002] == codes[4:]


def test_two_processes_share_a_card_and_dcmi_shows_both(npus: Ascend) -> None:
    with npus.standing(started("malloc(600 * MIB, 2)")) as other:
        refused, rows, free = npus.run(
            started("""
            code = acl.code("aclrtMalloc", byref(c_uint64()), 600 * MIB, 2)
            malloc(100 * MIB, 2)
            say([code, sorted(shown().items()), info()[0]])
            """)
        )
        held = {other.pid, next(pid for pid, _ in rows if pid != other.pid)}

    assert 207001 == refused
    assert held == {pid for pid, _ in rows}
    assert [100 * MIB + 4096, 600 * MIB + 4096] == sorted(size for _, size in rows)
    assert GIB - 700 * MIB - 2 * 4096 == free


def test_a_killed_process_gives_back_all_it_had(npus: Ascend) -> None:
    program = """
        malloc(300 * MIB)
        acl.made("aclrtMallocPhysical", 100 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
        pool = acl.made("aclrtMemPoolCreate", None)
        acl.made("aclrtMemPoolMallocAsync", 100 * MIB, pool, 0)
        launch(kernel(), 60_000_000)
        """
    with npus.standing(started(program)) as other:
        before = npus.run(f"{START}say(shown()[{other.pid}])")
        other.kill()
        other.wait()
        after = npus.run(
            started("""
            start = time.monotonic()
            launch(kernel(), 998)
            acl.aclrtSynchronizeDevice()
            say([sorted(shown().values()), info()[0], time.monotonic() - start < 5])
            """)
        )

    assert 502 * MIB == before
    assert [[0], GIB, True] == after


def test_what_the_rack_says_others_use_is_not_free(npus: Ascend) -> None:
    answers = npus.run(
        """
        acl.aclrtSetDevice(1)
        malloc(100 * MIB, 2)
        hbm = (c_uint64 * 4)()
        dcmi.dcmi_get_device_hbm_info(1, 0, hbm)
        say([info(), shown(1)[4242], used(1), hbm[2],
             acl.code("aclrtMalloc", byref(c_uint64()), GIB, 2)])
        """
    )

    taken = 100 * MIB + 4096
    assert [[GIB - taken, 2 * GIB], GIB, taken, 1124, 207001] == answers


def test_a_process_has_what_the_driver_takes_for_it_as_the_rack_says(tmp_path: Path) -> None:
    rack = RACK.replace("core = 20", "core = 20\ncontext = 32 MiB")
    answers = Ascend(tmp_path, SHAPES[0], rack).run(
        started("""
        before = [used(), info()[0]]
        acl.aclrtResetDevice(0)
        say(before + [used()])
        """)
    )

    assert [32 * MIB, GIB - 32 * MIB, None] == answers


@pytest.mark.parametrize(
    ("of_driver", "code"), [(2, 107001), (3, 107000), (6, 207001), (65534, 207000), (9, 507899)]
)
def test_the_driver_s_codes_become_the_runtime_s(tmp_path: Path, of_driver: int, code: int) -> None:
    rack = f"{RACK}\n[fault]\ncall = halMemAlloc\ndevice = 0\ndoes = error {of_driver}\n"
    answers = Ascend(tmp_path, SHAPES[0], rack).run(
        started("""
        faulty = acl.code("aclrtMalloc", byref(c_uint64()), MIB, 0)
        acl.aclrtSetDevice(1)
        say([faulty, acl.code("aclrtMalloc", byref(c_uint64()), MIB, 0)])
        """)
    )

    assert [code, 0] == answers


def test_a_device_is_reset_when_it_was_reset_as_often_as_set(npus: Ascend) -> None:
    """The driver drops the memory: nobody calls halMemFree."""
    answers = npus.run(
        """
        for _ in range(3):
            acl.aclrtSetDevice(0)
        malloc(64 * MIB, 2)
        active, answers = c_int(), []
        for _ in range(3):
            acl.aclrtResetDevice(0)
            acl.aclrtGetPrimaryCtxState(0, None, byref(active))
            answers.append([active.value, used()])
        acl.aclrtSetDevice(0)
        say(answers + [used(), acl.code("aclrtFree", 4096)])
        """
    )

    held = 64 * MIB + 4096
    assert [[1, held], [1, held], [0, None], 0, 107000] == answers


def test_a_forced_reset_drops_everything_at_once(npus: Ascend) -> None:
    answers = npus.run(
        """
        acl.aclrtSetDevice(0); acl.aclrtSetDevice(0)
        context = acl.made("aclrtCreateContext", 0)
        s = stream()
        old = malloc(64 * MIB)
        handle = acl.made("aclrtMallocPhysical", 32 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
        room = acl.made("aclrtReserveMemAddress", 32 * MIB, 0, None, 0)
        acl.aclrtMapMem(room, 32 * MIB, 0, handle, 0)
        acl.aclrtResetDeviceForce(0)
        gone = [used(), acl.code("aclrtSetCurrentContext", context)]
        acl.aclrtSetDevice(0)
        say(gone + [acl.code("aclrtFree", old), acl.code("aclrtSynchronizeStream", s),
                    acl.code("aclrtFreePhysical", handle), used()])
        """
    )

    assert [None, 107017, 107000, 107017, 107000, 0] == answers


def test_a_context_of_its_own_keeps_the_memory_over_a_reset(npus: Ascend) -> None:
    answers = npus.run(
        """
        acl.aclrtSetDevice(0)
        malloc(64 * MIB, 2)
        context = acl.made("aclrtCreateContext", 0)
        acl.aclrtResetDevice(0)
        kept = used()
        acl.aclrtDestroyContext(context)
        say([kept, used()])
        """
    )

    assert [64 * MIB + 4096, None] == answers


def test_the_current_device_is_each_thread_s_own(npus: Ascend) -> None:
    answers = npus.run(
        """
        acl.aclrtSetDevice(1)
        answers = []
        def other():
            device = c_int()
            answers.append(acl.code("aclrtGetDevice", byref(device)))
            answers.append(acl.code("aclrtMalloc", byref(c_uint64()), MIB, 0))
            acl.aclrtSetDevice(0)
            malloc(4 * MIB, 2)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        malloc(8 * MIB, 2)
        say(answers + [used(0), used(1)])
        """
    )

    assert [107002, 107002, 4 * MIB + 4096, 8 * MIB + 4096] == answers


def test_user_logical_and_physical_ids_differ(npus: Ascend) -> None:
    """The container has both cards the other way round, and the program asks for its second."""
    answers = npus.run(
        """
        count, logical, physical, user = c_uint(), c_int(), c_int(), c_int()
        acl.aclrtGetDeviceCount(byref(count))
        acl.aclrtGetLogicDevIdByUserDevId(0, byref(logical))
        acl.aclrtGetPhyDevIdByLogicDevId(logical, byref(physical))
        rt.rtGetVisibleDeviceIdByLogicDeviceId(1, byref(user))
        acl.aclrtSetDevice(0)
        malloc(4 * MIB, 2)
        hal.made("halMemAlloc", 8 * MIB, 0)
        say([count.value, logical.value, physical.value, user.value, used(0), used(1)])
        """,
        ASCEND_VISIBLE_DEVICES="1,0",
        ASCEND_RT_VISIBLE_DEVICES="1",
    )

    assert [1, 1, 0, 0, 4 * MIB + 4096, 8 * MIB] == answers


def test_a_uuid_is_the_start_of_the_die_s_number(npus: Ascend) -> None:
    uuid, die = npus.run(
        """
        uuid, die = (c_ubyte * 16)(), (c_uint * 5)()
        acl.aclrtDeviceGetUuid(1, uuid)
        dcmi.dcmi_get_device_die_v2(1, 0, 1, die)
        say([bytes(uuid).hex(), "".join(f"{word:08x}" for word in die)])
        """
    )

    assert uuid == die[:32]


def test_a_forked_child_has_no_card_until_it_sets_one(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        s = stream()
        held = malloc(64 * MIB, 2)
        ends, starts = os.pipe()
        child = os.fork()
        if not child:
            early = [acl.code("aclrtMalloc", byref(c_uint64()), MIB, 0), used()]
            acl.aclrtSetDevice(0)
            stale = [acl.code("aclrtSynchronizeStream", s), acl.code("aclrtFree", held)]
            malloc(32 * MIB, 2)
            os.write(starts, json.dumps([early, stale, used()]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        say([json.loads(os.read(ends, 1000)), used(), sorted(shown())==[os.getpid()],
             acl.code("aclrtFree", held)])
        """)
    )

    assert [
        [[107002, None], [107017, 107000], 32 * MIB + 4096],
        64 * MIB + 4096,
        True,
        0,
    ] == answers


def test_physical_memory_is_freed_with_its_last_handle_and_mapping(npus: Ascend) -> None:
    answers = npus.run(
        started("""
        device = Property(0, 0, 4, 1, 1, 0)  # of the other card, in huge pages
        host = Property(0, 0, 4, 0, 0, 0)
        handle = acl.made("aclrtMallocPhysical", 4 * MIB, byref(device), 0)
        onto_host = acl.made("aclrtMallocPhysical", 4 * MIB, byref(host), 0)
        odd = acl.code("aclrtMallocPhysical", byref(c_uint64()), 3 * MIB, byref(device), 0)
        room = acl.made("aclrtReserveMemAddress", 64 * MIB, 0, None, 0)
        answers = [odd, used(0), used(1)]
        acl.aclrtMapMem(room, 4 * MIB, 0, handle, 0)
        answers.append(acl.code("aclrtMapMem", room + 2 * MIB, 4 * MIB, 0, handle, 0))
        answers.append(acl.code("aclrtReleaseMemAddress", room))
        acl.aclrtMemcpy(room, 4 * MIB, b"x" * 4096, 4096, 1)
        again = c_uint64()
        acl.aclrtMemRetainAllocationHandle(room, byref(again))
        acl.aclrtFreePhysical(handle)
        acl.aclrtFreePhysical(again)
        answers += [acl.code("aclrtFreePhysical", handle), used(1), string_at(room, 2).decode()]
        acl.aclrtUnmapMem(room)
        say(answers + [used(1), acl.code("aclrtReleaseMemAddress", room)])
        """)
    )

    assert [107000, 0, 4 * MIB, 107000, 107000, 107000, 4 * MIB, "xx", 0, 0] == answers


def test_exported_physical_memory_is_charged_once_and_outlives_its_maker(npus: Ascend) -> None:
    program = """
        handle = acl.made("aclrtMallocPhysical", 64 * MIB, byref(Property(0, 0, 4, 0, 1, 0)), 0)
        room = acl.made("aclrtReserveMemAddress", 64 * MIB, 0, None, 0)
        acl.aclrtMapMem(room, 64 * MIB, 0, handle, 0)
        acl.aclrtMemcpy(room, 64 * MIB, b"seen", 4, 1)
        shared = c_uint64()
        acl.aclrtMemExportToShareableHandle(handle, 0, 1, byref(shared))
        print(shared.value, flush=True)
        sys.stdin.readline()
        """
    maker = npus.start(started(program))
    shared = int(next_line(maker))
    importer = npus.start(
        f"""{START}
handle = c_uint64()
acl.aclrtMemImportFromShareableHandle({shared}, 0, byref(handle))
room = acl.made("aclrtReserveMemAddress", 64 * MIB, 0, None, 0)
acl.aclrtMapMem(room, 64 * MIB, 0, handle, 0)
say([string_at(room, 4).decode(), used(), sum(shown().values())])
sys.stdout.flush()
sys.stdin.readline()
alone = [used(), GIB - info()[0]]
acl.aclrtFreePhysical(handle)
acl.aclrtUnmapMem(room)
say([alone, GIB - info()[0]])"""
    )
    during = next_line(importer)
    maker.communicate("\n")
    rest, errors = importer.communicate("\n")

    assert f'["seen", 0, {64 * MIB}]\n' == during
    assert "" == errors
    assert f"[[{64 * MIB}, {64 * MIB}], 0]\n" == rest


def test_memory_that_was_opened_by_its_name_is_charged_once(npus: Ascend) -> None:
    maker = npus.start(
        f"""{START}
memory = malloc(64 * MIB, 2)
acl.aclrtMemcpy(memory, 64 * MIB, b"seen", 4, 1)
key, short = create_string_buffer(65), create_string_buffer(64)
too_short = acl.code("aclrtIpcMemGetExportKey", memory, 64 * MIB, short, 64, 0)
acl.aclrtIpcMemGetExportKey(memory, 64 * MIB, key, 65, 1)
say([too_short, key.value.decode()])
sys.stdout.flush()
sys.stdin.readline()
acl.aclrtFree(memory)
say([used(), GIB - info()[0]])
sys.stdout.flush()
sys.stdin.readline()
say(GIB - info()[0])"""
    )
    too_short, key = json.loads(next_line(maker))
    opener = npus.start(
        f"""{START}
memory = acl.made("aclrtIpcMemImportByKey", b"{key}", 0)
say([string_at(memory, 4).decode(), used(), acl.code("aclrtFree", memory)])
sys.stdout.flush()
sys.stdin.readline()
acl.aclrtIpcMemClose(b"{key}")
say([acl.code("aclrtIpcMemImportByKey", byref(c_uint64()), b"{key}", 0)])"""
    )
    held = 64 * MIB + 4096
    assert 107000 == too_short
    assert ["seen", 0, 107000] == json.loads(next_line(opener))
    assert maker.stdin is not None
    maker.stdin.write("\n")
    maker.stdin.flush()
    assert [0, held] == json.loads(next_line(maker))
    assert ("[107000]\n", "") == opener.communicate("\n")
    assert ("0\n", "") == maker.communicate("\n")


def test_a_name_is_opened_by_whom_its_maker_says_until_it_ends(npus: Ascend) -> None:
    opener = npus.start(
        f"""{START}
say(os.getpid())
sys.stdout.flush()
for key in sys.stdin:
    say(acl.code("aclrtIpcMemImportByKey", byref(c_uint64()), key.strip().encode(), 0))
    sys.stdout.flush()"""
    )
    pid = int(next_line(opener))
    maker = npus.start(
        f"""{START}
memory, key = malloc(2 * MIB, 2), create_string_buffer(65)
steps = (lambda: acl.aclrtIpcMemGetExportKey(memory, 2 * MIB, key, 65, 0),
         lambda: acl.aclrtIpcMemSetImportPid(key, (c_int * 2)(1, {pid}), 2),
         lambda: acl.aclrtIpcMemClose(key))
for step in steps:
    step()
    say(key.value.decode())
    sys.stdout.flush()
    sys.stdin.readline()"""
    )
    codes = []
    assert opener.stdin is not None
    assert maker.stdin is not None
    for _ in range(3):
        opener.stdin.write(json.loads(next_line(maker)) + "\n")
        opener.stdin.flush()
        codes.append(int(next_line(opener)))
        maker.stdin.write("\n")
        maker.stdin.flush()

    assert ("", "") == maker.communicate() == opener.communicate()
    assert [207006, 0, 107000] == codes


def test_a_pool_gives_back_at_the_next_synchronise_what_is_over_its_threshold(
    npus: Ascend,
) -> None:
    answers = npus.run(
        started("""
        pool = acl.made("aclrtMemPoolCreate", None)
        s = stream()
        def take(size):
            return acl.made("aclrtMemPoolMallocAsync", size, pool, s)
        acl.aclrtMemPoolFreeAsync(take(64 * MIB), s)
        answers = [used()]
        again = take(64 * MIB)
        answers.append(used())
        acl.aclrtMemPoolFreeAsync(again, s)
        acl.aclrtSynchronizeStream(s)
        answers.append(used())
        acl.aclrtMemPoolSetAttr(pool, 1, byref(c_uint64(32 * MIB)))
        parts = [take(32 * MIB) for _ in range(2)]
        for part in parts:
            acl.aclrtMemPoolFreeAsync(part, s)
        acl.aclrtSynchronizeStream(s)
        answers.append(used())
        acl.aclrtMemPoolTrimTo(pool, 0)
        p = byref(c_uint64())
        say(answers + [used(), acl.code("aclrtMemPoolMallocAsync", p, GIB + 1, pool, s)])
        """)
    )

    assert [64 * MIB, 64 * MIB, 0, 32 * MIB, 0, 207001] == answers


def test_a_card_without_hbm_tells_its_ddr(tmp_path: Path) -> None:
    rack = "[device]\nvendor = ascend\nmodel = 310P3\nmemory = 1 GiB\n"
    program = started("say([info(1), info(0)])")
    with_hbm = Ascend(tmp_path, SHAPES[0]).run(program)
    with_ddr = Ascend(tmp_path, SHAPES[0], rack).run(program)

    assert [[GIB, GIB], [0, 0]] == with_hbm
    assert [[GIB, GIB], [GIB, GIB]] == with_ddr


def test_what_torch_npu_asks_before_it_begins_is_answered(npus: Ascend) -> None:
    """It looks for acl's names in the operators' compiler, too."""
    answers = npus.run(
        started("""
        operators, room, value = Library("libacl_op_compiler.so"), c_uint64(), c_uint64()
        operators.aclSetCompileopt(0, b"")
        operators.aclrtSetSysParamOpt(1, 7)
        operators.aclrtGetSysParamOpt(1, byref(value))
        acl.aclrtReserveMemAddress(byref(room), 512, 0, None, 1)
        acl.aclrtReleaseMemAddress(room)
        say([operators.code("aclGetCompileoptSize", 0) > 0, value.value])
        """)
    )

    assert [True, 7] == answers


def test_without_a_rack_there_is_no_device(npus: Ascend) -> None:
    code = npus.run('say(acl.code("aclrtSetDevice", 0))', HETERO_RACK="")

    assert 207004 == code
