"""Vendors whose libraries misbehave, all at once: agent, scheduler and webhook serve the others."""

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from attrs import evolve
from prometheus_client import generate_latest

import hetero.registry.registry
import hetero.registry.supervisor
from hetero.kube.agent import allocator
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.model import Selector
from hetero.model.errors import Refused
from hetero.node.grants import grants_of, release
from hetero.registry.entry_points import Entry
from hetero.registry.fork_server import ForkServer
from hetero.registry.registry import Registry
from hetero.registry.supervisor import Supervisor
from tests.kube.api_server import FakeApi
from tests.kube.conftest import card
from tests.kube.control_plane import free_port
from tests.kube.world import KEY, World, until, world
from tests.registry import hostile
from tests.registry.installed import good, install, install_hostile

#: Those that take much memory and processor time, too, are asked one by one in tests/registry.
DEEDS = (
    "segfault",
    "exit_0",
    "close_descriptors",
    "fork_that_stays",
    "hang",
    "print_much",
    "raise_an_exit",
    "write_everywhere",
)
GOOD = "example.com/good"
#: A service as a user starts it, but for the time that a vendor has.
START = (
    sys.executable,
    "-c",
    "import hetero.registry.registry as registry; registry.LOOK = 2.0\n"
    "from hetero.cli import main; main()",
)


def card_of(entry: Entry) -> str:
    return f"example.com/{entry.name}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hetero.registry.registry, "DISCOVERY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(allocator, "_SHARE_WAIT_S", 0.0)
    return tmp_path


async def test_an_agent_gives_the_cards_of_one_vendor_whatever_fifty_six_others_do(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who hung is not waited for again.
    monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 60.0)
    bad = install_hostile(site, DEEDS, ("import", *hostile.HOOKS))
    entries = [install(site, "good", good()), *bad.values()]

    async def story(at: World) -> None:
        async def admitted(entry: Entry) -> str | None:
            """Return why a pod that asks for a vendor's card is refused, if it is."""
            try:
                pod = at.bind(entry.name, card=card_of(entry), vendor=Selector((entry.name,)))
                await at.kubelet.admit(pod)
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            return None

        for name in (
            "DISCOVERY_TIMEOUT_S",
            "ENFORCEMENT_TIMEOUT_S",
        ):  # who answers at all has started
            monkeypatch.setattr(hetero.registry.registry, name, 1.0)
        states = {row.name: row.state for row in at.agent.discovery.rows}
        broken = {
            entry.name
            for (deed, hook), entry in bad.items()
            if hook in ("import", "vendor", "discover") and deed not in hostile.HARMLESS
        }
        assert broken == {name for name, state in states.items() if state != "ok"}
        works = [entry for entry in bad.values() if entry.name not in broken]
        await until(lambda: {card_of(entry) for entry in works} <= at.kubelet.devices.keys())

        loud = bad["print_much", "watch"]
        await until(lambda: "Unhealthy" in at.kubelet.devices[card_of(loud)].values())

        for deed in DEEDS:
            refused = await admitted(bad[deed, "enforce"])
            assert (deed in hostile.HARMLESS) == (refused is None)
            assert refused is None or refused.count(f"{bad[deed, 'enforce'].name}: enforce: ") == 1
            assert await admitted(bad[deed, "reconcile"]) is None
        assert await admitted(entries[0]) is None
        for deed in DEEDS:  # their slices are looked for when their pods have ended
            at.api.put("pods", at.api.pods["default", bad[deed, "reconcile"].name], event="DELETED")
        harmless = {f"default/{bad[deed, 'enforce'].name}/main" for deed in hostile.HARMLESS[:2]}
        await until(lambda: {"default/good/main", *harmless} == set(at.standing()))

        text = await asyncio.to_thread(generate_latest, at.agent.metrics.registry)
        used = [
            line
            for line in text.decode().splitlines()
            if line.startswith("hetero_device_memory_used_bytes{")
        ]
        counted = {line.partition('vendor="')[2].partition('"')[0] for line in used}
        assert "good" in counted
        mute = {bad[deed, "observe"].name for deed in DEEDS if deed not in hostile.HARMLESS}
        assert not mute & counted
        await at.crash()
        await at.start()  # as after an update: what stands is found again
        assert {"default/good/main", *harmless} == set(at.standing())

    registry = Registry(lambda: entries, ForkServer(dict(os.environ)), watch=True)
    try:
        async with world(registry=registry, awaited=GOOD) as at:
            await story(at)
    finally:
        registry.close()


