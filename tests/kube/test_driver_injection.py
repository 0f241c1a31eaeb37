"""How a card's driver comes into a pod's container, whatever runtime the node has."""

import json
import shutil
from pathlib import Path
from typing import Any

import hetero_nvidia
import pytest
from attrs import evolve

from hetero.container.cdi import Specs
from hetero.container.edits import driver_files
from hetero.kube.agent.device_plugin import answered
from hetero.kube.agent.driver_injection import DriverInjection
from hetero.kube.objects.kinds import NodeInfo, Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.runtime_variables import InjectionWay
from hetero.model import Edits, Mount
from hetero.plugin.container import ContainerEdits, ContainerRuntime
from hetero.plugin.vendor import Vendor
from tests.kube.world import until, world
from tests.programs import completed

EDITS = Edits(
    env={"VISIBLE": "card-1"},
    device_nodes=("/dev/card-1",),
    files=("/usr/bin/smi", "/opt/driver:/opt/inside", "/usr/bin/absent", "libabsent.so.1"),
    cdi=("vendor.com/card=card-1",),
)
MOUNTS = (Mount("/usr/bin/smi", "/usr/bin/smi"), Mount("/opt/driver", "/opt/inside"))
BY_FILES = evolve(EDITS, files=(), cdi=(), mounts=MOUNTS)
BY_NAME = evolve(EDITS, device_nodes=(), files=())
BY_RUNTIME = evolve(EDITS, files=(), cdi=())
SPEC = '{"kind": "vendor.com/card", "devices": [{"name": "card-1"}]}'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's files, seen from a container."""
    for path in ("usr/bin/smi", "opt/driver/file", "run/cdi/vendor.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "run/cdi/vendor.json").write_text(SPEC)
    return tmp_path


def brought(way: InjectionWay, root: Path, *, kubelet: str = "v1.34.1", **spec: Any) -> Edits:
    injection = DriverInjection(way=way, root=root)
    injection.note_kubelet(NodeInfo(kubelet_version=kubelet))
    return injection.into(read(Pod, {"spec": spec}), EDITS)


def test_the_agent_brings_what_the_vendor_declares_and_the_node_has(root: Path) -> None:
    assert BY_FILES == brought(InjectionWay.FILES, root)


def test_a_pod_that_names_a_runtime_class_gets_its_driver_from_there(root: Path) -> None:
    assert BY_RUNTIME == brought(InjectionWay.FILES, root, runtimeClassName="vendor")
    assert BY_RUNTIME == brought(InjectionWay.CDI_CRI, root, runtimeClassName="vendor")
    assert BY_RUNTIME == brought(InjectionWay.ENVVAR, root)


def test_by_cdi_the_kubelet_is_given_names_alone(root: Path) -> None:
    assert BY_NAME == brought(InjectionWay.CDI_CRI, root)


#: A vendor whose runtime reads a variable, or mounts.
OWN = Vendor(
    api=2,
    name="own",
    title="Own",
    models=(),
    runtime=ContainerRuntime(
        variables=("VISIBLE",), none=("void", "none"), mounts="/var/run/cards"
    ),
)


def edits_by(way: InjectionWay, root: Path, seen: str = "card-1,card-2") -> Edits:
    injection = DriverInjection(way=way, root=root)
    injection.note_kubelet(NodeInfo(kubelet_version="v1.34.1"))
    return injection.into(Pod(), evolve(EDITS, env={"VISIBLE": seen}), (OWN,))


def test_a_vendors_runtime_is_told_by_a_variable_or_by_mounts(root: Path) -> None:
    by_variable = edits_by(InjectionWay.ENVVAR, root)
    by_mounts = edits_by(InjectionWay.VOLUME_MOUNTS, root)

    assert ("card-1,card-2", ()) == (by_variable.env["VISIBLE"], by_variable.mounts)
    assert "/var/run/cards" == by_mounts.env["VISIBLE"]
    assert [
        Mount("/dev/null", "/var/run/cards/card-1"),
        Mount("/dev/null", "/var/run/cards/card-2"),
    ] == list(by_mounts.mounts)
    assert (
        edits_by(InjectionWay.ENVVAR, root).device_nodes
        == by_mounts.device_nodes
        == ("/dev/card-1",)
    )


def test_a_runtime_that_is_to_bring_nothing_is_told_so_in_every_way(root: Path) -> None:
    for way in (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS):
        assert ("void", ()) == (
            edits_by(way, root, "void").env["VISIBLE"],
            edits_by(way, root, "void").mounts,
        )
    for way in (InjectionWay.CDI_ANNOTATIONS, InjectionWay.CDI_CRI):
        assert ({"VISIBLE": "void"}, EDITS.cdi) == (
            edits_by(way, root).env,
            edits_by(way, root).cdi,
        )


@pytest.mark.parametrize("way", InjectionWay)
def test_an_image_asks_a_runtime_for_nothing_beside_its_cards(
    way: InjectionWay, root: Path
) -> None:
    """Nor where no variable tells the runtime of cards; what a vendor's hook says of it stays."""
    runtime = OWN.runtime
    vendor = evolve(OWN, runtime=evolve(runtime, options=("SWITCHES", "SLICE")))
    edits = evolve(EDITS, env={"VISIBLE": "card-1", "SLICE": "a", "SEEN": "0", "ALSO": "1"})
    other = evolve(OWN, runtime=evolve(runtime, variables=("OTHER",), options=("NOBODYS",)))
    by_options = evolve(runtime, variables=(), options=("ALL",))
    untold = evolve(OWN, visible=("SEEN",), runtime=by_options)
    cut = evolve(by_options, options=("CUT",), by_hook=True)
    by_hook = evolve(OWN, visible=("ALSO",), runtime=cut)
    vendors = (vendor, other, untold, by_hook)
    made = DriverInjection(way=way, root=root).into(Pod(), edits, vendors).env

    assert ("", "a", "") == (made["SWITCHES"], made["SLICE"], made["ALL"])
    assert made.keys().isdisjoint({"NOBODYS", "CUT"})


@pytest.mark.parametrize("way", InjectionWay)
def test_a_mig_instance_comes_with_what_opens_it_in_every_way(
    way: InjectionWay, tmp_path: Path
) -> None:
    """Its device nodes by the agent, beside what a runtime of NVIDIA's is told; or a spec's."""
    mig, nodes = "MIG-1", ("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    edits = evolve(EDITS, env={"NVIDIA_VISIBLE_DEVICES": mig}, device_nodes=nodes)
    edits = evolve(edits, cdi=(f"nvidia.com/gpu={mig}",))
    spec = tmp_path / "run/cdi/nvidia.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(f'{{"kind": "nvidia.com/gpu", "devices": [{{"name": "{mig}"}}]}}')
    injection = DriverInjection(way=way, root=tmp_path)
    injection.note_kubelet(NodeInfo(kubelet_version="v1.34.1"))
    made = injection.into(Pod(), edits, (hetero_nvidia.hetero_vendor(),))
    response = answered(made, injection.annotations(made, grant_id="a1b2"))

    by_spec = way in (InjectionWay.CDI_ANNOTATIONS, InjectionWay.CDI_CRI)
    assert [() if by_spec else nodes] == [tuple(one.host_path for one in response.devices)]
    named = {*response.annotations.values(), *(one.name for one in response.cdi_devices)}
    assert (f"nvidia.com/gpu={mig}" in named) == by_spec
    seen = {InjectionWay.VOLUME_MOUNTS: "/var/run/nvidia-container-devices"}
    variable = "void" if by_spec else seen.get(way, mig)
    assert variable == response.envs["NVIDIA_VISIBLE_DEVICES"]
    mounted = [one.container_path for one in response.mounts if one.host_path == "/dev/null"]
    by_mounts = [f"/var/run/nvidia-container-devices/{mig}"]
    assert (by_mounts if way is InjectionWay.VOLUME_MOUNTS else []) == mounted


def test_annotations_name_devices_where_the_kubelet_does_not(root: Path) -> None:
    by = DriverInjection(way=InjectionWay.CDI_ANNOTATIONS, root=root)
    by.note_kubelet(NodeInfo(kubelet_version="v1.20.2"))
    edits = by.into(Pod(), EDITS)
    response = answered(edits, by.annotations(edits, grant_id="a1b2"))

    assert {"cdi.k8s.io/hetero_a1b2": "vendor.com/card=card-1"} == dict(response.annotations)
    assert ([], []) == (list(response.cdi_devices), list(response.devices))
    assert {} == DriverInjection(way=InjectionWay.CDI_CRI).annotations(edits, grant_id="a1b2")


def test_the_ways_have_their_short_names() -> None:
    assert [InjectionWay.CDI_CRI, InjectionWay.ENVVAR] == list(
        map(InjectionWay, ("cdi", "runtime"))
    )


@pytest.mark.parametrize("kubelet", ["v1.28.15", "v1.20.2", "", "v1.9.0+x"])
def test_a_kubelet_that_passes_no_names_on_is_given_files(root: Path, kubelet: str) -> None:
    assert BY_FILES == brought(InjectionWay.CDI_CRI, root, kubelet=kubelet)


def test_a_card_that_no_spec_describes_comes_by_files(root: Path) -> None:
    (root / "run/cdi/vendor.json").write_text(SPEC.replace("card-1", "card-2"))

    assert BY_FILES == brought(InjectionWay.CDI_CRI, root)


def test_libraries_are_those_that_the_nodes_own_linker_finds(tmp_path: Path) -> None:
    """The node's cache is read, and its paths are the node's, not those it is seen at."""
    (libc, _) = driver_files(["libc.so.6"])
    (tmp_path / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", tmp_path / "etc")
    assert [] == list(driver_files(["libc.so.6"], root=tmp_path))

    (cached,) = {
        line.split(" => ")[1]
        for line in _cache().splitlines()
        if line.strip().startswith("libc.so.6 (libc6,x86-64") or "libc.so.6 (libc6,AArch64" in line
    }
    copy = tmp_path / cached.lstrip("/")
    copy.parent.mkdir(parents=True)
    copy.touch()
    first, second = driver_files(["libc.so.6"], root=tmp_path)

    assert (cached, cached) == (first.source, second.source)
    assert libc.target == first.target
    assert {"libc.so.6"} == {Path(mount.target).name for mount in (first, second)}


def test_of_a_node_whose_usr_alone_is_seen_libraries_are_found_behind_its_links(
    tmp_path: Path,
) -> None:
    """The cache names /lib/..., which is a link to /usr/lib there."""
    (tmp_path / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", tmp_path / "etc")
    cached = next(
        path
        for line in _cache().splitlines()
        if line.strip().startswith("libc.so.6 (libc6,")
        for path in line.split(" => ")[1:]
        if path.startswith("/lib/")
    )
    copy = tmp_path / "usr" / cached.lstrip("/")
    copy.parent.mkdir(parents=True)
    copy.touch()

    assert {f"/usr{cached}"} == {one.source for one in driver_files(["libc.so.6"], root=tmp_path)}


def _cache() -> str:

    done = completed(["/sbin/ldconfig", "-p"], check=True)
    return done.stdout


async def test_the_kubelet_is_told_of_the_nodes_and_files_of_a_share() -> None:
    async with world() as at:
        declared = evolve(
            at.vendor._vendor,
            container=ContainerEdits(
                device_nodes=("/dev/full", "/dev/of-a-card-that-is-not-here"),
                files=("/bin/sh", "libnone.so"),
            ),
        )
        at.vendor._vendor = declared
        at.agent.node.registry._members[0].vendor = declared
        await until(lambda: at.api.writes)
        answer = (await at.kubelet.admit(at.bind("pod")))["main"]

        assert ["/dev/full"] == [device.host_path for device in answer.devices]
        assert "/bin/sh" in [mount.container_path for mount in answer.mounts]
        assert [] == list(answer.cdi_devices)


DRIVER_ROOT = "/run/nvidia/driver"


def test_a_drivers_container_has_its_files_and_device_nodes_before_the_node(root: Path) -> None:
    """In its root directory libraries are found by its own linker's cache."""
    own = root / DRIVER_ROOT.lstrip("/")
    for path in ("usr/bin/smi", "dev/card-1"):
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).touch()
    shutil.copytree(root / "opt", own / "opt")
    shutil.rmtree(root / "opt")
    (own / "etc").mkdir()
    shutil.copy("/etc/ld.so.cache", own / "etc")
    (libc, _) = driver_files(["libc.so.6"])
    cached = next(
        line.split(" => ")[1]
        for line in _cache().splitlines()
        if line.strip().startswith("libc.so.6 (libc6,")
    )
    (own / cached.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    (own / cached.lstrip("/")).touch()
    edits = evolve(
        EDITS,
        files=(*EDITS.files, "libc.so.6"),
        device_nodes=("/dev/card-1", "/dev/card-control"),
    )

    injection = DriverInjection(root=root, driver_root=DRIVER_ROOT)
    made = injection.into(read(Pod, {"spec": {}}), edits)

    source_by_target = {mount.target: mount.source for mount in made.mounts}
    assert f"{DRIVER_ROOT}/usr/bin/smi" == source_by_target["/usr/bin/smi"]
    assert f"{DRIVER_ROOT}/opt/driver" == source_by_target["/opt/inside"]
    assert f"{DRIVER_ROOT}{cached}" == source_by_target[libc.target]
    assert (
        (f"{DRIVER_ROOT}/dev/card-1", "/dev/card-1"),
        ("/dev/card-control", "/dev/card-control"),
    ) == made.device_node_paths
    first, _ = answered(made).devices
    assert (f"{DRIVER_ROOT}/dev/card-1", "/dev/card-1") == (first.host_path, first.container_path)


def test_where_the_drivers_container_is_not_there_the_nodes_own_files_are_taken(
    root: Path,
) -> None:
    injection = DriverInjection(root=root, driver_root=DRIVER_ROOT)

    assert BY_FILES == injection.into(read(Pod, {"spec": {}}), EDITS)


def test_a_device_node_at_another_path_is_in_a_spec_with_both(tmp_path: Path) -> None:
    edits = Edits(device_nodes=(f"{DRIVER_ROOT}/dev/card-1:/dev/card-1", "/dev/card-control"))
    Specs((tmp_path,)).replace("train", edits)
    document = json.loads(Specs((tmp_path,)).path("train").read_text())

    assert "0.5.0" == document["cdiVersion"]
    assert [
        {"path": "/dev/card-1", "hostPath": f"{DRIVER_ROOT}/dev/card-1"},
        {"path": "/dev/card-control"},
    ] == document["devices"][0]["containerEdits"]["deviceNodes"]
