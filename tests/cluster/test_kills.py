"""Whatever is killed, whenever: what runs keeps its share, and what goes leaves nothing."""

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from attrs import define, field

from tests.cluster.books import Books
from tests.cluster.conftest import share
from tests.cluster.lab import Lab, Plain, program
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

SETS = "/apis/apps/v1/namespaces/default/replicasets"
#: What is asked for, and by how many pods at most; all of it fits at once.
ASKED = {
    "nvidia": (share(memory=1000, core=20), 20),
    "iluvatar": (
        {
            "iluvatar.ai/BI-V150-vgpu": "1",
            "iluvatar.ai/BI-V150.vMem": "4",
            "iluvatar.ai/BI-V150.vCore": "5",
        },
        8,
    ),
    "cambricon": (
        {
            "cambricon.com/vmlu": "1",
            "cambricon.com/mlu.smlu.vmemory": "4",
            "cambricon.com/mlu.smlu.vcore": "5",
        },
        8,
    ),
}


@define
class Crowd:
    """Pods that come and go: as many of each kind as is asked for at the moment."""

    lab: Lab
    books: Books
    wanted: dict[str, int] = field(factory=dict)
    began: float = 0  # when something was killed
    late: Counter[str] = field(factory=Counter)  # what the pods were doing half a minute later

    def start(self) -> None:
        for name, (limits, _) in ASKED.items():
            self.wanted[name] = 0
            labels = {"app": name}
            spec = {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": program(limits)},
            }
            self.lab.call("POST", SETS, {"metadata": {"name": name}, "spec": spec})

    def ask(self, name: str, count: int) -> None:
        self.wanted[name] = count
        self.lab.patch(f"{SETS}/{name}", {"spec": {"replicas": count}})

    def end(self) -> None:
        for name in ASKED:
            self.lab.call("DELETE", f"{SETS}/{name}?propagationPolicy=Background")

    def settled(self) -> bool:
        """Whether all that are wanted run. Nothing may be over capacity meanwhile."""
        try:
            pods = list(self.lab.pods().values())
            assert [] == self.books.faults(pods)
        except OSError:
            return False  # the API server is not back yet
        if not self.late and time.monotonic() - self.began > 30:
            self.late = Counter(map(_state, pods))
        staying = [pod for pod in pods if not _over(pod) and not _ending(pod)]
        kinds = Counter(pod["metadata"]["labels"]["app"] for pod in staying)
        lives = all(_runs(pod) and self.lab.lives(pod) for pod in staying)
        return lives and kinds == +Counter(self.wanted)

    def gone(self) -> bool:
        """Whether the others are gone."""
        return self.settled() and not any(map(_ending, self.lab.pods().values()))

    def accounted(self) -> bool:
        """Whether the ledgers hold what these pods were given, and nothing else."""
        pods = [pod for pod in self.lab.pods().values() if not _over(pod)]
        held = {
            entry["owner"]["uid"] for node in self.lab.racks for entry in self.lab.standing(node)
        }
        return held == {pod["metadata"]["uid"] for pod in pods} and not self.books.strangers()


def _ending(pod: Plain) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _over(pod: Plain) -> bool:
    return pod["status"]["phase"] in ("Failed", "Succeeded")


def _state(pod: Plain) -> str:
    if _ending(pod):
        return "ending"
    if "nodeName" not in pod["spec"]:
        return "not bound"
    return "running" if _runs(pod) else str(pod["status"].get("reason") or "starting")


def _runs(pod: Plain) -> bool:
    containers = pod["status"].get("containerStatuses") or [{}]
    return not _ending(pod) and bool(containers[0].get("ready"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=pytest.mark.soak)])
def test_whatever_is_killed_nothing_is_lost_leaked_stuck_or_over_capacity(
    lab: Lab, release: Release, rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(rounds)
    crowd = Crowd(lab, Books(lab))

    def node() -> str:
        return chance.choice(sorted(lab.racks))

    def lose_node() -> None:
        lost = node()
        lab.kill_node(lost)
        lab.start_node(lost)

    kills: dict[str, Callable[[], None]] = {
        "agent": lambda: release.replace(release.agent(node())),
        "scheduler": lambda: release.replace(release.leading()),
        "API server": lab.restart_api_server,
        "kubelet": lambda: lab.restart_kubelet(node()),
        "node": lose_node,
    }
    placement = [*kills, *chance.choices([*kills], k=rounds - len(kills))]
    chance.shuffle(placement)
    crowd.start()
    try:
        for what in placement:
            for name, (_, most) in ASKED.items():
                crowd.ask(name, chance.randint(1, most))
            time.sleep(chance.random() * 2)
            began = crowd.began = time.monotonic()
            crowd.late.clear()
            kills[what]()
            wait_for(crowd.settled, seconds=240)
            ran = time.monotonic() - began
            wait_for(crowd.accounted)
            agreed = time.monotonic() - began - ran
            with capsys.disabled():
                print(f"\n{what} killed: all run after {ran:.0f} s, accounted {agreed:.0f} s later")
                if crowd.late:
                    print(f"  half a minute after it the pods were {dict(crowd.late)}")
        for pod in filter(_ending, lab.pods().values()):
            lab.end(pod)
        wait_for(crowd.gone)
        wait_for(crowd.accounted)
    finally:
        wait_for(release.works, seconds=120)
        crowd.end()
