"""What an agent tells of its node: cards to the kubelet, the inventory to the cluster, metrics."""

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from prometheus_client import generate_latest

from hetero.kube.agent.agent import Options, node_of
from hetero.kube.agent.device_plugin import DevicePlugin
from hetero.kube.words import settings
from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import CORE, MEMORY, SLOTS, Enforcement, OnBypass, Template, Templated, Usage
from hetero.model.units import GiB
from hetero.node.ledger.debts import Debt
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.ledger import ALIVE, ENDED_FILE
from hetero.node.ledger.usage_region import (
    DEVICE,
    GANG,
    HEADER,
    MAGIC,
    MEMBER,
    MEMBERS,
    SIZE,
    VERSION,
)
from hetero.node.ledger.usage_region import SLOTS as SLOTS_OF_REGION
from hetero.node.node import Node
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.kube.kubelet import FakeKubelet
from tests.kube.world import CARD, DISCOVER, KEY, World, until, world


async def test_every_slot_of_every_card_is_offered_with_its_numa_node() -> None:
    async with world(16 * GiB, slots=2) as at:
        assert {CARD} == set(at.kubelet.registered)
        assert {"memory-0::0": "Healthy", "memory-0::1": "Healthy"} == at.kubelet.devices[CARD]
        options = at.kubelet.registered[CARD].options
        assert (True, True) == (
            options.pre_start_required,
            options.get_preferred_allocation_available,
        )


async def test_the_kubelet_is_told_of_cards_by_the_clusters_own_names() -> None:
    async with world(16 * GiB) as at:
        await at.crash()
        at.config = at.path / "settings.toml"
        at.config.write_text(f'[resources]\n"{CARD}" = "example.com/other"\n')
        at.awaited = "example.com/other"
        await at.start()

        assert 10 == len(at.kubelet.devices["example.com/other"])
        assert CARD not in at.kubelet.devices


def test_the_clusters_settings_say_how_often_a_node_gives_a_card(tmp_path: Path) -> None:
    (tmp_path / "keys.pem").write_text(KEY.public.text())
    (tmp_path / "settings.toml").write_text('[nodes."n*"]\ncards.max_sharers = 3\n')
    options = Options(
        name="n1",
        kubelet=tmp_path,
        libraries=tmp_path,
        public_keys=str(tmp_path / "keys.pem"),
        config=tmp_path / "settings.toml",
    )
    vendor = MemoryVendor(rack(16 * GiB), limiter="cuda")
    node = evolve(node_of(options), registry=Registry.of(vendor))

    assert [3] == [device.capacity[SLOTS] for device in node.discover().devices]


async def test_a_partitioned_card_is_offered_by_its_parts_and_by_each_shape_of_them() -> None:
    async with world(16 * GiB, named_shapes=("1g", "3g", "7g")) as at:
        parts = [("1g", 1, "a"), ("1g", 1, "b"), ("3g", 3, "c")]
        menu = tuple(
            Template(name, {CORE: core, MEMORY: core * GiB, name: 1}, part=part)
            for name, core, part in parts
        )
        at.vendor.devices[0] = evolve(
            at.vendor.devices[0],
            granularity=Templated(menu, whole=False),
            capacity={CORE: 7, MEMORY: 16 * GiB, SLOTS: 3, "1g": 2, "3g": 1},
        )
        await until(lambda: "example.com/3g" in at.kubelet.devices)
        offered = {name: len(ids) for name, ids in at.kubelet.devices.items()}

        assert {CARD: 3, "example.com/1g": 2, "example.com/3g": 1} == offered


async def test_a_card_that_fails_is_unhealthy_at_the_kubelet_and_in_the_inventory() -> None:
    async with world() as at:
        at.vendor.devices[1] = evolve(at.vendor.devices[1], health="fell off the bus")
        await until(lambda: at.kubelet.devices[CARD]["memory-1::0"] == "Unhealthy")
        assert "Healthy" == at.kubelet.devices[CARD]["memory-0::0"]
        await until(lambda: "fell off" in json.dumps(at.api.nodes["n1"]))


async def test_pods_on_a_card_that_fails_are_told_and_others_are_not() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("first", memory=16 * GiB, core=100))
        await at.kubelet.admit(at.bind("second", memory=2 * GiB, core=30))
        at.vendor.devices[1] = evolve(at.vendor.devices[1], health="fell off the bus")
        await until(lambda: at.api.events)
        await asyncio.sleep(3 * DISCOVER)

        (event,) = at.api.events
        assert ("second", "CardUnhealthy") == (event["involvedObject"]["name"], event["reason"])
        assert (
            "card memory-1 is unhealthy (fell off the bus): what runs on it goes on, and nothing "
            "new is given of it"
        ) == event["message"]


