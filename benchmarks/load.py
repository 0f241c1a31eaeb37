"""Has pods come while what serves them is killed in turn, and prints what became of each.

    python -m benchmarks.load kubelets [--lab kube136] [--pods 200]
    python -m benchmarks.load hollow [--lab kube136] [--pods 2000] [--nodes 40]

`kubelets` runs pods on three real kubelets, in waves that fit. `hollow` has nodes without
containers (tests/cluster/hollow.py), and more pods than fit. All through it the extender that
leads, an agent, the API server, and that with all extenders are killed by kill -9, one after the
other. The clusters are those of the tests (tests/cluster); needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from signal import SIGKILL
from typing import Any

from attrs import define, field
from msgspec import to_builtins

from hetero.kube.client.api import Access, Api, ApiError
from hetero.kube.objects.kinds import Plain, Pod
from hetero.model import SLOTS
from tests.cluster.books import Books, given
from tests.cluster.conftest import share
from tests.cluster.hollow import CARDS, HOLLOW, HollowNode, hollow_nodes, insist
from tests.cluster.lab import CPU, TOKEN, Lab, moment, program, running
from tests.cluster.release import Release
from tests.cluster.test_failover import extender, signals
from tests.cluster.test_hundred import ASKED
from tests.kube.binaries import LABS, binaries
from tests.kube.control_plane import wait_for

PODS = "/api/v1/namespaces/default/pods"
#: MiB and percent of a card that pods on hollow nodes ask, in turn.
SIZES = ((8000, 12), (12000, 18), (20000, 28))
#: Seconds between what a kill needed and the next one; between two checks of the ledgers.
PAUSE, CHECK = 3.0, 5.0
#: Seconds until each pod is to be decided after the last one was made.
PATIENCE = 300.0
#: Seconds within which what was killed has its successor, and in which the scheduler that leads
#: hears of an agent that was killed.
SUCCESSION, HEARING = 120.0, 2.0
#: Pods of one wave on the real kubelets, of the hundred of test_hundred.py of which 73 fit.
WAVE = 50
UNFIT = re.compile(r"0 of (\d+) nodes?: (.*)")
LACKS = re.compile(r"(\d+) lack [a-z ]+ \(([\d.]+) \S+ wanted, largest free ([\d.]+)\)")


def main() -> None:
    """Load one of the two kinds of cluster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    chosen = parser.add_subparsers(required=True)
    for name, act, pods in (("kubelets", on_kubelets, 200), ("hollow", on_hollow, 2000)):
        subparser = chosen.add_parser(name)
        subparser.add_argument("--lab", choices=LABS, default=LABS[0])
        subparser.add_argument("--pods", type=int, default=pods)
        subparser.add_argument("--nodes", type=int, default=40)
        subparser.set_defaults(act=act)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster(Path(name), options.lab) as release:
        faults = inside(release.lab, lambda: options.act(release, options))
    sys.exit(1 if faults else 0)


@contextmanager
def cluster(folder: Path, lab: str) -> Iterator[Release]:
    """Bring up a lab with hetero on it."""
    programs = folder / "programs"
    programs.mkdir()
    with running(folder, binaries=binaries(programs, lab), name=lab) as up:
        release = Release(up)
        release.install()
        yield release


def inside(lab: Lab, act: Callable[[], Any]) -> Any:
    """Return what is made of an asynchronous act in the network of the cluster.

    This process gets as much of the processors as each machine of the cluster.
    """
    group, made = CPU / lab.group("load"), list[Any]()

    def run() -> None:
        lab.enter()
        made.append(asyncio.run(act()))

    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "cpu.shares").write_text("16384")
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (CPU / "cgroup.procs").write_text(str(os.getpid()))
    return made[0] if made else True


# --- the two loads --------------------------------------------------------------------------------


