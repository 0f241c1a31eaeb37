"""What modules, libraries and a context's limits take of the fake card, as on an H100."""

import signal
from pathlib import Path

from simulated import MIB, Machine

WRITTEN_BY_NVCC = Path(__file__).parents[1] / "limiters/corpus/image-nvcc-plain"

START = """
    cuda = Cuda()
    cuda.start()
    def held():
        return cuda.used() // MIB
"""

MODULES = (
    START
    + '''
    import struct
    def ptx(variables, body="ret;"):
        text = f"""
            .version 8.0
            .target sm_80
            .address_size 64
            // .global .b8 in_a_comment[104857600];
            /* .global .b8 nor_here[104857600]; */
            .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
            .extern .func (.param .b64 r) malloc (.param .b64 a);
            {variables}
            .visible .entry k(.param .u64 .ptr .global .align 4 p) {{ ret; }}
            .visible .entry touch() {{ .reg .b64 %r<2>; ld.global.u32 %r1, [big]; {body} }}"""
        return ctypes.c_char_p(text.encode())
    def elf(**sections):
        """An image with these sections of so many bytes, and a variable as large in each."""
        names = ["", *sections, "symtab", "strings"]
        strings = b"".join(name.encode() + b"\\0" for name in names)
        strings += bytes(-len(strings) % 8)
        where = [strings.index(name.encode()) for name in names]
        symbols = b"".join(
            struct.pack("<IBBHQQ", where[i + 1], 0x11, 0, i + 1, 0, size)
            for i, size in enumerate(sections.values())
        )
        last = len(names) - 1
        rows = [(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        for at, size in zip(where[1:], sections.values()):
            rows.append((at, 8, 3, 0, 0, size, 0, 0, 8, 0))
        rows.append((where[-2], 2, 0, 0, 64, len(symbols), last, 0, 8, 24))
        rows.append((where[-1], 3, 0, 0, 64 + len(symbols), len(strings), 0, 0, 1, 0))
        head = struct.pack(
            "<16sHHIQQQIHHHHHH", b"\\x7fELF\\x02\\x01\\x01", 2, 190, 1, 0, 0,
            64 + len(symbols) + len(strings), 0, 64, 0, 0, 64, len(rows), last,
        )
        body = head + symbols + strings + b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
        return ctypes.c_char_p(body)
    def global_of(module, name, call="cuModuleGetGlobal_v2"):
        pointer, size = c_uint64(), c_size_t()
        cuda.__getattr__(call)(byref(pointer), byref(size), module, name)
        return pointer.value, size.value
'''
)


def test_a_modules_variables_are_the_cards_from_its_load_to_its_unload(machine: Machine) -> None:
    answers = machine.run(f"""{MODULES}
    module = cuda.made("cuModuleLoadData", ptx(".visible .global .align 4 .b8 big[100000000];"))
    pointer, size = global_of(module, b"big")
    seen = [held(), pointer % 256, size]
    cuda.cuMemsetD8_v2(pointer, 1, size)
    seen.append(cuda.code("cuMemFree_v2", pointer))
    cuda.cuModuleUnload(module)
    too_much = ptx(".global .b8 big[2147483648];")
    say([*seen, held(), cuda.code("cuModuleLoadData", byref(c_void_p()), too_much)])""")
    assert [96, 0, 100_000_000, 1, 0, 2] == answers


def test_small_variables_of_many_modules_share_a_block(machine: Machine) -> None:
    answers = machine.run(f"""{MODULES}
    modules = [
        cuda.made("cuModuleLoadData", ptx(".global .b8 mine[4096];")) for _ in range(20)
    ]
    seen = held()
    say([seen, len({{global_of(module, b"mine")[0] for module in modules}})])""")
    assert [2, 20] == answers


