"""What a node gives of a device that a vendor's service shares, by a vendor in memory."""

import os
from pathlib import Path

import pytest
from attrs import evolve

from hetero.model import Allocation, Device, DeviceAllocation
from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node import services
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit
from hetero.node.ledger.ledger import Grant, Ledger
from hetero.plugin import CORE, MEMORY, Service, ServiceDriver, Vendor, hookimpl
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root starts services")


class Serving:
    """A vendor whose service is what it was told to be, and what it was told last."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests: list[tuple[str, int]] = []
        self._memory = MemoryVendor(rack(16 * GiB))

    @hookimpl
    def hetero_vendor(self) -> Vendor:
        return self._memory.hetero_vendor()

    @hookimpl
    def hetero_discover(self) -> list[Device]:
        return self._memory.hetero_discover()

    @hookimpl
    def hetero_serve(self) -> ServiceDriver:
        return self

    def start(self, memory: int) -> Service:
        return self._request("start", memory)

    def look(self) -> Service:
        return self._request("look")

    def end(self, process: int) -> Service:
        return self._request("end")

    def stop(self) -> Service:
        return self._request("stop")

    def _request(self, do: str, memory: int = 0) -> Service:
        self.requests.append((do, memory))
        return self.service


def grant(identity: str, uid: int | None, memory: int) -> Grant:
    piece = DeviceAllocation(
        device="memory-0", vendor="memory", takes={MEMORY: memory, CORE: 0}, core=None
    )
    return Grant(
        id=identity,
        allocation=Allocation(pieces=(piece,)),
        limits=(DeviceLimit(name="memory-0", memory=memory, core=CORE_FULL),),
        command=("test",),
        user=str(uid),
        uid=uid,
        since_utc="2026-11-25T00:00:00+00:00",
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "state")
    made.path.mkdir()
    return made


def test_where_the_driver_serves_one_user_anothers_grant_is_refused(ledger: Ledger) -> None:
    vendor = Serving(Service(running=True, one_user=True))
    registry = Registry.of(vendor)
    (device,) = registry.discover().devices
    own, other = grant("aa", 1000, GiB), grant("bb", 1001, GiB)

    services.start(registry, ledger, device, [own, evolve(own, id="ab")])
    assert ("start", GiB) == vendor.requests[-1]
    with pytest.raises(Refused, match="programs of one user at a time, and another user has"):
        services.start(registry, ledger, device, [own, other])

    vendor.service = Service(running=True)
    services.start(registry, ledger, device, [own, other])


def test_after_a_fault_nothing_is_given_until_the_service_was_started_anew(
    ledger: Ledger,
) -> None:
    vendor = Serving(Service(running=True))
    registry = Registry.of(vendor)
    (device,) = registry.discover().devices
    services.start(registry, ledger, device, [grant("aa", None, GiB)])
    services.note_failure(ledger, device.uuid, "a program failed on it")

    # It says that it is well, because who failed on it is gone.
    with pytest.raises(Refused, match=r"started anew after a fault \(a program failed on it\)"):
        services.start(registry, ledger, device, [grant("aa", None, GiB)])
    services.restart(registry, ledger, device, [grant("aa", None, GiB)])
    services.start(registry, ledger, device, [grant("aa", None, GiB)])

    does = [do for do, _ in vendor.requests]
    assert does[-5:] == ["stop", "look", "start", "look", "start"]
