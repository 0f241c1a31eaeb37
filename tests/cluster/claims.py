"""Claims and their pods on the late cluster, for the tests of claims."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hetero_simulator import job

from tests.cluster.lab import ENDS, Lab, Plain, documents, program
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

JOB = Path(job("cuda"))
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/default/pods"
#: Whose devices are given by claims; the third is classic.
NODES = ("n1", "n2")


@contextmanager
def cleared(release: Release) -> Iterator[Release]:
    """Have nothing left of pods and claims after the block."""
    yield release
    lab = release.lab
    lab.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    wait_for(lambda: not lab.pods())
    lab.call("DELETE", CLAIMS)
    lab.call("DELETE", TEMPLATES)
    # Kubernetes keeps a claim until it has heard that its pod is gone.
    wait_for(lambda: not lab.call("GET", CLAIMS)["items"])
    wait_for(lambda: not any(lab.standing(node) for node in lab.racks))


def claim(lab: Lab, name: str, *, memory: str = "", cores: int = 0, **more: Any) -> Plain:
    """Make a claim of a part of a card of NVIDIA's, if no other is said; no memory: all of it."""
    part = {"capacity": {"requests": {"memory": memory, "cores": str(cores)}}} if memory else {}
    exactly = {"deviceClassName": "nvidia.com-gpu", **part, **more}
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    made: Plain = lab.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    return made


def run_with(lab: Lab, name: str, *command: str, claims: tuple[str, ...] = ()) -> None:
    """Make a pod that runs a command of this machine with what claims hold: those of its name."""
    lab.call("POST", PODS, pod_with(name, command, claims=claims))


def pod_with(
    name: str, *commands: Sequence[str], claims: tuple[str, ...] = (), **labels: str
) -> Plain:
    """Return a pod with a container for each command, each with what claims hold."""
    used = claims or (name,)
    spec = program({})
    (first,) = spec["containers"]
    first["resources"] = {"claims": [{"name": one} for one in used]}
    spec["containers"] = [
        {**first, "name": f"main-{number}" if number else "main", "command": [*ENDS, *command]}
        if command
        else first
        for number, command in enumerate(commands)
    ]
    spec |= {
        "resourceClaims": [{"name": one, "resourceClaimName": one} for one in used],
        "restartPolicy": "Never",
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def given(lab: Lab, name: str) -> list[Plain]:
    """Return the devices that a claim was allocated."""
    status = lab.call("GET", f"{CLAIMS}/{name}").get("status", {})
    results: list[Plain] = status.get("allocation", {}).get("devices", {}).get("results", [])
    return results


def runs(lab: Lab, name: str, *, seconds: float) -> None:
    """Wait until a pod runs; where it does not, say what the cluster says of it."""
    try:
        wait_for(lambda: lab.phases()[name] == "Running", seconds=seconds)
    except AssertionError as error:
        state = (lab.pods()[name]["status"], lab.messages(name), lab.standing("n1"))
        raise AssertionError(f"{error}: {state}") from None


def containers(lab: Lab, name: str) -> list[str]:
    """Return the ids of a pod's containers: of one that starts anew, another."""
    return [one["containerID"] for one in lab.pods()[name]["status"]["containerStatuses"]]


def tried(lab: Lab, name: str, count: int) -> list[Plain]:
    """Return what jobs of a pod were told one after the other, once it is so many answers."""

    def answers() -> list[Plain]:
        with suppress(OSError):  # it has not started
            parsed = documents(lab.output(name))
            return [json.loads(one) for one in parsed] if len(parsed) >= count else []
        return []

    answered: list[Plain] = wait_for(answers)
    return answered


def remind(lab: Lab, node: str) -> None:
    """Have an agent read its claims anew: it does every 30 s, and when a pod of its node goes."""
    body = {"metadata": {"name": "last"}, "spec": {**program({}), "nodeName": node}}
    lab.call("POST", PODS, body)
    lab.call("DELETE", f"{PODS}/last?gracePeriodSeconds=0")


def pool(lab: Lab, node: str) -> dict[str, tuple[int, str]]:
    """Return the pool's generation and the version of each of a node's slices, by their names."""
    items = lab.call("GET", f"{GROUP}/resourceslices?fieldSelector=spec.nodeName={node}")["items"]
    return {
        one["metadata"]["name"]: (
            one["spec"]["pool"]["generation"],
            one["metadata"]["resourceVersion"],
        )
        for one in items
    }


def specs(lab: Lab, node: str) -> list[str]:
    """Return the CDI specs of claims on a node."""
    return [path.name for path in lab.cdi(node).glob("hetero.io-*")]


def same_card(uuid: str) -> list[Plain]:
    return [{"cel": {"expression": f'device.attributes["hetero.io"].uuid == "{uuid}"'}}]


def token(lab: Lab, account: str, *, pod: Plain | None = None) -> str:
    """Return a token of a service account, bound to one of its pods if that is said."""
    namespace, _, name = account.partition("/")
    bound = {} if pod is None else {"boundObjectRef": _reference(pod)}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    made = lab.call("POST", path, {"spec": {"audiences": [], **bound}})
    return f"Bearer {made['status']['token']}"


def _reference(pod: Plain) -> Plain:
    about = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
