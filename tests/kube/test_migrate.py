"""HAMi's values, device configuration and node configuration become hetero's, leaf by leaf."""

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hetero.kube.migrate.hami import Migration, leaf_paths, migrate
from hetero.kube.words.settings import Settings, read
from hetero.model import Ask, Policy
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from tests.kube.test_chart import ROOT, rendered
from tests.kube.test_pod_request import VENDORS, asked
from tests.programs import completed

LEAVES = [
    line
    for line in (ROOT / "tests/kube/data/hami-2.10.0-values.txt").read_text().splitlines()
    if not line.startswith("#")
]
SCHEMA = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())


def ending(ends: str, value: Any) -> dict[str, Any]:
    """Return a value for each leaf with such an end."""
    return {leaf: value for leaf in LEAVES if leaf.endswith(ends)}


#: Values of leaves that are no names; any other is a text here.
SAMPLES: dict[str, Any] = {
    **ending(".resources", {}),
    **ending("Annotations", {}),
    **ending("olerations", [{"key": "gpu"}]),
    **ending("pullSecrets", ["pull"]),
    **ending("pullPolicy", "Always"),
    "global.imagePullSecrets": ["pull", "other"],
    "global.labels": {"team": "ai"},
    "global.annotations": {"note": "x"},
    "global.imageRegistry": "mirror:5000",
    "scheduler.service.labels": {"team": "ai"},
    "scheduler.service.annotations": {"note": "x"},
    "global.managedNodeSelectorEnable": True,
    "podSecurityPolicy.enabled": True,
    "scheduler.certManager.enabled": True,
    "scheduler.overwriteEnv": "true",
    "scheduler.replicas": 2,
    "scheduler.forceOverwriteDefaultScheduler": False,
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": "binpack",
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": "spread",
    "scheduler.admissionWebhook.whitelistNamespaces": ["istio-system"],
    "scheduler.admissionWebhook.namespaceSelector.matchLabels": {"team": "ai"},
    "scheduler.admissionWebhook.namespaceSelector.matchExpressions": [
        {"key": "stage", "operator": "In", "values": ["test"]}
    ],
    "scheduler.admissionWebhook.objectSelector.matchExpressions": [
        {"key": "hami.io/enable", "operator": "Exists"}
    ],
    "scheduler.admissionWebhook.failurePolicy": "Ignore",
    "devicePlugin.createRuntimeClass": True,
    "scheduler.kubeScheduler.extraNewArgs": ["--config=/config/config.yaml", "-v=4"],
    "devicePlugin.deviceSplitCount": 4,
    "devicePlugin.deviceMemoryScaling": 0.5,
    "devicePlugin.deviceCoreScaling": 1,
    "devicePlugin.preConfiguredDeviceMemory": 131072,
    "devicePlugin.nodeConfiguration.config": json.dumps(
        {"nodeconfig": [{"name": "n1", "devicesplitcount": 2}, {"name": "your-node-name"}]}
    ),
    "devicePlugin.migStrategy": "mixed",
    "devicePlugin.nvidiaDriverRoot": "/run/nvidia/driver/",
    "devicePlugin.disablecorelimit": "false",
    "devicePlugin.deviceListStrategy": "cdi-cri",
    "devicePlugin.pluginPath": "/data/kubelet/device-plugins",
    "devicePlugin.updateStrategy.rollingUpdate.maxUnavailable": 1,
    "devicePlugin.updateStrategy.type": "RollingUpdate",
    "devices.nvidia.gpuCorePolicy": "force",
    "devices.nvidia.libCudaLogLevel": 1,
    "device-config.content": "nvidia: {defaultMemory: 5000, defaultGPUNum: 0}",
}