async def test_pods_on_a_card_that_failed_while_no_agent_ran_are_told_once() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("first", memory=16 * GiB, core=100))
        await at.crash()
        at.vendor.devices[0] = evolve(at.vendor.devices[0], health="fell off the bus")
        await at.start()
        await until(lambda: at.api.events)
        await asyncio.sleep(3 * DISCOVER)

        assert [("first", "CardUnhealthy")] == [
            (event["involvedObject"]["name"], event["reason"]) for event in at.api.events
        ]


async def test_the_inventory_is_written_once_and_again_only_when_it_changes() -> None:
    async with world() as at:
        await until(lambda: at.api.writes == 1)
        text = at.api.nodes["n1"]["metadata"]["annotations"][INVENTORY]
        assert at.node.discover().devices == published_devices(text, node="n1")
        await asyncio.sleep(3 * DISCOVER)
        assert 1 == at.api.writes
        await at.crash()
        await at.start()
        await asyncio.sleep(2 * DISCOVER)
        assert 1 == at.api.writes


async def test_a_vendor_that_breaks_keeps_its_cards_unhealthy_with_the_reason() -> None:
    async with world() as at:
        at.vendor.devices = Failing(at.vendor.devices)
        await until(lambda: set(at.kubelet.devices[CARD].values()) == {"Unhealthy"})
        await until(lambda: "does not answer" in json.dumps(at.api.nodes["n1"]))


class Failing(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("the driver does not answer")


async def test_it_registers_anew_after_a_kubelet_restart() -> None:
    async with world() as at:
        for _ in range(2):
            await at.kubelet.stop()
            at.kubelet = FakeKubelet(at.path / "kubelet")
            await at.kubelet.start()
            await until(lambda: CARD in at.kubelet.devices)


async def test_a_process_past_its_limiter_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as at:
        at.vendor.devices[0] = evolve(at.vendor.devices[0], enforcement=Enforcement.PRELOAD)
        pod = at.bind("pod", memory=GiB)
        await at.kubelet.admit(pod)
        (entry,) = at.node.snapshot().grants
        with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
            program = await asyncio.create_subprocess_exec("sleep", "600", stdin=usage)
        counts = {program.pid: 3 * GiB}
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=None, processes=counts)
        await until(lambda: f"({program.pid}) holds 3072 MiB" in caplog.text)
        await asyncio.sleep(3 * DISCOVER)
        program.kill()
        await program.wait()
    messages = [record.message for record in caplog.records if "past the limiter" in record.message]
    assert 1 == len(messages)


@pytest.mark.parametrize(("setting", "killed"), [("true", True), ("false", False)])
async def test_active_oom_killer_ends_a_process_past_its_limiter(
    setting: str, killed: bool
) -> None:
    async with world() as at:
        at.vendor.devices[0] = evolve(at.vendor.devices[0], enforcement=Enforcement.PRELOAD)
        pod = at.bind("pod", memory=GiB)
        pod["spec"]["containers"][0]["env"] = [{"name": "ACTIVE_OOM_KILLER", "value": setting}]
        at.api.put("pods", pod)
        await at.kubelet.admit(pod)
        (entry,) = at.node.snapshot().grants
        with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
            program = await asyncio.create_subprocess_exec("sleep", "600", stdin=usage)
        other = await asyncio.create_subprocess_exec("sleep", "600")
        counts = {program.pid: 3 * GiB, other.pid: 3 * GiB}
        at.vendor.usage["memory-0"] = Usage(memory=6 * GiB, core=None, processes=counts)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(program.wait(), 10 if killed else 5 * DISCOVER)
        ended = program.returncode
        assert None is other.returncode  # it is nobody's here
        for child in (program, other):
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()

        assert (-9 if killed else None) == ended


async def test_what_becomes_of_a_program_past_its_limiter_may_be_said_for_all_pods(
    tmp_path: Path,
) -> None:
    (tmp_path / "settings").write_text('[nodes."*".heterod]\non_bypass = "kill"\n')
    node_settings = settings.load(tmp_path / "settings").of_node("n1")

    async with world() as at:
        at.vendor.devices[0] = evolve(at.vendor.devices[0], enforcement=Enforcement.PRELOAD)
        await at.crash()
        at.node = evolve(at.node, settings=node_settings)
        await at.start()
        pod = at.bind("pod", memory=GiB)  # it says nothing of it
        await at.kubelet.admit(pod)
        (entry,) = at.node.snapshot().grants
        with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
            program = await asyncio.create_subprocess_exec("sleep", "600", stdin=usage)
        counts = {program.pid: 3 * GiB}
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=None, processes=counts)

        assert -9 == await asyncio.wait_for(program.wait(), 30)


