"""The chart as it is rendered: whole, small in rights, and of one mind with the code."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetero.kube.webhook.rights import POLICIES
from hetero.kube.words.settings import read
from tests.kube.test_pod_request import WORDS
from tests.programs import completed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]  # noqa: E402

HOOKS = "MutatingWebhookConfiguration"
VALUES = yaml.safe_load((ROOT / "deploy/chart/values.yaml").read_text())


def rendered(*, kubernetes: str = render.NEWEST, **values: Any) -> str:
    text: str = render.render(namespace="hetero-system", values=values, kubernetes=kubernetes)
    return text


def chart(*, kubernetes: str = render.NEWEST, **values: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(rendered(kubernetes=kubernetes, **values)))


def of(kind: str, name: str, **values: Any) -> dict[str, Any]:
    (manifest,) = [m for m in chart(**values) if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return manifest


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    plain = (ROOT / "deploy/manifests/hetero.yaml").read_text()

    assert render.render(namespace="hetero-system", values={}, kubernetes="1.34") == plain


def test_what_a_pod_reads_at_its_start_is_applied_before_the_pod() -> None:
    """An agent of an upgrade began with the settings before it, and kept them."""
    made = chart(allocation="both")
    names = [m["metadata"]["name"] for m in made if m["kind"] == "ConfigMap"]
    first = next(place for place, m in enumerate(made) if m["kind"] in ("DaemonSet", "Deployment"))
    after = [m["metadata"]["name"] for m in made[first:] if m["kind"] == "ConfigMap"]

    assert "hetero" in names
    assert [] == after


def test_services_that_share_cards_meet_pods_in_a_directory_of_the_node() -> None:
    def agent(**values: Any) -> Any:
        made = chart(agent=values)
        (spec,) = [m["spec"]["template"]["spec"] for m in made if m["kind"] == "DaemonSet"]
        return spec

    def mounted(pod: Any) -> list[Any]:
        return [m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm"]

    with_it = agent(sharedMemory="/run/hetero-shm")
    env = {e["name"]: e.get("value") for e in with_it["containers"][0]["env"]}
    volumes = {v["name"]: v.get("hostPath") for v in with_it["volumes"]}
    assert "/run/hetero-shm" == env["HETERO_SHM"]
    assert [{"name": "shared-memory", "mountPath": "/dev/shm"}] == mounted(with_it)
    assert "/run/hetero-shm" == volumes["shared-memory"]["path"]
    assert [] == mounted(agent())
    assert "hostIPC" not in with_it


@pytest.mark.parametrize(
    ("kubernetes", "config", "cron", "flushes"),
    [
        ("1.20", "v1beta1", "batch/v1beta1", False),
        ("v1.21.14", "v1beta1", "batch/v1", False),
        ("1.22", "v1beta2", "batch/v1", False),
        ("1.24", "v1beta2", "batch/v1", False),
        ("1.25", "v1", "batch/v1", False),
        ("v1.31.14", "v1", "batch/v1", False),
        ("1.32", "v1", "batch/v1", True),
        ("v1.36.2+k3s1", "v1", "batch/v1", True),
        ("1.40", "v1", "batch/v1", False),  # a flag that is gone would end kube-scheduler
    ],
)
def test_each_kubernetes_gets_the_versions_and_flags_it_knows(
    kubernetes: str, config: str, cron: str, *, flushes: bool
) -> None:
    made = {(m["kind"], m["metadata"]["name"]): m for m in chart(kubernetes=kubernetes)}
    scheduler = yaml.safe_load(made["ConfigMap", "hetero"]["data"]["scheduler.yaml"])

    assert f"kubescheduler.config.k8s.io/{config}" == scheduler["apiVersion"]
    assert cron == made["CronJob", "hetero-certificates"]["apiVersion"]
    spec = made["Deployment", "hetero-scheduler"]["spec"]["template"]["spec"]
    flags = spec["containers"][1]["command"]
    assert flushes == ("--pod-max-in-unschedulable-pods-duration=30s" in flags)


def test_a_former_schedulers_pods_are_ours_before_and_after_they_meet_the_webhook() -> None:
    def served(**values: Any) -> list[str]:
        (config,) = [m for m in chart(**values) if m["kind"] == "ConfigMap" and "data" in m]
        profiles = yaml.safe_load(config["data"]["scheduler.yaml"])["profiles"]
        return [profile["schedulerName"] for profile in profiles]

    (webhook,) = of("Deployment", "hetero-webhook")["spec"]["template"]["spec"]["containers"]

    assert ["hetero-scheduler", "hami-scheduler"] == served()
    assert ["hetero-scheduler"] == served(adoptSchedulerNames=[])
    assert "--adopt-scheduler=hami-scheduler" in webhook["args"]


@pytest.mark.parametrize("kubernetes", ["1.20", "1.24", render.NEWEST])
def test_kube_scheduler_offers_all_nodes_of_a_large_cluster(kubernetes: str) -> None:
    made = {(m["kind"], m["metadata"]["name"]): m for m in chart(kubernetes=kubernetes)}
    config = yaml.safe_load(made["ConfigMap", "hetero"]["data"]["scheduler.yaml"])

    assert 100 == config["percentageOfNodesToScore"]  # left alone it stops at 40 % of a thousand


def test_kube_scheduler_asks_us_about_every_word_and_counts_cards_itself() -> None:
    config = yaml.safe_load(of("ConfigMap", "hetero")["data"]["scheduler.yaml"])
    (extender,) = config["extenders"]
    counted = {
        one["name"] for one in extender["managedResources"] if not one.get("ignoredByScheduler")
    }

    assert set(WORDS.resources) == {one["name"] for one in extender["managedResources"]}
    assert {one.count for vendor in WORDS.vendors for one in vendor.resource_names} == counted


def test_kube_scheduler_counts_parts_where_kubelets_count_them() -> None:
    """Nodes state them for an autoscaler, and a kubelet fails a pod above the sum."""
    made = of("ConfigMap", "hetero", autoscaler=True)
    (extender,) = yaml.safe_load(made["data"]["scheduler.yaml"])["extenders"]
    managed = extender["managedResources"]

    assert not any(one.get("ignoredByScheduler") for one in managed)
    assert set(WORDS.resources) == {one["name"] for one in managed}


def test_every_service_starts_anew_with_new_settings_and_the_agent_reads_them() -> None:
    def marks(**values: Any) -> set[tuple[str, str]]:
        """Return each service with what makes it start anew when it changes."""
        made = [m for m in chart(**values) if m["kind"] in ("Deployment", "DaemonSet")]
        notes = [m["spec"]["template"]["metadata"]["annotations"] for m in made]
        names = [m["metadata"]["name"] for m in made]
        return {(n, a["hetero.io/settings"]) for n, a in zip(names, notes, strict=True)}

    (agent,) = of("DaemonSet", "hetero-agent")["spec"]["template"]["spec"]["containers"]

    words = {"resources": {"cards": ["example.com/card"], "parts": []}}
    assert 3 == len(marks())
    assert set() == marks() & marks(settings="a = 1")
    assert ["hetero-scheduler"] == [name for name, _ in marks(**words) - marks()]
    assert "--config=/etc/hetero-settings/settings.toml" in agent["args"]


def test_the_list_of_vendors_that_may_be_run_reaches_all_three_services() -> None:
    made = {(m["kind"], m["metadata"]["name"]): m for m in chart(settings='vendors.allow = ["a"]')}
    settings_read = read(
        made["ConfigMap", "hetero"]["data"]["settings.toml"], source_name="the ConfigMap"
    )
    services = [
        container
        for (kind, _), one in made.items()
        if kind in ("Deployment", "DaemonSet")
        for container in one["spec"]["template"]["spec"]["containers"]
        if "args" in container
    ]

    assert ("a",) == settings_read.vendors
    assert ["agent", "scheduler", "webhook"] == sorted(one["args"][0] for one in services)
    for container in services:
        assert "--config=/etc/hetero-settings/settings.toml" in container["args"]
        assert "/etc/hetero-settings" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_nobody_reads_or_writes_secrets_but_the_job_that_makes_them() -> None:
    rules = [
        (made["metadata"]["name"], rule)
        for made in chart()
        if made["kind"] in ("Role", "ClusterRole")
        for rule in made["rules"]
    ]

    parts = ("verbs", "resources", "apiGroups", "nonResourceURLs")
    secret = {name for name, rule in rules if "secrets" in rule.get("resources", ())}
    assert {"hetero-certificates"} == secret
    assert [] == [name for name, rule in rules for part in parts if "*" in rule.get(part, ())]


def test_every_policy_has_a_role_and_nobody_has_it() -> None:
    made = chart()
    roles = {
        one["metadata"]["name"]: rule["resourceNames"]
        for one in made
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        if rule["verbs"] == ["use"]
    }
    bound = {one["roleRef"]["name"] for one in made if "roleRef" in one}

    assert {f"hetero-use-{name}": [name] for name in POLICIES} == roles
    assert set() == bound & roles.keys()


def test_callers_of_the_extender_prove_themselves_and_the_webhook_fails_closed() -> None:
    containers = of("Deployment", "hetero-scheduler")["spec"]["template"]["spec"]["containers"]
    hook, _ = of(HOOKS, "hetero")["webhooks"]

    assert "--client-ca=/etc/hetero-tls/ca.crt" in containers[0]["args"]
    assert "Fail" == hook["failurePolicy"]


def test_only_a_status_that_changes_annotations_is_looked_at_where_the_api_can_tell() -> None:
    """Elsewhere one passes unchecked that nobody answers: a kubelet's tells of a pod's end."""

    def of_status(kubernetes: str) -> tuple[int, str]:
        (made,) = [m for m in chart(kubernetes=kubernetes) if m["kind"] == HOOKS]
        _, status = made["webhooks"]
        assert ["pods/status"] == status["rules"][0]["resources"]
        return len(status.get("matchConditions", ())), status["failurePolicy"]

    unchecked, asked = (0, "Ignore"), (1, "Fail")
    assert [unchecked, unchecked, asked] == [of_status(one) for one in ("1.20", "1.29", "1.30")]


def test_certificates_of_ones_own_take_the_place_of_the_job() -> None:
    authority = "-----BEGIN CERTIFICATE-----\n"
    made = chart(certificates={"by": "none"}, webhook={"caBundle": authority})
    (hooks,) = [one["webhooks"] for one in made if one["kind"] == HOOKS]

    assert set() == {one["kind"] for one in made} & {"Job", "CronJob"}
    trusted = [base64.b64decode(hook["clientConfig"]["caBundle"]).decode() for hook in hooks]
    assert [authority, authority] == trusted


def test_cert_manager_signs_for_whom_the_services_are_asked_as() -> None:
    made = chart(certificates={"by": "cert-manager"})
    specs = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "Certificate"}
    issuers = {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "Issuer"}
    volumes = [
        volume["secret"]["secretName"]
        for template in pod_templates(certificates={"by": "cert-manager"})
        for volume in template["spec"].get("volumes", ())
        if "secret" in volume
    ]

    assert {*volumes} - {"hetero-key"} == {*specs} - {"hetero-ca"}
    assert all(name == spec["secretName"] for name, spec in specs.items())
    assert ["hetero-webhook.hetero-system.svc"] == specs["hetero-webhook-tls"]["dnsNames"]
    assert ["localhost"] == specs["hetero-scheduler-tls"]["dnsNames"]
    assert "client auth" in specs["hetero-caller-tls"]["usages"]
    assert {"hetero-self": {"selfSigned": {}}, "hetero": {"ca": {"secretName": "hetero-ca"}}} == (
        issuers
    )
    (hooks,) = [one for one in made if one["kind"] == HOOKS]
    assert {"cert-manager.io/inject-ca-from": "hetero-system/hetero-webhook-tls"} == (
        hooks["metadata"]["annotations"]
    )
    assert all("caBundle" not in hook["clientConfig"] for hook in hooks["webhooks"])


def test_beside_cert_manager_a_job_makes_the_signing_key_and_may_do_nothing_else() -> None:
    made = {
        (one["kind"], one["metadata"]["name"]): one
        for one in chart(certificates={"by": "cert-manager"})
    }
    (job,) = [one for (kind, _), one in made.items() if kind == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    rules = made["Role", "hetero-certificates"]["rules"]
    named = [name for rule in rules for name in rule.get("resourceNames", ())]

    assert "--key-alone" == container["args"][-1]
    assert ["hetero-key", "hetero-keys"] == named
    assert {"hetero-rotate-key"} == {name for kind, name in made if kind == "CronJob"}
    assert ("ClusterRole", "hetero-certificates") not in made


def test_an_authority_is_not_set_where_the_job_writes_its_own() -> None:
    hooks = of(HOOKS, "hetero", webhook={"caBundle": "-----BEGIN CERTIFICATE-----"})["webhooks"]

    assert [False, False] == ["caBundle" in hook["clientConfig"] for hook in hooks]


def test_without_an_authority_certificates_of_ones_own_are_refused_in_a_line(
    tmp_path: Path,
) -> None:
    """The API server would trust no webhook, and no pod would be created."""
    (tmp_path / "own.yaml").write_text("certificates: {by: none}")
    program, values = str(ROOT / "deploy/render.py"), str(tmp_path / "own.yaml")
    command = [sys.executable, program, "--values", values]
    done = completed(command)

    assert (2, "") == (done.returncode, done.stdout)
    assert "certificates.by is none: give webhook.caBundle" in done.stderr.splitlines()[-1]


def test_metrics_are_insecure_by_that_name_alone() -> None:
    flag = "--insecure-metrics"

    assert flag not in rendered()
    assert flag in rendered(metrics="insecure")


def test_one_value_has_hamis_defaults() -> None:
    text = of("ConfigMap", "hetero", compat="hami")["data"]["settings.toml"]
    own = of("ConfigMap", "hetero", settings='device-placement = "binpack"', compat="hami")

    assert read('compat = "hami"', source_name="line") == read(text, source_name="chart")
    assert "binpack" == read(own["data"]["settings.toml"], source_name="own").device_placement
    assert read("", source_name="none") == read(
        of("ConfigMap", "hetero")["data"]["settings.toml"], source_name="chart"
    )


PODS = {"DaemonSet", "Deployment", "Job", "CronJob"}


def pod_templates(**values: Any) -> list[dict[str, Any]]:
    made = [manifest["spec"] for manifest in chart(**values) if manifest["kind"] in PODS]
    return [spec.get("jobTemplate", {}).get("spec", spec)["template"] for spec in made]


def test_every_pod_may_pull_by_the_secrets_that_are_named() -> None:
    templates = pod_templates(imagePullSecrets=["pull", "other"])

    assert 5 <= len(templates)
    for template in templates:
        assert [{"name": "pull"}, {"name": "other"}] == template["spec"]["imagePullSecrets"]
    assert all("imagePullSecrets" not in template["spec"] for template in pod_templates())


def test_pods_have_the_further_labels_and_annotations() -> None:
    for kind, name in (
        ("DaemonSet", "hetero-agent"),
        ("Deployment", "hetero-scheduler"),
        ("Deployment", "hetero-webhook"),
    ):
        made = of(kind, name, podLabels={"team": "ai"}, podAnnotations={"note": "x"})
        metadata = made["spec"]["template"]["metadata"]
        assert {"app": name, "team": "ai"} == metadata["labels"]
        assert "x" == metadata["annotations"]["note"]


def images(**values: Any) -> set[str]:
    """Return the images of all containers of the chart."""
    specs = [template["spec"] for template in pod_templates(**values)]
    return {container["image"] for spec in specs for container in spec["containers"]}


def test_one_registry_takes_the_place_of_that_of_every_image() -> None:
    scheduler = "kube-scheduler:v1.36.0"
    own = {"image": "registry.example.com/team/hetero:1"}

    assert {"hetero:0.1.0", f"registry.k8s.io/{scheduler}"} == images()
    assert {"mirror:5000/hetero:0.1.0", f"mirror:5000/{scheduler}"} == images(
        imageRegistry="mirror:5000"
    )
    assert {"mirror/a/team/hetero:1", f"mirror/a/{scheduler}"} == images(
        imageRegistry="mirror/a", **own
    )


@pytest.mark.parametrize(
    ("image", "version", "taken"),
    [
        ("a.example:5000/kube-scheduler", "v1.30.2+k3s1", ":v1.30.2"),
        ("a.example/kube-scheduler", "1.28", ":v1.28.0"),
        ("kube-scheduler", "v1.27.9-gke.100", ":v1.27.9"),
        ("a.example:5000/b/kube-scheduler:v1.27.5", "v1.30.2", ""),
        ("kube-scheduler@sha256:ab", "v1.30.2", ""),
    ],
)
def test_kube_scheduler_has_the_clusters_version_where_its_image_names_none(
    image: str, version: str, taken: str
) -> None:
    assert {"hetero:0.1.0", f"{image}{taken}"} == images(
        kubernetes=version, kubeScheduler={"image": image}
    )


def test_services_take_further_arguments_as_their_last() -> None:
    values = {name: {"extraArgs": [f"--of-{name}"]} for name in ("agent", "scheduler", "webhook")}
    arguments_by_container = {
        container["name"]: container.get("args", [])
        for template in pod_templates(**values)
        for container in template["spec"]["containers"]
    }

    for container, name in (("agent", "agent"), ("extender", "scheduler"), ("webhook", "webhook")):
        assert f"--of-{name}" == arguments_by_container[container][-1]


def test_the_webhooks_service_has_the_labels_and_annotations_of_the_values() -> None:
    values = {"serviceLabels": {"team": "ai"}, "serviceAnnotations": {"note": "x"}}
    made = of("Service", "hetero-webhook", webhook=values)["metadata"]

    assert ({"team": "ai"}, {"note": "x"}) == (made["labels"], made["annotations"])
    assert {"name", "namespace"} == of("Service", "hetero-webhook")["metadata"].keys()


def test_services_log_and_take_further_environment_as_the_values_say() -> None:
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy"}]
    values = {"scheduler": {"env": env}, "webhook": {"env": env}, "agent": {"env": env}}
    made = {
        container["name"]: container.get("env", [])
        for template in pod_templates(logLevel="debug", **values)
        for container in template["spec"]["containers"]
    }

    for name in ("agent", "extender", "webhook"):
        assert {"name": "HETERO_LOG_LEVEL", "value": "debug"} in made[name], name
        assert env[0] in made[name], name


def test_kube_scheduler_takes_further_arguments() -> None:
    made = of("Deployment", "hetero-scheduler", kubeScheduler={"extraArgs": ["-v=4"]})
    arguments_by_name = {
        container["name"]: container["command"]
        for container in made["spec"]["template"]["spec"]["containers"]
    }

    assert "-v=4" == arguments_by_name["kube-scheduler"][-1]


def test_priority_classes_are_those_of_the_values() -> None:
    values = {"priorityClassName": "high", "agent": {"priorityClassName": "node"}}
    classes = [template["spec"]["priorityClassName"] for template in pod_templates(**values)]

    assert {"high", "node"} == {*classes}
    assert 1 == classes.count("node")


def test_a_runtime_class_is_made_by_the_name_of_its_handler(tmp_path: Path) -> None:
    made = of(
        "RuntimeClass", "nvidia", agent={"runtimeClassName": "nvidia", "createRuntimeClass": True}
    )
    (tmp_path / "own.yaml").write_text("agent: {createRuntimeClass: true}")
    program = str(ROOT / "deploy/render.py")
    done = completed([sys.executable, program, "--values", str(tmp_path / "own.yaml")])

    assert "nvidia" == made["handler"]
    assert 2 == done.returncode
    assert "agent.createRuntimeClass needs agent.runtimeClassName" in done.stderr


def test_the_agent_sees_the_root_directory_of_a_drivers_container_that_begins_later() -> None:
    spec = of("DaemonSet", "hetero-agent", agent={"driverRoot": "/run/nvidia/driver"})["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "driver-root"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "driver-root"]

    assert "--driver-root=/run/nvidia/driver" in container["args"]
    assert ("/host/run/nvidia/driver", "HostToContainer", True) == (
        mount["mountPath"],
        mount["mountPropagation"],
        mount["readOnly"],
    )
    assert "/run/nvidia/driver" == volume["hostPath"]["path"]
    assert "driver-root" not in str(of("DaemonSet", "hetero-agent"))


def test_the_webhook_may_be_asked_by_a_url() -> None:
    url = "https://10.0.0.1:8444/admit"
    for hook in of(HOOKS, "hetero", webhook={"url": url})["webhooks"]:
        assert {"url": url} == hook["clientConfig"]


def test_the_agents_update_as_the_values_say() -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3}}
    agent = of("DaemonSet", "hetero-agent", agent={"updateStrategy": strategy})

    assert strategy == agent["spec"]["updateStrategy"]
    assert "updateStrategy" not in of("DaemonSet", "hetero-agent")["spec"]


def test_who_is_asked_about_meets_the_selectors_of_the_values() -> None:
    """The webhook, and the policy that refuses what the webhook has not seen."""
    stage = {"key": "stage", "operator": "In", "values": ["test"]}
    enabled = {"matchExpressions": [{"key": "enable", "operator": "Exists"}]}
    values = {
        "namespaceSelector": {"matchLabels": {"team": "ai"}, "matchExpressions": [stage]},
        "objectSelector": enabled,
    }
    hooks = of(HOOKS, "hetero", webhook=values)["webhooks"]
    policy = of("ValidatingAdmissionPolicy", "hetero-unseen-pods", webhook=values)
    plain = of(HOOKS, "hetero")["webhooks"]

    for asked in (*hooks, policy["spec"]["matchConstraints"]):
        assert {"team": "ai"} == asked["namespaceSelector"]["matchLabels"]
        assert stage == asked["namespaceSelector"]["matchExpressions"][0]
        assert enabled == asked["objectSelector"]
    for asked, own in zip(plain, hooks, strict=True):
        expressions = own["namespaceSelector"]["matchExpressions"]
        assert expressions[1:] == asked["namespaceSelector"]["matchExpressions"]
        assert "objectSelector" not in asked


def test_pods_of_the_default_scheduler_are_left_alone_by_one_value() -> None:
    left = {"takeDefaultScheduler": False}
    settings = of("ConfigMap", "hetero", webhook=left)["data"]["settings.toml"]
    policy = of("ValidatingAdmissionPolicy", "hetero-unseen-pods", webhook=left)

    assert not read(settings, source_name="chart").take_default_scheduler
    assert "default-scheduler" not in str(policy["spec"]["matchConditions"])
    assert "default-scheduler" in str(
        of("ValidatingAdmissionPolicy", "hetero-unseen-pods")["spec"]["matchConditions"]
    )


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())

    def names(part: Any, where: str = "") -> set[str]:
        paths = {f"{where}{name}" for name in part}
        nested = [names(v, f"{where}{n}.") for n, v in part.items() if isinstance(v, dict) and v]
        return paths.union(*nested)

    def declared(part: Any, where: str = "") -> set[str]:
        inner = part.get("properties", {})
        nested = [declared(v, f"{where}{n}.") for n, v in inner.items()]
        return {f"{where}{name}" for name in inner}.union(*nested)

    assert names(VALUES) == declared(schema)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("wrong", [{"webhook": {"failurePolicy": "Ignore"}}])
def test_values_over_the_charts_own_are_taken(wrong: dict[str, Any]) -> None:
    text = render.render(namespace="elsewhere", values=wrong)

    assert "failurePolicy: Ignore" in text
    assert "namespace: hetero-system" not in text


def test_claims_alone_need_no_scheduler() -> None:
    """The webhook says by claims what pods ask for by resource names."""
    made = chart(allocation="dra")
    names = {one["metadata"]["name"] for one in made if one["kind"] != "DeviceClass"}

    assert {"hetero-agent", "hetero-claims", "hetero-slices", "hetero-templates"} < names
    assert not any("scheduler" in name or "mix" in name for name in names)
    (webhook,) = [one for one in made if one["kind"] == "Deployment"]
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert "--allocation=dra" in container["args"]
    (agent,) = [one for one in made if one["kind"] == "DaemonSet"]
    spec = agent["spec"]["template"]["spec"]
    assert "--allocation=dra" in spec["containers"][0]["args"]
    paths = {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    plugins = "/var/lib/kubelet/plugins"
    assert {f"{plugins}/hetero.io", f"{plugins}_registry", "/var/run/cdi"} < paths
    assert "/etc/hetero-key" not in paths


def policies(**values: Any) -> set[str]:
    """Return the names of the policies that are in force."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    names = [
        {m["metadata"]["name"] for m in chart(**values) if m["kind"] == kind} for kind in kinds
    ]
    assert names[0] == names[1]
    return names[0]