async def test_pods_of_other_vendors_start_while_one_hangs_in_enforce(site: Path) -> None:
    bad = install_hostile(site, ["hang"], ["enforce"])["hang", "enforce"]
    entries = [install(site, "good", good()), bad]

    async def story(at: World, hanging: Supervisor) -> None:
        def admit(entry: Entry) -> asyncio.Future[Any]:
            pod = at.bind(entry.name, card=card_of(entry), vendor=Selector((entry.name,)))
            return asyncio.ensure_future(at.kubelet.admit(pod))

        await until(lambda: card_of(bad) in at.kubelet.devices)
        hung = admit(bad)
        await until(lambda: hanging._lock.locked())
        (making,) = at.node.snapshot().grants
        with pytest.raises(Refused, match="still being made"):
            release(grants_of(at.node), making.id, force=True)
        await admit(entries[0])
        assert not hung.done()
        assert "Unhealthy" not in at.kubelet.devices[card_of(bad)].values()
        assert hanging._process
        hanging._process.stop()
        with pytest.raises(grpc.aio.AioRpcError, match="enforce: its process was ended by SIGKILL"):
            await hung
        assert {"default/good/main"} == set(at.standing())

    registry = Registry(lambda: entries, ForkServer(dict(os.environ)), watch=True)
    acting = registry._members[1].acting
    assert isinstance(acting, Supervisor)
    try:
        async with world(registry=registry, awaited=GOOD) as at:
            await story(at, acting)
    finally:
        registry.close()


class Service:
    """A service of the cluster in a process of its own, on a fake API."""

    def __init__(self, folder: Path, url: str, site: Path) -> None:
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        (folder / "key").write_bytes(KEY.text())
        self.port = free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._environ = {
            **{name: value for name, value in os.environ.items() if "HETERO" not in name},
            "PYTHONPATH": str(site),
            "KUBECONFIG": str(folder / "kubeconfig"),
            "HETERO_KEY_FILE": str(folder / "key"),
        }

    async def start(self, *words: str) -> None:
        where = ("--insecure", "--host", "127.0.0.1", "--port", str(self.port))
        self._process = await asyncio.create_subprocess_exec(
            *(*START, *words, *where), env=self._environ, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr
        self.log = ""
        while "serving on" not in self.log:
            line = await self._process.stderr.readline()
            assert line, self.log
            self.log += line.decode()

    async def call(self, path: str, document: Mapping[str, Any]) -> Any:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.port}/{path}"
            async with session.post(url, json=document) as answer:
                return await answer.json()

    async def end(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self._process.wait()

    def kill(self) -> None:
        """End what a test that failed left running."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def pod(resource: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
    }


async def served(folder: Path, site: Path, settings: str) -> tuple[list[str], str, list[str]]:
    """Return both services' logs, the scheduler the webhook sets, and the nodes that serve."""
    (folder / "settings.toml").write_text(settings)
    api = FakeApi()
    notes = {INVENTORY: inventory_text((evolve(card("GOOD-1"), vendor="good"),))}
    api.put("nodes", {"metadata": {"name": "n1", "annotations": notes}}, event="ADDED")
    async with api.serve() as url:
        scheduler, webhook = Service(folder, url, site), Service(folder, url, site)
        config = f"--config={folder}/settings.toml"
        try:
            await asyncio.gather(
                scheduler.start("scheduler", config),
                webhook.start(
                    "webhook", config, "--allocation-writer=me", "--agent=agent", "--open"
                ),
            )
            asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": pod(GOOD)}
            review = await webhook.call("admit", {"request": asked})
            (patch,) = json.loads(base64.b64decode(review["response"]["patch"]))
            fits = await scheduler.call("filter", {"Pod": pod(GOOD), "NodeNames": ["n1"]})
            assert [0, 0] == [await scheduler.end(), await webhook.end()]
        finally:
            scheduler.kill()
            webhook.kill()
        return [scheduler.log, webhook.log], patch["value"], fits["NodeNames"]


def test_scheduler_and_webhook_serve_one_vendor_whatever_the_others_do_and_run_those_listed(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("services")
    mark = folder / "mark"
    bad = install_hostile(site, DEEDS, ("import", "vendor"))
    listed = [f"hetero-{entry.name}" for entry in bad.values()] + ["hetero-good"]
    install(site, "good", good())
    install(site, "other", f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n" + good())
    named = card_of(bad["segfault", "vendor"])  # which nobody knows now
    settings = f'[vendors]\nallow = {json.dumps(listed)}\n[resources]\n"{named}" = "a.b/c"\n'
    logs, scheduler, nodes = asyncio.run(asyncio.wait_for(served(folder, site, settings), 60))

    assert ("hetero-scheduler", ["n1"]) == (scheduler, nodes)
    assert not mark.exists()
    for log in logs:
        left_out = [line for line in log.splitlines() if "vendor left out: " in line]
        hostile_lines = [line for line in left_out if "vendor left out: hostile-" in line]
        names = {line.split("vendor left out: ")[1].partition(":")[0] for line in hostile_lines}
        failing = {entry.name for (deed, _), entry in bad.items() if deed not in hostile.HARMLESS}
        assert failing == names
        assert len(failing) == len(hostile_lines)
        assert 1 == log.count("hetero-other is not among the vendors that the settings allow")
        assert f"no vendor knows the resource '{named}'" in log


async def test_an_agent_offers_the_cards_of_a_vendor_that_first_works_after_it_began(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 0.1)
    mended = site / "mended"
    entries = [
        install(site, "good", good()),
        install(site, "late", f"open({str(mended)!r})\n" + good("late")),
    ]

    registry = Registry(lambda: entries, ForkServer(dict(os.environ)), watch=True)
    async with world(registry=registry, awaited=GOOD) as at:
        assert {GOOD} == at.kubelet.devices.keys()
        mended.touch()
        await until(lambda: "example.com/late" in at.kubelet.devices)
    registry.close()
