"""The limiter stays in programs that a program executes with an environment of its own."""

import os
import subprocess
from pathlib import Path

import hetero_simulator
import pytest
from attrs import evolve
from tenancy import MIB, Grant, Rack, Terms, with_faults

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = ("driver_in_front", "executed_as_told", "shells_as_told")
#: Has each way to execute a program print its environment, made anew: one word, and a preload.
WAYS = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
def words(*texts):
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
ENV, PATH = b"env", b"/usr/bin/env"
ARGUMENTS, PRELOAD = words(ENV), sys.argv[1].encode()
ANEW = words(b"OWN=1", *([b"LD_PRELOAD=" + PRELOAD] if PRELOAD else []))
def emptied():
    for name in (b"LD_PRELOAD", b"HETERO_GRANT"):
        libc.unsetenv(name)
    libc.setenv(b"OWN", b"1", 1)
    if PRELOAD:
        libc.setenv(b"LD_PRELOAD", PRELOAD, 1)
def spawned(function, path):
    pid = ctypes.c_int()
    assert 0 == function(ctypes.byref(pid), path, None, None, ARGUMENTS, ANEW)
    os._exit(os.waitpid(pid.value, 0)[1])
def through_a_shell():
    emptied()
    libc.popen.restype, libc.pclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    os._exit(libc.pclose(libc.popen(PATH, b"w")))
FD = os.open(PATH, os.O_RDONLY)
ways = {
    "execve": lambda: libc.execve(PATH, ARGUMENTS, ANEW),
    "execvpe": lambda: libc.execvpe(ENV, ARGUMENTS, ANEW),
    "execle": lambda: libc.execle(PATH, ENV, None, ANEW),
    "fexecve": lambda: libc.fexecve(FD, ARGUMENTS, ANEW),
    "execveat": lambda: libc.execveat(-100, PATH, ARGUMENTS, ANEW, 0),
    "execv": lambda: (emptied(), libc.execv(PATH, ARGUMENTS)),
    "execvp": lambda: (emptied(), libc.execvp(ENV, ARGUMENTS)),
    "execl": lambda: (emptied(), libc.execl(PATH, ENV, None)),
    "execlp": lambda: (emptied(), libc.execlp(ENV, ENV, None)),
    "posix_spawn": lambda: spawned(libc.posix_spawn, PATH),
    "posix_spawnp": lambda: spawned(libc.posix_spawnp, ENV),
    "system": lambda: (emptied(), os._exit(libc.system(PATH))),
    "popen": through_a_shell,
}
def seen(way):
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(theirs, 1)
        ways[way]()
        os._exit(99)
    os.close(theirs)
    text = open(ours).read()
    os.waitpid(child, 0)
    return dict(line.split("=", 1) for line in text.splitlines())
answers = {way: seen(way) for way in ways}
answers["subprocess"] = dict(
    line.split("=", 1)
    for line in subprocess.run(
        ["/usr/bin/env"], env={"OWN": "1", **({"LD_PRELOAD": PRELOAD.decode()} if PRELOAD else {})},
        capture_output=True, text=True, check=True
    ).stdout.splitlines()
)
say(answers)
"""


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    return Rack.of(tmp_path).grant(Terms(memory=64 * MIB))


def libutil() -> str:
    """A library that does no harm, as an allocator that a start script preloads."""
    (path, *_) = sorted(Path("/usr/lib").glob("*/libutil.so.1"))
    return str(path)


@pytest.mark.parametrize("preload", ["", "replaced", "appended"])
def test_every_way_to_execute_a_program_keeps_the_limiter(grant: Grant, preload: str) -> None:
    own = {"": "", "replaced": libutil(), "appended": f"{libutil()}:{grant.limiter}"}[preload]
    expected = f"{libutil()}:{grant.limiter}" if own else str(grant.limiter)
    answers = grant.run(f"import sys\nsys.argv = ['', {own!r}]\n{WAYS}")

    assert 14 == len(answers)
    variables = {
        "OWN": "1",
        "LD_PRELOAD": expected,
        "HETERO_GRANT": grant.environment["HETERO_GRANT"],
    }
    for seen in answers.values():
        assert variables == (seen if len(seen) == 3 else {name: seen[name] for name in variables})


@pytest.mark.parametrize(("fault", "lost_count"), [("executed_as_told", 12), ("shells_as_told", 2)])
def test_without_what_keeps_it_there_a_program_is_executed_without_the_limiter(
    grant: Grant, fault: str, lost_count: int
) -> None:
    faulty = evolve(grant, limiter=with_faults("cuda"))
    answers = faulty.run(f"import sys\nsys.argv = ['', '']\n{WAYS}", HETERO_FAULT=fault)

    lost = {way for way, seen in answers.items() if "HETERO_GRANT" not in seen}
    assert lost_count == len(lost)
    assert ({"system", "popen"} <= lost) == (fault == "shells_as_told")


def test_a_program_with_an_environment_made_anew_keeps_to_the_limit(grant: Grant) -> None:
    names = ("HETERO_RACK", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH")
    assert [True, 2] == grant.run(f"""
import json, os, subprocess, sys
code = '''from driver import *
start()
say([take("plain", {60 * MIB}) > 1000, take("plain", {100 * MIB})])'''
environment = {{name: os.environ[name] for name in {names} if name in os.environ}}
done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
say(json.loads(done.stdout))
""")


def test_where_the_new_environment_says_that_there_is_no_grant_there_is_none(grant: Grant) -> None:
    assert ["HETERO_GRANT="] == grant.run("""
