"""Programs of pods that no limiter is in: the node's agent sees them, and ends them where asked."""

import signal
from pathlib import Path

import pytest
from hetero_simulator import job

from hetero.kube.words.pod_request import ON_BYPASS
from hetero.model import OnBypass
from tests.cluster.claims import PODS
from tests.cluster.conftest import ended, run_all, share
from tests.cluster.lab import Lab, program
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

JOB = Path(job("cuda"))
#: Runs the job by a copy of the loader that preloads nothing; the first shell stays.
PAST = f"""
sed s,/etc/ld.so.preload,/xtc/ld.so.preload, $(readlink -f /lib64/ld-linux-*) > /tmp/loader
chmod +x /tmp/loader
/tmp/loader {JOB} --memory 3000MiB --seconds 200
echo ended with $?
exec sleep 1000
"""
#: Seconds in which a program that holds memory past its limiter is seen, and ended: five at most
#: on a machine that is the node's alone.
SEEN = 20


def test_a_program_past_its_limiter_is_ended_where_its_pod_says_so(lab: Lab) -> None:
    """It has process numbers of its own namespace; its neighbour in the same way is told of."""
    kills = {ON_BYPASS: OnBypass.KILL.value}
    lab.add("ended", share(memory=2000), "sh", "-c", PAST, notes=kills)
    lab.add("told", share(memory=2000), "sh", "-c", PAST)
    run_all(lab, "ended", "told")
    exit_line = f"ended with {128 + signal.SIGKILL}"
    wait_for(lambda: exit_line in lab.output("ended"), seconds=SEEN)
    wait_for(lambda: any("holds 3" in one for one in lab.messages("told")), seconds=SEEN)

    so_far = lab.output("told")
    wait_for(lambda: len(lab.output("told")) > len(so_far), seconds=SEEN)  # it runs on
    assert "ended" not in lab.output("told")


#: Removes what the preload file of the pod's other programs is mounted on, until one is gone.
REMOVES = """
until [ -e /removed/one ]; do
    for each in /proc/[0-9]*; do
        rm $each/root/etc/ld.so.preload && touch /removed/one
    done 2>/dev/null
    sleep 0.2
done
exec sleep 1000
"""


@pytest.mark.parametrize(
    "either", ["kube136"], indirect=True
)  # the kernel's doing, not Kubernetes'
def test_a_program_whose_limiter_another_container_of_its_pod_takes_away_is_ended(
    either: Release,
) -> None:
    """By /proc, where a pod's containers see each other's programs."""
    lab = either.lab
    runs = f"until [ -e /removed/one ]; do sleep 0.1; done; {JOB} --memory 3000MiB --seconds 200"
    spec = program(share(memory=2000), "sh", "-c", f"{runs}; echo $?")
    (main,) = spec["containers"]
    main["volumeMounts"].append({"name": "own", "mountPath": "/removed"})
    spec["volumes"].append({"name": "own", "emptyDir": {}})
    sidecar = {**main, "name": "beside", "resources": {}, "command": ["sh", "-c", REMOVES]}
    spec |= {"containers": [main, sidecar], "shareProcessNamespace": True, "restartPolicy": "Never"}
    metadata = {"name": "removes", "annotations": {ON_BYPASS: OnBypass.KILL.value}}
    lab.call("POST", PODS, {"metadata": metadata, "spec": spec})

    run_all(lab, "removes")
    code, of = f"{128 + signal.SIGKILL}", "container=main"
    wait_for(lambda: code in lab.output("removes", of).splitlines(), seconds=SEEN)
    wait_for(lambda: any("is killed" in one for one in lab.messages("removes")))


def test_a_program_that_hides_its_grant_by_a_link_is_ended_where_its_pod_says_so(
    either: Release,
) -> None:
    """Which no path shows before: a volume's own link leads to /etc, where others are mounted."""
    lab, hidden = either.lab, ("ld.so.preload", "hetero/grant", "hetero/usage")
    spec = program(share(memory=2000), "sh", "-c", f"{JOB} --memory 3000MiB --seconds 200; echo $?")
    (main,) = spec["containers"]
    own = {"name": "own", "mountPath": "/own"}
    links = ["sh", "-c", "ln -s /etc /own/link; : > /own/empty"]
    first = {**main, "name": "first", "resources": {}, "command": links}
    spec["initContainers"] = [{**first, "volumeMounts": [*main["volumeMounts"], own]}]
    covers = [{**own, "mountPath": f"/own/link/{one}", "subPath": "empty"} for one in hidden]
    main["volumeMounts"] = [*main["volumeMounts"], own, *covers]
    spec["volumes"].append({"name": "own", "emptyDir": {}})
    metadata = {"name": "hides", "annotations": {ON_BYPASS: OnBypass.KILL.value}}
    lab.call("POST", PODS, {"metadata": metadata, "spec": {**spec, "restartPolicy": "Never"}})
    wait_for(lambda: lab.phases()["hides"] != "Pending", seconds=90)  # it may end before it is seen

    ended(lab, "hides", seconds=SEEN)
    assert f"{128 + signal.SIGKILL}" in lab.output("hides").splitlines()
    parts = ("hetero-job-cuda", "is killed")
    wait_for(lambda: any(all(part in one for part in parts) for one in lab.messages("hides")))
