"""What a former key signed stands, and is signed anew."""

import asyncio
import tracemalloc
from contextlib import suppress

import pytest

from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import signatures
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.words import signing
from hetero.kube.words.annotations import Assignment, read_assignment
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model.errors import BadInput
from tests.kube.conftest import card
from tests.kube.fake_api import PODS
from tests.kube.test_pod_request import WORDS
from tests.kube.test_scheduler import KEY, Running, scenario


async def test_what_a_former_key_signed_stands_and_is_signed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signatures, "POLL_PERIOD_S", 0.01)
    key = SigningKey.new()

    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
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


async def test_a_scheduler_counts_what_the_one_before_it_signed_with_a_former_key() -> None:
    key = SigningKey.new()

    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.bind_all("n1", count=1)
        pods = [read(Pod, it.api.objects[f"{PODS}/n1-0"])]
        for former, held in ((KEY.public, 8192), (PublicKeys(), 0)):
            after = Scheduler(it.api, WORDS, key, previous=former)
            after.nodes.changed("ADDED", read(NodeObject, it.api.objects["/api/v1/nodes/n1"]))
            after.pods.listed(pods)
            assert held == Running(it.api, after, it.client).held("GPU-1")


def _read(it: Running, name: str, key: SigningKey) -> Assignment | None:
    """Return what a pod was given, if this key signed it."""
    notes = it.api.objects[f"{PODS}/{name}"]["metadata"]["annotations"]
    with suppress(BadInput):
        return read_assignment(notes, key.public, pod=name, uid=f"uid-{name}", node="n1")
    return None


def test_of_allocations_that_are_verified_no_text_is_kept_and_of_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both may be as long as an annotation, and a tenant's pod may bring any number of them."""
    monkeypatch.setattr(signing, "_verified", set())
    monkeypatch.setattr(signing, "_MOST_VERIFIED", 8)
    text, key = "a" * 200_000, SigningKey.new()
    good = key.sign(text, uid="u", node="n")
    tracemalloc.start()
    try:
        for number in range(20):
            uid = f"u{number}"
            for forged in ("b" * 200_000 + uid, f"{number:0128x}", "z" * 128, f"{good} "):
                assert not key.public.signed(text + uid, forged, uid=uid, node="n")
            signature = key.sign(text + uid, uid=uid, node="n")
            for _ in range(2):
                assert key.public.signed(text + uid, signature, uid=uid, node="n")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert used < 100_000
    assert 20 % 8 == len(signing._verified)
    assert {32} == {len(one) for one in signing._verified}
