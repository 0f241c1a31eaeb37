"""Metrics that stand for HAMi's: what agents and schedulers say of cards and shares."""

from prometheus_client import generate_latest

from hetero.model import Usage
from hetero.model.units import GiB
from tests.kube.conftest import card
from tests.kube.test_cluster_view import spend
from tests.kube.test_scheduler import scenario
from tests.kube.world import world

CARD = 'Hostname="n1",UUID="memory-0",modelName="M1",vendor="memory"'
SHARE = (
    'Hostname="n1",UUID="memory-0",claim="",container="main",modelName="M1",'
    'namespace="default",pod="pod",vendor="memory"'
)


def samples(text: str) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return {name: float(value) for name, value in lines}


async def test_an_agent_says_of_its_cards_and_shares_what_hamis_monitor_does() -> None:
    async with world() as at:
        at.vendor.usage["memory-0"] = Usage(memory=3 * GiB, core=0.5)
        await at.kubelet.admit(at.bind("pod", memory=2 * GiB, core=30))
        spend(at, 1.5)
        values = samples(generate_latest(at.agent.metrics.registry).decode())

    assert {
        "memory_total_bytes": 16.0 * GiB,
        "memory_used_bytes": 3.0 * GiB,
        "memory_allocated_bytes": 2.0 * GiB,
        "core_allocated_ratio": 0.3,
        "utilization_ratio": 0.5,
        "slots_total": 10.0,
        "slots_allocated": 1.0,
        "healthy": 1.0,
    }.items() <= {
        name.removeprefix("hetero_device_").partition("{")[0]: round(value, 6)
        for name, value in values.items()
        if CARD in name and name.startswith("hetero_device_")
    }.items()
    assert 2.0 * GiB == values[f"hetero_share_memory_limit_bytes{{{SHARE}}}"]
    assert 0.0 == values[f"hetero_share_memory_used_bytes{{{SHARE}}}"]
    assert 1.5 == values[f"hetero_share_core_seconds_total{{{SHARE}}}"]
    assert 0.3 == values[f"hetero_share_core_limit_ratio{{{SHARE}}}"]
    assert 1.0 == values['hetero_agent_calls_total{call="allocate",result="ok"}']


async def test_a_scheduler_says_of_nodes_and_decisions_what_is_given_out() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n2"])
        await it.bind("p", "n1")
        values = samples(generate_latest(it.scheduler.calls.metrics.registry).decode())

    node = '{Hostname="n1",vendor="nvidia"}'
    assert 1.0 == values[f"hetero_node_cards{node}"]
    assert 16.0 * GiB == values[f"hetero_node_memory_bytes{node}"]
    assert 8.0 * GiB == values[f"hetero_node_memory_allocated_bytes{node}"]
    assert 0.5 == values[f"hetero_node_core_allocated_cards{node}"]
    assert 1.0 == values['hetero_scheduler_refusals_total{reason="have no device"}']
    assert 1.0 == values['hetero_scheduler_decision_seconds_count{verb="bind"}']
