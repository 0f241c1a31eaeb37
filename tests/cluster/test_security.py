"""What a tenant might try to get more than was given to it; each is refused, with a sentence."""

import base64
import json
import ssl
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from hetero_simulator import job

from hetero.kube.words.annotations import ALLOCATION, SIGNATURE, Assignment, signed_assignment
from hetero.kube.words.signing import SigningKey
from hetero.model import codec
from hetero.model.units import MiB
from tests.cluster.conftest import CARD, ended, run_all, share, waits
from tests.cluster.lab import UNWATCHED, Lab, Plain
from tests.cluster.release import NAMESPACE, Release
from tests.kube.control_plane import Authority, wait_for

pytestmark = pytest.mark.cluster

JOB = Path(job("cuda"))
#: Where tenants write pods; the webhook is off there, so that only agents stand in the way.
PODS = f"/api/v1/namespaces/{UNWATCHED}/pods"


@pytest.fixture
def release(either: Release) -> Release:
    """Hetero on the oldest Kubernetes and on the late one, for `lab` as well."""
    return either


def put_on_n1(lab: Lab, name: str, notes: Mapping[str, str]) -> str:
    """Bind a pod that brings an allocation along to n1, and return what it was told there."""
    pod = lab.add(name, share(), namespace=UNWATCHED, schedulerName="none", notes=notes)
    bind(lab, pod)
    return refused(lab, name)


