"""A node whose devices are given by claims: claims as the kubelet asks for them."""

import socket
from pathlib import Path

import grpc
import pytest
from attrs import evolve
from prometheus_client import generate_latest

from hetero.kube.agent.agent import Agent
from hetero.kube.dra.node_claims import identity_of
from hetero.kube.dra.proto import health_pb2, registration_pb2
from hetero.kube.dra.proto.health_pb2_grpc import DRAResourceHealthStub
from hetero.kube.dra.way import AllocationWay
from hetero.model import CORE, MEMORY, SLOTS
from hetero.model.units import GiB, MiB
from hetero.node.inventory import inventory_of
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit, read_limits
from hetero.node.view.observe import observe_grants
from tests.kube.api_server import Plain
from tests.kube.claims import allocated, dra_world, kubelet, prepare, specs, unprepare
from tests.kube.world import CARD, World, cut_short, pod_named, until


async def test_the_kubelet_meets_the_driver_by_its_registration_socket() -> None:
    async with dra_world() as at:
        async with kubelet(at, plugin=False) as stub:
            info = await stub.GetInfo(registration_pb2.InfoRequest())
            await stub.NotifyRegistrationStatus(
                registration_pb2.RegistrationStatus(plugin_registered=True)
            )
        services = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        assert ("DRAPlugin", "hetero.io", services) == (
            info.type,
            info.name,
            [*info.supported_versions],
        )
        assert Path(info.endpoint) == at.kubelet.path / "plugins/hetero.io/dra.sock"
        assert at.driver.registered


async def test_a_driver_that_is_ended_while_it_begins_to_serve_stops_what_it_began() -> None:
    async with dra_world() as at:
        await at.crash()
        sockets = at.driver.sockets
        async for _ in cut_short(at.driver.start):
            await at.driver.close()
            for path in (sockets.plugin, sockets.registration):
                with (
                    pytest.raises((FileNotFoundError, ConnectionRefusedError)),
                    socket.socket(socket.AF_UNIX) as listener,
                ):
                    listener.connect(str(path))
        await at.start()
        allocated(at, "one")
        assert "" == (await prepare(at, "one")).error


@pytest.mark.parametrize(
    "name", ["plugins_registry/hetero.io-reg.sock", "plugins/hetero.io/dra.sock"]
)
async def test_a_socket_that_an_agent_before_this_one_removes_is_made_anew(name: str) -> None:
    """A kubelet looks for it, and would not hear of this driver again."""
    async with dra_world() as at:
        path = at.kubelet.path / name
        await until(path.exists)
        path.unlink()
        await until(path.exists)
        allocated(at, "one")
        assert "" == (await prepare(at, "one")).error


async def test_a_claim_is_a_grant_and_a_cdi_device_that_brings_its_limits() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        (device,) = (await prepare(at, "one")).devices
        (name,) = device.cdi_device_ids
        assert "hetero.io/claim=claim-u-one" == name
        assert (["card"], "n1", "memory-0", "share-one") == (
            [*device.request_names],
            device.pool_name,
            device.device_name,
            device.share_id,
        )
        edits = specs(at)[name]
        assert ["MEMORY_VISIBLE_DEVICES=memory-0"] == edits["env"]
        mounts = {one["containerPath"]: one["hostPath"] for one in edits["mounts"]}
        assert {"/etc/hetero/grant", "/etc/hetero/usage", "/etc/ld.so.preload"} < mounts.keys()
        limit = DeviceLimit(name="memory-0", memory=3000 * MiB, core=3000, context=True)
        assert (limit,) == read_limits(Path(mounts["/etc/hetero/grant"]))
        assert "hooks" not in edits  # this program is not on the machine
        assert ["default/one"] == [*at.standing()]


async def test_a_claim_of_less_than_a_context_is_refused_with_the_figure() -> None:
    async with dra_world(context_bytes=518 * MiB) as at:
        allocated(at, "one", memory="518Mi")
        assert "context alone takes 518 MiB of memory-0" in (await prepare(at, "one")).error
        assert {} == at.standing()


