"""What a kubelet remembers of grants, over a boot that takes them away."""

import shutil
from pathlib import Path

import pytest
from attrs import evolve

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.model.units import GiB
from tests.kube.world import until, world


async def test_shares_lost_in_a_boot_are_given_again_and_nothing_is_made_in_their_place() -> None:
    async with world() as at:
        pod = at.bind("pod", memory=2 * GiB)
        before = (await at.kubelet.admit(pod))["main"]
        ((label, given),) = at.standing().items()
        await at.crash()
        shutil.rmtree(at.node.ledger.path)
        own = [Path(one.host_path) for one in before.mounts if not Path(one.host_path).exists()]
        assert {"grant", "usage", "page.0", "board.0"} == {path.name for path in own}
        for path in own:  # as a container runtime does for what it does not find
            with pytest.raises(FileExistsError):
                path.mkdir(parents=True)
        await at.start()
        await until(lambda: at.standing() == {label: given})  # as the API tells of its pod
        await at.kubelet.start_container(pod, "main")  # the kubelet kept its own notes

        assert all(path.is_dir() == path.name.startswith("board") for path in own)


async def test_a_link_to_a_lost_grant_stays_until_the_api_tells_of_its_pod() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await at.kubelet.admit(pod)
        remembered = at.remembered()
        await at.crash()
        shutil.rmtree(at.node.ledger.path)
        early = evolve(at.agent.allocator)
        await early.reconcile()
        assert remembered == at.remembered() != set()
        del pod["metadata"]["annotations"]  # as if its grant could not be made yet
        early.replace_pods([read(Pod, pod)])
        await early.reconcile()
        assert remembered == at.remembered()
        early.replace_pods([])
        await early.reconcile()
        assert set() == at.remembered()
