"""A rack, grants on it, and programs run under them: what the limiter's tests stand on.

Grants are written here byte by byte, so that these tests hold the limiter to the layout in grant.h
and not to whatever the node's writer does.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs

LIB = Path(__file__).parents[2] / "limiters" / "hetero_limiters" / "lib"
LIMITER = LIB / "libhetero-cuda.so"
FAKE = LIB / "fake"
JOB = LIB / "hetero-job-cuda"

MIB = 1 << 20
REGION_BYTES = 50304
UUIDS = (
    "GPU-11111111-2222-3333-4444-555555555555",
    "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
)
POLICIES = {"fixed": 0, "elastic": 1, "off": 2}


@attrs.frozen
class Terms:
    """What a grant says of one device."""

    memory: int = 64 * MIB
    core: int = 10000
    policy: str = "fixed"
    high: bool = False
    uuid: str = UUIDS[0]

    def packed(self) -> bytes:
        return struct.pack(
            "<64sQIIII5Q",
            self.uuid.encode(),
            self.memory,
            self.core,
            POLICIES[self.policy],
            int(self.high),
            0,
            *[0] * 5,
        )


def packed_grant(terms: Sequence[Terms], magic: bytes = b"HTGRANT1", version: int = 1) -> bytes:
    devices = b"".join(each.packed() for each in terms)
    head = struct.pack("<8sII48s", magic, version, len(terms), b"test")
    return (head + devices).ljust(2112, b"\0")


@attrs.frozen
class Rack:
    """Simulated cards, and the files tenants of one card share."""

    directory: Path

    @classmethod
    def of(cls, directory: Path, cards: int = 1) -> "Rack":
        sections = [
            f"[device]\nvendor = nvidia\nmodel = Test Card\nuuid = {UUIDS[card]}\n"
            "memory = 1024 MiB\nnuma = 0\ncompute = 9.0\n"
            for card in range(cards)
        ]
        kernel = "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n[driver]\nnvidia = 580.159.04\n"
        (directory / "rack").write_text("".join(sections) + kernel)
        for card in range(cards):
            (directory / f"turn.{UUIDS[card]}").touch()
        return cls(directory)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return kept | {
            "HETERO_RACK": str(self.directory / "rack"),
            "LD_LIBRARY_PATH": str(FAKE),
            "PYTHONPATH": str(Path(__file__).parent),
        }

    def grant(self, *terms: Terms, name: str = "grant", turns: bool = True) -> "Grant":
        directory = self.directory / name
        directory.mkdir()
        (directory / "grant").write_bytes(packed_grant(terms))
        (directory / "usage").write_bytes(bytes(REGION_BYTES))
        for index, each in enumerate(terms):
            if turns:
                (directory / f"turn.{index}").hardlink_to(self.directory / f"turn.{each.uuid}")
        return Grant(self, directory)

    def run(self, code: str, **environment: str) -> Any:
        """Run Python with no limit; its last line of output is JSON."""
        return _json_of(_finish(self.start(code, **environment)))

    def start(self, code: str, **environment: str) -> "subprocess.Popen[str]":
        return start_python(code, self.environment | environment)


@attrs.frozen
class Grant:
    """A grant directory as the node makes one."""

    rack: Rack
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        return self.rack.environment | {
            "HETERO_GRANT": str(self.directory / "grant"),
            "LD_PRELOAD": str(LIMITER),
        }

    def set(self, *terms: Terms) -> None:
        """Change the terms in place, as the node does."""
        with (self.directory / "grant").open("r+b") as file:
            file.write(packed_grant(terms))

    def run(self, code: str, **environment: str) -> Any:
        return _json_of(_finish(self.start(code, **environment)))

    def start(self, code: str, **environment: str) -> "subprocess.Popen[str]":
        return start_python(code, self.environment | environment)

    def job(self, *arguments: str) -> "Job":
        return Job.start(self.environment, arguments)

    def usage(self, device: int = 0) -> "Usage":
        region = (self.directory / "usage").read_bytes()
        return Usage(*struct.unpack_from("<QQQQQq", region, 128 + 64 * device))


@attrs.frozen
class Usage:
    used: int
    peak: int
    denied: int
    launches: int
    gpu_ns: int
    balance_ns: int


@attrs.frozen
class Job:
    """hetero-job-cuda at work."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, environment: Mapping[str, str], arguments: Sequence[str]) -> "Job":
        return cls(
            subprocess.Popen(
                [str(JOB), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def rate(self) -> float:
        """Steps per second over the whole run, once it is over."""
        final = _json_of(_finish(self.process))
        return float(final["rate"])

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()


def start_python(code: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: "subprocess.Popen[str]") -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{errors}"
    return out


def _json_of(out: str) -> Any:
    return json.loads(out.splitlines()[-1])