async def test_two_claims_share_a_card_and_a_third_that_does_not_fit_is_refused() -> None:
    async with dra_world() as at:
        for name, memory in (("one", "6Gi"), ("two", "9Gi"), ("three", "2Gi")):
            allocated(at, name, memory=memory)
        assert "" == (await prepare(at, "one")).error
        assert "" == (await prepare(at, "two")).error
        assert (
            "claim default/three: device memory-0 has not enough memory left"
            in (await prepare(at, "three")).error
        )
        assert ["default/one", "default/two"] == sorted(at.standing())


async def test_a_claim_of_two_devices_is_a_gang_with_one_row_on_both() -> None:
    async with dra_world() as at:
        claim = allocated(at, "two")
        results = claim["status"]["allocation"]["devices"]["results"]
        results.append({**results[0], "device": "memory-1", "shareID": "share-second"})
        first, second = (await prepare(at, "two")).devices
        assert ("memory-0", "memory-1") == (first.device_name, second.device_name)

        (name,) = {*first.cdi_device_ids, *second.cdi_device_ids}
        mounts = {one["containerPath"]: one["hostPath"] for one in specs(at)[name]["mounts"]}
        limits = read_limits(Path(mounts["/etc/hetero/grant"]))
        assert [("memory-0", 3000), ("memory-1", 3000)] == [(one.name, one.core) for one in limits]
        (grant,) = (one for one in at.node.snapshot().grants if one.id == identity_of("u-two"))
        row = at.node.ledger.row(grant)
        assert row is not None
        assert (3000, frozenset({"memory-0", "memory-1"})) == (row.core_share, row.devices)
        assert row.length_ns >= row.asked_length_ns == row.period_ns * 3000 // CORE_FULL


async def test_to_prepare_and_unprepare_again_changes_nothing() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        first = await prepare(at, "one")
        standing = at.node.snapshot().grants
        assert first == await prepare(at, "one")
        assert standing == at.node.snapshot().grants

        assert "" == await unprepare(at, "one")
        assert ({}, {}) == (at.standing(), specs(at))
        assert "" == await unprepare(at, "one")
        assert "" == await unprepare(at, "never", uid="u-never")


async def test_what_was_prepared_outlives_the_agent_and_is_taken_back_by_the_next() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        first = await prepare(at, "one")
        await at.crash()
        await at.start()
        assert first == await prepare(at, "one")
        assert "" == await unprepare(at, "one")
        assert ({}, {}) == (at.standing(), specs(at))