def test_pods_that_the_webhook_did_not_see_are_refused_where_nodes_offer_cards() -> None:
    """By claims alone they offer none. A policy is of Kubernetes 1.30."""
    assert set() == policies(kubernetes="1.29")
    assert {"hetero-unseen-pods"} == policies(kubernetes="1.30")
    assert "hetero-unseen-pods" in policies(allocation="both")
    assert "hetero-unseen-pods" not in policies(allocation="dra")


def test_a_namespace_that_the_webhook_leaves_alone_by_its_label_has_no_pods_refused() -> None:
    (hook, *_) = of(HOOKS, "hetero")["webhooks"]
    policy = of("ValidatingAdmissionPolicy", "hetero-unseen-pods")["spec"]
    selected = policy["matchConstraints"]["namespaceSelector"]["matchExpressions"]

    by_label = [
        one
        for one in hook["namespaceSelector"]["matchExpressions"]
        if one["key"] != "kubernetes.io/metadata.name"
    ]
    assert by_label == selected


def test_without_claims_the_chart_asks_for_nothing_of_theirs() -> None:
    assert "resource.k8s.io" not in rendered()
    assert "DeviceClass" not in {one["kind"] for one in chart()}
    assert {"hetero-unseen-pods"} == policies()


@pytest.mark.parametrize(("allocation", "extended"), [("dra", True), ("both", False)])
def test_each_resource_that_counts_cards_has_a_class(allocation: str, *, extended: bool) -> None:
    """With both ways resources are the extender's: a class serves them where there is none."""
    classes = {
        one["metadata"]["name"]: one["spec"].get("extendedResourceName")
        for one in chart(allocation=allocation)
        if one["kind"] == "DeviceClass"
    }
    cards = VALUES["resources"]["cards"]
    named = {name.replace("/", "-").lower(): name if extended else None for name in cards}

    assert {"hetero": None, **named} == classes