def test_variables_are_counted_in_every_spelling_of_ptx(machine: Machine) -> None:
    answers = machine.run(f"""{MODULES}
    cases = {{
        ".global .u32 a;": 4,
        ".visible .global .align 16 .b8 a[1024][3];": 3072,
        ".global.align 8.b8 a[0x100];": 256,
        ".weak .global .v4 .f32 a[8];": 128,
        ".const .align 4 .f16x2 a[10];": 40,
        ".global .b64 a[2*(4+4)<<1U];": 256,
        ".global .b16 a[] = {{1, 2, 3}};": 6,
        ".global .s32 a[][2] = {{{{1, 2}}, {{3, 4}}, {{5, 6}}}};": 24,
        ".global .u64 a[4] = {{b, generic(b)+8}};": 32,
        ".common .global .b8 x[12], a[0b1000];": 8,
        ".global .attribute(.managed) .b8 a[010];": 8,
        ".global .b128 a[2];": 32,
    }}
    seen = [
        global_of(cuda.made("cuModuleLoadData", ptx(".global .b32 b;" + each)), b"a")[1]
        for each in cases
    ]
    extern = cuda.made("cuModuleLoadData", ptx(".extern .global .b8 a[999];"))
    missing = cuda.code("cuModuleGetGlobal_v2", byref(c_uint64()), None, extern, b"a")
    counted = cuda.made("cuModuleLoadData", ptx(".global .b32 a<100>[4];"))
    say([seen == list(cases.values()), seen, missing, held()])""")
    assert [True, answers[1], 500, 2] == answers


def test_an_images_variables_are_its_sections(machine: Machine) -> None:
    answers = machine.run(f"""{MODULES}
    image = elf(**{{".nv.global": 5 * MIB, ".nv.global.init": 4096, ".debug": 90 * MIB}})
    module = cuda.made("cuModuleLoadData", image)
    seen = [held(), global_of(module, b".nv.global")[1], global_of(module, b".nv.global.init")[1]]
    say([*seen, cuda.code("cuModuleGetGlobal_v2", byref(c_uint64()), None, module, b".debug")])""")
    assert [6, 5 * MIB, 4096, 500] == answers


def test_the_options_of_ptx_in_a_fat_binary_are_read_wherever_they_are_said_to_be(
    machine: Machine,
) -> None:
    """NVIDIA's reader follows the entry, too: 64 at 0x24, where 72 and a length are, is nvcc's."""
    statuses = machine.run(f"""
    import os
    image = open({str(WRITTEN_BY_NVCC)!r}, "rb").read()[1:]
    assert image[0x24:0x28] == bytes([64, 0, 0, 0])
    def ended(image):
        child = os.fork()
        if child == 0:
            cuda = Cuda()
            cuda.start()
            os._exit(cuda.code("cuModuleLoadData", byref(c_void_p()), image))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    nowhere = image[:0x50] + bytes([0, 0, 0, 0x7f]) + image[0x54:]
    say([ended(image), ended(nowhere)])""")
    assert [0, -signal.SIGSEGV] == statuses


def test_linking_takes_nothing_and_its_image_takes_what_its_parts_declare(machine: Machine) -> None:
    held_mib = machine.run(f"""{MODULES}
    state = c_void_p()
    cuda.cuLinkCreate_v2(c_uint(0), None, None, byref(state))
    for size in (10, 20):
        text = ptx(f".global .b8 a{{size}}[{{size * MIB}}];")
        cuda.cuLinkAddData_v2(
            state, c_uint(1), text, len(text.value) + 1, None, c_uint(0), None, None
        )
    image, size = c_void_p(), c_size_t()
    cuda.cuLinkComplete(state, byref(image), byref(size))
    seen = [held()]
    module = cuda.made("cuModuleLoadData", image)
    cuda.cuLinkDestroy(state)
    say([*seen, held(), global_of(module, b"a20")[1] // MIB])""")
    assert [0, 30, 20] == held_mib