async def test_an_agent_of_the_classic_way_names_claims_that_it_takes_back_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after an upgrade while pods of claims ran; one of both ways takes them back."""
    async with dra_world() as at:
        warning = (
            "claims have devices here (default/one, default/admin), and with allocation classic"
        )
        allocated(at, "one")
        allocated(at, "admin", adminAccess=True)
        for name in ("one", "admin"):
            assert "" == (await prepare(at, name)).error
        await at.crash()
        at.allocation = AllocationWay.CLASSIC
        await at.start()
        assert at.agent.driver is None
        assert warning in caplog.text
        assert "upgrade to both until" in caplog.text
        await at.crash()
        caplog.clear()
        was = at.agent.options
        served_no_more = evolve(was, unserved=True, host=at.path, cdi=Path("/cdi"))  # of a chart
        Agent(at.node, served_no_more, at.agent.api, at.agent.cards)
        assert warning in caplog.text
        assert "both" not in caplog.text
        caplog.clear()
        at.allocation = AllocationWay.BOTH
        await at.start()
        assert "" == await unprepare(at, "one")
        assert {} == at.standing()
        assert warning not in caplog.text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"reservedFor": []}, "it is reserved for no pod of this node"),
        (
            {"reservedFor": [{"resource": "pods", "name": "one", "uid": "other"}]},
            "it is reserved for no pod of this node",
        ),
        ({"allocation": None}, "it has no allocation of this driver's devices"),
    ],
)
async def test_a_claim_whose_status_is_not_of_this_node_is_not_prepared(
    change: Plain, sentence: str
) -> None:
    async with dra_world() as at:
        allocated(at, "one")["status"].update(change)
        assert f"claim default/one: {sentence}" == (await prepare(at, "one")).error
        assert ({}, {}) == (at.standing(), specs(at))


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("name", ["one", "second"])
async def test_a_claim_of_a_container_that_hides_what_would_limit_it_is_not_prepared(
    name: str, *, extended: bool
) -> None:
    """Whichever of its pods that is, by a claim that it names or that is made for a resource."""
    async with dra_world() as at:
        claim = allocated(at, "one")
        claim["status"]["reservedFor"] += [
            {"resource": "pods", "name": "second", "uid": "uid-second"}
        ]
        at.api.put("pods", pod_named("second", "main"), event="ADDED")
        pod = pod_named(name, "main")
        (main,) = pod["spec"]["containers"]
        main["terminationMessagePath"] = "/etc/hetero/grant"
        if extended:
            mapping = {"containerName": "main", "resourceName": CARD, "requestName": "card"}
            made = {"resourceClaimName": "one", "requestMappings": [mapping]}
            pod["status"] = {"extendedResourceClaimStatus": made}
        else:
            main["resources"] = {"claims": [{"name": "card"}]}
            pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "one"}]
        at.api.put("pods", pod, event="MODIFIED")
        assert (
            f"claim default/one: pod default/{name}, container main: mounts its own at "
            "/etc/hetero/grant, where what limits its cards is or may be: mount it elsewhere"
        ) == (await prepare(at, "one")).error
        assert ({}, {}) == (at.standing(), specs(at))

        at.api.put("pods", {**pod, "status": {"phase": "Failed"}}, event="MODIFIED")
        await until(lambda: at.agent.allocator.pods.by_uid[f"uid-{name}"].status.phase)
        assert "" == (await prepare(at, "one")).error


async def test_a_claim_is_marked_as_ended_while_all_containers_that_use_it_have() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        pod = pod_named("one", "main")
        pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "one"}]
        uses_it = {"resources": {"claims": [{"name": "card"}]}}
        pod["spec"]["initContainers"] = [{"name": "first", **uses_it}]
        at.api.put("pods", pod)
        assert "" == (await prepare(at, "one")).error

        async def is_marked(status: Plain, *, user: str = "") -> bool:
            if user:
                later = {**pod_named(user, "main"), "status": status}
                later["spec"]["containers"][0] |= uses_it
                later["spec"]["resourceClaims"] = pod["spec"]["resourceClaims"]
                at.api.put("pods", later, event="ADDED")
            else:
                at.api.put("pods", {**pod, "status": status})
            uid = f"uid-{user or 'one'}"
            known = at.agent.allocator.pods.by_uid
            await until(lambda: uid in known and known[uid].status.phase == status["phase"])
            (grant,) = observe_grants(at.node).grants
            return grant.ended

        initialised = [{"type": "Initialized", "status": "True"}]
        assert not await is_marked({"phase": "Pending"})
        assert await is_marked({"phase": "Running", "conditions": initialised})
        assert not await is_marked({"phase": "Running"}, user="later")
        ended = [{"name": "main", "state": {"terminated": {}}}]
        assert await is_marked({"phase": "Unknown", "containerStatuses": ended}, user="later")
        assert not await is_marked({"phase": "Pending"})  # its sandbox is made anew


async def test_a_claim_that_took_anothers_name_is_not_prepared_for_it() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        assert (
            "another claim of this name has taken its place"
            in (await prepare(at, "one", uid="u-before")).error
        )
        assert "404" in (await prepare(at, "gone", uid="u-gone")).error
        assert {} == at.standing()


async def test_a_claim_that_was_allocated_anew_has_its_grant_made_anew() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        await prepare(at, "one")
        allocated(at, "one", device="memory-1")
        await prepare(at, "one")
        (standing,) = at.standing().values()
        assert ["memory-1"] == [piece.device for piece in standing.pieces]


async def test_claims_that_are_gone_are_taken_back_unasked() -> None:
    async with dra_world() as at:
        driver = at.driver
        for name in ("gone", "other", "elsewhere", "stays"):
            allocated(at, name, memory="1Gi", cores="10")
            assert "" == (await prepare(at, name)).error
        del at.api.claims["gone"]
        at.api.claims["other"]["metadata"]["uid"] = "another"
        at.api.claims["elsewhere"]["status"]["allocation"] = None
        await driver.claims.reconcile()
        assert ["default/stays"] == [*at.standing()]
        assert ["hetero.io/claim=claim-u-stays"] == [*specs(at)]


async def test_a_spec_without_its_grant_is_removed() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        await prepare(at, "one")
        at.node.ledger.unpin(identity_of("u-one"))
        await at.driver.claims.reconcile()
        assert {} == specs(at)


async def test_a_spec_that_somebody_removed_is_written_again() -> None:
    """A container of the claim's that starts anew finds its devices."""
    async with dra_world() as at:
        allocated(at, "one")
        await prepare(at, "one")
        written = specs(at)
        for path in (at.path / "cdi").glob("*.json"):
            path.unlink()
        await at.driver.claims.reconcile()
        assert written == specs(at) != {}


