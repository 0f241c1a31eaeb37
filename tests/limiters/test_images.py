"""Images of device code and libraries: what they say of themselves, and handles of what is gone."""

from tenancy import Grant, Rack

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
#: CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY
INVALID, NOT_FOUND, OUT_OF_MEMORY = 400, 500, 2


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
    told = grant.run(program)
    assert told == rack.run(program)
    assert [0, 0, 0, NOT_FOUND, NOT_FOUND, 0] == told[0]
    assert [[INVALID] * 7] * 3 == told[1:]


def test_a_library_that_did_not_fit_is_nothing_that_the_driver_is_asked_of(grant: Grant) -> None:
    """It cannot be read, so it is loaded when its kernels are asked for, and unloaded again."""
    told = grant.run(
        IMAGES
        + """
# An ELF file without sections that the limiter reads: an array of 80 MiB.
sections = struct.pack("<IIQQQQIIQQ", 1, 8, 2, 0, 0, 80 << 20, 0, 0, 1, 0)
names = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 512, 12, 0, 0, 0, 0)
head = b"\\x7fELF\\x02".ljust(40, b"\\0") + struct.pack("<Q", 1024)
head = head.ljust(58, b"\\0") + struct.pack("<HHH", 0, 3, 2)
elf = head.ljust(512, b"\\0") + b"\\0.nv.global\\0"
made = library(elf.ljust(1024, b"\\0") + bytes(64) + sections + names)
say([asked(made), driver.code("cuLibraryUnload", made), asked(made)])
"""
    )
    assert [[OUT_OF_MEMORY] * 6, 0, [INVALID] * 6] == told


def test_a_size_of_countless_parentheses_is_refused_and_not_followed(grant: Grant) -> None:
    told = grant.run(
        IMAGES
        + """
def nested(depth):
    return text(".global .b8 big[" + "(" * depth + "1048576" + ")" * depth + "];")
seen = []
for depth in 3, 100, 101, 5_000_000:
    module = c_void_p()
    seen.append(driver.code("cuModuleLoadData", byref(module), nested(depth)))
say(seen)
"""
    )
    assert [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY] == told
