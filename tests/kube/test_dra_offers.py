"""How devices look in ResourceSlices, and what a claim's allocation of them becomes."""

from typing import Any

import pytest
from attrs import evolve
from msgspec.structs import replace

from hetero.kube.dra.claims import config_of, prepared
from hetero.kube.dra.offers import device_name, offers, slices
from hetero.kube.objects.kinds import (
    ClaimAllocation,
    ClaimStatus,
    DeviceAllocations,
    DeviceConfig,
    DeviceResult,
    OpaqueConfig,
    Plain,
    ResourceClaim,
)
from hetero.kube.objects.reading import read
from hetero.model import (
    CORE,
    MEMORY,
    POLICY_SLOTS,
    SLOTS,
    Device,
    Fractional,
    Ladder,
    Link,
    MultiDevice,
    OnExcess,
    Policy,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.errors import BadInput, NotFound
from hetero.model.units import GiB, MiB
from hetero.testing import rack

MENU = Templated(
    (
        Template("quarter", {MEMORY: 16 * GiB, CORE: 5}),
        Template("half", {MEMORY: 32 * GiB, CORE: 10}),
    ),
)


def published(*devices: Device, **more: Any) -> list[Plain]:
    return slices(devices, node_name="n1", resources={}, roots={}, **more)


def entry(device: Device) -> Plain:
    ((made,),) = [one["devices"] for one in published(device)]
    return dict(made)


def policies(device: Device) -> dict[str, Plain]:
    return {name: one["requestPolicy"] for name, one in entry(device)["capacity"].items()}


def claim(*results: Plain, config: tuple[DeviceConfig, ...] = ()) -> ResourceClaim:
    made = [{"driver": "hetero.io", "pool": "n1", "request": "card", **one} for one in results]
    device_results = tuple(read(DeviceResult, one) for one in made)
    devices = DeviceAllocations(results=device_results, config=config)
    return ResourceClaim(status=ClaimStatus(allocation=ClaimAllocation(devices=devices)))


def takes(claimed: ResourceClaim, *devices: Device) -> list[dict[str, int]]:
    held = prepared(claimed, node_name="n1", offers=offers(devices))
    return [dict(piece.takes) for piece in held.allocation.pieces]


def config(source: str, **words: Any) -> DeviceConfig:
    parameters = {"apiVersion": "hetero.io/v1", "kind": "Share", **words}
    opaque = OpaqueConfig(driver="hetero.io", parameters=parameters)
    return DeviceConfig(source=source, opaque=opaque)


def test_a_fractional_device_is_one_that_many_claims_share_by_its_steps() -> None:
    (device,) = rack(16 * GiB, granularity=Fractional(memory=Step(256 * MiB)))

    assert entry(device)["allowMultipleAllocations"]
    assert {
        "memory": {
            "default": "16Gi",
            "validRange": {"min": "256Mi", "max": "16Gi", "step": "256Mi"},
        },
        "cores": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        "slots": {"default": "1", "validRange": {"min": "1", "max": "10", "step": "1"}},
    } == policies(device)


def test_a_ladder_is_a_list_of_values_that_ends_with_the_whole_card() -> None:
    (device,) = rack(48 * GiB, granularity=Fractional(memory=Ladder((GiB, 2 * GiB, 32 * GiB))))

    assert ["1Gi", "2Gi", "32Gi", "48Gi"] == policies(device)["memory"]["validValues"]


def test_a_ladder_of_more_values_than_the_api_takes_keeps_the_largest() -> None:
    sizes = tuple(number * GiB for number in range(1, 20))
    (device,) = rack(20 * GiB, granularity=Fractional(memory=Ladder(sizes)))

    assert [f"{number}Gi" for number in range(11, 21)] == policies(device)["memory"]["validValues"]


def test_cores_come_with_memory_where_the_driver_cuts_no_memory_without_them() -> None:
    (device,) = rack(GiB, core=60, granularity=Fractional(together=True))

    assert {
        "default": "60",
        "validRange": {"min": "1", "max": "60", "step": "1"},
    } == policies(device)["cores"]


def test_a_rest_below_a_step_is_not_published_and_goes_to_who_has_all() -> None:
    (device,) = rack(1000 * MiB, granularity=Fractional(memory=Step(256 * MiB)))
    name = device_name(device.uuid)
    consumed = {"memory": "768Mi", "cores": "0", "slots": "1"}

    assert "768Mi" == entry(device)["capacity"]["memory"]["value"]
    assert [dict(device.capacity)] == takes(
        claim({"device": name, "consumedCapacity": consumed}), device
    )


def test_a_menu_is_devices_that_share_counters() -> None:
    (device,) = rack(64 * GiB, core=20, slots=4, granularity=MENU)
    counters, devices = published(device)
    ((counter_set,), made) = counters["sharedCounters"], devices["devices"]

    assert {"memory": "64Gi", "core": "20", "slots": "4"} == {
        name: one["value"] for name, one in counter_set["counters"].items()
    }
    assert [*(f"memory-0-quarter-{n}" for n in range(4)), "memory-0-half-0", "memory-0-half-1"] == [
        one["name"] for one in made[:-1]
    ]
    assert "memory-0" == made[-1]["name"]
    (consumed,) = made[0]["consumesCounters"]
    assert {"memory": "16Gi", "core": "5", "slots": "1"} == {
        name: one["value"] for name, one in consumed["counters"].items()
    }
    assert 2 == devices["pool"]["resourceSliceCount"]


def test_a_card_that_is_partitioned_is_its_parts_each_named_by_its_id() -> None:
    parts = [Template("1g.10gb", {MEMORY: 10 * GiB, CORE: 1}, part=f"MIG-{n}") for n in (1, 2)]
    (device,) = rack(80 * GiB, core=7, granularity=Templated(tuple(parts), whole=False))
    first, second = offers([device])

    assert first.startswith("memory-0-1g-10gb-")
    assert first != second
    assert [second] == [
        *offers([rack(80 * GiB, granularity=Templated((parts[1],), whole=False))[0]])
    ]


def test_the_two_dies_of_a_module_are_whole_together() -> None:
    dies = rack(64 * GiB, 64 * GiB, core=20, slots=4, granularity=MENU, group="module")
    whole = offers(dies)["memory-0"]

    assert ("memory-0", "memory-1") == tuple(device.uuid for device in whole.devices)
    assert [64 * GiB] * 2 == [one[MEMORY] for one in takes(claim({"device": "memory-0"}), *dies)]


def test_slices_hold_no_more_than_the_api_takes() -> None:
    specs = published(*rack(*[64 * GiB] * 20, core=20, slots=4, granularity=MENU))

    assert [8, 8, 4] == [len(one["sharedCounters"]) for one in specs if "sharedCounters" in one]
    assert [64, 64, 12] == [len(one["devices"]) for one in specs if "devices" in one]
    assert {6} == {one["pool"]["resourceSliceCount"] for one in specs}


def test_a_node_without_devices_has_an_empty_pool() -> None:
    (empty,) = published()

    assert {"name": "n1", "resourceSliceCount": 1} == empty["pool"]


def test_a_device_that_is_unhealthy_is_tainted_and_says_why() -> None:
    (device,) = rack(GiB, health="XID 48")

    (taint,) = entry(device)["taints"]
    assert {"key": "hetero.io/unhealthy", "effect": "NoSchedule", "value": "XID-48"} == taint
    assert {"string": "XID 48"} == entry(device)["attributes"]["health"]


def test_linked_devices_say_so_by_one_name() -> None:
    def linked(uuid: str, *peers: str) -> Device:
        (device,) = rack(GiB, links=tuple(Link(peer, "NV18", 10) for peer in peers))
        return evolve(device, uuid=uuid)

    specs = published(linked("a", "b"), linked("b", "a"), linked("c"))

    assert ["a", "a", None] == [
        one["attributes"].get("linkGroup", {}).get("string") for one in specs[0]["devices"]
    ]


def test_a_way_over_pcie_is_no_link_to_a_card_that_has_faster_ones() -> None:
    """A driver says of any two cards which way there is: these are two pairs on two sockets."""
    ways = {
        "a": {"b": ("NV18", 180), "c": ("SYS", 1), "d": ("SYS", 1)},
        "b": {"a": ("NV18", 180), "c": ("SYS", 1), "d": ("SYS", 1)},
        "c": {"a": ("SYS", 1), "b": ("SYS", 1), "d": ("PIX", 5)},
        "d": {"a": ("SYS", 1), "b": ("SYS", 1), "c": ("PIX", 5)},
    }
    cards = [
        evolve(one, uuid=uuid, links=tuple(Link(peer, *way) for peer, way in to.items()))
        for (uuid, to), one in zip(ways.items(), rack(*[GiB] * 4), strict=True)
    ]

    assert ["a", "a", "c", "c"] == [
        one["attributes"]["linkGroup"]["string"] for one in published(*cards)[0]["devices"]
    ]


@pytest.mark.parametrize(
    "uuid", ["GPU-8A", "lost-3", "E0F4EE64-802061B1-6A691492-89528485-104301E3", "a.b/c", "." * 63]
)
def test_the_name_of_a_device_is_a_dns_label_of_its_own(uuid: str) -> None:
    name = device_name(uuid)

    assert name.strip("-abcdefghijklmnopqrstuvwxyz0123456789") == ""
    assert name == name.strip("-")
    assert 0 < len(name) <= 40
    assert name != device_name(f"{uuid}x")


def test_what_a_claim_consumes_is_what_its_grant_takes() -> None:
    (device,) = rack(16 * GiB)
    consumed = {"hetero.io/memory": "3Gi", "cores": "30", "slots": "1"}
    held = prepared(
        claim({"device": "memory-0", "consumedCapacity": consumed, "shareID": "s"}),
        node_name="n1",
        offers=offers([device]),
    )
    (piece,), (result,) = held.allocation.pieces, held.results

    assert {MEMORY: 3 * GiB, CORE: 30, SLOTS: 1} == piece.takes
    assert 30 == piece.core
    assert held.allocation.context  # so that all sharers can have what they were given
    assert ("card", "memory-0", "s") == (result.request, result.device, result.share)


def test_no_cores_and_all_cores_are_no_limit() -> None:
    (device,) = rack(16 * GiB)
    for cores in ("0", "100"):
        consumed = {"memory": "3Gi", "cores": cores, "slots": "1"}
        held = prepared(
            claim({"device": "memory-0", "consumedCapacity": consumed}),
            node_name="n1",
            offers=offers([device]),
        )

        assert [None] == [piece.core for piece in held.allocation.pieces]


def test_two_requests_for_one_device_are_one_piece() -> None:
    (device,) = rack(16 * GiB)
    consumed = {"memory": "3Gi", "cores": "30", "slots": "1"}
    part = {"device": "memory-0", "consumedCapacity": consumed}

    assert [{MEMORY: 6 * GiB, CORE: 60, SLOTS: 2}] == takes(claim(part, part), device)


def test_a_share_of_a_policy_takes_of_that_policys_counter() -> None:
    (device,) = rack(16 * GiB)
    device = evolve(device, capacity={**device.capacity, **POLICY_SLOTS})
    consumed = {"memory": "3Gi", "cores": "30", "slots": "1"}
    part = {"device": "memory-0", "consumedCapacity": consumed}
    (piece,) = takes(claim(part, part, config=(config("FromClaim", policy="elastic"),)), device)

    assert 1 == piece["elastic shares"]


def test_shares_of_several_devices_that_are_only_given_whole_together_are_refused() -> None:
    grains = Fractional(multi=MultiDevice.WHOLE)
    devices = rack(16 * GiB, 16 * GiB, granularity=grains)
    consumed = {"memory": "3Gi", "cores": "30", "slots": "1"}
    both = [{"device": f"memory-{n}", "consumedCapacity": consumed} for n in (0, 1)]

    with pytest.raises(BadInput, match="several M1 are given whole"):
        takes(claim(*both), *devices)


@pytest.mark.parametrize(
    ("result", "error", "sentence"),
    [
        ({"device": "memory-0", "pool": "n2"}, BadInput, "devices of node n2, and this is n1"),
        ({"device": "memory-9"}, NotFound, "memory-9 is not on this node"),
        ({"device": "memory-0", "driver": "other.io"}, BadInput, "no allocation of this driver"),
        ({"device": "memory-0"}, BadInput, "does not say how much of it is consumed"),
    ],
)
def test_an_allocation_that_is_not_of_this_node_is_refused(
    result: Plain, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        takes(claim(result), *rack(16 * GiB))


def test_admin_access_is_for_all_of_a_claim_and_takes_none_of_its_capacity() -> None:
    """What is published may be a part of a device: all of the device is seen."""
    (device,) = rack(16 * GiB)
    seen = {"device": "memory-0", "adminAccess": True, "shareID": "s"}
    held = prepared(claim(seen), node_name="n1", offers=offers([device]))
    assert (True, "s") == (held.admin, held.results[0].share)

    consumed = {"memory": "3Gi", "cores": "30", "slots": "1"}
    share = {"device": "memory-0", "consumedCapacity": consumed}
    assert not prepared(claim(share), node_name="n1", offers=offers([device])).admin
    with pytest.raises(BadInput, match="some of its requests have adminAccess and some not"):
        takes(claim(seen, share), device)


def test_a_whole_device_is_held_whole() -> None:
    (device,) = rack(16 * GiB, granularity=Whole(), slots=1)

    assert "allowMultipleAllocations" not in entry(device)
    assert [{MEMORY: 16 * GiB, CORE: 100, SLOTS: 1}] == takes(claim({"device": "memory-0"}), device)


def test_a_claim_says_how_it_is_enforced_before_its_class_does() -> None:
    made = config_of(
        [
            config("FromClaim", policy="elastic"),
            config("FromClass", policy="off", onExcess="report"),
        ]
    )

    assert (Policy.ELASTIC, OnExcess.REPORT) == (made.policy, made.on_excess)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"policy": "gentle"}, "policy 'gentle' is none of fixed, elastic, off"),
        ({"polcy": "fixed"}, "'polcy' is not known"),
        ({"kind": "Shares"}, "is hetero.io/v1 Shares: write"),
        ({"apiVersion": "hetero.io/v2"}, "is hetero.io/v2 Share: write"),
    ],
)
def test_configuration_that_says_nonsense_is_refused(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        config_of([config("FromClaim", **words)])


def test_configuration_for_some_of_a_claims_requests_is_refused() -> None:
    for_one = replace(config("FromClaim", policy="elastic"), requests=("one",))

    with pytest.raises(BadInput, match="a claim is one grant"):
        config_of([for_one], [DeviceResult(request="one"), DeviceResult(request="two")])
    part = DeviceResult(request="one/sub")
    assert Policy.ELASTIC == config_of([for_one], [part]).policy


def test_configuration_of_another_driver_is_not_ours_to_read() -> None:
    opaque = OpaqueConfig(driver="other.io", parameters={"a": 1})
    other = DeviceConfig(source="FromClaim", opaque=opaque)

    assert Policy.FIXED == config_of([other]).policy


def test_what_a_driver_keeps_for_itself_is_not_published() -> None:
    """So all sharers of a card can have what they were given; the slice says how much it is."""
    (held,) = rack(
        (81559 - 551) * MiB, granularity=Fractional(), attributes={"reserved": str(551 * MiB)}
    )
    made = entry(held)

    assert f"{81559 - 551}Mi" == made["capacity"]["memory"]["value"]
    assert f"{81559 - 551}Mi" == policies(held)["memory"]["default"]
    assert {"int": 551 * MiB} == made["attributes"]["reservedMemory"]
    assert "reservedMemory" not in entry(evolve(held, attributes={}))["attributes"]


def test_who_is_given_all_of_a_card_has_it_whole() -> None:
    (held,) = rack(
        (81559 - 551) * MiB, granularity=Fractional(), attributes={"reserved": str(551 * MiB)}
    )
    consumed = {"memory": f"{81559 - 551}Mi", "cores": "100", "slots": "1"}
    result = {"device": device_name(held.uuid), "consumedCapacity": consumed}

    assert held.capacity[MEMORY] == takes(claim(result), held)[0][MEMORY]
