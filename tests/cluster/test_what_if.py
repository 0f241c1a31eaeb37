"""What `hetero simulate --cluster` says of a pod is what the cluster then does."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hetero.kube.what_if.snapshot import MIX
from hetero.kube.words.annotations import ALLOCATION
from tests.cluster.conftest import run_all, share
from tests.cluster.lab import Lab, Plain, program
from tests.cluster.release import NAMESPACE, Release
from tests.kube.control_plane import wait_for
from tests.programs import completed

pytestmark = pytest.mark.cluster


def hetero(lab: Lab, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the document of `hetero simulate --cluster`, in the network."""
    done = completed(
        [
            *("nsenter", f"--net=/run/netns/{lab.group('cp')}", sys.executable, "-m", "hetero.cli"),
            *("simulate", "--json", *arguments),
        ],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(lab._kubeconfig)},
        timeout=60,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def manifest(folder: Path, **pods: dict[str, str]) -> str:
    """Write manifests of pods, each with its limits."""
    documents = [
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": program(limits)}
        for name, limits in pods.items()
    ]
    path = folder / "pods.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def held(pod: Any) -> tuple[str, list[Any]]:
    """Return the node of a pod and what it was given there: device, memory and core."""
    given = json.loads(pod["metadata"]["annotations"][ALLOCATION])["containers"]
    return pod["spec"]["nodeName"], [
        (piece["device"], piece["takes"]["memory"]) for _, one in given for piece in one["pieces"]
    ]


def expected(item: Any) -> tuple[str, list[Any]]:
    """Return the same of the simulation's answer."""
    pieces = [piece for one in item["containers"] for piece in one["pieces"]]
    return item["node"], [(piece["device"], piece["memory"]) for piece in pieces]


def is_ours(event: Plain) -> bool:
    """Whether a request is the command's; services of a release say that they are hetero, too."""
    account = event["user"].get("username", "").startswith("system:serviceaccount:")
    return event.get("userAgent") == "hetero" and not account


def test_what_is_simulated_is_what_the_cluster_then_does_and_nothing_is_written(
    release: Release, lab: Lab, tmp_path: Path
) -> None:
    asked = {
        "small": share(memory=3000, core=20),
        "two": share(memory=6000, core=50, count=2),
        "other": {"cambricon.com/vmlu": "1"},
        "large": share(memory=200_000),
        "many": share(count=9),
    }
    lab.calm()  # what an earlier pod held is there again
    for number in range(3):
        lab.add(f"stands{number}", share(memory=4000, core=30))
    run_all(lab, *(f"stands{number}" for number in range(3)))
    # Schedulers write the mix of pods that they have seen every ten minutes, and when they are told
    # to end. Without it, new ones expect pods like those that stand, as the simulation does.
    lab.patch(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{MIX}", {"data": {"mix": None}})
    for pod in release.pods("hetero-scheduler").values():
        release.replace(pod)
    wait_for(release.works)
    began = time.time()
    code, document = hetero(lab, "--cluster", "--add", manifest(tmp_path, **asked))
    written = [event for event in lab.writes(began) if is_ours(event)]
    answers = {item["pod"]: item for item in document["items"]}

    assert (3, []) == (code, written)
    for name, limits in asked.items():
        lab.add(name, limits)
        if answers[name]["refusal"] is not None:
            refusal = answers[name]["refusal"]
            assert wait_for(lambda refusal=refusal, name=name: refusal in lab.messages(name))
        else:
            run_all(lab, name)
            assert held(lab.pods()[name]) == expected(answers[name])
    assert ["large", "many"] == [name for name in asked if answers[name]["refusal"]]


def test_the_pods_of_a_node_that_is_taken_away_are_placed_again_or_named(
    lab: Lab,
) -> None:
    lab.add("moves", {"cambricon.com/vmlu": "1"})
    lab.add("stays", share())
    run_all(lab, "moves", "stays")
    code, document = hetero(lab, "--cluster", "--without", "n2")
    (item,) = (one for one in document["items"] if one["pod"] == "moves")

    assert (3, "moved", "n2", None) == (code, item["origin"], item["from_node"], item["node"])
    assert "lack cambricon.com/vmlu" in item["refusal"]
    assert document["after"]["nodes"] == document["before"]["nodes"] - 1
    assert all(lab.ready(node) for node in ("n1", "n2", "n3"))
    assert "Running" == lab.phases()["moves"]
