"""What a claim would get of a cluster's slices, or why not, without a cluster."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.dra.availability import Pools
from hetero.kube.dra.explanation import ClaimSelection, explain
from hetero.kube.dra.offers import slices
from hetero.kube.dra.selection import matches
from hetero.kube.what_if.claims import read_claims
from hetero.model import CORE, MEMORY, Device, Fractional, Template, Templated
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.testing import rack

CLASS = {"metadata": {"name": "cards"}, "spec": {}}
CARD, OTHER = "memory-0", "memory-1"


_Objects = tuple[dict[str, Any], ...]


def pools(*devices: Device, claims: _Objects = (), rules: _Objects = ()) -> Pools:
    return nodes(n1=devices, claims=claims, rules=rules)


def nodes(*, claims: _Objects = (), rules: _Objects = (), **devices: tuple[Device, ...]) -> Pools:
    specs = [
        one
        for node, of in devices.items()
        for one in slices(of, node_name=node, resources={}, roots={})
    ]
    made = [{"spec": {**one, "pool": {**one["pool"], "generation": 1}}} for one in specs]
    return Pools.read(slices=made, classes=(CLASS,), claims=claims, rules=rules)


def shared(*sizes: int) -> tuple[Device, ...]:
    return tuple(evolve(one, granularity=Fractional()) for one in rack(*sizes))


def request(name: str = "card", **exactly: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "cards", **exactly}}


def capacity(memory: str, cores: str | None = None) -> dict[str, Any]:
    return {"requests": {"memory": memory, **({"cores": cores} if cores else {})}}


def ask(pools_read: Pools, *requests: dict[str, Any], **more: Any) -> ClaimSelection:
    return explain({"devices": {"requests": list(requests), **more}}, pools_read)


def claimed(device: str, **consumed: str) -> dict[str, Any]:
    result = {"driver": "hetero.io", "pool": "n1", "device": device, "consumedCapacity": consumed}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


def devices_of(answer: ClaimSelection) -> list[str]:
    return [one.device for one in answer.given]


def test_a_share_is_given_as_its_card_can_be_cut() -> None:
    (given,) = ask(pools(*shared(16 * GiB)), request(capacity=capacity("3000000000"))).given

    assert ("n1", CARD) == (given.node, given.device)
    assert {"memory": str(2862 * MiB), "cores": "0", "slots": "1"} == given.consumes


def test_what_other_claims_consume_is_not_given_again() -> None:
    taken = claimed(CARD, memory="10Gi", cores="30", slots="1")
    all_pools = pools(*shared(16 * GiB, 16 * GiB), claims=(taken,))

    assert [OTHER] == devices_of(ask(all_pools, request(capacity=capacity("8Gi"))))
    assert [CARD] == devices_of(ask(all_pools, request(capacity=capacity("6Gi"))))


def test_why_a_claim_gets_nothing_is_counted_by_reason() -> None:
    taken = claimed(CARD, memory="10Gi", cores="30", slots="1")
    sick = evolve(shared(16 * GiB, 16 * GiB)[1], health="XID 48")
    all_pools = pools(shared(16 * GiB)[0], sick, claims=(taken,))
    (why,) = ask(all_pools, request(capacity=capacity("8Gi"))).why

    assert "card: 0 of 2 devices: 1 lack memory, 1 tainted hetero.io/unhealthy" == why


def _rule(name: str, **selector: str) -> dict[str, Any]:
    taint = {"key": "example.com/repair", "value": "fan", "effect": "NoSchedule"}
    return {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}


@pytest.mark.parametrize(
    ("rule", "so"),
    [
        (_rule("all"), True),
        (_rule("pool", pool="n1"), True),
        (_rule("one", driver="hetero.io", pool="n1", device=CARD), True),
        (_rule("another", device=OTHER), False),
        (_rule("elsewhere", driver="hetero.io", pool="n2"), False),
        (_rule("others", driver="other.example.com"), False),
        ({"metadata": {"name": "none"}, "spec": {"taint": _rule("")["spec"]["taint"]}}, False),
    ],
)
def test_a_device_that_a_rule_taints_is_for_who_tolerates_it_and_the_rule_is_named(
    rule: dict[str, Any], *, so: bool
) -> None:
    all_pools = pools(*shared(16 * GiB), rules=(rule,))
    tolerant = request(tolerations=[{"key": "example.com/repair", "operator": "Exists"}])
    noted = {"effect": "None", "key": "example.com/repair"}
    harmless = {**rule, "spec": {**rule["spec"], "taint": noted}}
    by_rule = f"1 tainted example.com/repair by DeviceTaintRule {rule['metadata']['name']}"

    answer = ask(all_pools, request())
    assert ([] if so else [CARD]) == devices_of(answer)
    assert ((f"card: 0 of 1 devices: {by_rule}",) if so else ()) == answer.why
    assert [CARD] == devices_of(ask(all_pools, tolerant))
    assert [CARD] == devices_of(ask(pools(*shared(16 * GiB), rules=(harmless,)), request()))


def test_shares_of_one_request_are_of_different_cards_and_those_of_two_may_be_of_one() -> None:
    distinct = [{"distinctAttribute": "hetero.io/uuid"}]
    two = request(count=2, capacity=capacity("2Gi"))
    each = [request(name, capacity=capacity("2Gi")) for name in ("one", "other")]

    all_pools = pools(*shared(16 * GiB, 16 * GiB))
    assert [CARD, OTHER] == devices_of(ask(all_pools, two))
    assert [CARD, CARD] == devices_of(ask(all_pools, *each))
    assert [CARD, OTHER] == devices_of(ask(all_pools, *each, constraints=distinct))
    (why,) = ask(pools(*shared(16 * GiB)), two).why
    assert "no node has all that the claim asks together" in why


def test_parts_of_a_card_leave_no_room_for_the_whole() -> None:
    menu = Templated((Template("half", {MEMORY: 8 * GiB, CORE: 50}),))
    (card,) = (evolve(one, granularity=menu) for one in rack(16 * GiB))
    half = {"cel": {"expression": 'device.attributes["hetero.io"].template == "half"'}}
    no_part = {"cel": {"expression": '!("template" in device.attributes["hetero.io"])'}}
    (part,) = devices_of(ask(pools(card), request(selectors=[half])))
    left = pools(card, claims=(claimed(part),))

    assert devices_of(ask(pools(card), request(selectors=[no_part])))
    (why,) = ask(left, request(selectors=[no_part])).why
    assert "1 beside parts that leave too little" in why
    assert [part] != devices_of(ask(left, request(selectors=[half])))


def test_the_first_alternative_that_is_there_is_given() -> None:
    large, small = (
        {"name": name, "deviceClassName": "cards", "capacity": capacity(size)}
        for name, size in (("large", "40Gi"), ("small", "8Gi"))
    )
    answer = ask(pools(*shared(16 * GiB)), {"name": "card", "firstAvailable": [large, small]})

    assert ["card/small"] == [one.request for one in answer.given]


EIGHT = shared(*[80 * GiB] * 8)
DIFFERENT = {"distinctAttribute": "hetero.io/uuid"}


def test_all_cards_of_a_node_that_are_large_enough_are_given_once_each() -> None:
    every = request(allocationMode="All", capacity=capacity("8Gi"))
    answer = ask(pools(*EIGHT), every)

    assert [f"memory-{number}" for number in range(8)] == devices_of(answer)
    full = claimed(CARD, memory="80Gi", slots="1")
    left = devices_of(ask(pools(*EIGHT, claims=(full,)), every))
    assert [f"memory-{number}" for number in range(1, 8)] == left
    whole = request("whole", capacity=capacity("80Gi"))
    assert () == ask(pools(*EIGHT), whole, every).given


def test_all_devices_of_which_a_constraint_bars_one_are_had_nowhere() -> None:
    """As kube-scheduler does, which ends where it meets such a node, whatever others have."""
    all_pools = nodes(n1=shared(16 * GiB, 80 * GiB), n2=shared(16 * GiB, 16 * GiB))
    same = {"matchAttribute": "hetero.io/uuid"}
    every = request(allocationMode="All", capacity=capacity("8Gi"))
    (why,) = ask(all_pools, every, constraints=[same]).why

    assert (
        f"device {OTHER} of node n1 is one of all that card asks, and a constraint bars it" in why
    )
    small = request(allocationMode="All", capacity=capacity("40Gi"))  # one card, and none there
    assert [OTHER] == devices_of(ask(all_pools, small, constraints=[same]))
    taken = claimed(OTHER, memory="80Gi", slots="1")  # what others have is no part of all
    alone = ask(nodes(n1=shared(16 * GiB, 80 * GiB), claims=(taken,)), every, constraints=[same])
    assert [CARD] == devices_of(alone)


def test_all_devices_are_had_nowhere_where_one_node_has_more_than_a_claim_may() -> None:
    all_pools = nodes(n1=shared(*[16 * GiB] * 33), n2=shared(16 * GiB))
    (why,) = ask(all_pools, request(allocationMode="All", capacity=capacity("1Gi"))).why

    assert "a claim has 32 devices at most, and this asks 33" == why


def test_an_alternative_of_more_devices_than_a_claim_may_have_is_passed_over() -> None:
    many, single = (
        {"name": name, "deviceClassName": "cards", "count": count, "capacity": capacity("1Gi")}
        for name, count in (("many", 32), ("one", 1))
    )
    all_pools = pools(*shared(*[16 * GiB] * 33))
    first = request("first", capacity=capacity("1Gi"))
    answer = ask(all_pools, first, {"name": "then", "firstAvailable": [many, single]})

    assert ["first", "then/one"] == [given.request for given in answer.given]


def test_who_only_looks_is_given_a_card_that_has_room_for_another_share() -> None:
    """It consumes nothing, and kube-scheduler 1.36 looks for room for it all the same."""
    full = claimed(CARD, memory="16Gi", cores="100", slots="1")
    all_pools = pools(*shared(16 * GiB, 16 * GiB), claims=(full,))
    watches = request(adminAccess=True, capacity=capacity("1Mi", "0"))

    assert [OTHER] == devices_of(ask(all_pools, watches))
    (why,) = ask(pools(*shared(16 * GiB), claims=(full,)), watches).why
    assert "card: 0 of 1 devices: 1 lack memory" == why


@pytest.mark.parametrize(
    ("count", "constraints"),
    [
        (9, [DIFFERENT]),
        (8, [{"matchAttribute": "hetero.io/numaNode"}, DIFFERENT]),
        (6, [{"matchAttribute": "hetero.io/nothing"}]),
        (2, [{"matchAttribute": "hetero.io/uuid"}]),
    ],
    ids=["different", "one-numa-node", "no-such-attribute", "one-card"],
)
@pytest.mark.timeout(60)
def test_what_no_cards_can_meet_together_is_told_at_once(
    count: int, constraints: list[dict[str, Any]]
) -> None:
    cards = [evolve(one, numa=one.index // 4) for one in EIGHT]
    wanted = request(count=count, capacity=capacity("1Gi"))
    answer = ask(pools(*cards), wanted, constraints=constraints)

    assert ("card: 8 of 8 devices, but no node has all that the claim asks together",) == answer.why


def test_a_claim_asks_no_more_devices_than_it_may_have() -> None:
    (why,) = ask(pools(*EIGHT), request(count=30), request("more", count=3)).why

    assert "a claim has 32 devices at most, and this asks 33" == why


def test_what_would_take_too_many_tries_is_not_looked_for_to_the_end() -> None:
    """Each way to choose the others would be gone through: no device says what the last asks."""
    wanted = [request(name, count=4, capacity=capacity("1Gi")) for name in ("a", "b", "c")]
    constraint = {"matchAttribute": "hetero.io/nothing", "requests": ["c"]}
    with pytest.raises(BadInput, match=r"no devices were found in 2,000 tries"):
        ask(pools(*EIGHT), *wanted, constraints=[constraint])


def test_a_selector_that_a_device_of_any_node_cannot_be_told_by_ends_all() -> None:
    """As kube-scheduler does, which meets it whichever node it looks at."""
    numbered, other = (
        slices(shared(16 * GiB), node_name=node, resources={}, roots={}) for node in ("n1", "n2")
    )
    numbered[0]["devices"][0]["attributes"]["numaNode"] = {"int": 0}
    specs = [{**one, "pool": {**one["pool"], "generation": 1}} for one in (*numbered, *other)]
    all_pools = Pools.read(slices=[{"spec": one} for one in specs], classes=(CLASS,), claims=())
    by_node = 'device.attributes["hetero.io"].numaNode == 0'

    (why,) = ask(all_pools, request(selectors=[{"cel": {"expression": by_node}}])).why
    assert f"device {CARD} of node n2: {by_node}: there is no 'numaNode'" in why
    safe = f'"numaNode" in device.attributes["hetero.io"] && {by_node}'
    answer = ask(all_pools, request(selectors=[{"cel": {"expression": safe}}]))
    assert ["n1"] == [one.node for one in answer.given]


def test_the_node_that_has_the_earlier_alternative_is_named() -> None:
    both = nodes(n1=shared(16 * GiB), n2=shared(80 * GiB))
    large, small = (
        {"name": name, "deviceClassName": "cards", "capacity": capacity(size)}
        for name, size in (("large", "40Gi"), ("small", "8Gi"))
    )
    (given,) = ask(both, {"name": "card", "firstAvailable": [large, small]}).given

    assert ("n2", "card/large") == (given.node, given.request)


def test_a_class_that_is_not_there_is_named() -> None:
    wanted = {"name": "card", "exactly": {"deviceClassName": "none"}}

    with pytest.raises(BadInput, match="there is no DeviceClass none"):
        ask(pools(*shared(GiB)), wanted)


@pytest.mark.parametrize(
    ("expression", "so"),
    [
        ('device.driver == "hetero.io" && device.allowMultipleAllocations', True),
        ('device.capacity["hetero.io"].memory.compareTo(quantity("15Gi")) >= 0', True),
        ('device.capacity["hetero.io"].memory.isGreaterThan(quantity("16Gi"))', False),
        ('device.attributes["hetero.io"].model.lowerAscii().contains("m1")', True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:3a"', False),
    ],
)
def test_selectors_are_read_as_kubernetes_reads_them(expression: str, *, so: bool) -> None:
    (candidate,) = pools(*shared(16 * GiB)).candidates
    device = evolve(
        candidate, device={**candidate.device, "attributes": _with_root(candidate.device)}
    ).device

    assert so == matches(expression, device, driver_name="hetero.io")


def _with_root(device: dict[str, Any]) -> dict[str, Any]:
    return {**device["attributes"], "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}


def test_what_a_selector_cannot_be_told_of_is_said() -> None:
    lacking = {"cel": {"expression": 'device.attributes["hetero.io"].nothing == "x"'}}
    (why,) = ask(pools(*shared(GiB)), request(selectors=[lacking])).why

    assert "there is no 'nothing'" in why


_POD = (
    "{{kind: Pod, metadata: {{name: a}}, spec: {{containers: "
    "[{{name: main, resources: {{limits: {{nvidia.com/gpu: 1, {}: 50}}}}}}]}}}}"
)


def test_a_pod_that_asks_by_resource_names_is_explained_as_the_claim_that_says_so(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(_POD.format("nvidia.com/gpumem"))
    (request,) = read_claims(path)["a"]["devices"]["requests"]

    assert {"memory": "50Mi"} == request["exactly"]["capacity"]["requests"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "while parsing"),
        ("kind: Pod", "a Pod without a name or containers"),
        (
            "{kind: Pod, metadata: {name: a}, spec: {containers: [{name: main}]}}",
            "has no ResourceClaim, no ResourceClaimTemplate and no Pod that asks by resource names",
        ),
        (_POD.format("nvidia.com/gpumem-percentage"), "container main: .* write a size"),
        ("kind: ResourceClaim", "a ResourceClaim without a name or a spec"),
        ("kind: ResourceClaimTemplate\nspec: 3", "without a name or a spec"),
    ],
)
def test_a_file_without_claims_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text)

    with pytest.raises(BadInput, match=why):
        read_claims(path)