def nested(value_by_leaf: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for leaf, value in value_by_leaf.items():
        *way, last = leaf.split(".")
        at = document
        for key in way:
            at = at.setdefault(key, {})
        at[last] = value
    return document


def migrated(tmp_path: Path, values: Any, *configs: Any) -> Migration:
    paths = []
    for number, document in enumerate((values, *configs)):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return migrate(paths[0], paths[1:])


def settings_of(made: Migration) -> Settings:
    """Return the settings that the services of a cluster with these values read."""
    values = yaml.safe_load(made.text)
    jsonschema.Draft7Validator(SCHEMA).validate(values)
    manifests = yaml.safe_load_all(rendered(**values))
    (text,) = [
        manifest["data"]["settings.toml"]
        for manifest in manifests
        if (manifest["kind"], manifest["metadata"]["name"]) == ("ConfigMap", "hetero")
    ]
    return read(text, source_name="chart")


def test_each_of_hamis_leaves_is_in_the_values_or_in_a_sentence(tmp_path: Path) -> None:
    made = migrated(
        tmp_path, nested({leaf: SAMPLES.get(leaf, "example.com/word") for leaf in LEAVES})
    )
    named = [*made.written, *made.silent, *(name for name, _ in made.sentences)]
    beginnings = {
        leaf: [name for name in named if name == leaf or name.startswith(f"{leaf}.")]
        for leaf in LEAVES
    }

    assert 196 == len(LEAVES)
    assert {} == {leaf: found for leaf, found in beginnings.items() if len(found) != 1}
    unknown = [name for name, sentence in made.sentences if "no such value" in sentence]
    assert [] == unknown
    assert all(sentence for _, sentence in made.sentences)
    first_line = made.text.partition("\n")[0]
    assert f"{len(made.written)} are in these values" in first_line
    settings_of(made)


def test_the_table_has_no_leaf_that_hami_has_not() -> None:
    free = ("scheduler.admissionWebhook.objectSelector.matchLabels",)  # a comment in HAMi's
    for path in leaf_paths("values"):
        fixed = path.removesuffix(".*")
        assert fixed in free or any(
            leaf == fixed or leaf.startswith(f"{fixed}.") for leaf in LEAVES
        ), path


def test_what_hami_says_of_a_cluster_is_said_by_hetero(tmp_path: Path) -> None:
    values = nested(
        {
            "schedulerName": "my-scheduler",
            "resourceName": "example.com/card",
            "scheduler.overwriteEnv": "true",
            "scheduler.nodeName": "control",
            "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": "binpack",
            "devicePlugin.deviceSplitCount": 5,
            "devicePlugin.deviceMemoryScaling": 1.5,
            "devicePlugin.runtimeClassName": "nvidia",
            "scheduler.kubeScheduler.extraNewArgs": ["--config=/config/config.yaml", "-v=4"],
            "devicePlugin.nvidiaNodeSelector": {"pool": "a"},
            "devicePlugin.pluginPath": "/data/kubelet/device-plugins",
            "devicePlugin.resources": {"limits": {"memory": "1Gi"}},
            "devices.nvidia.gpuCorePolicy": "force",
            "devices.nvidia.libCudaLogLevel": 0,
            "scheduler.admissionWebhook.whitelistNamespaces": ["istio-system"],
            "scheduler.kubeScheduler.image": {
                "registry": "registry.example.com",
                "repository": "k8s/kube-scheduler",
                "tag": "v1.30.1",
            },
        }
    )
    made = migrated(tmp_path, values)
    chart, cluster = made.values, settings_of(made)

    assert ("hami", ["my-scheduler"]) == (chart["compat"], chart["adoptSchedulerNames"])
    assert {"kubernetes.io/hostname": "control"} == chart["scheduler"]["nodeSelector"]
    assert "registry.example.com/k8s/kube-scheduler:v1.30.1" == chart["kubeScheduler"]["image"]
    assert ["kube-node-lease", "kube-public", "istio-system"] == chart["webhook"][
        "ignoredNamespaces"
    ]
    agent = chart["agent"]
    assert {"pool": "a"} == agent["nodeSelector"]
    assert ("/data/kubelet", {"limits": {"memory": "1Gi"}}) == (
        agent["kubelet"],
        agent["resources"],
    )
    assert "example.com/card" in chart["resources"]["cards"]
    assert "nvidia.com/gpu" not in chart["resources"]["cards"]
    assert (True, "binpack", "binpack") == (
        cluster.hide_unasked,
        cluster.node_placement,
        cluster.device_placement,
    )
    assert (Policy.FIXED, "off") == (cluster.defaults.policy, cluster.limiter_log)
    assert {"nvidia": "nvidia"} == cluster.runtime_classes
    assert ("nvidia", ["-v=4"]) == (agent["runtimeClassName"], chart["kubeScheduler"]["extraArgs"])
    node = cluster.of_node("any")
    assert (5, "1.5") == (node.max_sharers, str(node.memory_scale))
    assert 1 == asked({"example.com/card": "1"}, cluster.vocabulary(VENDORS)).count


def test_of_values_that_say_nothing_hamis_defaults_are_left(tmp_path: Path) -> None:
    made = migrated(tmp_path, "")

    assert {"compat": "hami", "agent": {"nodeSelector": {"gpu": "on"}}} == made.values
    assert "# 0 leaves of HAMi's" in made.text


DEVICE_CONFIG = {
    "nvidia": {
        "resourceCountName": "nvidia.com/gpu",
        "defaultMemory": 5000,
        "defaultCores": 0,
        "defaultGPUNum": 0,
        "memoryFactor": 1024,
        "migProfileAllowlist": [{"models": ["A30"], "profiles": ["1g.6gb"]}],
    },
    "iluvatars": [
        {"chipName": "BI-V150", "commonWord": "BI-V150", "resourceMemoryName": "example.com/mem"}
    ],
    "vnpus": {
        "hamiVnpuCore": False,
        "configs": [
            {
                "chipName": "910B3",
                "commonWord": "Ascend910B3",
                "resourceName": "huawei.com/Ascend910B3",
                "memoryFactor": 2,
                "runtimeClassName": "ascend",
                "templates": [{"name": "vir05_1c_16g", "memory": 16384, "aiCore": 5}],
            }
        ],
    },
    "kunlun": {"resourceCountName": "kunlunxin.com/xpu"},
}


def config_map(name: str, text: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {name: text, "other": "x"}}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_device_configuration_is_read_from_a_file_or_its_config_map(
    tmp_path: Path, *, wrapped: bool
) -> None:
    document: dict[str, Any] = DEVICE_CONFIG
    if wrapped:
        document = config_map("device-config.yaml", yaml.safe_dump(DEVICE_CONFIG))
    made = migrated(tmp_path, "", document)
    cluster = settings_of(made)
    vocabulary = cluster.vocabulary(VENDORS)

    assert (0, 5000) == (cluster.defaults.count, (cluster.defaults.memory or 0) >> 20)
    assert {"nvidia.com/gpumem": 1024, "huawei.com/Ascend910B3-memory": 2} == cluster.memory_factors
    assert {"iluvatar.ai/BI-V150.vMem": "example.com/mem"} == cluster.resources
    assert {"ascend": "ascend"} == cluster.runtime_classes
    parsed = asked({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4"}, vocabulary)
    assert (Ask(memory=4 * GiB),) == parsed.request.asks
    sentence_by_name = dict(made.sentences)
    assert "makes no instances" in sentence_by_name["device-config nvidia.migProfileAllowlist"]
    assert "no vendor" in sentence_by_name["device-config kunlun.resourceCountName"]
    assert "own table" in sentence_by_name["device-config vnpus.configs.0.templates"]


def test_a_node_configuration_is_settings_of_nodes(tmp_path: Path) -> None:
    node = {
        "name": "gpu-1",
        "operatingmode": "mps",
        "devicememoryscaling": 1.8,
        "devicesplitcount": 3,
        "preconfigureddevicememory": 1024,
        "migstrategy": "none",
        "filterdevices": {"uuid": ["GPU-1"], "index": [2]},
        "enablenumatopology": True,
    }
    mig = {"name": "gpu-2", "operatingmode": "mig"}
    text = json.dumps({"nodeconfig": [node, mig]})

    for config in (text, config_map("config.json", text)):
        made = migrated(tmp_path, "", config)
        cluster = settings_of(made).of_node("gpu-1")
        assert (3, "1.8", GiB) == (
            cluster.max_sharers,
            str(cluster.memory_scale),
            cluster.card_memory,
        )
        assert ("GPU-1", "nvidia:2") == cluster.exclude
        assert "mps" == cluster.sharing["*"].value
        assert "none" == cluster.partitioned.value
        assert "hetero makes none" in dict(made.sentences)["node-config gpu-2 operatingmode"]


FILES = ROOT / "tests/kube/data/hami-values"


def of_issue(name: str) -> tuple[Migration, Settings]:
    made = migrate(FILES / f"{name}.yaml", ())
    return made, settings_of(made)


def test_a_factor_of_all_nodes_and_that_of_a_node() -> None:
    _, cluster = of_issue("hami-705")

    assert ["1.8", "2"] == [
        str(cluster.of_node(name).memory_scale) for name in ("online-02", "any")
    ]


def test_a_value_that_hami_has_no_more_is_in_a_sentence() -> None:
    made, cluster = of_issue("vgpu-scheduler-35")

    assert 5 == cluster.of_node("any").max_sharers
    assert "nvidia.com/gpu" == made.values["agent"]["tolerations"][0]["key"]
    assert [("scheduler.kubeScheduler.imageTag", "HAMi 2.10.0 has no such value")] == [
        *made.sentences
    ]
    assert ("resourceName", "resourceMem") == made.silent


def test_two_pods_on_a_card_are_two_pods_on_a_card() -> None:
    _, cluster = of_issue("hami-811")

    assert 2 == cluster.of_node("any").max_sharers


def test_what_pods_ask_of_nodes_is_asked_here_too() -> None:
    made, _ = of_issue("hami-738")

    assert "registry.example.com/kube-scheduler:v1.27.5" == made.values["kubeScheduler"]["image"]
    assert {"cpu": "100m", "memory": "100Mi"} == made.values["scheduler"]["resources"]["requests"]
    assert {"memory": "500Mi"} == made.values["agent"]["resources"]["limits"]
    assert ["devicePlugin.monitor.resources.limits.memory"] == [name for name, _ in made.sentences]


def test_a_repository_without_a_tag_has_the_clusters_version(tmp_path: Path) -> None:
    image = {"registry": "registry.example.com", "repository": "k8s/kube-scheduler", "tag": ""}
    made = migrated(tmp_path, nested({"scheduler.kubeScheduler.image": image}))

    assert "registry.example.com/k8s/kube-scheduler" == made.values["kubeScheduler"]["image"]
    (container,) = (
        container
        for manifest in yaml.safe_load_all(rendered(**yaml.safe_load(made.text)))
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Deployment", "hetero-scheduler")
        for container in manifest["spec"]["template"]["spec"]["containers"]
        if container["name"] == "kube-scheduler-files"
    )
    assert "registry.example.com/k8s/kube-scheduler:v1.36.0" == container["image"]


def test_a_url_of_the_webhook_is_written_where_it_is_switched_on(tmp_path: Path) -> None:
    name = "scheduler.admissionWebhook.customURL"
    url = {"enabled": True, "host": "hooks.example.com", "port": 31998, "path": "/webhook"}
    made = migrated(tmp_path, nested({name: url}))
    idle = migrated(tmp_path, nested({name: {**url, "enabled": False}}))
    hostless = migrated(tmp_path, nested({name: {"enabled": True, "port": 31998}}))

    assert "https://hooks.example.com:31998/admit" == made.values["webhook"]["url"]
    assert [f"{name}.path"] == [leaf for leaf, _ in made.sentences]
    assert "webhook" not in idle.values
    assert {f"{name}.enabled", f"{name}.port"} == {leaf for leaf, _ in hostless.sentences}


def test_nodes_are_chosen_by_their_own_label_and_have_a_runtime_class() -> None:
    made, cluster = of_issue("hami-2280")

    assert {"accelerator": "nvidia"} == made.values["agent"]["nodeSelector"]
    assert ("nvidia", {"nvidia": "nvidia"}) == (
        made.values["agent"]["runtimeClassName"],
        cluster.runtime_classes,
    )


@pytest.mark.parametrize(
    ("leaf", "value", "sentence"),
    [
        ("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy", "numa,binpack", "other words are"),
        ("devices.nvidia.libCudaLogLevel", 9, "it is 0 to 4"),
        ("devices.nvidia.gpuCorePolicy", "most", "it is default, force or disable"),
        ("devicePlugin.pluginPath", "/plugins", "above the kubelet's device-plugins"),
        ("scheduler.overwriteEnv", "perhaps", "neither true nor false"),
        ("scheduler.nodeLockTimeout", "5m", "HAMi 2.10.0 has no such value"),
        ("scheduler.tolerations", "all", "'all' is no list"),
    ],
)
def test_a_value_without_a_counterpart_is_in_a_sentence(
    tmp_path: Path, leaf: str, value: Any, sentence: str
) -> None:
    made = migrated(tmp_path, nested({leaf: value}))

    assert [leaf] == [name for name, _ in made.sentences]
    assert sentence in made.sentences[0][1]
    assert f"# {leaf}: {made.sentences[0][1]}" in made.text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- a\n- b\n", "is no table of values: give HAMi's file as it is"),
        ("a: [", "0.yaml: while parsing"),
        ("devicePlugin: {deviceMemoryScaling: 500}", "scale.memory 500 is not a number"),
        ("device-config: {content: '- a'}", "device-config.content: is no table of values"),
    ],
)
def test_what_is_no_configuration_is_one_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as raised:
        migrated(tmp_path, text)

    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_prints_values_and_exits_2_for_a_file_that_is_not_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "values.yaml").write_text("schedulerName: hami-scheduler\n")
    command = [sys.executable, "-m", "hetero.cli", "migrate", "hami"]
    done = completed([*command, str(tmp_path / "values.yaml")])
    absent = completed([*command, str(tmp_path / "absent.yaml")])

    assert 0 == done.returncode, done.stderr
    assert ["hami-scheduler"] == yaml.safe_load(done.stdout)["adoptSchedulerNames"]
    assert 2 == absent.returncode
    assert absent.stderr.endswith("absent.yaml: No such file or directory\n")
