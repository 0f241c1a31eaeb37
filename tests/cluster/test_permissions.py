"""What accounts of a release did in the API is what docs/permissions.md has.

Row 7 of the table in test_trust.py. It runs last (conftest.py), and reads what the API server wrote
down since the cluster came up: installation, what the other tests did, upgrade, eviction and
uninstalling. A use that is no row fails, and so does a row that nobody used.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from attrs import evolve

from tests.cluster.claims import CLAIMS, TEMPLATES, claim, containers, run_with, runs
from tests.cluster.claims import PODS as OURS
from tests.cluster.conftest import CARD, run_all, share
from tests.cluster.lab import Lab, Plain
from tests.cluster.release import PODS, Release, values
from tests.cluster.secrets import leaks, note_secrets
from tests.cluster.test_keys import ending_soon
from tests.cluster.test_ports import silent_agents
from tests.kube.binaries import LABS
from tests.kube.control_plane import wait_for
from tests.kube.permissions import Permission, documented, used
from tests.kube.test_real_scheduler import POD_GROUPS

ROTATES = "test_two_keys_are_good_while_one_takes_the_others_place"
CERTIFICATES = "test_certificates_begin_an_hour_back_are_told_of_and_renewed_without_a_restart"
STRANGERS = "test_a_pod_is_not_answered_by_the_webhook_nor_who_has_the_api_server_ask"
#: Rows, by account and resource or one verb of it, that installation, upgrade and this test do not
#: use, and the modules or tests each of which does: where one of these ran, a row that nobody used
#: fails.
ELSEWHERE: dict[tuple[str, str], tuple[str, ...]] = {
    ("hetero-agent", "events"): ("test_bypass",),
    ("hetero-agent", "resourceclaims.resource.k8s.io"): ("test_claims",),
    # No request names it, since the API server asks for it by itself: test_claim_rights.py.
    ("hetero-agent", "resourceclaims/driver.resource.k8s.io"): (),
    ("hetero-agent", "resourceclaims/status.resource.k8s.io"): ("test_claims",),
    ("hetero-agent", "resourceslices.resource.k8s.io"): ("test_claims",),
    ("hetero-agent", "update resourceslices.resource.k8s.io"): ("test_claim_health",),
    ("hetero-certificates", "configmaps"): (ROTATES,),
    ("hetero-certificates", "secrets"): (ROTATES,),
    ("hetero-scheduler", "patch pods"): ("test_orphans",),
    ("hetero-webhook", "events"): (CERTIFICATES,),
    # API servers are known by the addresses that they publish.
    ("hetero-webhook", "list pods"): (STRANGERS,),
    ("hetero-webhook", "resourceclaimtemplates.resource.k8s.io"): ("test_claims",),
    ("hetero-webhook", "get resourceclaimtemplates.resource.k8s.io"): ("test_claims",),
}
#: By which what runs tells of which settings it is.
SETTINGS = "hetero.io/settings"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"

pytestmark = pytest.mark.cluster


def uses(lab: Lab) -> set[tuple[str, str, str, str]]:
    """Return what accounts did, as far as they may: account, verb, resource, name."""
    return {use for event in lab.audited() for use in used(event)}


def covers(row: Permission, use: tuple[str, str, str, str]) -> bool:
    account, verb, resource, name = use
    same = (row.account, row.verb, row.resource) == (account, verb, resource)
    return same and (not row.names or name in row.names)


def preempts(lab: Lab) -> None:
    """Have a pod take the place of another."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    lab.call("POST", classes, {"metadata": {"name": "more"}, "value": 1000})
    whole = {CARD: "1", "nvidia.com/gpumem-percentage": "100"}
    l4 = {"nvidia.com/use-gputype": "L4"}
    lab.add("less", whole, notes=l4)
    run_all(lab, "less")
    less = lab.pods()["less"]
    lab.add("more", whole, notes=l4, priorityClassName="more")
    lab.end(less)
    wait_for(lambda: "less" not in lab.pods() and lab.phases()["more"] == "Running", seconds=90)
    lab.call("DELETE", f"{classes}/more")