def test_a_cluster_that_knows_no_claims_gets_none_of_their_objects() -> None:
    kinds = {one["kind"] for one in chart(kubernetes="1.33", allocation="both")}

    assert {"DaemonSet", "Deployment"} < kinds
    assert "DeviceClass" not in kinds
    assert {"hetero-unseen-pods"} == policies(kubernetes="1.33", allocation="both")


def test_the_agent_has_three_capabilities_and_sees_what_it_is_given_of_its_node() -> None:
    def agent(**values: Any) -> tuple[dict[str, Any], dict[str, str]]:
        (made,) = [m for m in chart(agent=values) if m["kind"] == "DaemonSet"]
        spec = made["spec"]["template"]["spec"]
        paths = {
            one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one
        }
        mounts = spec["containers"][0]["volumeMounts"]
        assert all(one.get("readOnly") for one in mounts if one["mountPath"].startswith("/host"))
        return spec, {one["mountPath"]: paths.get(one["name"], "") for one in mounts}

    spec, mounts = agent()
    held = spec["containers"][0]["securityContext"]
    assert {"drop": ["ALL"], "add": ["KILL", "SYS_PTRACE", "DAC_READ_SEARCH"]} == held[
        "capabilities"
    ]
    assert not held["allowPrivilegeEscalation"]
    assert "privileged" not in held
    assert "/" not in mounts.values()
    assert "runtimeClassName" not in spec
    assert "/usr" == mounts["/host/usr"]

    spec, mounts = agent(driverDirectories=["/opt/My.Driver"], driverFiles=[], privileged=True)
    assert {"/opt/My.Driver"} == {path for at, path in mounts.items() if at.startswith("/host")}
    assert {"privileged": True} == spec["containers"][0]["securityContext"]
    assert "nvidia" == agent(runtimeClassName="nvidia")[0]["runtimeClassName"]