async def test_what_a_pod_has_past_its_limiter_is_an_event_a_metric_and_ended_if_asked() -> None:
    async with world() as at:
        at.vendor.devices[0] = evolve(at.vendor.devices[0], enforcement=Enforcement.PRELOAD)
        pod = at.bind("pod", memory=GiB, on_bypass=OnBypass.KILL)
        await at.kubelet.admit(pod)
        (entry,) = at.node.snapshot().grants
        assert OnBypass.KILL is entry.allocation.on_bypass
        with (at.node.directory(entry.id) / USAGE).open("r+b") as usage:  # it is the grant's
            program = await asyncio.create_subprocess_exec("sleep", "600", stdin=usage)
        counts = {program.pid: 3 * GiB}
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=None, processes=counts)

        assert -9 == await asyncio.wait_for(program.wait(), 10)
        await until(lambda: len(at.api.events) == 3)
        messages = {event["reason"]: event["message"] for event in at.api.events}
        assert {"PastLimiter", "MemoryExcess", "EndedPastLimiter"} == messages.keys()
        assert "2048 MiB beyond its limit" in messages["MemoryExcess"]
        assert {"pod"} == {event["involvedObject"]["name"] for event in at.api.events}
        text = generate_latest(at.agent.metrics.registry).decode()
        (line,) = re.findall(r"^hetero_share_memory_excess_bytes\{.*", text, re.M)
        assert 3.0 * GiB == float(line.rsplit(" ", 1)[1])
        assert 'pod="pod"' in line


async def test_a_pod_that_waits_for_what_its_namespace_owes_has_an_event_that_says_so() -> None:
    async with world() as at:
        at.vendor.devices[0] = evolve(at.vendor.devices[0], enforcement=Enforcement.PRELOAD)
        debts, now_ns = at.node.ledger.debts, time.monotonic_ns()
        debt = Debt(
            device="memory-0",
            who="namespace default",
            job="4f1c",
            owed_ns=12_000_000_000,
            core_share=1000,
            payment_share=1000,
            at_ns=now_ns,
            demand_ns=now_ns,
        )
        debts._write(debts._path(debt.device, debt.who), debt)
        await at.kubelet.admit(at.bind("pod", memory=GiB, core=30))

        await until(lambda: len(at.api.events) == 1)
        (event,) = at.api.events
        assert "WaitsForDebt" == event["reason"]
        waits = r"waits \d\d s: namespace default owes \d\d? s on memory:0 \(job 4f1c\)"
        assert re.fullmatch(waits, event["message"])


async def test_metrics_tell_each_device_each_share_and_each_call() -> None:
    async with world() as at:
        pod = at.bind("pod", memory=2 * GiB, core=30)
        await at.kubelet.admit(pod)
        text = generate_latest(at.agent.metrics.registry).decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        device = 'Hostname="n1",UUID="memory-0",modelName="M1",vendor="memory"'
        labels = (
            'Hostname="n1",UUID="memory-0",claim="",container="main",modelName="M1",'
            'namespace="default",pod="pod",vendor="memory"'
        )

        allocated = lines[f"hetero_device_memory_allocated_bytes{{{device}}}"]
        assert 2.0 * GiB == float(allocated)
        assert 2.0 * GiB == float(lines[f"hetero_share_memory_limit_bytes{{{labels}}}"])
        assert 0.3 == float(lines[f"hetero_share_core_limit_ratio{{{labels}}}"])
        assert "1.0" == lines['hetero_agent_calls_total{call="allocate",result="ok"}']
        assert "1.0" == lines['hetero_vendor_up{vendor="memory"}']


async def test_metrics_tell_the_core_that_comes_with_a_shape_and_with_a_whole_card() -> None:
    async with world() as at:
        menu = (Template("s4", {CORE: 25, MEMORY: 4 * GiB}),)
        at.vendor.devices[:] = [
            evolve(device, granularity=Templated(menu)) for device in at.vendor.devices
        ]
        discovery = at.agent.allocator.discovery
        await until(lambda: at.agent.allocator.discovery is not discovery)
        await at.kubelet.admit(at.bind("slice", memory=3 * GiB))
        await at.kubelet.admit(at.bind("card", memory=8 * GiB))
        text = generate_latest(at.agent.metrics.registry).decode()

        limits = re.findall(r'core_limit_ratio{.*UUID="(.*?)".* (.*)', text)
        allocated = re.findall(r'core_allocated_ratio{.*UUID="(.*?)".* (.*)', text)
        memory = re.findall(r'memory_limit_bytes{.*UUID="(.*?)".* (.*)', text)
        given = {"memory-0": 0.25, "memory-1": 1.0}
        assert given == {uuid: float(ratio) for uuid, ratio in limits}
        assert given == {uuid: float(ratio) for uuid, ratio in allocated}
        assert {"memory-0": 4.0 * GiB, "memory-1": 16.0 * GiB} == {
            uuid: float(limit_bytes) for uuid, limit_bytes in memory
        }


