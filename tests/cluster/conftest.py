"""What tests on the cluster share: one cluster with hetero on it, cleared after each test."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.books import Books
from tests.cluster.claims import NODES
from tests.cluster.lab import Lab, Plain, program, running
from tests.cluster.plain_plugin import SOCKETS
from tests.cluster.release import PODS, Release
from tests.cluster.secrets import note_secrets
from tests.cluster.users import RBAC, bound
from tests.kube.binaries import LABS, ROOT
from tests.kube.control_plane import wait_for

CARD = "nvidia.com/gpu"
#: What HAMi's example ai-benchmark-2 asks for: its size goes before its percentage.
AI_BENCHMARK_2 = {CARD: "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpumem-percentage": "50"}
#: Makes pods in its namespace; nothing else.
TENANT = {
    "apiGroups": [""],
    "resources": ["pods", "pods/status"],
    "verbs": ["create", "get", "patch", "update"],
}
#: Has its cluster without hetero, and leaves it so.
BEFORE = Path(__file__).with_name("test_guides.py")
#: Has its cluster as it was installed; the others' is an upgrade of it.
FIRST = Path(__file__).with_name("test_claims_alone.py")
#: Uninstalls what the others use, and reads what all of them did.
LAST = Path(__file__).with_name("test_permissions.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have these modules run first and last."""
    items.sort(key=lambda item: (item.path != BEFORE, item.path != FIRST, item.path == LAST))


def usually_on(lab: str) -> pytest.MarkDecorator:
    """Have a test on this cluster each time, and on the other one in `make soak` alone.

    For what hetero does by itself: its ports, certificates, keys and Leases, and what its agents
    and vendors' runtimes are told. What another version of Kubernetes may answer otherwise is on
    both each time: admission, RBAC, kinds of patches and of containers, kubelets, controllers.
    """
    params = [pytest.param(one, marks=() if one == lab else pytest.mark.soak) for one in LABS]
    return pytest.mark.parametrize("either", params, indirect=True)


def share(memory: int = 2000, core: int = 20, count: int = 1) -> dict[str, str]:
    """Ask for MiB and percent of so many cards."""
    return {CARD: str(count), "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(core)}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, kubernetes: Path) -> Iterator[Release]:
    with running(tmp_path_factory.mktemp("lab"), binaries=kubernetes) as lab:
        release = Release(lab)
        release.install()
        yield release


@pytest.fixture
def release(cluster: Release) -> Iterator[Release]:
    yield cluster
    cluster.lab.clear()
    wait_for(cluster.works)


@pytest.fixture(scope="session")
def late_lab(tmp_path_factory: pytest.TempPathFactory, late_kubernetes: Path) -> Iterator[Lab]:
    """The late Kubernetes: it may be up beside the oldest one."""
    folder = tmp_path_factory.mktemp("late")
    with running(folder, binaries=late_kubernetes, name="kube136") as lab:
        yield lab


@pytest.fixture(scope="session")
def alone(late_lab: Lab) -> Release:
    """Hetero on the late Kubernetes with claims alone, before it has both ways."""
    settings = {"settings": "hide-unasked = true\nevict-unhealthy = true"}
    release = Release(late_lab, allocation="dra", more=settings)
    release.install()
    return release


@pytest.fixture(scope="session")
def late(late_lab: Lab, request: pytest.FixtureRequest) -> Release:
    """Hetero on the late Kubernetes, with claims: an upgrade where there were claims alone."""
    release = Release(late_lab, allocation="both")
    if any(item.path == FIRST for item in request.session.items):
        before: Release = request.getfixturevalue("alone")
        before.replace_by(release)
        wait_for(release.works, seconds=120)
    else:
        release.install()
    return release


@pytest.fixture(scope="module")
def by_claims(late: Release, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The late cluster with two nodes whose devices are given by claims.

    They stay so for the next module's tests if those want the same.
    """
    late.gives_by_claims(*NODES, now=True)
    yield late
    items = request.session.items
    last = max(place for place, item in enumerate(items) if item.path == request.path)
    if "by_claims" not in getattr(next(iter(items[last + 1 :]), None), "fixturenames", ()):
        late.gives_by_claims(*NODES, now=False)


@pytest.fixture(params=LABS)
def either(request: pytest.FixtureRequest) -> Iterator[Release]:
    """Hetero on the oldest Kubernetes, and on the late one."""
    release: Release = request.getfixturevalue(
        {"kube": "cluster", "kube136": "late"}[request.param]
    )
    yield release
    release.lab.clear()
    wait_for(release.works)


@pytest.fixture
def lab(release: Release) -> Lab:
    return release.lab


@pytest.fixture
def noted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the secrets of before and after all tests: some renew keys and certificates."""
    name = next(n for n in ("either", "release", "late") if n in request.fixturenames)
    release: Release = request.getfixturevalue(name)
    if not release.lab.secrets:
        note_secrets(release)
    yield
    note_secrets(release)


@pytest.fixture
def tenant(either: Release) -> Iterator[str]:
    """A user who may make pods in the default namespace."""
    role = {"metadata": {"name": "lab-tenant"}, "rules": [TENANT]}
    either.lab.call("POST", f"{RBAC}/clusterroles", role)
    with bound(either.lab, "lab-tenant", "tenant"):
        yield "tenant"
    either.lab.call("DELETE", f"{RBAC}/clusterroles/lab-tenant")


@contextmanager
def plain_plugins(lab: Lab, resource: str, counts: Mapping[str, int]) -> Iterator[None]:
    """Have the simplest plugin on nodes meanwhile, with so many cards on each."""
    command = (sys.executable, "-m", "tests.cluster.plain_plugin", resource)
    path = str(SOCKETS)
    for node, count in counts.items():
        spec = program({}, *command, str(count))
        container = spec["containers"][0]
        container["workingDir"] = str(ROOT)
        container["resources"] = {"requests": {"cpu": "100m"}}  # as hetero's agent
        container["volumeMounts"].append({"name": "sockets", "mountPath": path})
        spec["volumes"].append({"name": "sockets", "hostPath": {"path": path}})
        body = {"metadata": {"name": f"plain-{node}"}, "spec": {**spec, "nodeName": node}}
        lab.call("POST", PODS, body)
    try:
        wait_for(lambda: all(resource in lab.allocatable(node) for node in counts))
        yield
    finally:
        for node in counts:
            lab.call("DELETE", f"{PODS}/plain-{node}?gracePeriodSeconds=0")


def ended(lab: Lab, *names: str, seconds: float = 60) -> None:
    """Wait until pods have ended."""

    def over() -> bool:
        phases = lab.phases()
        return all(phases[name] in ("Succeeded", "Failed") for name in names)

    wait_for(over, seconds=seconds)


def waits(pod: Plain) -> str:
    """Return why a pod's only container does not start, nothing while that is not known."""
    statuses: list[Plain] = pod["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("state", {}).get("waiting", {}).get("message", ""))


def run_all(lab: Lab, *names: str, seconds: float = 90) -> None:
    """Wait until pods run; meanwhile no card may be over capacity."""
    books = Books(lab)

    def running() -> bool:
        pods = lab.pods()
        assert [] == books.faults([*pods.values()])
        return all(pods[name]["status"]["phase"] == "Running" for name in names)

    wait_for(running, seconds=seconds)
