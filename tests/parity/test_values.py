"""Values of the chart and flags of its services that HAMi's admins look for."""

import json
import os
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from hetero.kube.words.signing import SigningKey
from tests.kube.control_plane import free_port
from tests.kube.test_chart import ROOT, chart, of
from tests.programs import completed

SCHEMA = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())


def test_resources_that_values_name_are_asked_about() -> None:
    names = {"cards": ["example.com/card"], "parts": ["example.com/memory"]}
    data = of("ConfigMap", "hetero", resources=names)["data"]
    (extender,) = yaml.safe_load(data["scheduler.yaml"])["extenders"]

    assert [("example.com/card", None), ("example.com/memory", True)] == [
        (one["name"], one.get("ignoredByScheduler")) for one in extender["managedResources"]
    ]


@pytest.mark.parametrize("driver", ["files", "envvar", "volume-mounts", "cdi-cri"])
def test_the_way_to_hand_cards_over_is_a_value_and_another_word_is_refused(driver: str) -> None:
    (agent,) = of("DaemonSet", "hetero-agent", agent={"driver": driver})["spec"]["template"][
        "spec"
    ]["containers"]
    schema = jsonschema.Draft7Validator(SCHEMA)

    assert f"--driver={driver}" in agent["args"]
    assert schema.is_valid({"agent": {"driver": driver}})
    assert not schema.is_valid({"agent": {"driver": "nvidia"}})
    assert not schema.is_valid({"agent": {"drivers": driver}})


def test_a_drain_leaves_a_replica_of_scheduler_and_webhook() -> None:
    budgets = {
        one["metadata"]["name"]: one["spec"]["maxUnavailable"]
        for one in chart(replicas=3, webhook={"replicas": 3})
        if one["kind"] == "PodDisruptionBudget"
    }

    assert {"hetero-scheduler": 1, "hetero-webhook": 1} == budgets
    assert 3 == of("Deployment", "hetero-scheduler", replicas=3)["spec"]["replicas"]


def started(tmp_path: Path, *arguments: str) -> str:
    """Return what a scheduler says that cannot start."""
    command = [sys.executable, "-m", "hetero.cli", "scheduler", f"--port={free_port()}"]
    (tmp_path / "key.pem").write_bytes(SigningKey.new().text())
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": ""}}
    config = {"clusters": [cluster], "contexts": [context], "current-context": "x", "users": []}
    (tmp_path / "config").write_text(json.dumps(config))
    files = {"KUBECONFIG": str(tmp_path / "config"), "HETERO_KEY_FILE": str(tmp_path / "key.pem")}
    env = {**os.environ, **files}
    done = completed([*command, *arguments], env=env, timeout=60)
    assert 2 == done.returncode, done.stderr
    return done.stderr


def test_who_leads_by_a_lease_has_a_supervisor(tmp_path: Path) -> None:
    error = started(tmp_path, "--insecure", "--lease=team/hetero")

    assert "hetero: give --lease and --supervisor together\n" == error


def test_certificates_are_renewed_when_the_values_say() -> None:
    rendered = chart(certificates={"schedule": "1 2 3 4 5"})

    assert {"1 2 3 4 5"} == {
        one["spec"]["schedule"] for one in rendered if one["kind"] == "CronJob"
    }


@pytest.mark.parametrize(("version", "jobs"), [("v1.20.15", "batch/v1beta1"), ("1.36", "batch/v1")])
def test_manifests_are_rendered_for_the_version_that_is_named(version: str, jobs: str) -> None:
    done = completed([sys.executable, ROOT / "deploy/render.py", "--kube-version", version])
    rendered = yaml.safe_load_all(done.stdout)

    assert {jobs} == {one["apiVersion"] for one in rendered if one["kind"] == "CronJob"}


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = started(
        tmp_path, f"--cert={tmp_path / 'a.crt'}", f"--key={tmp_path / 'a.key'}", "--client-ca=x"
    )

    assert "a.crt" in error