LIBRARY = (
    MODULES
    + """
    image = ptx(".global .b8 big[50331648];")
    def library():
        return cuda.made("cuLibraryLoadData", image, None, None, c_uint(0), None, None, c_uint(0))
    def after(name, *arguments):
        mine = library()
        kernel = cuda.made("cuLibraryGetKernel", mine, b"k")
        seen = [held()]
        if name == "launch":
            code = cuda.launch(kernel, 0)
        elif name == "cuKernelGetFunction":
            code = cuda.code(name, byref(c_void_p()), kernel)
        else:
            code = cuda.code(name, byref(c_void_p()), *arguments[:1], mine, *arguments[1:])
        seen += [code, held()]
        cuda.cuLibraryUnload(mine)
        return [*seen, held()]
"""
)


def test_a_library_takes_nothing_until_something_of_it_is_asked_for(machine: Machine) -> None:
    program = f"""{LIBRARY}
    say([
        after("cuKernelGetFunction"),
        after("cuLibraryGetModule"),
        after("cuLibraryGetGlobal", None, b"big"),
        after("launch"),
    ])"""
    held_mib = machine.run(program, CUDA_MODULE_LOADING="LAZY")
    assert [[0, 0, 48, 0]] * 4 == held_mib


def test_a_library_takes_its_variables_at_once_where_loading_is_eager(machine: Machine) -> None:
    program = """
    mode = c_uint()
    cuda.cuModuleGetLoadingMode(byref(mode))
    library()
    say([held(), mode.value])"""
    assert [48, 1] == machine.run(LIBRARY + program, CUDA_MODULE_LOADING="EAGER")
    assert [0, 2] == machine.run(LIBRARY + program)


H100 = """
    [device]
    vendor = nvidia
    model = Card
    memory = 80 GiB
    multiprocessors = 132

    [kernel touch]
    time = 1 us
"""


def test_a_larger_stack_is_taken_at_once_and_given_back_at_once(tmp_path: Path) -> None:
    answers = Machine(tmp_path, H100).run(f"""{START}
    seen = []
    for size in (1024, 4096, 65536, 512, 1 << 60):
        seen.append([cuda.code("cuCtxSetLimit", c_uint(0), size), held()])
    say(seen)""")
    assert [[0, 0], [0, 792], [0, 16632], [0, 0], [2, 0]] == answers


def test_heap_and_printf_buffer_are_taken_when_a_program_first_needs_them(tmp_path: Path) -> None:
    answers = Machine(tmp_path, H100).run(f"""{MODULES}
    def limits():
        values = [c_size_t() for _ in range(10)]
        codes = [cuda.code("cuCtxGetLimit", byref(it), c_uint(i)) for i, it in enumerate(values)]
        return [value.value for value in values[:8]], codes[3]
    seen = [limits()]
    def step(name, *arguments):
        seen.append([cuda.code(name, *arguments), held()])
    PRINTF, HEAP = c_uint(1), c_uint(2)
    step("cuCtxSetLimit", HEAP, 1024 * MIB)
    step("cuCtxSetLimit", PRINTF, 256 * MIB)
    plain = cuda.made("cuModuleLoadData", ptx(""))
    cuda.launch(cuda.made("cuModuleGetFunction", plain, b"touch"), 0)
    prints = "{{ call.uni (r), vprintf, (a, b); }} {{ call (r), malloc, (a); }}"
    module = c_void_p()
    step("cuModuleLoadData", byref(module), ptx("", prints))
    for name in (b"k", b"touch"):
        kernel = cuda.made("cuModuleGetFunction", module, name)
        seen.append([cuda.launch(kernel, 0), held()])
    step("cuModuleUnload", module)
    step("cuCtxSetLimit", HEAP, 2048 * MIB)
    step("cuCtxSetLimit", PRINTF, 512 * MIB)
    step("cuCtxSetLimit", c_uint(3), 4)
    step("cuCtxSetLimit", c_uint(4), 65536)
    cuda.cuDevicePrimaryCtxReset_v2(c_uint(0))
    cuda.start()
    say([*seen, held()])""")
    assert [
        [[1024, 8650752, 8388608, 0, 2048, 64, 9830400, 232448], 215],
        *([[0, 0]] * 2),
        *([[0, 394]] * 2),
        *([[0, 1420]] * 2),
        *([[1, 1420]] * 2),
        [215, 1420],
        [0, 1420],
        0,
    ] == answers
