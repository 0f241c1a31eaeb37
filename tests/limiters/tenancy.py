"""Grants on simulated cards, and programs run under them: what the limiter's tests stand on.

Grants are written here byte by byte, so that these tests hold the limiter to the layout in grant.h
and not to whatever the node's writer does.
"""

import fcntl
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import hetero_limiters
import hetero_simulator
import simulated
from simulated import MIB as MIB
from simulated import Machine

LIMITER = hetero_limiters.library("cuda")
#: Where the tables of each driver API are. MUSA's are made of CUDA's by the build.
TABLES = {api: LIMITER.parents[2] / api for api in ("cuda", "hip", "hsa", "nvml", "acl", "hal")}
TABLES |= {"musa": LIMITER.parents[2] / "build/musa"}
REGION_BYTES = 600320
UUIDS = (
    "GPU-11111111-2222-3333-4444-555555555555",
    "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
)
#: What a device's flags in a grant say.
SPILL, CONTEXT, STRICT = 1, 2, 4
POLICIES = {"fixed": 0, "elastic": 1, "off": 2}


#: For a program: wait until so many launches of the first device are in the usage region, where the
#: governor writes them down now and then.
COUNTED = """
import os, pathlib, struct, time
def counted(launches):
    region = pathlib.Path(os.environ["HETERO_GRANT"]).with_name("usage")
    until = time.monotonic() + 30
    while struct.unpack_from("<Q", region.read_bytes(), 152)[0] < launches:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.05)  # for one too many
"""


@attrs.frozen
class Terms:
    """What a grant says of one device."""

    memory: int = 64 * MIB
    core: int = 10000
    policy: str = "fixed"
    high: bool = False
    uuid: str = UUIDS[0]
    flags: int = 0
    excess: int = 0
    context: int = 0

    def packed(self) -> bytes:
        return struct.pack(
            "<64sQIIII5Q",
            self.uuid.encode(),
            self.memory,
            self.core,
            POLICIES[self.policy],
            int(self.high),
            self.flags,
            self.excess,
            0,
            self.context,
            *[0] * 2,
        )


def packed_grant(terms: Sequence[Terms], magic: bytes = b"HTGRANT1", version: int = 1) -> bytes:
    devices = b"".join(each.packed() for each in terms)
    head = struct.pack("<8sII48s", magic, version, len(terms), b"test")
    return (head + devices).ljust(2112, b"\0")


def packed_row(identity: str, inode: int, terms: Terms) -> bytes:
    words = (terms.core, POLICIES[terms.policy], int(terms.high), 0)
    return struct.pack("<48sQ4I3Q", identity.encode(), inode, *words, 0, 0, 0)


def packed_board(rows: Sequence[bytes], generation: int) -> bytes:
    head = struct.pack("<8sIIQQ", b"HTBOARD1", 1, len(rows), generation, 0)
    return (head + b"".join(rows)).ljust(12320, b"\0")


def _page(board: Path, identity: str) -> Path:
    board.mkdir(exist_ok=True)
    (board / identity).write_bytes(struct.pack("<8sI", b"HTPAGE01", 1).ljust(4096, b"\0"))
    return board / identity


def _add_row(directory: Path, identity: str, terms: Terms) -> None:
    """Add a grant to a device's board in place: programs map it."""
    path, row = (
        directory / "board",
        packed_row(identity, (directory / identity).stat().st_ino, terms),
    )
    before = path.read_bytes() if path.exists() else packed_board((), 0)
    _, _, count, generation, _ = struct.unpack_from("<8sIIQQ", before)
    rows = [before[32 + 96 * each :][:96] for each in range(count)]
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(packed_board([*rows, row], generation + 2))


