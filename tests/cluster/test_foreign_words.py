"""HAMi's words are sent to a real API server: what is served is so in the container, the rest told.

On the oldest Kubernetes: what hetero says of words does not hang on its version.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hetero_simulator import job

from hetero.kube.words.owned_words import Effect
from hetero.model.units import MiB
from hetero.plugin.resource_names import WordKind
from tests.cluster.conftest import ended, share, usually_on
from tests.cluster.lab import documents, program
from tests.cluster.release import Release
from tests.cluster.users import PODS, as_user
from tests.kube.control_plane import wait_for
from tests.kube.test_owned_words import names

pytestmark = [pytest.mark.cluster, usually_on("kube")]

JOB = Path(job("cuda"))


def with_variables(limits: dict[str, str], script: str, **env: str) -> dict[str, Any]:
    """Return the spec of a pod whose container has these variables."""
    spec = program(limits, "sh", "-c", script)
    spec["containers"][0]["env"] = [{"name": name, "value": text} for name, text in env.items()]
    return spec


def test_hamis_variables_are_obeyed_or_told_of(either: Release, tenant: str) -> None:
    """By a tenant, who may not run without a limiter; 2400 MiB fit in 3000 beside a context."""
    lab = either.lab
    tries = f"echo $HETERO_LOG; {JOB} --alloc 900MiB; {JOB} --alloc 2400MiB"
    spec = with_variables(
        share(memory=3000),
        tries,
        CUDA_DISABLE_CONTROL="true",
        CUDA_DEVICE_MEMORY_LIMIT="1500m",
        LIBCUDA_LOG_LEVEL="0",
        CUDA_OVERSUBSCRIBE="true",
    )
    body = {
        "metadata": {"name": "words", "annotations": {"huawei.com/vnpu-mode": "enpu"}},
        "spec": {**spec, "restartPolicy": "Never"},
    }
    as_user(lab, tenant, "POST", PODS, body)
    ended(lab, "words")

    output = lab.output("words")
    fits, over = map(json.loads, documents(output))
    assert "off" == output.splitlines()[0]
    assert {"allocated": 900 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]
    expected = {
        "variable CUDA_DISABLE_CONTROL",
        "variable CUDA_OVERSUBSCRIBE",
        "annotation huawei.com/vnpu-mode",
    }

    def reported_words() -> set[str]:
        messages = [message.partition(" has no effect") for message in lab.messages("words")]
        return {word for word, effect, _ in messages if effect}

    wait_for(lambda: expected == reported_words())


def test_of_each_word_of_the_table_that_is_reported_a_pod_has_an_event(
    either: Release, tenant: str
) -> None:
    """It waits, since no node has all the cards that it asks for."""
    lab = either.lab
    words = {kind: names(kind, Effect.REPORTED) for kind in WordKind}
    notes = dict(words[WordKind.ANNOTATION])
    limits = share(memory=1000) | dict(words[WordKind.RESOURCE])
    spec = with_variables(limits, "true", **dict(words[WordKind.VARIABLE]))
    body = {"metadata": {"name": "all-words", "annotations": notes}, "spec": spec}
    as_user(lab, tenant, "POST", PODS, body)
    expected = {f"{kind.value} {name}" for kind, rows in words.items() for name, _ in rows}

    def reported_words() -> set[str]:
        messages = [message.partition(" has no effect") for message in lab.messages("all-words")]
        return {word for word, effect, _ in messages if effect}

    assert 40 < len(expected)
    wait_for(lambda: expected == reported_words())


def test_who_may_runs_without_a_limiter_by_hamis_variable(either: Release) -> None:
    """An administrator of the cluster may use every policy."""
    lab = either.lab
    spec = with_variables(share(memory=1000), f"{JOB} --alloc 1501MiB", CUDA_DISABLE_CONTROL="true")
    lab.add("free", {}, **spec)
    ended(lab, "free")

    (allocated,) = map(json.loads, documents(lab.output("free")))
    assert {"allocated": 1501 * MiB} == allocated


def test_a_pod_of_others_keeps_its_words_and_hears_nothing(either: Release) -> None:
    lab = either.lab
    spec = with_variables(
        {"cpu": "10m"}, "echo $CUDA_DISABLE_CONTROL $HETERO_LOG", CUDA_DISABLE_CONTROL="true"
    )
    notes = {"huawei.com/vnpu-mode": "enpu", "hami.io/device-scoring-weights": "nonsense"}
    lab.add("other", {}, notes=notes, **spec)
    ended(lab, "other")

    pod = lab.pods()["other"]
    assert "true" == lab.output("other").strip()
    assert notes == pod["metadata"]["annotations"]
    assert "default-scheduler" == pod["spec"]["schedulerName"]
    assert not any("no effect" in message for message in lab.messages("other"))