def test_the_webhook_answers_whom_the_values_let_in() -> None:
    def made(**webhook: Any) -> tuple[list[str], list[dict[str, Any]]]:
        manifests = chart(webhook=webhook)
        (deployment,) = [
            m
            for m in manifests
            if (m["kind"], m["metadata"]["name"]) == ("Deployment", "hetero-webhook")
        ]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return container["args"], [m for m in manifests if m["kind"] == "NetworkPolicy"]

    args, policies = made()
    assert ([], []) == (policies, [one for one in args if one.startswith("--client")])
    peers = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    args, (policy,) = made(clientCA="authority", clientNames=["apiserver"], allowFrom=peers)
    assert {"--client-ca=/etc/hetero-clients/ca.crt", "--client-name=apiserver"} < set(args)
    assert [{"from": peers}] == policy["spec"]["ingress"]
    assert {"--allow-namespace=kube-system"} == {one for one in args if "allow" in one}
    args, _ = made(allowedNetworks=["10.0.0.1/32"], allowedNamespaces=[], open=True)
    assert {"--allow-network=10.0.0.1/32", "--open"} == {
        one for one in args if "allow" in one or "open" in one
    }


def test_pods_of_the_runtime_class_that_brings_cards_to_agents_are_told_of_none() -> None:
    """Else their images would name all cards to it, whose user asked for none."""
    made = of("Deployment", "hetero-webhook", agent={"runtimeClassName": "ascend"})
    (container,) = made["spec"]["template"]["spec"]["containers"]

    assert "--vendor-runtime=ascend" in container["args"]
