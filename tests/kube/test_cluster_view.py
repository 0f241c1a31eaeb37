"""A cluster seen from outside: what its API says stands, and what its agents say is used."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from hetero.cli import _json, hetero
from hetero.cli._grants import holdings
from hetero.cli._render import Table, Text
from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import ClusterView, snapshot
from hetero.kube.words.annotations import INVENTORY, Assignment, signed_assignment
from hetero.kube.words.pod import identity_of, initialized
from hetero.model import MEMORY, Enforcement, Usage
from hetero.model.units import GiB
from hetero.node.ledger import usage_region
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.ledger import ENDED_FILE
from hetero.node.view.observe import observe_grants, observe_node
from tests.kube.world import CARD, KEY, World, pod_named, until, world


def agent_pod(at: World) -> None:
    """Let the API serve the metrics of the running agent as its pod's."""
    container = {"ports": [{"name": "https-metrics", "containerPort": 9397}]}
    metadata = {
        "name": "hetero-agent-1",
        "namespace": "hetero-system",
        "uid": "agent",
        "labels": {"app": "hetero-agent"},
    }
    spec = {"nodeName": "n1", "containers": [{"name": "agent", **container}]}
    at.api.put("pods", {"metadata": metadata, "spec": spec}, event="ADDED")
    at.api.metrics["https:hetero-agent-1:9397"] = lambda: generate_latest(at.agent.metrics.registry)


async def seen(at: World, **rest: Any) -> ClusterView:
    async with Api(Access(server=at.url)).open() as api:
        return await snapshot(api, **rest)


def spend(at: World, seconds: float) -> None:
    """Write what the limiter does in a container's region: so much device time was given."""
    (entry,) = at.node.snapshot().grants
    descriptor = os.open(at.node.directory(entry.id) / USAGE, os.O_RDWR)
    os.pwrite(
        descriptor,
        usage_region.HEADER.pack(
            usage_region.MAGIC, usage_region.VERSION, usage_region.SLOTS, 0, 0
        ),
        0,
    )
    counted = usage_region.DEVICE.pack(0, 0, 0, 0, int(seconds * 1e9), 0, 0, 0, 0, 0, 0)
    os.pwrite(descriptor, counted, usage_region.HEADER.size)
    os.close(descriptor)


@asynccontextmanager
async def published() -> AsyncIterator[World]:
    async with world() as at:
        await until(lambda: INVENTORY in at.api.nodes["n1"]["metadata"].get("annotations", {}))
        yield at


async def test_what_stands_is_shown_by_node_and_by_container() -> None:
    async with published() as at:
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        view = await seen(at)
        (node,), (container,) = view.nodes, view.containers

        assert ("n1", ["memory-0", "memory-1"]) == (
            node.name,
            [row.device.uuid for row in node.devices],
        )
        assert [2 * GiB, 0] == [row.held[MEMORY] for row in node.devices]
        assert ["default/pod/main"] == list(node.devices[0].grants)
        assert ("pod", "main") == (container.pod_name, container.container_name)
        assert ("n1", "Pending") == (container.node, container.phase)
        (share,) = container.shares
        assert (2 * GiB, 30, 0, Enforcement.NONE) == (
            share.memory_bytes,
            share.core_percent,
            share.device_number,
            share.enforcement,
        )
        assert (None, None) == (share.memory_used_bytes, share.core_used_percent)


async def test_an_init_container_is_shown_as_ended_and_its_pod_is_summed_once() -> None:
    async with published() as at:
        agent_pod(at)
        init, main = at.fit(memory=9 * GiB), at.fit(memory=6 * GiB)
        pod = pod_named("pod", "main")
        pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CARD: "1"}}}]
        pod["metadata"]["annotations"] = signed_assignment(
            Assignment(node="n1", uid="uid-pod", containers=(("main", main), ("first", init))), KEY
        )
        at.api.put("pods", pod, event="ADDED")
        await at.kubelet.admit(pod)

        async def shown() -> tuple[int, list[str], dict[str, str], set[str]]:
            view = await seen(at)
            (row, _) = view.nodes[0].devices
            metrics = at.agent.metrics.registry.collect()
            containers = {
                sample.labels["container"]
                for metric in metrics
                for sample in metric.samples
                if sample.name == "hetero_share_memory_limit_bytes"
            }
            return (
                row.held[MEMORY] // GiB,
                [one.rpartition("/")[2] for one in row.grants],
                {one.container_name: one.phase for one in view.containers},
                containers,
            )

        everyone = ["main", "first"]
        starting = dict.fromkeys(everyone, "Pending")
        assert (9, everyone, starting, {"main", "first"}) == await shown()
        pod["status"] = {"phase": "Running"}
        pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}]
        at.api.put("pods", pod)
        await until(lambda: initialized(at.agent.allocator.pods.by_uid["uid-pod"]))
        running = {"main": "Running", "first": "ended"}
        assert (9, everyone, running, {"main"}) == await shown()
        assert len(everyone) == len(observe_node(at.node).grants)


