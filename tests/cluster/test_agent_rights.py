"""What an agent may do on its node, and who takes over its container.

Row 10 of the table in test_trust.py.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.conftest import run_all, share
from tests.cluster.lab import Lab, Plain, processes
from tests.cluster.release import Release
from tests.cluster.secrets import root_of
from tests.kube.control_plane import wait_for
from tests.kube.test_chart import chart
from tests.programs import completed

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("noted")]

#: The bits of CAP_DAC_READ_SEARCH, CAP_KILL and CAP_SYS_PTRACE.
CAPABILITIES = 1 << 2 | 1 << 5 | 1 << 19


def test_an_agent_has_three_capabilities_and_no_device_of_its_node(either: Release) -> None:
    lab, root = either.lab, root_of(either, "n1")
    lab.add("mine", share(), nodeSelector={"kubernetes.io/hostname": "n1"})
    run_all(lab, "mine")  # which the agent gave its share
    (status,) = either.agent("n1")["status"]["containerStatuses"]
    statuses = []
    for pid in processes(status):
        with suppress(OSError):  # a vendor's has ended at this moment
            statuses.append(Path(f"/proc/{pid}/status").read_text())
    assert statuses
    for proc_status in statuses:
        held = re.findall(r"^Cap(?:Prm|Eff|Bnd):\s+(\w+)$", proc_status, re.M)
        assert {CAPABILITIES} == {int(one, 16) for one in held}
        assert "Seccomp:\t2" in proc_status  # the runtime's filter
    nodes = {one.name for one in (root / "dev").iterdir() if one.lstat().st_rdev}
    assert nodes <= {"full", "null", "ptmx", "random", "tty", "urandom", "zero", "console"}
    assert not (root / "host/etc/shadow").exists()
    assert not (root / "host/root").exists()


def test_who_takes_over_an_agent_has_its_nodes_files_as_root_there_has(either: Release) -> None:
    """By /proc/1/root, which CAP_SYS_PTRACE opens: what its container mounts is no bound.

    docs/security.md says so. Where AppArmor's or SELinux's usual policy holds it may not.
    """
    lab, (status,) = either.lab, either.agent("n1")["status"]["containerStatuses"]
    secret, made = lab.folder / "secret", lab.folder / "made"
    secret.write_text("of the node")
    secret.chmod(0)
    os.chown(secret, 1234, 1234)
    socket_of = lab.folder / "run/nodes/n1/ctrd/containerd.sock"
    container = status["containerID"].partition("://")[2]
    call = ("ctr", f"--address={socket_of}", "--namespace=k8s.io", "tasks", "exec")
    ctr = (*call, "--exec-id=tries", f"--fifo-dir={lab.folder}", container)

    def run(*argv: str) -> str:
        done = completed([*ctr, *argv], timeout=30)
        return done.stdout + done.stderr

    def read(path: Path | str) -> str:
        """What cat prints: ctr loses the output of a program that ends before it is read."""
        return str(wait_for(lambda: run("/usr/bin/cat", str(path))))

    assert "No such file" in read(secret)
    assert "of the node" == read(f"/proc/1/root{secret}")
    run("/usr/bin/touch", f"/proc/1/root{made}")
    assert made.exists()


def test_pod_security_finds_of_the_agent_what_is_documented_and_of_others_nothing(
    late: Release,
) -> None:
    lab, space = late.lab, "baseline"
    labels = {"pod-security.kubernetes.io/enforce": "baseline", "hetero.io/webhook": "ignore"}
    lab.call("POST", "/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
    accounts = f"/api/v1/namespaces/{space}/serviceaccounts"
    wait_for(lambda: lab.call("GET", accounts)["items"])
    warnings = {}
    for name, spec in shipped(lab):
        body = {"metadata": {"name": name}, "spec": {**spec, "serviceAccountName": "default"}}
        try:
            lab.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", body)
        except OSError as error:
            warnings[name] = str(error)
    lab.call("DELETE", f"/api/v1/namespaces/{space}")

    assert {"hetero-agent"} == warnings.keys()
    reasons = {"host namespaces", "hostPath volumes", "non-default capabilities"}
    assert reasons == set(re.findall(r"(\w[\w -]*) \(", warnings["hetero-agent"]))
    assert "SYS_PTRACE" in warnings["hetero-agent"]  # KILL is in the baseline


def shipped(lab: Lab) -> Iterator[tuple[str, Plain]]:
    """Yield the pods of the chart with its own values, by the name of what makes them."""
    version = lab.call("GET", "/version")["gitVersion"]
    for made in chart(kubernetes=version):
        if made["kind"] in ("DaemonSet", "Deployment", "Job"):
            spec = made["spec"]["template"]["spec"]
            yield made["metadata"]["name"], {**spec, "restartPolicy": "Never"}