async def test_pods_of_claims_are_not_the_extenders_to_take_back() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        await prepare(at, "one")
        await at.agent.allocator.reconcile()
        assert ["default/one"] == [*at.standing()]


async def test_what_a_claim_takes_is_counted_with_what_pods_take() -> None:
    async with dra_world() as at:
        allocated(at, "one", memory="15Gi", cores="0")
        await prepare(at, "one")
        (standing,) = at.standing().values()
        assert {MEMORY: 15 * GiB, CORE: 0, SLOTS: 1} == standing.pieces[0].takes
        assert (
            1 * GiB
            == inventory_of(at.node.discover(), at.node.snapshot()).free()["memory-0"][MEMORY]
        )


async def test_a_container_has_the_devices_of_one_claim() -> None:
    async with dra_world() as at:
        for name in ("one", "two"):
            allocated(at, name, memory="1Gi")
            at.api.claims[name]["status"]["reservedFor"] = [
                {"resource": "pods", "name": "pod", "uid": "uid-pod"}
            ]
        pod = pod_named("pod", "main")
        claims = {"claims": [{"name": "first"}, {"name": "second"}]}
        pod["spec"]["containers"][0]["resources"] = claims
        pod["spec"]["resourceClaims"] = [
            {"name": "first", "resourceClaimName": "one"},
            {"name": "second", "resourceClaimTemplateName": "two"},
        ]
        pod["status"]["resourceClaimStatuses"] = [{"name": "second", "resourceClaimName": "two"}]
        at.api.put("pods", pod, event="ADDED")
        await until(lambda: "uid-pod" in at.agent.allocator.pods.by_uid)

        assert "" == (await prepare(at, "one")).error
        assert (
            "claim default/two: container main uses claim one, too: a container's devices are of "
            "one claim, so ask for all of them in one"
        ) == (await prepare(at, "two")).error
        assert ["default/one"] == [*at.standing()]


async def test_metrics_tell_what_a_claim_holds() -> None:
    async with dra_world() as at:
        allocated(at, "one", memory="2Gi")
        await prepare(at, "one")
        text = generate_latest(at.agent.metrics.registry).decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        labels = (
            'Hostname="n1",UUID="memory-0",claim="one",container="",modelName="M1",'
            'namespace="default",pod="",vendor="memory"'
        )
        assert 2.0 * GiB == float(lines[f"hetero_share_memory_limit_bytes{{{labels}}}"])
        assert 0.3 == float(lines[f"hetero_share_core_limit_ratio{{{labels}}}"])


async def test_what_becomes_of_a_claims_grant_is_told_to_the_pods_that_use_it() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        for name, claimed in (("first", "one"), ("second", "one"), ("third", "two")):
            pod = pod_named(name)
            pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": claimed}]
            at.api.put("pods", pod, event="ADDED")
        await prepare(at, "one")
        await until(lambda: "uid-third" in at.agent.allocator.pods.by_uid)
        (entry,) = at.node.snapshot().grants

        names = [pod.metadata.name for pod in at.agent.guard.pods_of(entry)]
        assert ["first", "second"] == names