async def test_containers_that_ended_are_named_so_where_their_pod_holds_a_card_for_them() -> None:
    async with published() as at:
        agent_pod(at)
        names = ("first", "one", "two")
        sizes = dict(zip(names, (12, 5, 6), strict=True))
        given = {name: at.fit(memory=size * GiB) for name, size in sizes.items()}
        (alone,) = {piece.device for piece in given["first"].pieces}
        assert all(piece.device != alone for name in names[1:] for piece in given[name].pieces)
        pod = pod_named("pod", "one", "two")
        pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CARD: "1"}}}]
        containers = tuple((name, given[name]) for name in ("one", "two", "first"))
        pod["metadata"]["annotations"] = signed_assignment(
            Assignment(node="n1", uid="uid-pod", containers=containers), KEY
        )
        at.api.put("pods", pod, event="ADDED")
        await at.kubelet.admit(pod)
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Initialized", "status": "True"}],
            "containerStatuses": [
                {"name": "one", "state": {"terminated": {"exitCode": 0}}},
                {"name": "two", "state": {"running": {}}},
            ],
        }
        at.api.put("pods", pod)
        await until(lambda: initialized(at.agent.allocator.pods.by_uid["uid-pod"]))

        async def ended() -> tuple[set[str], set[str], set[str]]:
            view = await seen(at)
            cards = {name for row in view.nodes[0].devices for name in row.grants}
            assert {f"default/pod/{name}" for name in names} == cards
            documents = (
                _json.grants(observe_grants(at.node), seconds=None),
                _json.node(observe_node(at.node)),
            )
            in_cluster = {one.container_name for one in view.containers if one.phase == "ended"}
            in_ps, in_top = (
                {grant["label"].rpartition("/")[2] for grant in grants if grant["ended"]}
                for grants in (documents[0]["items"], documents[1]["grants"])
            )
            return in_cluster, in_ps, in_top

        expected = {"first", "one"}
        assert (expected, expected, expected) == await ended()
        tables = holdings(observe_grants(at.node).grants)
        assert isinstance(tables, list)
        rows = [row for table in tables if isinstance(table, Table) for row in table.rows]
        cells = [cell.text for row in rows for cell in row if isinstance(cell, Text)]
        assert 2 == cells.count("ended")
        pod["status"]["containerStatuses"][0]["state"] = {"running": {}}
        at.api.put("pods", pod)
        again = {"first"}
        mark = at.node.directory(identity_of("uid-pod", "one")) / ENDED_FILE
        await until(lambda: not mark.exists())
        assert (again, again, again) == await ended()


async def test_what_is_used_is_what_the_agents_measure() -> None:
    async with published() as at:
        agent_pod(at)
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=0.5)
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        spend(at, 1.0)
        asyncio.get_running_loop().call_later(0.5, spend, at, 1.2)
        view = await seen(at, seconds=1)
        (node,), (container,) = view.nodes, view.containers
        (share,) = container.shares

        assert Usage(memory=3 * GiB, core=0.5) == node.devices[0].usage
        assert 0 == share.memory_used_bytes  # nobody holds any
        assert share.core_used_percent is not None
        assert 0 < share.core_used_percent <= 20
        assert None is node.metrics_error


async def test_inventory_and_top_show_the_cluster_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with published() as at:
        agent_pod(at)
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=0.5)
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        spend(at, 1.0)
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": at.url}}],
            "users": [{"name": "me", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

        async def printed_lines(*words: str) -> list[str]:
            done = await asyncio.to_thread(CliRunner().invoke, hetero, [*words, "--cluster"])
            assert 0 == done.exit_code, done.output
            return [" ".join(line.split()) for line in done.output.splitlines()]

        standing = await printed_lines("inventory")
        used = await printed_lines("top", "--once", "--interval", "0.1")
        assert "default pod main n1 memory:0 30 % 2 GiB Pending" in standing
        assert "n1 memory:0 M1 50 % █████····· 3/16 GiB █▉········ 30 % ok" in used
        assert "default pod main n1 memory:0 0.0/30 % 0/2 GiB Pending" in used


async def test_a_node_whose_agent_is_not_reached_says_why_and_what_stands_is_shown() -> None:
    async with published() as at:
        agent_pod(at)
        at.api.metrics.clear()
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        view = await seen(at, seconds=0.01)
        (node,), (container,) = view.nodes, view.containers

        assert "503 no route to the pod" in str(node.metrics_error)
        assert 2 * GiB == node.devices[0].held[MEMORY]
        assert [(None, None)] == [
            (one.memory_used_bytes, one.core_used_percent) for one in container.shares
        ]


async def test_a_node_without_an_agent_says_so() -> None:
    async with published() as at:
        (node,) = (await seen(at, seconds=0.01)).nodes

        assert "no agent runs there" == node.metrics_error


async def test_an_inventory_that_cannot_be_read_is_a_line_and_no_outage() -> None:
    async with published() as at:
        await at.crash()
        at.api.put("nodes", {"metadata": {"name": "n2", "annotations": {INVENTORY: "{"}}})
        view = await seen(at)

        assert ["n1", "n2"] == [node.name for node in view.nodes]
        assert view.nodes[0].devices
        assert "n2" in str(view.nodes[1].inventory_error)
