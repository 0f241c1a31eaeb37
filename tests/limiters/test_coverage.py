"""The tool that says what of a wheel's calls a limiter answers, on wheels that are made here."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.programs import completed

SCRIPT = Path(__file__).parents[2] / "limiters/coverage.py"

LIBRARY = """
extern int hipMalloc(void **, unsigned long), hipGetDevice(int *), {called}(void);
const char *by_dlsym[] = {{"hipFree", "{looked_up}", "hipErrorInvalidValue"}};
int own(void) {{ return hipMalloc(0, 0) + hipGetDevice(0) + {called}(); }}
"""


def coverage(directory: Path, called: str, looked_up: str) -> tuple[int, list[str]]:
    source = LIBRARY.format(called=called, looked_up=looked_up)
    library = directory / "library.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    wheel = directory / "tried-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "tried/library.so")
        archive.writestr("tried/readme", "hipModuleLoad\0hipLaunchKernel\0")  # no program
    done = completed([sys.executable, SCRIPT, wheel])
    assert "" == done.stderr
    return done.returncode, [" ".join(line.split()) for line in done.stdout.splitlines()[1:]]


def test_linked_functions_and_those_that_are_looked_up_count(tmp_path: Path) -> None:
    whole = coverage(tmp_path, "hipDeviceSynchronize", "hipLaunchKernel")

    assert (0, ["tried-1.0 3 2 0 0 100 %"]) == whole


def test_what_no_limiter_answers_is_named(tmp_path: Path) -> None:
    partly = coverage(tmp_path, "hipFromTheFuture", "hipMemPoolImportPointer")

    named = ["hipFromTheFuture: in no table", "hipMemPoolImportPointer: open"]
    assert (1, ["tried-1.0 2 1 1 1 50 %", *named]) == partly
