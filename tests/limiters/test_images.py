"""Images of device code and libraries: what they say of themselves, and handles of what is gone."""

from pathlib import Path

import pytest
from tenancy import Grant, Rack

CORPUS = Path(__file__).parent / "corpus"

IMAGES = """
import struct
start()
HEAD = ".version 6.0\\n.target sm_50\\n.address_size 64\\n"
def text(*lines):
    return (HEAD + "".join(lines)).encode() + bytes(16)
def library(image):
    made, none = c_void_p(), (None, None, c_uint(0))
    code = driver.code("cuLibraryLoadData", byref(made), image, *none, *none)
    return code or made
def asked(made):
    out, size = c_void_p(), c_size_t()
    return [
        driver.code("cuLibraryGetKernel", byref(out), made, b"k"),
        driver.code("cuLibraryGetModule", byref(out), made),
        driver.code("cuLibraryGetGlobal", byref(out), byref(size), made, b"big"),
        driver.code("cuLibraryGetManaged", byref(out), byref(size), made, b"big"),
        driver.code("cuLibraryGetUnifiedFunction", byref(out), made, b"k"),
        driver.code("cuLibraryGetKernelCount", byref(c_uint()), made),
    ]
"""
#: CUDA_ERROR_INVALID_HANDLE, _NOT_FOUND, _OUT_OF_MEMORY, _INVALID_CONTEXT
INVALID, NOT_FOUND, OUT_OF_MEMORY, NO_CONTEXT = 400, 500, 2, 201


def test_a_library_that_is_dead_or_was_never_there_is_answered_as_by_the_driver(
    grant: Grant, rack: Rack
) -> None:
    program = (
        IMAGES
        + """
made = library(text(".global .b8 big[4096];", ".entry k() { ret; }"))
seen = [asked(made)]
call("cuLibraryUnload", made)
for dead in made, c_void_p(0), c_void_p(12345):
    seen.append([*asked(dead), driver.code("cuLibraryUnload", dead)])
say(seen)
"""
    )
    answers = grant.run(program)
    assert answers == rack.run(program)
    assert [0, 0, 0, NOT_FOUND, NOT_FOUND, 0] == answers[0]
    assert [[INVALID] * 7] * 3 == answers[1:]


def test_a_library_that_did_not_fit_is_nothing_that_the_driver_is_asked_of(grant: Grant) -> None:
    """It cannot be read, so it is loaded when its kernels are asked for, and unloaded again."""
    codes = grant.run(f"""{IMAGES}
# An ELF file without sections that the limiter reads: an array of 80 MiB.
sections = struct.pack("<IIQQQQIIQQ", 1, 8, 2, 0, 0, 80 << 20, 0, 0, 1, 0)
names = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 512, 12, 0, 0, 0, 0)
head = b"\\x7fELF\\x02".ljust(40, b"\\0") + struct.pack("<Q", 1024)
head = head.ljust(58, b"\\0") + struct.pack("<HHH", 0, 3, 2)
elf = head.ljust(512, b"\\0") + b"\\0.nv.global\\0"
made = library(elf.ljust(1024, b"\\0") + bytes(64) + sections + names)
say([asked(made), driver.code("cuLibraryUnload", made), asked(made)])
""")
    assert [[OUT_OF_MEMORY] * 6, 0, [INVALID] * 6] == codes


def test_a_size_of_countless_parentheses_is_refused_and_not_followed(grant: Grant) -> None:
    codes = grant.run(f"""{IMAGES}
def nested(depth):
    return text(".global .b8 big[" + "(" * depth + "1048576" + ")" * depth + "];")
seen = []
for depth in 3, 100, 101, 5_000_000:
    module = c_void_p()
    seen.append(driver.code("cuModuleLoadData", byref(module), nested(depth)))
say(seen)
""")
    assert [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY] == codes


#: `nvcc -fatbin` of CUDA 13.0 wrote them of `__device__ char big[8388608]` and a kernel k that
#: writes there: PTX of three --compress-mode (none, speed, default), and code of sm_80.
WRITTEN = ("plain", "lz4", "zstd", "elf")


@pytest.mark.parametrize("form", WRITTEN)
def test_what_nvcc_wrote_is_charged_its_arrays(grant: Grant, form: str) -> None:
    path = CORPUS / f"image-nvcc-{form}"
    codes = grant.run(f"""{IMAGES}
image = open({str(path)!r}, "rb").read()[1:] + bytes(16)
seen = []
for _ in range(9):
    seen.append(driver.code("cuModuleLoadData", byref(c_void_p()), image))
say(seen)
""")
    assert [0] * 8 + [OUT_OF_MEMORY] == codes


#: Where no context is current the driver answers without a look at the image. Each image ends where
#: memory does.
CLAIMS = """
import ctypes
from ctypes import c_int
libc = ctypes.CDLL(None)
libc.mmap.restype = c_void_p
libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_size_t)
libc.mprotect.argtypes = (c_void_p, c_size_t, c_int)
call("cuCtxSetCurrent", None)
def loaded(image):
    room = -(-len(image) // 4096) * 4096
    start = libc.mmap(None, room + 4096, 3, 0x22, -1, 0)
    libc.mprotect(start + room, 4096, 0)
    at = start + room - len(image)
    ctypes.memmove(at, image, len(image))
    return driver.code("cuModuleLoadData", byref(c_void_p()), c_void_p(at))
def claiming(image, places, value):
    for i, at in enumerate(places):  # an entry has 80 bytes before its image
        image = image[:at] + struct.pack("<Q", value - 80 * i) + image[at + 8:]
    return image
"""
#: Of a fat binary: the size of all entries, and of the first. Of an ELF file: where its sections
#: are.
FAT_SIZE, ENTRY_SIZE, SECTIONS = 8, 24, 40


@pytest.mark.parametrize(
    ("form", "skipped", "places"),
    [
        ("plain", 0, [FAT_SIZE]),
        ("plain", 0, [FAT_SIZE, ENTRY_SIZE]),
        ("elf", 0, [FAT_SIZE]),
        ("elf", 80, [SECTIONS]),
    ],
)
def test_an_image_that_claims_more_than_there_is_does_not_end_its_program(
    grant: Grant, rack: Rack, form: str, skipped: int, places: list[int]
) -> None:
    image = (CORPUS / f"image-nvcc-{form}").read_bytes()[1 + skipped :]
    program = (
        IMAGES
        + CLAIMS
        + f"""
image = {image!r}
claims = [claiming(image, {places}, claim) for claim in (len(image) + 4096, 1 << 28, 1 << 62)]
say([loaded(each) for each in [image, *claims]])
"""
    )
    codes = grant.run(program)
    assert codes == rack.run(program)
    assert [NO_CONTEXT] * 4 == codes