@attrs.frozen
class Rack:
    """Simulated cards, and the files that the tenants of one card share."""

    directory: Path
    machine: Machine
    api: str = "driver"  # the module that programs call the driver by

    @classmethod
    def of(cls, directory: Path, cards: int = 1, more: str = "", *, model: str = "Card") -> "Rack":
        kernel = "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
        card = f"[device]\nvendor = nvidia\nmodel = {model}\nmemory = 1024 MiB\n{more}\nuuid = "
        text = "".join(f"{card}{UUIDS[each]}\n" for each in range(cards)) + kernel
        return cls(directory, Machine(directory, text))

    def grant(
        self,
        *terms: Terms,
        name: str = "grant",
        time_slices: bool = True,
        limiter: Path | None = None,
    ) -> "Grant":
        directory = self.directory / name
        directory.mkdir()
        (directory / "grant").write_bytes(packed_grant(terms))
        (directory / "usage").write_bytes(bytes(REGION_BYTES))
        for index, each in enumerate(terms):
            if time_slices:
                board = self.directory / f"board.{each.uuid}"
                (directory / f"page.{index}").hardlink_to(_page(board, name))
                (directory / f"board.{index}").symlink_to(board)
                _add_row(board, name, each)
        return Grant(self, directory, terms, limiter or LIMITER)  # as it is now: tests change it

    def virtual(self, together: int, *preloaded: Path) -> dict[str, str]:
        """The environment of programs in virtual time, which begins when so many have started."""
        libraries = ":".join(map(str, (hetero_simulator.clock(), *preloaded)))
        return {"VIRTUAL_CLOCK": f"{together}:{self.directory}/clock", "LD_PRELOAD": libraries}

    def virtual_seconds(self) -> float:
        """Return the time of that clock, as its file has it (simulator/clock/clock.c)."""
        now_ns: int = struct.unpack_from("<16xQ", (self.directory / "clock").read_bytes())[0]
        return now_ns / 1e9

    def start(self, program: str, **environment: str) -> "subprocess.Popen[str]":
        settings = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": f"{Path(__file__).parent}:{Path(simulated.__file__).parent}",
        }
        return self.machine.start(f"from {self.api} import *\n{program}", **settings, **environment)

    def run(self, program: str, **environment: str) -> Any:
        """Run a program with no limit; it tells one JSON value."""
        return _told(self.start(program, **environment))

    def job(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        command = [str(hetero_simulator.job("cuda")), *arguments]
        return self.machine.spawn(command, **environment)


@attrs.frozen
class Grant:
    """A grant directory as the node makes one."""

    rack: Rack
    directory: Path
    terms: tuple[Terms, ...]
    limiter: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"HETERO_GRANT": str(self.directory / "grant"), "LD_PRELOAD": str(self.limiter)}

    def virtual(self, together: int = 1) -> dict[str, str]:
        """The environment of a program in virtual time, as `Rack.virtual` has it."""
        return self.rack.virtual(together, self.limiter)

    def set(self, *terms: Terms) -> None:
        """Change the terms in place, as the node does."""
        with (self.directory / "grant").open("r+b") as file:
            file.write(packed_grant(terms))

    def start(self, program: str, **environment: str) -> "subprocess.Popen[str]":
        return self.rack.start(program, **{**self.environment, **environment})

    def run(self, program: str, **environment: str) -> Any:
        return _told(self.start(program, **environment))

    def job(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return self.rack.job(*arguments, **{**self.environment, **environment})

    def usage(self, device: int = 0) -> "Usage":
        region = (self.directory / "usage").read_bytes()
        return Usage(*struct.unpack_from("<QQQQQq", region, 128 + 128 * device))

    def unknown(self) -> int:
        """How many functions of the driver were asked for that no table knows."""
        region = (self.directory / "usage").read_bytes()
        count: int = struct.unpack_from("<Q", region, 80)[0]
        return count


@attrs.frozen
class Usage:
    used: int
    peak: int
    denied: int
    launches: int
    gpu_ns: int
    balance_ns: int


def rate(job: "subprocess.Popen[str]") -> float:
    """Steps per second over a job's whole run, once it is over."""
    return float(_told(job)["rate"])


@contextmanager
def meanwhile(job: "subprocess.Popen[str]") -> Iterator[None]:
    """Have a job run until the block ends, the hard way."""
    try:
        yield
    finally:
        job.kill()
        job.communicate()


def _told(process: "subprocess.Popen[str]") -> Any:
    try:
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()  # one that has no end would run on beside all other tests
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{errors}"
    return json.loads(out.splitlines()[-1])


@cache
def with_faults(api: str) -> Path:
    """Build the limiters with their faults, where that is to be done; the library for an API."""
    limiters = hetero_limiters.library(api).parents[2]
    environment = {**os.environ, "MAKEFLAGS": ""}
    with (limiters / "build/faults.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        subprocess.run(["make", "-s", "-C", limiters, "faults"], check=True, env=environment)
    return limiters / "build/faults/hetero_limiters/lib" / f"libhetero-{api}.so"


def mutated(edits: tuple[tuple[str, str, str], ...], copy: Path, api: str = "cuda") -> Path:
    """Build a limiter in `copy` with edits, each (file, text, its replacement); its library."""
    library, layouts = f"hetero_limiters/lib/libhetero-{api}.so", "hetero_limiters/lib/layouts"
    return mutated_part(edits, copy, library, layouts)


def mutated_part(edits: tuple[tuple[str, str, str], ...], copy: Path, *parts: str) -> Path:
    """Build parts of the limiters in `copy` with edits as `mutated` does; the first of them."""
    shutil.copytree(LIMITER.parents[2], copy, ignore=shutil.ignore_patterns("build", "lib"))
    for file, before, after in edits:
        source = copy / file
        source.write_text(source.read_text().replace(before, after))
    environment = {**os.environ, "MAKEFLAGS": ""}
    # What is left unused is not the point.
    command = ["make", "-s", "-C", str(copy), "CC=cc -w", *parts]
    subprocess.run(command, check=True, env=environment)
    return copy / parts[0]


def in_virtual_time_without(edit: tuple[str, str, str], test: str, copy: Path) -> int:
    """Run a test ("program: name arguments") with an edit, built in `copy`; its exit status."""
    shutil.copytree(Path(__file__).parent, copy / "tests" / "limiters")  # the program's sources
    program, name = test.split(": ")
    built = mutated_part((edit,), copy / "limiters", f"build/{program}")
    done = subprocess.run(
        [built, *name.split()], capture_output=True, text=True, timeout=600, check=False
    )
    print(done.stdout, done.stderr)
    return done.returncode


def in_front(directory: Path, library: Path, source: str, *flags: str) -> Path:
    """Build a driver of a driver's name with functions in front, which calls that one.

    The driver itself has another name then, in a copy.
    """
    name, other = library.name, f"X{library.name[1:]}"  # as long as the other
    own_name, other_name = (f"\0{each}\0".encode() for each in (name, other))
    (directory / other).write_bytes(library.read_bytes().replace(own_name, other_name))
    path = directory / "front" / name
    path.parent.mkdir()
    options = ("-shared", "-fPIC", "-O2", f"-Wl,-soname,{name}", f"-Wl,-rpath,{directory}", *flags)
    linked = ("-x", "none", "-Wl,--no-as-needed", str(directory / other), "-o", str(path))
    command = ["cc", *options, "-x", "c", "-", *linked]
    subprocess.run(command, input=source, text=True, check=True)
    return path
