"""The limiter stays in programs that a program executes with an environment of its own."""

import os
from pathlib import Path

import pytest
from tenancy import MIB, Grant, Rack, Terms

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
    own = {"": "", "replaced": libutil(), "appended": f"{grant.limiter}:{libutil()}"}[preload]
    expected = f"{grant.limiter}:{libutil()}" if own else str(grant.limiter)
    answers = grant.run(f"import sys\nsys.argv = ['', {own!r}]\n{WAYS}")

    assert 14 == len(answers)
    variables = {
        "OWN": "1",
        "LD_PRELOAD": expected,
        "HETERO_GRANT": grant.environment["HETERO_GRANT"],
    }
    for seen in answers.values():
        assert variables == (seen if len(seen) == 3 else {name: seen[name] for name in variables})


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
