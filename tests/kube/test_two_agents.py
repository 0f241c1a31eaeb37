"""Two agents on one node, as where an old one lives on after its pod was deleted by force."""

import asyncio
import logging

import pytest

from hetero.kube.agent import agent
from tests.kube.world import CARD, until, world

#: Some looks of agents at their sockets and at who serves.
SECONDS = 4 * agent.KUBELET_PERIOD_S


async def test_the_agent_that_began_last_serves_and_the_first_waits_until_it_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as at:
        with caplog.at_level(logging.WARNING):
            async with at.overtaken():
                await asyncio.sleep(SECONDS)
                registrations = at.kubelet.registrations
                await asyncio.sleep(SECONDS)
                assert registrations == at.kubelet.registrations
                assert "another agent began to serve this node" in caplog.text
                pod = at.bind("one")
                await at.kubelet.admit(pod)
                await at.kubelet.start_container(pod, "main")
                at.kubelet.devices.clear()

        await until(lambda: CARD in at.kubelet.devices)
        other = at.bind("other")
        await at.kubelet.admit(other)
        await at.kubelet.start_container(other, "main")
        assert ["default/one/main", "default/other/main"] == sorted(at.given())