async def test_metrics_have_no_share_of_a_container_that_has_ended_until_it_starts_again() -> None:
    async with world() as at:
        pod = at.bind("pod", memory=2 * GiB)
        await at.kubelet.admit(pod)

        async def shares(**state: dict[str, str]) -> list[str]:
            status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
            at.api.put("pods", {**pod, "status": status})
            (grant,) = at.node.snapshot().grants
            path = at.node.directory(grant.id) / ENDED_FILE
            await until(lambda: path.exists() == ("terminated" in state))
            text = generate_latest(at.agent.metrics.registry).decode()
            assert re.search(r"^hetero_device_memory_allocated_bytes\{.* 2\.1\d+e\+09$", text, re.M)
            return re.findall(r'^hetero_share_memory_limit_bytes\{.*pod="(\w+)"', text, re.M)

        assert ["pod"] == await shares(running={})
        assert [] == await shares(terminated={})
        assert ["pod"] == await shares(running={})


def _says(node: Node, pod: str, *, gang: bytes = b"", **counts: int) -> None:
    """Write what the processes of a pod's grant count of its first device, and of its rows."""
    (entry,) = (one for one in node.snapshot().grants if one.owner["pod"] == pod)
    words = [counts.get(name, 0) for name in ("used_ns", "stopped_ns", "borrowed_ns")]
    head = HEADER.pack(MAGIC, VERSION, SLOTS_OF_REGION, 0, 0)
    with (node.directory(entry.id) / USAGE).open("r+b") as file:
        file.write(head + DEVICE.pack(0, 0, 0, 0, words[0], 0, 0, 0, *words[1:], 0))
        file.seek(SIZE - MEMBERS * MEMBER.size - GANG.size)
        file.write(gang)
    began = time.time() - 1000  # what was counted is a mean since then
    os.utime(node.directory(entry.id) / ALIVE, (began, began))


def _told(at: World, name: str) -> dict[str, float]:
    """Return what the metrics say of the first device of each pod."""
    text = generate_latest(at.agent.metrics.registry).decode()
    lines = re.findall(
        rf'^hetero_share_{name}\{{.*UUID="memory-0".*pod="(.*?)".*\}} (.*)$', text, re.M
    )
    return {pod: float(value) for pod, value in lines}


async def test_metrics_tell_how_long_a_share_waited_and_what_it_was_lent() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        ns = 10**9
        _says(at.node, "pod", used_ns=9 * ns, stopped_ns=4 * ns, borrowed_ns=3 * ns)

        assert {"pod": 9} == _told(at, "core_seconds_total")
        assert {"pod": 4} == _told(at, "stopped_seconds_total")
        assert {"pod": 3} == _told(at, "borrowed_seconds_total")


async def test_metrics_tell_who_lends_what_others_borrow() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("borrows", memory=GiB, core=50))
        await at.kubelet.admit(at.bind("lends", memory=GiB, core=50))
        _says(at.node, "borrows", used_ns=900 * 10**9, borrowed_ns=400 * 10**9)
        _says(at.node, "lends", used_ns=100 * 10**9)

        lent = _told(at, "core_lent_ratio")
        assert pytest.approx({"borrows": 0, "lends": 0.4}, abs=0.02) == lent


async def test_metrics_tell_the_row_of_a_gang_and_how_often_it_overran() -> None:
    async with world() as at:
        await at.kubelet.admit(at.bind("gang", memory=GiB, core=50, count=2))
        await at.kubelet.admit(at.bind("pod", memory=GiB, core=10))
        rows = [at.node.ledger.row(entry) for entry in at.node.snapshot().grants]
        (row,) = filter(None, rows)

        assert row.length_ns > 0
        assert {"gang": row.length_ns / row.period_ns} == _told(at, "row_ratio")
        assert {} == _told(at, "rows_total")  # no process of it came yet
        _says(at.node, "gang", gang=GANG.pack(*[0] * 8, 70, 3, *[0] * 8))
        assert {"gang": 70} == _told(at, "rows_total")
        assert {"gang": 3} == _told(at, "row_overruns_total")


async def test_a_resource_that_a_look_adds_while_the_plugins_attend_ends_no_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cards may become of another kind while the agent runs."""
    async with world() as at:
        plugins, attend = at.agent.plugins, DevicePlugin.attend
        (plugin,) = plugins.by_resource.values()

        async def adding(self: DevicePlugin) -> None:
            plugins.by_resource["example.com/late"] = plugin
            await attend(self)

        monkeypatch.setattr(DevicePlugin, "attend", adding)
        await plugins.attend()
        del plugins.by_resource["example.com/late"]
