"""The extender and kube-scheduler lead together, and what ends one of them gives the Lease up."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from attrs import define, field

from hetero.kube.client.lease import LeaseElection
from hetero.kube.service import leader
from hetero.kube.service.leader import Leader
from tests.kube.fake_api import FakeApi

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/hetero-scheduler"
#: An extender that knows the cluster at once and does nothing else.
EXTENDER = """
import asyncio, os, pathlib
from hetero.kube.client.leadership import Leadership
open(os.environ["STARTED"], "a").write(f"{os.getpid()}\\n")
untried = pathlib.Path(os.environ["STARTED"]).with_name("untried")
def says():
    if found := untried.exists():
        untried.unlink()
    return found
asyncio.run(Leadership.of(os.environ).follow(lambda: True, says))
"""


@define(eq=False)
class Scene:
    """One leader with its extender, and what its supervisor is told."""

    api: FakeApi
    leader: Leader
    address: str
    started: Path
    received: list[bytes] = field(factory=list)

    @property
    def holder(self) -> str | None:
        held = self.api.objects.get(PATH) or {"spec": {}}
        identity: str | None = held["spec"].get("holderIdentity")
        return identity

    @property
    def extenders(self) -> list[int]:
        return (
            [int(one) for one in self.started.read_text().split()] if self.started.exists() else []
        )

    async def supervise(self, *, seconds: float = 60) -> None:
        """Be a supervisor of kube-scheduler for so long."""
        reader, writer = await asyncio.open_unix_connection(self.address)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._answer(reader, writer), seconds)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64):
            self.received.append(data[-1:])
            writer.write(data[-1:])

    async def until(self, seen: Callable[[], bool]) -> None:
        for _ in range(3000):
            if seen():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"in vain: told {self.received[-3:]}, {self.holder}")

    def leads(self) -> bool:
        return self.holder == "pod-a_1" and self.received[-1:] == [b"1"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody taken for silent who only waits for a processor."""
    monkeypatch.setattr(leader, "_SILENCE_S", 60.0)
    monkeypatch.setattr(leader, "_SUPERVISOR_SILENCE_S", 60.0)


@asynccontextmanager
async def leading(
    folder: Path, healthz: str | None = None, *, supervisor: str = ""
) -> AsyncIterator[Scene]:
    api, started = FakeApi(), folder / "started"
    lease = LeaseElection(api, "ns", "hetero-scheduler", "pod-a_1")  # type: ignore[arg-type]
    argv = ("env", f"STARTED={started}", sys.executable, "-c", EXTENDER)
    name = supervisor or str(folder / "socket")
    held = Leader(lease=lease, argv=argv, supervisor=name, healthz=healthz)
    scene = Scene(api, held, name.replace("@", "\0", 1), started)
    running = asyncio.ensure_future(held.run())
    await scene.until(lambda: name in Path("/proc/net/unix").read_text())
    supervising = asyncio.ensure_future(scene.supervise())
    try:
        await scene.until(scene.leads)
        yield scene
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)
    assert scene.holder is None  # given up as it ended


async def test_an_extender_that_ends_stops_kube_scheduler_and_is_started_anew(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as scene:
        os.kill(scene.extenders[-1], signal.SIGKILL)
        await scene.until(lambda: scene.received[-1] == b"0" and scene.holder is None)
        await scene.until(scene.leads)
        assert 2 == len(scene.extenders)


async def test_an_extender_that_is_silent_is_ended_after_a_second(tmp_path: Path) -> None:
    async with leading(tmp_path) as scene:
        os.kill(scene.extenders[-1], signal.SIGSTOP)
        await scene.until(lambda: scene.received[-1] == b"0" and scene.holder is None)
        await scene.until(scene.leads)
        assert 2 == len(scene.extenders)


async def test_the_socket_of_the_supervisor_may_be_abstract(tmp_path: Path) -> None:
    async with leading(tmp_path, supervisor=f"@{tmp_path}"):
        assert not (tmp_path / "socket").exists()


async def test_without_kube_scheduler_nobody_leads(tmp_path: Path) -> None:
    async with leading(tmp_path) as scene:
        await scene.supervise(seconds=0.5)  # in place of the first, and gone
        await scene.until(lambda: scene.holder is None)


@pytest.mark.usefixtures("patient")
async def test_while_the_api_server_is_away_everything_runs_on(tmp_path: Path) -> None:
    async with leading(tmp_path) as scene:
        scene.api.fail.add("leases/hetero-scheduler")
        await asyncio.sleep(5)
        assert b"1" == scene.received[-1]
        scene.api.fail.clear()
        await asyncio.sleep(1.5)
        assert scene.leads()
        assert 1 == len(scene.extenders)


@contextmanager
def kube_scheduler(running: threading.Event) -> Iterator[str]:
    """Have something answer as kube-scheduler does, while it runs; return where."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.wait(30)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/healthz"
        running.set()
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("patient")
async def test_a_kube_scheduler_that_hangs_is_ended_and_the_lease_given_up(tmp_path: Path) -> None:
    running = threading.Event()
    running.set()

    with kube_scheduler(running) as healthz:
        async with leading(tmp_path, healthz) as scene:
            await asyncio.sleep(4)  # longer than one that hangs is let
            assert scene.leads()
            assert 1 == len(scene.extenders)
            running.clear()
            await scene.until(lambda: scene.received[-1] == b"0" and scene.holder is None)
            running.set()
            await scene.until(scene.leads)


@pytest.mark.usefixtures("patient")
async def test_a_kube_scheduler_that_starts_is_waited_for(tmp_path: Path) -> None:
    with kube_scheduler(threading.Event()) as healthz:
        async with leading(tmp_path, healthz) as scene:
            await asyncio.sleep(4)
            assert scene.leads()


@pytest.mark.usefixtures("patient")
async def test_a_kube_scheduler_that_tries_no_pod_is_started_anew_and_nobody_else(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as scene:
        before = len(scene.received)
        scene.started.with_name("untried").touch()
        await scene.until(lambda: b"0" in scene.received[before:])
        assert scene.holder == "pod-a_1"
        await scene.until(scene.leads)
        await asyncio.sleep(1)
        assert scene.leads()
        assert 1 == len(scene.extenders)
