"""Who leads: one at a time, and whoever led goes on when nobody could have taken its place."""

import asyncio
from time import monotonic

import pytest

from hetero.kube.client import lease
from hetero.kube.client.lease import LeaseElection
from tests.kube.fake_api import FakeApi

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
PATH = f"{LEASES}/hetero-scheduler"


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a Lease last a second."""
    monkeypatch.setattr(lease, "LEASE_DURATION_S", 1)
    monkeypatch.setattr(lease, "TRUSTED_S", 0.7)


async def elections() -> tuple[FakeApi, LeaseElection, LeaseElection]:
    """Return two of whom the first leads."""
    api = FakeApi()
    first, other = (
        LeaseElection(api, "ns", "hetero-scheduler", who)  # type: ignore[arg-type]
        for who in ("pod-a_1", "pod-b_1")
    )
    await first.attempt()
    await other.attempt()
    return api, first, other


async def attempts(of: LeaseElection, seconds: float) -> None:
    until = monotonic() + seconds
    while monotonic() < until:
        await of.attempt()
        await asyncio.sleep(0.05)


def trusted(of: LeaseElection) -> bool:
    return monotonic() < of.trusted_until_s


async def test_who_comes_first_leads_and_the_other_waits() -> None:
    api, first, other = await elections()
    assert (True, True, False, False) == (
        first.leads,
        trusted(first),
        other.leads,
        trusted(other),
    )
    for _ in range(5):
        await attempts(other, 0.3)
        await first.attempt()
    assert (True, False) == (first.leads, other.leads)
    assert "pod-a_1" == api.objects[PATH]["spec"]["holderIdentity"]


async def test_the_place_of_who_is_silent_is_taken_once_it_is_no_longer_trusted() -> None:
    api, first, other = await elections()
    began = monotonic()
    while not other.leads:
        assert monotonic() - began < 2
        await attempts(other, 0.05)
    assert monotonic() - began >= 0.9
    assert not trusted(first)
    await first.attempt()
    assert (False, True) == (first.leads, other.leads)
    assert 2 == api.objects[PATH]["spec"]["leaseTransitions"]


async def test_a_lease_that_is_given_up_is_taken_at_once() -> None:
    _, first, other = await elections()
    await first.release()
    await other.attempt()
    assert (False, True) == (first.leads, other.leads)


async def test_while_the_api_is_away_nobody_leads_and_then_who_led_goes_on() -> None:
    api, first, other = await elections()
    api.fail |= {"leases/hetero-scheduler"}
    both = (attempts(first, 2), attempts(other, 2))
    await asyncio.gather(*both)
    assert (True, False, False) == (first.leads, trusted(first), trusted(other))

    api.fail.clear()
    await other.attempt()  # sees it first, and may not take what could not be renewed
    await first.attempt()
    assert (True, True, False) == (first.leads, trusted(first), other.leads)


async def test_a_renewal_whose_answer_was_lost_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    api, first, _ = await elections()
    api.put_now(PATH, api.objects[PATH])  # it was written: another version, the same holder
    await first.attempt()
    assert first.leads
    await first.attempt()
    assert (True, True) == (first.leads, trusted(first))


async def test_a_holder_of_an_older_release_keeps_it_for_as_long_as_it_said() -> None:
    api, first, _ = await elections()
    spec = {"holderIdentity": "old_1", "leaseDurationSeconds": 15, "renewTime": "1"}
    api.put_now(PATH, {"metadata": {"name": "hetero-scheduler"}, "spec": spec})
    await first.attempt()
    await attempts(first, 1.5)
    assert not first.leads


async def test_a_lease_that_somebody_deletes_is_made_again() -> None:
    api, first, _ = await elections()
    api.delete(PATH)
    await first.attempt()
    await first.attempt()
    assert (True, True) == (first.leads, trusted(first))
