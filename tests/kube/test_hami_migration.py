from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler.hami_migration import given


def test_devices_belong_to_containers_by_their_order_whether_or_not_init_containers_count() -> None:
    spec = {"initContainers": [{"name": "first"}], "containers": [{"name": "a"}, {"name": "b"}]}

    def owners(text: str) -> dict[str, tuple[str, ...]]:
        notes = {"hami.io/vgpu-devices-allocated": text, "hami.io/vgpu-devices-to-allocate": ";"}
        return given(read(Pod, {"metadata": {"annotations": notes}, "spec": spec}))

    two = "GPU-1,NVIDIA,2000,20:GPU-2,NVIDIA,2000,20:"
    assert {"a": ("GPU-1", "GPU-2")} == owners(f";{two};;")
    assert {"b": ("GPU-1", "GPU-2")} == owners(f";{two};")
    assert {"first": ("GPU-3",), "a": ("GPU-1", "GPU-2")} == owners(f"GPU-3,NVIDIA,1,1:;{two};;")
    assert {} == owners("nonsense")
