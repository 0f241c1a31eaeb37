"""The names that others' wheels need of an API: how they are read, and which have a prototype."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.programs import completed

LIMITERS = Path(__file__).parents[2] / "limiters"
SCRIPT = LIMITERS / "needed_names.py"

LIBRARY = """
extern int aclrtMalloc(void), aclnnAdd(void);
const char *by_dlsym[] = {"aclrtMallocAlign32", "aclrtStreamFunc", "rtMemInfo_t", "acl rtFree"};
int rtFree(void) { return aclrtMalloc() + aclnnAdd(); }
"""

#: The host's memory and functions, settings, and what reaches the driver's layer below. rtLaunch is
#: open: it takes its stream from a call before.
WITHOUT_PROTOTYPE = {
    *("aclrtMallocHost", "aclrtMallocHostWithCfg", "rtMallocHost"),
    *("aclrtLaunchCallback", "aclrtLaunchHostFunc"),
    *("aclrtSetOpExecuteTimeOut", "aclrtSetOpExecuteTimeOutV2", "aclrtMemGetAllocationGranularity"),
    *("acldvppMalloc", "rtLaunch"),
}


def test_names_are_those_that_are_linked_looked_up_or_in_sources(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=LIBRARY, text=True, check=True)
    wheel = tmp_path / "tried-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, "tried/library.so")
        archive.writestr("tried/launcher.py", "'rtKernelLaunch(stub)' # rtMalloc, rtFree()")
    done = completed([sys.executable, SCRIPT, "--read", wheel])

    assert "" == done.stderr
    names = {"linked": ["aclrtMalloc"], "named": ["aclrtMallocAlign32", "rtKernelLaunch"]}
    assert {"tried-1.0": names} == json.loads(done.stdout)["wheels"]


def test_what_allocates_launches_or_executes_on_a_card_has_a_prototype() -> None:
    lines = completed([sys.executable, SCRIPT]).stdout.splitlines()
    missing = {line.split(":")[0].strip() for line in lines if "no prototype" in line}
    of_card = {each for each in missing if re.search("Malloc|Alloc|Launch|Execute", each)}

    assert WITHOUT_PROTOTYPE == {each for each in of_card if "Allocator" not in each}