async def on_kubelets(release: Release, options: argparse.Namespace) -> int:
    """Run waves of pods on the real kubelets; return how many things were wrong."""
    lab, outcomes = release.lab, Counter[str]()
    kills = Kills(release, {node: partial(replace, release, node) for node in lab.racks})
    async with session(lab, tuple(lab.racks)) as seen:
        with kills.going():
            for wave in range(-(-options.pods // WAVE)):
                kinds = [kind for kind, (_, count, _) in enumerate(ASKED) for _ in range(count)]
                for number in range(min(WAVE, options.pods - wave * WAVE)):
                    kind = kinds[number * len(kinds) // WAVE]
                    spec = {**program(ASKED[kind][0]), "restartPolicy": "Never"}
                    await add(seen, f"wave-{wave}-{number}", spec)
                await seen.settle()
                of_wave, over = seen.outcomes(), seen.over_by_slots()
                print(
                    f"wave {wave + 1}: {dict(of_wave)}, killed {dict(kills.done)}; by slots alone "
                    f"{over} cards would be over",
                    flush=True,
                )
                if not over:
                    seen.wrong.add(f"wave {wave + 1}: whoever counts nothing but slots passes")
                outcomes += of_wave
                await seen.clear()
    return report(lab, kills, seen, outcomes)


async def on_hollow(release: Release, options: argparse.Namespace) -> int:
    """Run pods on hollow nodes; return how many things were wrong."""
    lab = release.lab
    names = [f"hollow-{number:02}" for number in range(options.nodes)]
    async with api_of(lab) as api, hollow_nodes(lab, api, names) as nodes:
        kills = Kills(release, {node.name: node.replace_agent for node in nodes})
        print(f"{len(nodes)} hollow nodes of {CARDS} cards serve", flush=True)
        async with session(lab, names, {node.name: node for node in nodes}) as seen:
            with kills.going():
                for number in range(options.pods):
                    memory, core = SIZES[number % len(SIZES)]
                    spec = {**program(share(memory, core)), "nodeSelector": {HOLLOW: "on"}}
                    await add(seen, f"pod-{number}", spec)
            await seen.settle()
            outcomes = seen.outcomes()
            print(f"by slots alone {seen.over_by_slots()} cards would be over", flush=True)
        return report(lab, kills, seen, outcomes)


async def add(seen: Watched, name: str, spec: Plain) -> None:
    """Make a pod, however often that is to be tried."""
    body = {"metadata": {"name": name}, "spec": spec}
    try:
        await insist(lambda: seen.api.post(PODS, body))
    except ApiError as error:
        if error.status != 409:  # it was made, and the answer was lost
            raise
    seen.made.add(name)


def report(lab: Lab, kills: Kills, seen: Watched, outcomes: Counter[str]) -> int:
    """Print what became of the pods and what was wrong; return how much was."""
    print(f"{lab.name}: {sum(outcomes.values())} pods: {dict(outcomes)}")
    print(f"killed: {dict(kills.done)}")
    bound: defaultdict[str, list[float]] = defaultdict(list)
    for event in lab.writes(0):
        about, code = event["objectRef"], (event.get("responseStatus") or {}).get("code")
        where = about.get("namespace"), about.get("subresource")
        if (*where, code) == ("default", "binding", 201):
            bound[about["name"]].append(moment(event["requestReceivedTimestamp"]))
    seen.wrong |= {
        f"{name} was bound {len(times)} times" for name, times in bound.items() if len(times) > 1
    }
    seen.wrong |= kills.late
    for name, (node, refused) in seen.refused.items():
        # Bound before, and taken up by a kubelet after: else the scheduler knew, or might have.
        # A binding that the API server made as it was killed is in no audit log.
        since = bound[name][-1] if bound[name] else refused
        if not any(since - HEARING < at < refused for at in kills.ended[node]):
            seen.wrong.add(f"{name} was bound to {node}, which refused it, and its agent served")
    print(
        f"over capacity, strangers, slots of two pods, untrue sentences, lost: {len(seen.wrong)} "
        f"in {seen.events} events and {seen.checks} checks of all ledgers"
    )
    for line in sorted(seen.wrong):
        print(f"  {line}")
    return len(seen.wrong)


# --- what is killed -------------------------------------------------------------------------------


@define(eq=False)
class Kills:
    """Kills the extender that leads, an agent, the API server, and that with extenders, in turn.

    Each has its successor before the next one is killed. The controllers need that, too: Kubernetes
    1.36 makes no pod of a DaemonSet anew as long as its watches are behind what it wrote, and a
    watch is tried again up to half a minute after the API server was away.
    """

    release: Release
    agents: Mapping[str, Callable[[], None]]  # by node: ends one, and has another in its place
    done: Counter[str] = field(factory=Counter)
    ended: defaultdict[str, list[float]] = field(factory=partial(defaultdict, list))  # by node
    late: set[str] = field(factory=set)  # what had no successor in time
    _over: threading.Event = field(factory=threading.Event)

    def _run(self) -> None:
        agents = cycle(self.agents.items())

        def end_agent() -> None:
            node, end = next(agents)
            end()
            self.ended[node].append(time.time())

        def end_all_who_know() -> None:
            """Have an API server that was away, and no extender that knows of it."""
            self.release.lab.restart_api_server()
            wait_for(self.release.leader)
            pods = self.release.pods("hetero-scheduler").values()
            signals([extender(pod) for pod in pods], SIGKILL)

        kills: dict[str, Callable[[], None]] = {
            "extender that led": lambda: signals([extender(self.release.leading())], SIGKILL),
            "agent": end_agent,
            "API server": self.release.lab.restart_api_server,
            "API server, then extenders": end_all_who_know,
        }
        for what in cycle(kills):
            if self._over.wait(PAUSE):
                return
            try:
                kills[what]()
                self.done[what] += 1
                wait_for(self.release.works, seconds=SUCCESSION)
            except (AssertionError, OSError, StopIteration) as error:
                self.late.add(f"{what}: no successor within {SUCCESSION:.0f} s ({error!r})")

    @contextmanager
    def going(self) -> Iterator[None]:
        """Do so meanwhile."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def replace(release: Release, node: str) -> None:
    """End the agent's pod of a node; the DaemonSet makes another."""
    release.replace(release.agent(node))


# --- what is seen ---------------------------------------------------------------------------------


@asynccontextmanager
async def api_of(lab: Lab) -> AsyncIterator[Api]:
    """Hold a session with the API of a lab open."""
    tls = ssl._create_unverified_context()  # noqa: S323 - its certificate is its own
    access = Access(server=lab.api, tls=tls, token=TOKEN.removeprefix("Bearer "))
    async with Api(access).open() as api:
        yield api


@asynccontextmanager
async def session(
    lab: Lab, nodes: Sequence[str], hollow: Mapping[str, HollowNode] | None = None
) -> AsyncIterator[Watched]:
    """Follow the pods meanwhile, and check the ledgers now and then."""
    async with api_of(lab) as api:
        seen = Watched(api, Books(lab, nodes), hollow or {})
        for node in nodes:
            await asyncio.to_thread(seen.books.capacity, node)
        follow = api.follow(
            PODS,
            Pod,
            listed=lambda pods: seen.listed([to_builtins(pod) for pod in pods]),
            changed=lambda event, pod: seen.changed(event, to_builtins(pod)),
            lost=lambda _: None,
        )
        tasks = [asyncio.ensure_future(one) for one in (follow, seen.check())]
        try:
            yield seen
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@define(eq=False)
class Watched:
    """What the API says of the pods, and what the ledgers hold of them."""

    api: Api
    books: Books
    hollow: Mapping[str, HollowNode]
    made: set[str] = field(factory=set)  # names of those that are to be there
    pods: dict[str, Plain] = field(factory=dict)  # by name
    refused: dict[str, tuple[str, float]] = field(factory=dict)  # by which node, and when
    wrong: set[str] = field(factory=set)
    events: int = 0
    checks: int = 0
    _takes: dict[str, Counter[tuple[str, str, str]]] = field(factory=dict)
    _taken: Counter[tuple[str, str, str]] = field(factory=Counter)  # by node, device and counter

    def listed(self, pods: list[Plain]) -> None:
        """Note all pods there are."""
        for name in self.pods.keys() - {pod["metadata"]["name"] for pod in pods}:
            self.changed("DELETED", self.pods[name])
        for pod in pods:
            self.changed("ADDED", pod)

    def changed(self, event: str, pod: Plain) -> None:
        """Note a pod, and that no card has given more than it has."""
        self.events += 1
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        takes = Counter[tuple[str, str, str]]()
        if node and pod["status"]["phase"] == "Failed":
            self.refused.setdefault(name, (node, time.time()))
        if event == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
            for allocation in given(pod, node or ""):
                for piece in allocation["pieces"]:
                    for counter, amount in piece["takes"].items():
                        takes[node, piece["device"], counter] += amount
        self._taken.subtract(self._takes.pop(name, {}))
        self._taken.update(takes)
        self._takes[name] = takes
        for key in takes:
            node, device, counter = key
            if self._taken[key] > (most := self.books.capacity(node)[device][counter]):
                self.wrong.add(f"API: {node} {device} {counter}: {self._taken[key]} of {most}")
        if node in self.hollow and event != "DELETED":
            self.hollow[node].bound(pod)

    def over_by_slots(self) -> int:
        """Return how many cards would be over if who gave them had counted slots alone.

        Each piece that was given goes to the first card of its vendor with a slot left.
        """
        cards = [card for node in self.books.nodes for card in self.books.cards(node)]
        vendor_of = {card.uuid: card.vendor for card in cards}
        taken = {card.uuid: Counter[str]() for card in cards}
        for pod in self.pods.values():
            for allocation in given(pod, pod["spec"].get("nodeName") or ""):
                for piece in allocation["pieces"]:
                    free = (
                        taken[card.uuid]
                        for card in cards
                        if card.vendor == vendor_of[piece["device"]]
                        and taken[card.uuid][SLOTS] < card.capacity[SLOTS]
                    )
                    next(free).update(piece["takes"])
        return sum(
            any(taken[card.uuid][name] > most for name, most in card.capacity.items())
            for card in cards
        )

    async def check(self) -> None:
        """Check the ledgers for ever."""
        while True:
            try:
                self.wrong |= set(await asyncio.to_thread(self.books.faults, []))
                self.wrong |= set(await asyncio.to_thread(self.books.doubles))
                self.checks += 1
            except Exception as error:  # else nobody would check any more, unseen
                self.wrong.add(f"a check failed: {error!r}")
            await asyncio.sleep(CHECK)

    async def settle(self) -> None:
        """Wait until every pod runs or was refused; what was not is wrong."""
        until = time.monotonic() + PATIENCE
        while left := await self._undecided():
            if time.monotonic() > until:
                self.wrong |= left
                return
            await asyncio.sleep(2)
        # What a pod was given that its node did not admit is given back within a minute.
        until = time.monotonic() + 60
        while (strangers := await asyncio.to_thread(self.strangers)) and time.monotonic() < until:
            await asyncio.sleep(2)
        self.wrong |= strangers

    def strangers(self) -> set[str]:
        """Return a line for each grant that is not what the scheduler gave its pod."""
        try:
            return {f"stranger: {line}" for line in self.books.strangers()}
        except OSError as error:
            return {str(error)}  # the API server is away

    async def _undecided(self) -> set[str]:
        """Return a line for each pod that neither runs nor was refused for a true reason."""
        try:
            sentences = await self._sentences()
        except ApiError as error:
            return {str(error)}
        left = {f"{name} is lost" for name in self.made - self.pods.keys()}
        for name, pod in self.pods.items():
            phase, sentence = pod["status"]["phase"], sentences.get(pod["metadata"]["uid"], "")
            if phase == "Running":
                continue
            if phase == "Failed":
                true = sentence.startswith(f"node {pod['spec']['nodeName']} did not admit it (")
            else:
                true = "nodeName" not in pod["spec"] and self._true(pod, sentence)
            if not true:
                left.add(f"{name} is {phase} and told {sentence!r}")
        return left

    async def _sentences(self) -> dict[str, str]:
        """Return what each pod was told last, by UID."""
        path = "/api/v1/namespaces/default/events"
        newest: dict[str, tuple[str, int, str]] = {}
        for event in await self.api.items(path):
            if event["reason"] in ("Unfit", "NotAdmitted"):
                uid, at = event["involvedObject"]["uid"], event["lastTimestamp"]
                entry = (at, int(event["metadata"]["resourceVersion"]), event["message"])
                newest[uid] = max(entry, newest.get(uid, entry))
        return {uid: message for uid, (_, _, message) in newest.items()}

    def _true(self, pod: Plain, sentence: str) -> bool:
        """Whether a pod fits nowhere, and the sentence says what each node lacks."""
        matched = UNFIT.fullmatch(sentence)
        lacks = LACKS.findall(matched[2]) if matched else []
        if matched is None or sum(int(count) for count, _, _ in lacks) != int(matched[1]):
            return False
        if any(float(free) >= float(wanted) for _, wanted, free in lacks):
            return False
        alike = (n for n, other in self.pods.items() if _asked(other) == _asked(pod))
        takes = next((self._takes[name] for name in alike if self._takes[name]), None)
        return takes is not None and not self._fits({key[2]: of for key, of in takes.items()})

    def _fits(self, wanted: Mapping[str, int]) -> bool:
        """Whether a card has as much left as is wanted."""
        for node in self.books.nodes:
            for device, capacity in self.books.capacity(node).items():
                left = {name: of - self._taken[node, device, name] for name, of in capacity.items()}
                if all(amount <= left[name] for name, amount in wanted.items()):
                    return True
        return False

    def outcomes(self) -> Counter[str]:
        """Return how many pods ended how."""
        ends = {"Running": "run", "Failed": "not admitted, told so", "Pending": "refused, told why"}
        return Counter(ends[pod["status"]["phase"]] for pod in self.pods.values())

    async def clear(self) -> None:
        """Delete all pods, and wait until no ledger holds anything."""
        lab = self.books.lab
        self.made.clear()
        while self.pods:
            for name in list(self.pods):
                with suppress(ApiError):
                    await self.api.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
            await asyncio.sleep(1)

        def standing() -> dict[str, int]:
            return {
                node: len(grants) for node in self.books.nodes if (grants := lab.standing(node))
            }

        until = time.monotonic() + PATIENCE
        while left := await asyncio.to_thread(standing):
            if time.monotonic() > until:
                self.wrong.add(f"grants of pods that are gone, by node: {left}")
                return
            await asyncio.sleep(2)


def _asked(pod: Plain) -> Plain:
    asked: Plain = pod["spec"]["containers"][0]["resources"]["limits"]
    return asked


if __name__ == "__main__":
    main()
