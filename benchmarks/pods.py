"""Measures what pods get of a card on a real Kubernetes: by claims, or in the classic way.

    benchmarks/pods.sh run PACK dra|classic shares,memory,kill,resize,others [--jobs gemm,resnet18]
    benchmarks/pods.sh run PACK dra|classic gang [--jobs ddp-gpt2]

Two pods hold 30 and 60 percent of one card. `shares`: what each gets beside the other, in percent
of the job's speed alone and without hetero. `memory`: allocations below and above the limit, and
what nvidia-smi says inside. `kill`: the agent is killed by kill -9 while both are measured.
`resize`: the larger one is made smaller while it runs. `others`: what pods see of the card that
were given none. `gang`, a call of its own on a machine of two cards: two pods hold half of both
cards each, and a program of two processes runs in one of them alone, then in both.

pods.sh brings up the cluster and calls this in its network. Services are served from here, because
kube-proxy needs iptables.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import hetero_simulator
from attrs import frozen
from hetero_benchmarks import gang as gangs
from hetero_benchmarks.gang_goals import law
from hetero_benchmarks.job import JOBS, command
from hetero_benchmarks.rates import Batch, Window, pace, share
from hetero_benchmarks.trial import HETERO, Machine, Program, find_machines

from hetero.kube.words.annotations import INVENTORY

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]  # noqa: E402

Plain = dict[str, Any]

IMAGE = "lab.local/hostusr:1"
NAMESPACE, NODE = "hetero-system", "n1"
KUBERNETES, SERVICE = ("10.97.0.1", 443), ("10.87.0.1", 6443)
BINARIES = Path(os.environ["KUBE136_ASSETS"])
#: The driver of a machine whose own it is not: mounted by whoever made the machine.
DRIVER = Path("/usr/local/nvidia")
#: Where jobs are told when to run, and where pods have a /usr that files may be mounted into.
WORK = Path("/tmp/hetero-pods")  # noqa: S108 - of a machine that is thrown away
CUES, USR = WORK / "cues", WORK / "usr"


@frozen
class Part:
    """What a pod holds: percent of a card, GiB of its memory, and as much of so many cards."""

    core: int
    memory: int
    cards: int = 1


#: The pods that are measured, those of a gang, and one for allocations.
PODS = {"a": Part(30, 24), "b": Part(60, 24)}
PAIRS = {"a": Part(50, 30, cards=2), "b": Part(50, 30, cards=2)}
SMALL = Part(5, 10)
STEPS = ("shares", "memory", "kill", "resize", "others", "gang")
#: Those that measure jobs, which take PyTorch.
MEASURED = {"shares", "kill", "resize", "gang"}
STARTED = time.monotonic()
#: What a pod without a card runs: what of it is there, and whether a program can use it.
SEEN = """
import ctypes, glob, os
nodes = sorted(glob.glob("/dev/nvidia*") + glob.glob("/host-dev/nvidia*"))
print("device nodes:", " ".join(nodes) or "none")
for node in nodes:
    try:
        os.close(os.open(node, os.O_RDWR))
        print("opened", node)
    except OSError as error:
        print(node, error.strerror)
try:
    driver = ctypes.CDLL(os.environ.get("LIBCUDA", "libcuda.so.1"))
    count = ctypes.c_int()
    said = driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    print("cuInit", said, "devices", count.value)
except OSError as error:
    print("no driver:", error)
