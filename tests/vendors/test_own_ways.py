"""How each vendor's slices are noted, named and told, where its way is its own."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import hetero_cambricon
import hetero_metax
import hetero_mthreads
import hetero_nvidia
import pytest
from attrs import evolve
from racks import CARDS, SHARE, Machine, Rack, apart, card, die_after, registry, request, slices

from hetero.model import MEMORY, SLOTS, Allocation, Ask, Policy, Refusal
from hetero.model.errors import Refused
from hetero.model.units import GiB, MiB
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.outlook import fit_now
from hetero.node.resize import resize
from hetero.plugin.driver import Library


def test_a_vnpu_is_noted_before_it_is_made(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def look_before_creation() -> str | None:
        call = Library.call

        def create(library: Any, function: str, *arguments: Any) -> None:
            if function == "dcmi_create_vdevice":
                seen.write_text(" ".join(path.name for path in (tmp_path / "ascend").iterdir()))
            call(library, function, *arguments)

        Library.call = create  # type: ignore[method-assign, assignment]
        return Machine(tmp_path, "ascend").take(SHARE).pieces[0].part

    made = Rack(tmp_path, CARDS["ascend"]).meet(look_before_creation)

    assert seen.read_text() == made


def test_a_vnpu_that_was_noted_and_never_made_leaves_no_note(tmp_path: Path) -> None:
    (tmp_path / "ascend").mkdir()
    (tmp_path / "ascend" / "103").touch()

    assert () == Rack(tmp_path, CARDS["ascend"]).meet(
        lambda: Machine(tmp_path, "ascend").reconcile()
    )
    assert [] == list((tmp_path / "ascend").iterdir())


def test_in_a_container_the_vendors_runtime_makes_the_vnpu(tmp_path: Path) -> None:
    def enforce() -> tuple[dict[str, str], set[str]]:
        machine = Machine(tmp_path, "ascend")
        answer = machine.fit(SHARE)
        assert isinstance(answer, Allocation)
        edits = machine.registry.enforce(
            answer, machine.devices, directory=tmp_path, container=True
        )
        assert "/dev/davinci0" not in edits.device_nodes  # which would be all of the card
        return dict(edits.env), slices(machine, machine.devices[0])

    env, made = Rack(tmp_path, CARDS["ascend"]).meet(enforce)

    assert set() == made
    assert {
        "ASCEND_VISIBLE_DEVICES": "0",
        "ASCEND_VNPU_SPECS": "vir05_1c_16g",
        "ASCEND_RT_VISIBLE_DEVICES": "0",
    } == env


@pytest.mark.parametrize(("container", "seen"), [(True, "0,1"), (False, "1,2")])
def test_a_tensor_parallel_job_counts_its_npus_as_its_runtime_does(
    tmp_path: Path, container: bool, seen: str
) -> None:
    def enforce() -> dict[str, str]:
        machine = Machine(tmp_path, "ascend")
        machine.take(request(Ask(device="0")))
        answer = machine.fit(request(count=2))
        assert isinstance(answer, Allocation)
        edits = machine.registry.enforce(
            answer, machine.devices, directory=tmp_path, container=container
        )
        return dict(edits.env)

    env = Rack(tmp_path, CARDS["ascend"] * 3).meet(enforce)

    assert ("1,2", seen) == (env["ASCEND_VISIBLE_DEVICES"], env["ASCEND_RT_VISIBLE_DEVICES"])


def test_vdev_files_say_what_the_kernel_driver_needs(tmp_path: Path) -> None:
    """Two cards, four shares each: masks disjoint, counts true, numbers and pipes their own."""

    def write() -> list[dict[str, Any]]:
        machine = Machine(tmp_path, "hygon")
        for device in (0, 1):
            for core in (10, 20, 30, 40):
                machine.take(request(Ask(memory=4000 * MiB, core=core, device=str(device))))
        vdevs = []
        for path in sorted((tmp_path / "hygon").iterdir()):
            lines = [line.split(": ") for line in path.read_text().splitlines()]
            masks = [int(value, 16) for key, value in lines if key == "cu_mask"]
            vdevs.append({**dict(lines), "mask": masks[0] | masks[1] << 64, "file": path.name})
        return vdevs

    vdevs = Rack(tmp_path, CARDS["hygon"] * 2).meet(write)

    assert 8 == len(vdevs)
    assert all(int(v["cu_count"]) == v["mask"].bit_count() for v in vdevs)
    assert all(f"vdev{v['vdev_id']}.conf" == v["file"] for v in vdevs)
    assert {"4000 MiB"} == {v["mem"] for v in vdevs}
    for address in {v["PciBusId"] for v in vdevs}:
        of_card = [v for v in vdevs if v["PciBusId"] == address]
        assert [12, 24, 36, 48] == sorted(int(v["cu_count"]) for v in of_card)
        assert 120 == sum(v["mask"] for v in of_card).bit_count()  # they share no unit
        assert 4 == len({v["pipe_id"] for v in of_card})


def test_a_vdev_is_mounted_under_its_own_name_and_keeps_its_size(tmp_path: Path) -> None:
    def confine() -> tuple[str, str, str]:
        machine = Machine(tmp_path, "hygon")
        answer = machine.fit(SHARE)
        assert isinstance(answer, Allocation)
        edits = machine.registry.enforce(answer, machine.devices, directory=tmp_path)
        taken = machine.take(SHARE)
        with pytest.raises(Refused) as error:
            machine.resize(taken, **{MEMORY: GiB})
        return edits.mounts[0].source, edits.mounts[0].target, str(error.value)

    source, target, refusal = Rack(tmp_path, CARDS["hygon"]).meet(confine)

    assert (f"{tmp_path}/hygon/vdev0.conf", "/etc/vdev/docker/vdev0.conf") == (source, target)
    assert "hygon: enforce: card 0: a vdev keeps the size it was made with" == refusal


def test_an_smlu_profile_is_reused_and_goes_with_its_last_instance(tmp_path: Path) -> None:
    def profiles() -> int:
        cndev = hetero_cambricon._CNDEV.open()
        return int(cndev.get("cndevGetSMluProfileIdInfo", hetero_cambricon._Ids, 0).count)

    def count() -> list[int]:
        machine = Machine(tmp_path, "cambricon")
        counts = []
        for asked in (SHARE, SHARE, request(Ask(memory=2 * GiB, core=10))):
            machine.take(asked)
            counts.append(apart(profiles))
        while machine.standing:
            machine.standing.pop(0)
            machine.reconcile()
            counts.append(apart(profiles))
        return counts

    assert [1, 1, 2, 2, 1, 0] == Rack(tmp_path, CARDS["cambricon"]).meet(count)


def test_an_smlu_profile_whose_maker_was_killed_goes_and_somebody_elses_stays(
    tmp_path: Path,
) -> None:
    def profiles() -> list[tuple[int, int]]:
        cndev = hetero_cambricon._CNDEV.open()
        profiles_read = hetero_cambricon._profiles(cndev, 0)
        return [(profile.core[0], profile.memory[0] // GiB) for profile in profiles_read]

    def make_theirs() -> None:
        cndev = hetero_cambricon._CNDEV.open()
        quota = hetero_cambricon._Quota(core=5, memory=GiB)
        cndev.get("cndevCreateSMluProfileInfo", quota, ctypes.c_int, 0)

    def crash() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        apart(make_theirs)
        call = Library.call

        def die_between(library: Any, function: str, *arguments: Any) -> None:
            if function == "cndevCreateSMluInstanceByProfileId":
                os.kill(os.getpid(), signal.SIGKILL)
            call(library, function, *arguments)

        def make() -> None:
            Library.call = die_between  # type: ignore[method-assign, assignment]
            Machine(tmp_path, "cambricon").take(SHARE)

        die_after(make)
        left = apart(profiles)
        machine = Machine(tmp_path, "cambricon")
        assert () == machine.reconcile() == machine.reconcile()
        return left, apart(profiles)

    left, after = Rack(tmp_path, CARDS["cambricon"]).meet(crash)

    assert ([(5, 1), (20, 4)], [(5, 1)]) == (left, after)
    assert [] == list((tmp_path / "cambricon").iterdir())


def test_slices_of_one_metax_card_share_it_alike(tmp_path: Path) -> None:
    def share() -> tuple[int, str, str]:
        machine = Machine(tmp_path, "metax")
        machine.take(evolve(SHARE, policy=Policy.ELASTIC))
        machine.take(SHARE)
        standing = machine.standing
        used = {grant.device for allocation in standing for grant in allocation.pieces}
        refusal = machine.fit(evolve(SHARE, policy=Policy.OFF))
        assert isinstance(refusal, Refusal)
        # Slices of somebody else's are not in the ledger; the driver knows them.
        stranger = Machine(tmp_path / "other", "metax")
        with pytest.raises(Refused) as error:
            stranger.take(evolve(SHARE, policy=Policy.OFF))
        return len(used), refusal.sentence, str(error.value)

    used, sentence, message = Rack(tmp_path, CARDS["metax"] * 2).meet(share)

    assert (2, "0 of 2 devices: 2 shared by another policy") == (used, sentence)
    assert message.startswith("metax: enforce: card 0: its slices share it by another policy")


def test_a_resized_slice_still_counts_for_its_policy(tmp_path: Path) -> None:
    def other() -> str:
        node = Node(registry=registry("metax"), ledger=Ledger(tmp_path / "state"))
        handle, _ = admit_program(grants_of(node), SHARE, command=["true"])
        resize(node, handle.grant.id, Ask(memory=8 * GiB))
        refusal = fit_now(node, evolve(SHARE, policy=Policy.ELASTIC))
        assert isinstance(refusal, Refusal)
        return refusal.sentence

    sentence = Rack(tmp_path, CARDS["metax"]).meet(other)

    assert "0 of 1 device: 1 shared by another policy" == sentence


def test_an_sgpu_that_was_not_yet_named_is_found_by_its_note(tmp_path: Path) -> None:
    def make_theirs() -> None:
        mxsml, made = hetero_metax._MXSML.open(), ctypes.c_uint()
        mxsml.call("mxSmlSetDeviceSchedClass", 0, 1)
        mxsml.call("mxSmlCreateSgpu", 0, 1024, 10, made)

    def made() -> list[int]:
        return list(hetero_metax._slices(hetero_metax._MXSML.open(), 0))

    def crash() -> tuple[int, int, int]:
        apart(make_theirs)
        call = Library.call

        def no_name(library: Any, function: str, *arguments: Any) -> None:
            if function == "mxSmlSetSgpuAlias":
                os.kill(os.getpid(), signal.SIGKILL)
            call(library, function, *arguments)

        def make() -> None:
            Library.call = no_name  # type: ignore[method-assign, assignment]
            Machine(tmp_path, "metax").take(SHARE)

        die_after(make)
        before = len(apart(made))
        assert () == Machine(tmp_path, "metax").reconcile()
        left = apart(made)
        return before, len(left), left[0]

    assert (2, 1, 0) == Rack(tmp_path, CARDS["metax"]).meet(crash)


def test_a_metax_card_whose_sgpu_mode_is_off_is_whole(tmp_path: Path) -> None:
    def whole() -> tuple[dict[str, str], int]:
        machine = Machine(tmp_path, "metax")
        edits = machine.registry.enforce(machine.take(SHARE), machine.devices, directory=tmp_path)
        return dict(edits.env), machine.devices[0].capacity[SLOTS]

    env, slots = Rack(tmp_path, card("metax", "MXC500", "64 GiB")).meet(whole)

    assert ({"CUDA_VISIBLE_DEVICES": "0", "MACA_VISIBLE_DEVICES": "0"}, 1) == (env, slots)


def test_an_s4000_share_is_told_to_the_vendors_runtime(tmp_path: Path) -> None:
    policy = tmp_path / "sgpu_km" / "0" / "policy"
    policy.parent.mkdir(parents=True)
    policy.write_text("0")

    def confine() -> tuple[dict[str, str], str]:
        hetero_mthreads.SGPU = tmp_path / "sgpu_km"
        machine = Machine(tmp_path, "mthreads")
        answer = machine.fit(request(Ask(memory=3000 * MiB, core=30)))
        assert isinstance(answer, Allocation)
        edits = machine.registry.enforce(answer, machine.devices, directory=tmp_path)
        return dict(edits.env), machine.devices[0].enforcement.value

    env, enforcement = Rack(tmp_path, card("mthreads", "MTT S4000", "48 GiB")).meet(confine)

    assert ("partition", "2") == (enforcement, policy.read_text())
    assert str(4096 * MiB) == env["MTHREADS_QOS_MEMORY_LIMIT"]
    assert ("5", "0") == (
        env["MTHREADS_QOS_COMPUTING_POWER_WEIGHT"],
        env["MTHREADS_VISIBLE_DEVICES"],
    )


def test_a_mig_instance_comes_with_the_nodes_that_open_it(tmp_path: Path) -> None:
    """Those of the GPU instance and of its compute instance, by the driver's own table."""
    rows = [f"gpu0/gi{gi}/access {3 + 9 * gi}" for gi in range(15)]
    rows += [f"gpu0/gi{gi}/ci0/access {4 + 9 * gi}" for gi in range(15)]
    (tmp_path / "mig-minors").write_text("\n".join(["config 1", "monitor 2", *rows, ""]))

    def enforce() -> list[tuple[str, set[str]]]:
        hetero_nvidia.mig.MINORS = tmp_path / "mig-minors"
        machine, made = Machine(tmp_path, "nvidia"), []
        for _ in range(2):
            answer = machine.take(request(Ask(memory=10 * GiB)))
            edits = machine.registry.enforce(
                answer, machine.devices, directory=tmp_path, container=True
            )
            nodes = {node for node in edits.device_nodes if "caps" in node}
            made.append((edits.env["NVIDIA_VISIBLE_DEVICES"], nodes))
        return made

    mig = card("nvidia", "NVIDIA H200", "143771 MiB", mig="1g.18gb x2")
    (first, nodes), (second, others) = Rack(tmp_path, mig).meet(enforce)

    assert [True, True] == [one.startswith("MIG-") for one in (first, second)]
    assert first != second
    assert 2 == len(nodes) == len(others)
    assert nodes.isdisjoint(others)
    for paths in (nodes, others):
        gi, ci = sorted(int(node.removeprefix("/dev/nvidia-caps/nvidia-cap")) for node in paths)
        assert (gi + 1, 0) == (ci, (gi - 3) % 9)