def confined(release: Release) -> Plain:
    """Return the values of agents with what is documented for SELinux and AppArmor."""
    context = {"seLinuxOptions": {"type": "spc_t"}}
    if release.lab.name != "kube":  # 1.30 and later
        context["appArmorProfile"] = {"type": "Unconfined"}
    agent: Plain = values(release.lab, release.allocation)["agent"]
    return {**agent, "securityContext": context}


def rolled(before: Release, after: Release) -> bool:
    """Whether all that is to stay is of the later release."""
    wanted = {
        made["metadata"]["name"]: made["spec"]["template"]["metadata"]["annotations"][SETTINGS]
        for made in after.manifests()
        if made["kind"] in ("DaemonSet", "Deployment")
    }
    return after.works() and all(
        one["metadata"]["annotations"][SETTINGS] == settings
        for app, settings in wanted.items()
        for one in before.pods(app).values()
    )


def upgrade(release: Release, allocation: str = "", *, days: int = 3) -> Release:
    """Have another release in place of one, and return it."""
    made = evolve(
        release,
        allocation=allocation or release.allocation,
        more={"settings": f"half-life-days = {days}", "agent": confined(release)},
    )
    release.replace_by(made)
    wait_for(lambda: rolled(release, made), seconds=180)
    return made


def each_way(release: Release) -> Release:
    """Have claims alone in place of both ways, and then the classic way, while a pod runs.

    Pods of claims have ended by then: an agent of the classic way takes no claim back.
    """
    lab = release.lab

    def granted(label: str) -> list[Plain]:
        return [one for one in lab.standing("n1") if one["label"] == label]

    def state() -> tuple[list[Plain], list[str]]:
        return granted("default/mine/main"), containers(lab, "mine")

    before = state()
    alone = upgrade(release, "dra")
    claim(lab, "ours", memory="2Gi", cores=20)
    run_with(lab, "ours")
    runs(lab, "ours", seconds=60)
    assert granted("default/ours")
    lab.call("DELETE", f"{OURS}/ours?gracePeriodSeconds=1")
    wait_for(lambda: "ours" not in lab.pods() and not granted("default/ours"))
    lab.call("DELETE", f"{CLAIMS}/ours")
    classic = upgrade(alone, "classic", days=4)
    lab.add("next", share())
    run_all(lab, "next")
    assert before == state()
    return classic


def another_leads(release: Release) -> Release:
    """Have the scheduler end that leads: it writes its mix, and the next finds the pod groups."""
    led = release.leading()["metadata"]["name"]
    release.lab.call("DELETE", f"{PODS}/{led}")

    def leads() -> bool:
        leader = release.leader()
        return leader is not None and leader["metadata"]["name"] != led

    wait_for(leads)
    wait_for(lambda: len(release.pods("hetero-scheduler")) == 2)
    return release


def groups(lab: Lab) -> None:
    """Have the API serve the pod groups of kube-scheduler's plugin."""
    lab.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", POD_GROUPS)


def template_of_nobody(lab: Lab) -> None:
    """Have a template that does not say what its name does, where no admission keeps it out."""
    exactly = {"deviceClassName": "hetero"}
    template = {"spec": {"devices": {"requests": [{"name": "any", "exactly": exactly}]}}}
    body = {"metadata": {"name": "hetero-0"}, "spec": template}
    policy = f"{ADMISSION}/validatingadmissionpolicybindings/hetero-templates"
    kept = lab.call("GET", policy)
    lab.call("DELETE", policy)
    # The API server hears of it by watching.
    wait_for(lambda: _made(lab, body))
    wait_for(lambda: "hetero-0" not in _names(lab, TEMPLATES))
    again = {"name": kept["metadata"]["name"]}
    lab.call("POST", policy.rpartition("/")[0], {"metadata": again, "spec": kept["spec"]})