"""


def main() -> None:
    """Measure, and print a table for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["dra", "classic"])
    parser.add_argument("steps", type=lambda text: text.split(","))
    parser.add_argument("--jobs", type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    together = "gang" in asked.steps
    if together and len(asked.steps) > 1:
        parser.error("gang is a call of its own: its pods hold other parts")
    asked.jobs = asked.jobs or (["ddp-gpt2"] if together else ["gemm", "resnet18"])
    unknown = {*asked.steps} - {*STEPS} | {*asked.jobs} - {*(gangs.GANGS if together else JOBS)}
    if unknown:
        parser.error(f"no {', '.join(sorted(unknown))}: steps are {', '.join(STEPS)}")
    machines = find_machines()
    if together and len(machines) < 2:
        raise SystemExit(f"a gang takes two cards, and {len(machines)} is here")
    machine = machines[0]
    log(f"{machine.card}, driver {machine.driver}, {machine.date}, kernel {machine.kernel}")
    with ExitStack() as stack:
        stack.enter_context(furnished())
        jobs = asked.jobs if {*asked.steps} & MEASURED else ()
        used = machines[: 2 if together else 1]
        alone_here = alone(jobs, used, asked.seconds, Release(asked.way, machine).install)
        pods = Tenants(asked.way, jobs, PAIRS if together else PODS)
        if jobs:
            pods.start()
        for step in asked.steps:
            log(f"== {asked.way} {step}")
            STEP[step](pods, alone_here, asked)
        log("end")


# --- steps ----------------------------------------------------------------------------------------


def shares(pods: Tenants, alone_here: Natives, asked: argparse.Namespace) -> None:
    """Print what each pod gets beside the other."""
    print("| job | steps/s alone | pod | percent of it | error |\n|---|---|---|---|---|")
    for job in asked.jobs:
        rates = [pods.rates(job, asked.seconds) for _ in range(asked.rounds)]
        native = alone_here[job].rate
        for name, part in PODS.items():
            got = [share(rate[name], native) for rate in rates]
            row(f"| {job} | {native:.2f} | {part.core} %", got, part.core)


def row(begin: str, got: Sequence[float], expected: float) -> None:
    """Print what a pod got in each window, and the largest error."""
    worst = max((one - expected for one in got), key=abs)
    print(f"{begin} | {', '.join(f'{one:.1f}' for one in got)} | {worst:+.1f} |", flush=True)


def gang(pods: Tenants, alone_here: Natives, asked: argparse.Namespace) -> None:
    """Print what programs of two cards get in pods with half of both, alone and side by side."""
    query = ("--query-gpu=index,memory.total", "--format=csv,noheader")
    for name, part in PAIRS.items():
        lines = kubectl("exec", name, "--", "nvidia-smi", *query, check=False).split("\n")
        nodes = kubectl("exec", name, "--", "sh", "-c", "ls -d /dev/nvidia[0-9]*", check=False)
        print(f"pod {name}, {part.memory} GiB: {'; '.join(lines)} {' '.join(nodes.split())}")
    for grant in standing():
        places = ", ".join(f"{piece['core']} of {piece['device']}" for piece in grant["shares"])
        print(f"grant {grant['label']}: {places}", flush=True)
    print(
        "| program | steps/s alone | b | pod | percent of it | error |\n|---|---|---|---|---|---|"
    )
    for job in asked.jobs:
        native = alone_here[job]
        begin = f"| {job} | {native.rate:.2f} | {100 * native.busy:.1f} |"
        got = [pods.rates(job, asked.seconds, "a")["a"] for _ in range(asked.rounds)]
        core = PAIRS["a"].core
        expected = law(core, native.busy)
        row(f"{begin} a alone", [share(one, native.rate) for one in got], expected)
        rates = [pods.rates(job, asked.seconds) for _ in range(asked.rounds)]
        for name, part in PAIRS.items():
            got = [share(rate[name], native.rate) for rate in rates]
            row(f"{begin} {name} beside the other", got, part.core)


def memory(pods: Tenants, _alone: Natives, _asked: argparse.Namespace) -> None:
    """Print what an allocation below the limit and one above it meet, and what nvidia-smi says."""
    pods.make("m", SMALL, ["sleep", "1000"])
    until(partial(reached, "m", "Running"))
    tool = str(hetero_simulator.job("cuda"))
    for amount in (SMALL.memory - 2, SMALL.memory + 1):
        output = kubectl("exec", "m", "--", tool, "--alloc", f"{amount}GiB", check=False)
        print(f"limit {SMALL.memory} GiB, {amount} GiB in one allocation: {output.strip()}")
    query = ("--query-gpu=memory.used,memory.total", "--format=csv,noheader")
    output = kubectl("exec", "m", "--", "nvidia-smi", *query, check=False)
    print(f"nvidia-smi, used and total: {output.strip()}")
    kubectl("delete", "pod", "m")


def kill(pods: Tenants, alone_here: Natives, asked: argparse.Namespace) -> None:
    """Print what the pods get while the agent is killed, and that it comes back to its grants."""
    (job, *_) = asked.jobs
    agent = items("pod", "-n", NAMESPACE, "-l", "app=hetero-agent")[0]
    identity = agent["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    before = {one["id"] for one in standing()}

    def end() -> None:
        for pid in within(identity):
            os.kill(pid, signal.SIGKILL)

    threading.Timer(3, end).start()
    rates = pods.rates(job, asked.seconds)

    def again() -> bool:
        (agent,) = items("pod", "-n", NAMESPACE, "-l", "app=hetero-agent")
        state = agent["status"]["containerStatuses"][0]
        return bool(state["restartCount"]) and "running" in state["state"]

    until(again)
    for name, part in PODS.items():
        got = share(rates[name], alone_here[job].rate)
        print(f"{job} in the pod of {part.core} % while the agent was killed: {got:.1f} %")
    kept = before == {one["id"] for one in standing()}
    print(f"the agent runs again; grants before it and after it are the same: {kept}")
    rates = pods.rates(job, asked.seconds)
    print(
        "after that:",
        ", ".join(f"{share(one, alone_here[job].rate):.1f} %" for one in rates.values()),
    )


def resize(pods: Tenants, alone_here: Natives, asked: argparse.Namespace) -> None:
    """Print what the larger pod gets when it is given 20 % while it runs, and then its own back."""
    (job, *_) = asked.jobs
    for core in (20, 60):
        began = time.monotonic()
        pods.resize("b", core)
        took = time.monotonic() - began
        rates = pods.rates(job, asked.seconds)
        rates_text = ", ".join(
            f"pod {n} {share(one, alone_here[job].rate):.1f} %" for n, one in rates.items()
        )
        restarts = get("pod", "b")["status"]["containerStatuses"][0]["restartCount"]
        print(
            f"b resized to {core} % in {took:.0f} s: {rates_text}; {restarts} restarts", flush=True
        )


def others(_pods: Tenants, _alone: Natives, _asked: argparse.Namespace) -> None:
    """Print what pods see of the card that were given none of it."""
    script = [sys.executable, "-c", SEEN]
    driver = {"name": "driver", "hostPath": {"path": str(DRIVER)}}
    bare = pod("bare", script)
    named = pod("named", script)
    named["spec"]["containers"][0]["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})
    nodes = pod("nodes", script)
    container = nodes["spec"]["containers"][0]
    nodes["spec"]["volumes"].append({"name": "dev", "hostPath": {"path": "/dev"}})
    container["volumeMounts"].append({"name": "dev", "mountPath": "/host-dev"})
    root = pod("root", script)
    root["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    for manifest in (bare, named, nodes, root):
        if DRIVER.exists():  # as a tenant may who can mount what he likes
            manifest["spec"]["volumes"].append(driver)
            inside = manifest["spec"]["containers"][0]
            inside["volumeMounts"].append({"name": "driver", "mountPath": "/driver"})
            inside["env"].append({"name": "LIBCUDA", "value": "/driver/lib64/libcuda.so.1"})
    apply(bare, named, nodes, root)
    about = {
        "bare": "no request",
        "named": "NVIDIA_VISIBLE_DEVICES=all",
        "nodes": "a hostPath of /dev",
        "root": "privileged",
    }
    for name, what in about.items():
        until(partial(reached, name, "Succeeded", "Failed"))
        print(f"-- a pod with {what}:\n{kubectl('logs', name, check=False).strip()}", flush=True)
    kubectl("delete", "pod", *about)


STEP: dict[str, Callable[[Any, Natives, argparse.Namespace], None]] = {
    "shares": shares,
    "memory": memory,
    "kill": kill,
    "resize": resize,
    "others": others,
    "gang": gang,
}


# --- the jobs -------------------------------------------------------------------------------------


@frozen
class Native:
    """A job on its cards alone and without hetero: its steps a second, and the busy part of them.

    That part is a profiler's; where none looks it is taken to be all of the time.
    """

    rate: float
    busy: float = 1.0


Natives = dict[str, Native]


def alone(
    jobs: Sequence[str],
    machines: Sequence[Machine],
    seconds: float,
    meanwhile: Callable[[], None],
) -> Natives:
    """Return how each job runs on the cards alone, without hetero.

    Something else is done while the jobs start, and is done when they are measured.
    """
    natives: Natives = {}
    first, *more = machines
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                Program(
                    serving(job, len(machines)),
                    first,
                    None,
                    name=job,
                    others=[one.uuid for one in more],
                )
            )
            for job in jobs
        ]
        meanwhile()
        for program in programs:
            program.line()
        for job, program in zip(jobs, programs, strict=True):
            window = soon(seconds)
            program.tell(f"{window.end + 0.1} 0")
            native = Native(rate(program.line(), window))
            if more and gangs.GANGS[job].torch:
                program.tell("profile")
                busy = float(json.loads(program.line())["busy_ms"]) / 1000
                native = Native(native.rate, min(1.0, busy * native.rate))
            natives[job] = native
            log(f"{job} alone: {native.rate:.2f} steps/s")
    return natives


def serving(job: str, cards: int) -> tuple[str, ...]:
    """Return the command that serves a job, or a program of several cards."""
    return command(job) if cards == 1 else gangs.command(job, cards)


def soon(seconds: float) -> Window:
    """Return the time to measure in: a moment from now, when the jobs are at it."""
    start = time.monotonic() + 1
    return Window(start, start + seconds)


def rate(line: str, window: Window) -> float:
    """Return the steps a second that a job's answer says it made."""
    return pace([Batch(*mark) for mark in json.loads(line)], window).rate


class Tenants:
    """The pods that hold parts of the card; each runs every job, of which one is told to work."""

    def __init__(self, way: str, jobs: Sequence[str], parts: Mapping[str, Part]) -> None:
        self._way, self._jobs, self._parts = way, jobs, parts
        self._cues: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Start both, and wait until their jobs are ready."""
        for name, part in self._parts.items():
            folder = CUES / name
            folder.mkdir(parents=True, exist_ok=True)
            script = []
            for job in self._jobs:
                for path in (folder / f"{job}.in", folder / f"{job}.out"):
                    path.unlink(missing_ok=True)
                os.mkfifo(folder / f"{job}.in")
                # Open for both ways: opening does not wait, and the job meets no end before ours.
                self._cues[name, job] = os.open(folder / f"{job}.in", os.O_RDWR)
                script.append(
                    f"{' '.join(serving(job, part.cards))} < /cues/{job}.in > /cues/{job}.out &"
                )
            self.make(name, part, ["sh", "-c", " ".join([*script, "wait"])])
        for name in self._parts:
            until(partial(reached, name, "Running"), seconds=60)
            for job in self._jobs:
                self._line(name, job, 0)
        log("the jobs of both pods are ready")

    def rates(self, job: str, seconds: float, *names: str) -> dict[str, float]:
        """Return the steps a second of a job in these pods, or in all, at work at once."""
        names = names or tuple(self._parts)
        window = soon(seconds)
        lengths = {}
        for name in names:
            lengths[name] = len(self._lines(name, job))
            os.write(self._cues[name, job], f"{window.end + 0.1} 0\n".encode())
        return {name: rate(self._line(name, job, lengths[name]), window) for name in names}

    def resize(self, name: str, core: int) -> None:
        """Change a pod's part of the card while it runs: by its claim, or its grant."""
        if self._way == "dra":
            kubectl(
                "annotate", "--overwrite", "resourceclaim", name, f"hetero.io/resize=cores={core}"
            )
        else:
            (identity,) = [one["id"] for one in standing() if f"/{name}" in (one["label"] or "")]
            on_node(*HETERO, "resize", identity, "--core", str(core))

        def done() -> bool:
            return any(
                piece["core"] == core
                for one in standing()
                if f"/{name}" in (one["label"] or "")
                for piece in one["shares"]
            )

        until(done, seconds=60)

    def make(self, name: str, part: Part, argv: Sequence[str]) -> None:
        """Make a pod that holds a part of the card."""
        made = pod(name, argv)
        container = made["spec"]["containers"][0]
        folder = {
            "name": "cues",
            "hostPath": {"path": str(CUES / name), "type": "DirectoryOrCreate"},
        }
        made["spec"]["volumes"].append(folder)
        container["volumeMounts"].append({"name": "cues", "mountPath": "/cues"})
        if self._way == "classic":
            limits = {"nvidia.com/gpu": str(part.cards), "nvidia.com/gpucores": str(part.core)}
            limits["nvidia.com/gpumem"] = str(part.memory * 1024)
            container["resources"] = {"limits": limits}
            apply(made)
            return
        requests = {"memory": f"{part.memory}Gi", "cores": str(part.core)}
        exactly = {
            "deviceClassName": "hetero",
            "count": part.cards,
            "capacity": {"requests": requests},
        }
        devices: Plain = {"requests": [{"name": "card", "exactly": exactly}]}
        if part.cards > 1:  # two parts of one card are no two cards
            devices["constraints"] = [{"distinctAttribute": "hetero.io/uuid"}]
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": devices},
        }
        made["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
        container["resources"] = {"claims": [{"name": "card"}]}
        apply(claim, made)

    def _lines(self, name: str, job: str) -> list[str]:
        with suppress(FileNotFoundError):
            return (CUES / name / f"{job}.out").read_text().splitlines(keepends=True)
        return []

    def _line(self, name: str, job: str, number: int) -> str:
        def whole() -> str | None:
            lines = self._lines(name, job)
            line = lines[number] if len(lines) > number else ""
            return line if line.endswith("\n") else None

        line: str = until(whole, seconds=90)
        return line


# --- the cluster ----------------------------------------------------------------------------------


class Release:
    """Hetero on the cluster, from its chart."""

    def __init__(self, way: str, machine: Machine) -> None:
        self._way, self._machine = way, machine

    def install(self) -> None:
        """Apply the manifests and wait until the card is offered."""
        until(lambda: kubectl("get", "sa", "default", check=False))
        forward(KUBERNETES, lambda: SERVICE)
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
        text = render.render(namespace=NAMESPACE, values=self._values(), kubernetes=version)
        kubectl("apply", "--server-side", "-f", "-", stdin=text)
        address = get("service", "hetero-webhook", "-n", NAMESPACE)["spec"]["clusterIP"]
        forward((address, 443), lambda: (of("hetero-webhook"), 8444))
        until(lambda: '"kind": "Pod"' in self._probe(), seconds=60)
        until(self._offered, seconds=60)
        node = get("node", NODE)["status"]["nodeInfo"]
        log(f"{node['kubeletVersion']}, {node['containerRuntimeVersion']}: the card is offered")

    def _probe(self) -> str:
        """Return what the webhook makes of a pod that asks for a card."""
        made = pod("probe", ["true"])
        made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        argv = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        return kubectl(*argv, stdin=json.dumps(made), check=False)

    def _offered(self) -> bool:
        if self._way == "dra":
            return any(one["spec"].get("devices") for one in items("resourceslice"))
        node = get("node", NODE)
        known = INVENTORY in node["metadata"].get("annotations", {})
        return known and node["status"]["allocatable"].get("nvidia.com/gpu", "0") != "0"

    def _values(self) -> Plain:
        volumes, mounts = host(usr=Path("/usr"))
        binaries = {"name": "kubernetes", "hostPath": {"path": str(BINARIES)}}
        volumes.append(binaries)
        mounts.append({"name": "kubernetes", "mountPath": str(BINARIES), "readOnly": True})
        own: list[Plain] = []
        own_mounts: list[Plain] = []
        env: list[Plain] = []
        if self._machine.simulated:
            env.append({"name": "HETERO_RACK", "value": os.environ["HETERO_RACK"]})
            own.append({"name": "shm", "hostPath": {"path": "/dev/shm"}})  # noqa: S108
            own_mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
        elif DRIVER.exists():
            env.append({"name": "LD_LIBRARY_PATH", "value": f"{DRIVER}/lib64:{DRIVER}/lib"})
            own.append({"name": "driver", "hostPath": {"path": str(DRIVER)}})
            own_mounts.append({"name": "driver", "mountPath": str(DRIVER), "readOnly": True})
        return {
            "allocation": self._way,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "kubeScheduler": {
                "image": IMAGE,
                "command": str(BINARIES / "kube-scheduler"),
                "supervisor": str(BINARIES / "hetero-supervisor"),
            },
            "replicas": 1,
            "webhook": {"replicas": 1},
            # No runtime of a vendor's and no CDI brings device nodes to the agent here.
            "agent": {
                "env": env,
                "volumes": own,
                "volumeMounts": own_mounts,
                "privileged": not self._machine.simulated,
            },
            "command": list(HETERO),
            "podEnv": environment(),
            "podVolumes": volumes,
            "podVolumeMounts": mounts,
        }


def pod(name: str, words: Sequence[str]) -> Plain:
    """Return a pod that runs a command of this machine, on a /usr without a driver."""
    volumes, mounts = host(usr=USR)
    if (DRIVER / "bin").exists():
        volumes.append({"name": "driver-programs", "hostPath": {"path": str(DRIVER / "bin")}})
        mounts.append({"name": "driver-programs", "mountPath": f"{DRIVER}/bin", "readOnly": True})
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(words),
        "env": environment(),
        "volumeMounts": mounts,
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
    }
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def environment() -> list[Plain]:
    """Return what a pod's Python finds its packages by, and a user: its image has none."""
    paths = os.environ.get("PYTHONPATH")
    values = {"USER": "root", "HOME": "/tmp", **({"PYTHONPATH": paths} if paths else {})}  # noqa: S108
    return [{"name": name, "value": value} for name, value in values.items()]


def host(*, usr: Path) -> tuple[list[Plain], list[Plain]]:
    """Return the volumes and mounts by which a pod runs this machine's programs."""
    packages = os.environ.get("PYTHONPATH", str(ROOT)).split(":")
    wanted = {"/usr": str(usr)}
    for path in ("/opt", sys.prefix, sys.base_prefix, *packages, str(ROOT)):
        if not any(path == one or path.startswith(f"{one}/") for one in wanted):
            wanted[path] = path
    volumes = [
        {"name": f"host-{number}", "hostPath": {"path": path}}
        for number, path in enumerate(wanted.values())
    ]
    mounts = [
        # Files of the driver are mounted into /usr, where it is a copy of this machine's.
        {"name": f"host-{number}", "mountPath": path, "readOnly": wanted[path] != str(USR)}
        for number, path in enumerate(wanted)
    ]
    return volumes, mounts


@contextmanager
def furnished() -> Iterator[None]:
    """Have a /usr for pods that takes new files and leaves this machine's as it is.

    The node's ledger is its own, too. Meanwhile this machine's dynamic linker finds a driver that
    lies apart, as it does where one was installed.
    """
    layers = WORK / "usr-upper", WORK / "usr-work", USR
    for path in layers:
        path.mkdir(parents=True, exist_ok=True)
    upper, work, _ = layers
    options = f"lowerdir=/usr,upperdir={upper},workdir={work}"
    on_node("mount", "-t", "overlay", "overlay", "-o", options, str(USR))
    for state in ("/run/hetero", "/var/lib/hetero"):
        Path(state).mkdir(parents=True, exist_ok=True)
        on_node("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", state)
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    conf = Path("/etc/ld.so.conf.d/hetero-pods.conf")
    if not DRIVER.exists() or "libcuda.so.1" in known:
        yield
        return
    conf.write_text(f"{DRIVER}/lib64\n{DRIVER}/lib\n")
    subprocess.run(["ldconfig"], check=True)
    try:
        yield
    finally:
        conf.unlink()
        subprocess.run(["ldconfig"], check=True)


def on_node(*argv: str) -> str:
    """Return what a command says that sees the node's files."""
    enter = ["nsenter", f"--target={init()}", "--mount", "--pid", "--"]
    done = subprocess.run([*enter, *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def init() -> int:
    """Return the first process of the node: what is mounted for it, its pods see."""
    parent = json.loads((Path(os.environ["LAB"]) / "run/pids.json").read_text())[NODE]
    children = Path(f"/proc/{parent}/task/{parent}/children")
    until(lambda: children.read_text())
    first = int(children.read_text().split()[0])
    # Its directories are its own from here on.
    until(lambda: "/var/lib/kubelet" in Path(f"/proc/{first}/mounts").read_text())
    return first


def forward(listen: tuple[str, int], target: Callable[[], tuple[str, int]]) -> None:
    """Pass on what connects to an address of a Service."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), socket.create_connection(target(), timeout=10) as other:
                other.settimeout(None)
                back = threading.Thread(target=copy, args=(other, self.request), daemon=True)
                back.start()
                copy(self.request, other)
                back.join()

    subprocess.run(["ip", "addr", "add", f"{listen[0]}/32", "dev", "lo"], check=True)
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(listen, Connection)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes until it ends."""
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
        target.shutdown(socket.SHUT_WR)


def of(app: str) -> str:
    """Return the address of a pod of the release. Raises `OSError` while there is none."""
    for pod in items("pod", "-n", NAMESPACE, "-l", f"app={app}"):
        if address := pod["status"].get("podIP"):
            return str(address)
    raise OSError(f"no pod {app} has an address")


def within(container: str) -> Iterator[int]:
    """Yield the processes of a container."""
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if container in path.read_text():
                yield int(path.parent.name)


def standing() -> list[Plain]:
    """Return the grants that stand on the node."""
    grants: list[Plain] = json.loads(on_node(*HETERO, "ps", "--json"))["items"]
    return grants


def reached(name: str, *phases: str) -> bool:
    """Whether a pod of the tenants' is in one of these phases."""
    return kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}") in phases


def get(*what: str) -> Plain:
    """Return an object of the API."""
    document: Plain = json.loads(kubectl("get", *what, "-o", "json"))
    return document


def items(*what: str) -> list[Plain]:
    """Return objects of the API."""
    listed: list[Plain] = get(*what)["items"]
    return listed


def apply(*objects: Plain) -> None:
    """Make objects of the API."""
    made = {"apiVersion": "v1", "kind": "List", "items": objects}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(made))


def kubectl(*argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Return what kubectl said; what went wrong, too, where that is not raised."""
    done = subprocess.run(
        [str(BINARIES / "kubectl"), *argv], input=stdin, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise OSError(f"kubectl {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout + ("" if check else done.stderr)


def until(probe: Callable[[], Any], *, seconds: float = 40) -> Any:
    """Return what a probe finds, once it finds something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):
            if value := probe():
                return value
        time.sleep(0.1)
    raise SystemExit(explained(f"waited {seconds} s in vain"))


def explained(what: str) -> str:
    """Return what went wrong, with what the cluster says of it."""
    events = kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False)
    pods = kubectl("get", "pods", "-A", "-o", "wide", check=False)
    logs = [
        kubectl("logs", "-n", NAMESPACE, "-l", f"app={app}", "--tail=15", check=False)
        for app in ("hetero-agent", "hetero-webhook", "hetero-scheduler")
    ]
    names = kubectl("get", "pods", "-o", "name", check=False).split()
    logs += [kubectl("logs", name, "--tail=15", check=False) for name in names]
    return "\n".join([what, pods, "\n".join(events.splitlines()[-15:]), *logs])


def log(*what: object) -> None:
    """Print what happens, and when."""
    print(f"[{time.monotonic() - STARTED:6.1f} s]", *what, flush=True)


if __name__ == "__main__":
    main()