async def test_the_kubelet_is_told_of_a_device_that_becomes_unhealthy() -> None:
    async with dra_world() as at:
        path = at.kubelet.path / "plugins/hetero.io/dra.sock"
        async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
            stub = DRAResourceHealthStub(channel)  # type: ignore[no-untyped-call]
            updates = stub.NodeWatchResources(health_pb2.NodeWatchResourcesRequest())
            first = await updates.read()
            at.vendor.devices[1] = evolve(at.vendor.devices[1], health="XID 48")
            second = await updates.read()
            updates.cancel()
        assert [("n1", "memory-0", 1), ("n1", "memory-1", 1)] == [
            (one.device.pool_name, one.device.device_name, one.health) for one in first.devices
        ]
        assert [(1, ""), (2, "XID 48")] == [(one.health, one.message) for one in second.devices]


def conditions(at: World, name: str) -> dict[str, Plain]:
    """Return the conditions that a claim's status has of its one device, by type."""
    (device_status,) = at.api.claims[name]["status"]["devices"]
    return {one["type"]: one for one in device_status["conditions"]}


async def test_a_claims_status_says_which_devices_it_has_and_how_they_are() -> None:
    async with dra_world() as at:
        allocated(at, "one")
        other = {"driver": "other.io", "pool": "n1", "device": "nic"}
        at.api.claims["one"]["status"]["devices"] = [other]
        assert "" == (await prepare(at, "one")).error
        another, device_status = at.api.claims["one"]["status"]["devices"]
        assert other == another
        assert ("hetero.io", "n1", "memory-0", "share-one") == tuple(
            device_status[name] for name in ("driver", "pool", "device", "shareID")
        )
        assert (["memory-0"], "3000Mi", 30, identity_of("u-one")) == tuple(
            device_status["data"][name] for name in ("uuids", "memory", "cores", "grant")
        )
        at.api.claims["one"]["status"]["devices"] = [device_status]
        assert {"Ready": "True", "Healthy": "True"} == {
            kind: one["status"] for kind, one in conditions(at, "one").items()
        }


async def test_a_claims_status_follows_its_devices_and_is_written_when_it_differs() -> None:
    async with dra_world() as at:
        driver = at.driver
        claim = allocated(at, "one")
        await prepare(at, "one")
        written = at.api.writes
        await driver.claims.reconcile()
        assert written == at.api.writes

        conditions(at, "one")["Ready"]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        before = conditions(at, "one")["Ready"]
        at.vendor.devices[0] = evolve(at.vendor.devices[0], health="XID 48")
        await until(lambda: conditions(at, "one")["Healthy"]["status"] == "False")
        now = conditions(at, "one")
        assert ("Unhealthy", "XID 48") == (now["Healthy"]["reason"], now["Healthy"]["message"])
        assert before == now["Ready"]

        claim["metadata"]["annotations"] = {"hetero.io/resize": "memory=2Gi"}
        await driver.claims.reconcile()
        assert "2Gi" == claim["status"]["devices"][0]["data"]["memory"]


async def test_admin_access_sees_a_device_that_others_hold_and_consumes_nothing() -> None:
    async with dra_world() as at:
        driver = at.driver
        for name in ("one", "two"):
            allocated(at, name, memory="8Gi", cores="50")
            assert "" == (await prepare(at, name)).error
        standing = at.standing()
        allocated(at, "watch", adminAccess=True)
        first = await prepare(at, "watch")
        assert "" == first.error
        ((name,),) = [device.cdi_device_ids for device in first.devices]
        assert "hetero.io/admin=claim-u-watch" == name
        seen = specs(at)[name]
        assert {"MEMORY_VISIBLE_DEVICES=memory-0", "HETERO_ADMIN_CLAIM=default/watch"} == {
            *seen["env"]
        }
        places = {one["containerPath"] for one in seen["mounts"]}
        assert places.isdisjoint({"/etc/ld.so.preload", "/etc/hetero/grant"})
        assert standing == at.standing()

        await at.crash()
        await at.start()
        assert first == await prepare(at, "watch")
        driver = at.driver
        await driver.claims.reconcile()
        assert name in specs(at)
        assert "" == await unprepare(at, "watch")
        assert name not in specs(at)

        await prepare(at, "watch")
        del at.api.claims["watch"]
        await driver.claims.reconcile()
        assert (standing, False) == (at.standing(), name in specs(at))
