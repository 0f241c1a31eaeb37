"""What a former key signed stands, and is signed anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hetero.kube.api.annotations import Assignment, read_assignment
from hetero.kube.api.signing import PublicKeys, SigningKey
from hetero.kube.scheduler import signatures
from hetero.kube.scheduler.extender import Scheduler
from hetero.model.errors import BadInput
from tests.kube.conftest import card
from tests.kube.fake_api import PODS
from tests.kube.test_pod_request import WORDS
from tests.kube.test_scheduler import KEY, Running, scenario


def test_what_a_former_key_signed_stands_and_is_signed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signatures, "PERIOD", 0.01)
    key = SigningKey.new()

    async def play(it: Running) -> None:
        await it.bind_all("n1", count=2)
        before = it.given("n1-0")
        it.scheduler.signatures.use(key, KEY.public)
        it.pod("n2-0")
        assert {} == await it.bind("n2-0", "n2")
        assert 2 * 8192 == it.held("GPU-1")
        assert [None, before] == [_read(it, "n1-0", key), it.given("n1-0")]

        following = asyncio.ensure_future(it.scheduler.signatures.follow())
        await asyncio.sleep(0.1)
        following.cancel()

        assert before == _read(it, "n1-0", key)
        assert _read(it, "n1-1", key)
        patched = [call for call in it.api.calls if call.startswith("PATCH")]
        assert [f"PATCH {PODS}/n1-0", f"PATCH {PODS}/n1-1"] == sorted(patched)

    scenario(play, n1=(card("GPU-1"),), n2=(card("GPU-2"),))


def test_a_scheduler_counts_what_the_one_before_it_signed_with_a_former_key() -> None:
    key = SigningKey.new()

    async def play(it: Running) -> None:
        await it.bind_all("n1", count=1)
        pods = [it.api.objects[f"{PODS}/n1-0"]]
        for former, held in ((KEY.public, 8192), (PublicKeys(), 0)):
            after = Scheduler(it.api, WORDS, key, former)
            after._node_changed("ADDED", it.api.objects["/api/v1/nodes/n1"])
            after._pods_listed(pods)
            assert held == Running(it.api, after, it.client).held("GPU-1")

    scenario(play, n1=(card("GPU-1"),))


def _read(it: Running, name: str, key: SigningKey) -> Assignment | None:
    """Return what a pod was given, if this key signed it."""
    notes = it.api.objects[f"{PODS}/{name}"]["metadata"]["annotations"]
    with suppress(BadInput):
        return read_assignment(notes, key.public, pod=name, uid=f"uid-{name}", node="n1")
    return None