def _made(lab: Lab, body: Plain) -> bool:
    with suppress(OSError):
        lab.call("POST", TEMPLATES, body)
        return True
    return False


def _names(lab: Lab, path: str) -> set[str]:
    return {one["metadata"]["name"] for one in lab.call("GET", path)["items"]}


def served(row: Permission, lab: Lab) -> bool:
    """Whether the API has what a row is of."""
    return lab.name != "kube" or row.resource != "podgroups.scheduling.k8s.io"


def tells(release: Release, app: str, name: str, port: int) -> bool:
    """Whether a pod that is to stay tells its metrics; it may have been started at this moment."""
    pod = release.pods(app).get(name)
    with suppress(OSError):
        return pod is None or bool(
            release.lab.ask(f"https://{pod['status']['podIP']}:{port}", "GET", "/metrics")
        )
    return False


def uses_it(row: Permission, ran: set[str]) -> bool:
    """Whether what ran is to have used a row."""
    of_all = ELSEWHERE.get((row.account, row.resource))
    by = ELSEWHERE.get((row.account, f"{row.verb} {row.resource}"), of_all)
    return by is None or not ran.isdisjoint(by)


@pytest.fixture(params=LABS)
def last(request: pytest.FixtureRequest) -> Release:
    """Return a release that may be uninstalled."""
    release: Release = request.getfixturevalue(
        {"kube": "cluster", "kube136": "late"}[request.param]
    )
    return release


#: What accounts do as a release is upgraded is hetero's own (`usually_on`), and the oldest kubelet
#: takes half a minute for it.
UPGRADED = [
    pytest.param("kube", another_leads, id="kube"),
    pytest.param("kube136", each_way, id="kube136"),
    pytest.param("kube", upgrade, id="kube-upgraded", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("last", "changed"), UPGRADED, indirect=["last"])
def test_accounts_do_nothing_that_is_not_documented(
    last: Release,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    changed: Callable[[Release], Release],
) -> None:
    lab, table = last.lab, documented(last.allocation)
    note_secrets(last)
    lab.add("mine", share())
    run_all(lab, "mine")
    preempts(lab)
    groups(lab)
    if last.allocation == "both":
        template_of_nobody(lab)
    ending_soon(lab, "caller")  # which has the scheduler's pods replaced
    last.renew_certificates()
    upgraded = changed(last)
    for app in ("hetero-agent", "hetero-scheduler", "hetero-webhook"):
        port = {"hetero-agent": 9397, "hetero-scheduler": 9396, "hetero-webhook": 8444}[app]
        for name in last.pods(app):
            wait_for(partial(tells, last, app, name, port))
    assert [None] * len(lab.racks) == silent_agents(lab)
    note_secrets(upgraded)
    upgraded.uninstall()
    done = uses(lab)

    items = [one for one in request.session.items if _lab(one) == lab.name]
    ran = {name for one in items for name in (one.path.stem, one.name.partition("[")[0])}
    unused = {row for row in table if not any(covers(row, use) for use in done)}
    with capsys.disabled():
        for row in sorted(unused, key=repr):
            print(f"\n{lab.name}: not used: {row.account} {row.verb} {row.resource}", end="")
    assert set() == {row for row in unused if uses_it(row, ran) and served(row, lab)}
    assert [] == sorted(use for use in done if not any(covers(row, use) for row in table))


def test_no_log_of_all_that_ran_says_a_secret(last: Release) -> None:
    """Of machines and pods, and of those that are gone; secrets are those of any time."""
    assert len(last.lab.secrets) > 4
    assert [] == [*leaks(last.lab)]


def _lab(item: pytest.Item) -> str:
    """Return the cluster that a test is for."""
    return "kube136" if item.get_closest_marker("late") else "kube"