def bind(lab: Lab, pod: Plain) -> None:
    about = pod["metadata"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    body = {"metadata": {"name": about["name"], "uid": about["uid"]}, "target": target}
    lab.call("POST", f"{PODS}/{about['name']}/binding", body)


def refused(lab: Lab, name: str) -> str:
    """Wait until a pod's node refuses to start it, and return why."""
    return str(wait_for(lambda: waits(lab.pods(UNWATCHED)[name])))


def signed(pod: Plain) -> dict[str, str]:
    notes = pod["metadata"]["annotations"]
    return {name: notes[name] for name in (ALLOCATION, SIGNATURE)}


def test_a_pod_that_passes_the_scheduler_by_gets_nothing(lab: Lab) -> None:
    with pytest.raises(OSError, match="nodeName is set, which passes the scheduler by"):
        lab.add("forger", share(), nodeName="n1")
    lab.add("forger", share(), namespace=UNWATCHED, nodeName="n1")

    sentence = wait_for(lambda: waits(lab.pods(UNWATCHED)["forger"]))
    assert "gave container main no share" in sentence
    assert [] == lab.standing("n1")


def test_another_pods_allocation_is_refused(lab: Lab) -> None:
    lab.add("mine", share())
    run_all(lab, "mine")
    stolen = signed(lab.pods()["mine"])
    with pytest.raises(OSError, match="written by the scheduler alone: leave it out"):
        lab.add("thief", share(), notes=stolen)

    assert "not signed by this cluster's scheduler" in put_on_n1(lab, "thief", stolen)
    assert ["default/mine/main"] == [entry["label"] for entry in lab.standing("n1")]


def test_an_allocation_is_not_good_for_the_next_pod_of_the_same_name(lab: Lab) -> None:
    lab.add("pod", share(), namespace=UNWATCHED, schedulerName="hetero-scheduler")
    wait_for(lambda: lab.pods(UNWATCHED)["pod"]["status"]["phase"] == "Running")
    before = signed(lab.pods(UNWATCHED)["pod"])
    lab.call("DELETE", f"{PODS}/pod?gracePeriodSeconds=0")
    wait_for(lambda: not lab.standing("n1"))

    assert "not signed by this cluster's scheduler" in put_on_n1(lab, "pod", before)
    assert [] == lab.standing("n1")


def test_an_allocation_signed_with_another_key_is_refused(lab: Lab) -> None:
    lab.add("mine", share())
    run_all(lab, "mine")
    text = json.loads(signed(lab.pods()["mine"])[ALLOCATION])
    pod = lab.add("forger", share(), namespace=UNWATCHED, schedulerName="none")
    uid = pod["metadata"]["uid"]
    made = codec.loads(json.dumps({**text, "uid": uid}), Assignment, source="here")
    notes = signed_assignment(made, SigningKey.new())
    lab.patch(f"{PODS}/forger", {"metadata": {"annotations": notes}})
    bind(lab, pod)

    assert "not signed by this cluster's scheduler" in refused(lab, "forger")


def test_nobody_but_the_scheduler_changes_an_allocation(lab: Lab) -> None:
    lab.add("mine", share())
    run_all(lab, "mine")
    path = "/api/v1/namespaces/default/pods/mine"
    for notes in ({ALLOCATION: None}, {SIGNATURE: "00"}):
        with pytest.raises(OSError, match="written by the scheduler alone"):
            lab.patch(path, {"metadata": {"annotations": notes}})


def test_who_has_no_certificate_of_the_releases_own_gets_no_answer(
    release: Release, tmp_path: Path
) -> None:
    leader = release.leading()["status"]["podIP"]
    cert, key = Authority(tmp_path).issue("kube-scheduler")
    stranger = ssl._create_unverified_context()
    stranger.load_cert_chain(cert, key)
    nobody = ssl._create_unverified_context()

    def ask(tls: ssl.SSLContext, verb: str) -> bytes:
        with closing(HTTPSConnection(leader, 8443, context=tls, timeout=10)) as connection:
            connection.request("POST", f"/{verb}", "{}")
            return connection.getresponse().read()

    for verb in ("filter", "prioritize", "bind", "preempt"):
        for tls in (nobody, stranger):
            with pytest.raises(OSError, match=r"ALERT|alert|closed|reset|EOF"):
                release.lab.inside(partial(ask, tls, verb))
        with pytest.raises(OSError, match="404"):  # nor where metrics are to be had without one
            release.lab.ask(f"https://{leader}:9396", "POST", f"/{verb}", {})

    release.lab.inside(lambda: ask(_caller(release, tmp_path), "filter"))  # kube-scheduler's is


def _caller(release: Release, folder: Path) -> ssl.SSLContext:
    """Return what kube-scheduler proves itself by."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/hetero-caller-tls"
    secret = release.lab.call("GET", path)["data"]
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(secret[name]))
    context = ssl._create_unverified_context()
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


@pytest.mark.parametrize("either", ["kube"], indirect=True)  # a kubelet has no part in it
def test_a_tenant_who_scribbles_over_its_region_gains_nothing(lab: Lab, release: Release) -> None:
    lab.add("neighbour", share(memory=2000), "sh", "-c", f"sleep 5; {JOB} --alloc 1400MiB")
    tries = (
        "for file in /etc/hetero/grant /etc/ld.so.preload; do"
        '  echo > $file || echo "$file stays"; done 2>/dev/null',
        "size=$(stat -c %s /etc/hetero/usage)",
        "head -c $size /dev/urandom | dd of=/etc/hetero/usage conv=notrunc status=none",
        f"{JOB} --alloc 2001MiB",
        "head -c $size /dev/zero | dd of=/etc/hetero/usage conv=notrunc status=none",
        f"{JOB} --alloc 2001MiB",
    )
    lab.add("tenant", share(memory=2000), "sh", "-c", "; ".join(tries))
    ended(lab, "tenant", "neighbour")

    changed = [line for line in lab.output("tenant").splitlines() if "refused:" not in line]
    assert ["/etc/hetero/grant stays", "/etc/ld.so.preload stays"] == changed[:2]
    assert [True, True] == ["error" in line for line in changed[2:]]
    assert {"allocated": 1400 * MiB} == json.loads(lab.output("neighbour"))
    assert CARD in lab.allocatable("n1")
    assert "hetero_ledger_unreadable 0.0" in release.metrics("n1")