import subprocess
done = subprocess.run(["/usr/bin/env"], env={"HETERO_GRANT": ""}, capture_output=True, text=True)
say(done.stdout.splitlines())
""")


def test_a_shell_is_told_a_path_with_a_quote_and_answers_as_without(tmp_path: Path) -> None:
    """Its status, a command that there is none, and one whose words are quoted."""
    directory = tmp_path / "it's"
    directory.mkdir()
    grant = Rack.of(directory).grant(Terms(memory=64 * MIB))
    file = grant.environment["HETERO_GRANT"]
    assert "'" in file
    kept, statuses = grant.run(f"""
import ctypes, os
libc = ctypes.CDLL(None)
libc.system(None)
for name in (b"LD_PRELOAD", b"HETERO_GRANT"):
    libc.unsetenv(name)
out = {str(tmp_path / "out")!r}
command = f"printf '%s ' \\"$HETERO_GRANT\\" > {{out}}".encode()
say([libc.system(command) or open(out).read(),
     [libc.system(None) != 0, libc.system(b"exit 3") >> 8, libc.system(b"(") >> 8]])
""")
    assert (f"{file} ", [True, 3, 2]) == (kept, statuses)


def test_an_environment_of_thousands_of_variables_is_passed_on_whole(grant: Grant) -> None:
    """It does not fit on the stack of every thread."""
    assert [5002, 0] == grant.run("""
import subprocess, threading
answers = []
def spawn():
    names = {f"NAME_{number}": "x" for number in range(5000)}
    done = subprocess.run(["/usr/bin/env"], env=names, capture_output=True, text=True)
    answers.extend((len(done.stdout.splitlines()), done.returncode))
threading.stack_size(64 << 10)
thread = threading.Thread(target=spawn)
thread.start()
thread.join()
say(answers)
""")


def test_what_cannot_be_executed_has_its_own_error(grant: Grant) -> None:
    assert [[2, 13, 2], 2] == grant.run("""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def error(function, *arguments):
    answer = function(*arguments)
    return ctypes.get_errno() if answer == -1 else answer
none = (ctypes.c_char_p * 1)(None)
pid = ctypes.c_int()
say([
    [
        error(libc.execve, b"/nowhere", none, none),
        error(libc.execv, b"/etc/passwd", none),
        error(libc.execvp, b"nothing-of-that-name", none),
    ],
    libc.posix_spawn(ctypes.byref(pid), b"/nowhere", None, None, none, none),
])
""")


def test_a_users_own_wrapper_of_execve_is_called(grant: Grant, tmp_path: Path) -> None:
    own = tmp_path / "own.so"
    source = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int execve(const char *path, char *const arguments[], char *const environment[])
{
    (void)!write(1, "own\\n", 4);
    return ((int (*)(const char *, char *const *, char *const *))dlsym(RTLD_NEXT, "execve"))(
        path, arguments, environment);
}
"""
    (tmp_path / "own.c").write_text(source)
    assert 0 == os.system(f"cc -shared -fPIC -o {own} {tmp_path}/own.c -ldl")
    process = grant.start(
        'import os\nos.execve("/usr/bin/env", ["env"], {"OWN": "1"})',
        LD_PRELOAD=f"{grant.limiter}:{own}",
    )
    out, _ = process.communicate(timeout=60)

    assert ["own", f"LD_PRELOAD={grant.limiter}"] == [
        line for line in out.splitlines() if line == "own" or line.startswith("LD_PRELOAD")
    ]


#: A program that is linked to the driver, and says what its arguments and an allocation gave.
LINKED = """
#include <stdio.h>
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long *, unsigned long);
int main(int count, char **arguments)
{
    void *context;
    unsigned long address;
    int failed = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
    for (int index = 1; index < count; index++)
        printf("%s|", arguments[index]);
    printf("%d %d\\n", failed, cuMemAlloc_v2(&address, 100ul << 20));
}
"""
#: A user's own wrapper of a driver's function.
WRAPPER = """
#include <dlfcn.h>
#include <stdio.h>
int cuMemAlloc_v2(unsigned long *address, unsigned long bytes)
{
    int (*next)(unsigned long *, unsigned long) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("asked for %lu MiB ", bytes >> 20);
    return next(address, bytes);
}
"""


def compiled(source: str, path: Path, *flags: str) -> str:
    words = ["cc", "-D_GNU_SOURCE", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(words, input=source, text=True, check=True)
    return str(path)


def linked(grant: Grant, directory: Path, *preloaded: str, **environment: str) -> str:
    """What a program says that is linked to the driver, with libraries in front of the limiter."""
    drivers = (f"-L{hetero_simulator.fake_drivers()}", "-l:libcuda.so.1")
    program = compiled(LINKED, directory / "linked", *drivers)
    preload = {"LD_PRELOAD": ":".join((*preloaded, str(grant.limiter)))}
    command = [program, "a", "b c", ""]
    started = grant.rack.machine.spawn(command, **{**grant.environment, **preload, **environment})
    out, _ = started.communicate(timeout=60)
    return out


def test_a_driver_that_is_preloaded_before_the_limiter_is_called_past_it_no_more(
    grant: Grant, tmp_path: Path
) -> None:
    """As LD_PRELOAD names it in a container. The program is executed anew with its arguments."""
    driver = str(hetero_simulator.fake_drivers() / "libcuda.so.1")
    assert "a|b c||0 2\n" == linked(grant, tmp_path, driver)
    faulty = evolve(grant, limiter=with_faults("cuda"))
    assert "a|b c||0 0\n" == linked(faulty, tmp_path, driver, HETERO_FAULT="driver_in_front")


def test_a_users_own_wrapper_of_a_drivers_function_is_called_and_the_limit_kept(
    grant: Grant, tmp_path: Path
) -> None:
    wrapper = compiled(WRAPPER, tmp_path / "wrapper.so", "-shared", "-fPIC", "-ldl")
    assert "a|b c||asked for 100 MiB 0 2\n" == linked(grant, tmp_path, wrapper)
