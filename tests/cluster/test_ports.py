"""Who asks the release's ports, and how: who may not is not answered, who is slow harms itself.

Rows 3 and 6 of the table in test_trust.py.
"""

import asyncio
import json
import os
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from time import monotonic

import pytest
from attrs import evolve

from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import ClusterView, snapshot
from tests.cluster.conftest import ended, share, usually_on
from tests.cluster.lab import CALLER, TOKEN, Lab, Plain, processes, program
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.secrets import root_of
from tests.cluster.users import PODS, ask_with, pod
from tests.kube.control_plane import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("noted")]


# --- ports ----------------------------------------------------------------------------------------

APPS = ("hetero-agent", "hetero-scheduler", "hetero-webhook")


def sockets(container: Plain) -> list[str]:
    """Return the lines of a container's TCP sockets, as /proc/net has them.

    Each of its processes sees the same; one may end while it is read, as a vendor's process does.
    """
    for pid in processes(container):
        with suppress(OSError):
            tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
            return [line for table in tables for line in table.splitlines()[1:]]
    return []  # it is being started again


def listening(release: Release) -> set[tuple[str, int]]:
    """Return the addresses and ports that pods of the release listen on for others."""
    sockets_open = set()
    for server in (one for app in APPS for one in release.pods(app).values()):
        for line in sockets(server["status"]["containerStatuses"][0]):
            (host, port), state = line.split()[1].split(":"), line.split()[3]
            if state == "0A" and not host.endswith("0100007F"):
                sockets_open.add((server["status"]["podIP"], int(port, 16)))
    return sockets_open


def test_no_port_of_the_release_answers_who_may_not_ask(either: Release) -> None:
    lab = either.lab
    wait_for(lambda: {8443, 8444, 9396, 9397} == {port for _, port in listening(either)})
    ports = listening(either)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    made = lab.call("POST", f"{accounts}/default/token", {"spec": {}})
    stranger = f"Bearer {made['status']['token']}"

    for host, port in ports:
        with pytest.raises(OSError, match=r"400|closed|reset|RemoteDisconnected|BadStatusLine"):
            lab.ask(f"http://{host}:{port}", "GET", "/metrics")
        server = f"https://{host}:{port}"
        if port == 8443:
            with pytest.raises(OSError, match=r"ALERT|alert|closed|reset|EOF"):
                lab.ask(server, "GET", "/metrics")
            continue
        for token, answer in (("", "401"), ("Bearer nobodys", "401"), (stranger, "403")):
            with pytest.raises(OSError, match=answer):
                lab.ask(server, "GET", "/metrics", token=token)
        assert b"hetero_" in lab.ask(server, "GET", "/metrics")


def test_what_agents_tell_is_read_through_the_api_by_who_may_have_a_token_for_it(
    either: Release,
) -> None:
    """An agent gets no token that is good for anything else."""
    assert [None] * len(either.lab.racks) == silent_agents(either.lab)


def silent_agents(lab: Lab) -> list[str | None]:
    """Return for each node why its agent's metrics are not known, as `hetero top` reads them."""

    async def seen() -> ClusterView:
        tls = ssl._create_unverified_context()
        access = Access(server=lab.api, tls=tls, token=TOKEN.removeprefix("Bearer "))
        async with Api(access).open() as api:
            return await snapshot(api, seconds=0.01)

    def metrics_errors() -> bytes:
        return json.dumps([node.metrics_error for node in asyncio.run(seen()).nodes]).encode()

    failures: list[str | None] = json.loads(lab.inside(metrics_errors))
    return failures


# --- clients that are slow, or greedy -------------------------------------------------------------

#: Connects without a word, says half, and says as much as is read, to each of the hosts.
GREEDY = """
import socket, ssl, sys, threading, time
tls, held, refused = ssl._create_unverified_context(), [], []
def said(host, length, body):
    made = tls.wrap_socket(socket.create_connection((host, 8444), 5))
    head = f"POST /admit HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: {length}\\r\\n\\r\\n"
    made.sendall(head.encode() + body)
    return made
def slow(host):
    while True:
        for half in (False, True):
            try:
                plain = socket.create_connection
                held.append(said(host, 99, b"{") if half else plain((host, 8444), 5))
            except OSError:
                refused.append(host)
                time.sleep(0.01)
        del held[:-600]
def greedy(host):
    while True:
        try:
            said(host, 3000000, b"x" * 3000000).recv(1)
        except OSError:
            time.sleep(0.01)
for host in sys.argv[1:]:
    for act in (slow, greedy, greedy):
        threading.Thread(target=act, args=(host,), daemon=True).start()
for _ in range(60):
    time.sleep(1)
    print(len(refused), flush=True)
"""


#: Keeps all processors of its node busy, by more programs than there are.
BUSY = "for one in $(seq $(($(nproc) * 2))); do while :; do :; done & done; wait"


#: Says once to each of the hosts what the API server would say, and prints what it is answered.
POSTS = """
import http.client, json, ssl, sys, time
review = {"request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": {}}}
said = []
time.sleep(float(sys.argv[1]))
for host in sys.argv[2:]:
    for method, path, body in (
        ("POST", "/admit", json.dumps(review)),
        ("POST", "/inventory", json.dumps({"token": "a", "inventory": "[]"})),
        ("GET", "/readyz", None),
    ):
        tls = ssl._create_unverified_context()
        made = http.client.HTTPSConnection(host, 8444, context=tls, timeout=10)
        made.request(method, path, body, {})
        said.append(made.getresponse().status)
print(json.dumps(said), flush=True)
"""


@usually_on("kube136")
def test_a_pod_is_not_answered_by_the_webhook_nor_who_has_the_api_server_ask(
    either: Release,
) -> None:
    """Who is stolen may have the API server ask: an agent, which sends its inventory so."""
    lab = either.lab
    hosts = [one["status"]["podIP"] for one in either.pods("hetero-webhook").values()]
    for name, after in (("at-once", "0"), ("later", "3")):
        lab.add(name, {}, sys.executable, "-c", POSTS, after, *hosts)
    ended(lab, "at-once", "later")
    for name in ("at-once", "later"):  # its address is not known yet, and is
        assert [403, 403, 200] * len(hosts) == json.loads(lab.output(name)), name

    agent = (
        root_of(either, "n1") / "var/run/secrets/kubernetes.io/serviceaccount/token"
    ).read_text()
    path = f"/api/v1/namespaces/{NAMESPACE}/services/https:hetero-webhook:https/proxy/admit"
    for headers in ({}, {"Connection": "Upgrade", "Upgrade": "any"}):
        who = {"Authorization": f"Bearer {agent}", **headers}
        with pytest.raises(OSError, match="403 this is for the API server"):
            ask_with(lab, who, "POST", path, {"request": {}}, "application/json")


def half_a_request(host: str) -> bytes:
    """Return what is answered to who never says the rest."""
    tls = ssl._create_unverified_context()
    with socket.create_connection((host, 8444), 10) as plain, tls.wrap_socket(plain) as made:
        made.sendall(b"POST /admit HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        return made.recv(100)


def restarts(release: Release) -> list[int]:
    statuses = (
        one["status"]["containerStatuses"] for one in release.pods("hetero-webhook").values()
    )
    return sorted(status["restartCount"] for (status,) in statuses)


@usually_on("kube136")
def test_who_is_slow_or_greedy_at_the_webhook_harms_itself_only(
    either: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    lab, before = either.lab, restarts(either)
    hosts = [one["status"]["podIP"] for one in either.pods("hetero-webhook").values()]

    def admitted() -> list[float]:
        """Return the seconds that ten pods waited for the webhook's answer."""
        took = []
        for _ in range(10):
            began = monotonic()
            assert either.admits()
            took.append(monotonic() - began)
        return sorted(took)

    pool = ThreadPoolExecutor()
    half = pool.submit(lab.inside, partial(half_a_request, hosts[0]))
    alone = admitted()
    lab.add("greedy", {}, sys.executable, "-c", GREEDY, *hosts)
    wait_for(lambda: lab.phases()["greedy"] == "Running")
    wait_for(lambda: len(lab.output("greedy").split()) > 2)
    # All that is left of each node's processors, which is more than webhook and scheduler ask for.
    (busy,) = program({}, "sh", "-c", BUSY)["containers"]
    busy["resources"] = {"requests": {"cpu": f"{(os.cpu_count() or 1) * 1000 - 800}m"}}
    for node in lab.racks:
        on_node = {"kubernetes.io/hostname": node}
        lab.add(f"busy-{node}", {}, nodeSelector=on_node, containers=[busy])
    wait_for(lambda: {"Running"} == set(lab.phases().values()))
    loaded, began = admitted(), monotonic()
    lab.add("beside", share())
    wait_for(lambda: "nodeName" in lab.pods()["beside"]["spec"])
    bound = monotonic() - began
    refused = int(lab.output("greedy").split()[-1])
    for name in lab.pods():
        lab.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    with capsys.disabled():
        print(
            f"\n{lab.name}: the API server is answered after p50 {loaded[5]:.3f}, at most "
            f"{loaded[-1]:.3f} s, {alone[5]:.3f} and {alone[-1]:.3f} alone; a pod is bound "
            f"after {bound:.1f} s; the greedy client was hung up on {refused} times",
            end="",
        )
    assert refused > 0
    assert loaded[5] < 1 + 3 * alone[5], (alone, loaded)
    assert loaded[-1] < 3, loaded  # the API server waits for 5 s
    huge = pod("huge", share(), {})
    huge["spec"]["containers"][0]["env"] = [{"name": "A", "value": "x" * 1_200_000}]
    lab.call("POST", f"{PODS}?dryRun=All", huge)
    assert before == restarts(either)
    assert half.result(timeout=30).startswith(b"HTTP/1.1 408")


# --- the API server's own certificate -------------------------------------------------------------


@usually_on("kube136")
def test_pods_are_admitted_for_the_api_server_alone_where_it_proves_itself(
    either: Release,
) -> None:
    """The lab's API server shows who it is to a webhook that asks; others show another name."""
    lab = either.lab
    other = lab.callers.issue("somebody")
    space = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    data = {"ca.crt": lab.callers.path.read_text()}
    lab.call("POST", space, {"metadata": {"name": "callers"}, "data": data})
    names = {"clientCA": "callers", "clientNames": [CALLER]}
    asking = evolve(either, more={"webhook": names})
    at_once = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/hetero-webhook"
    lab.patch(path, {"spec": {"strategy": at_once}})
    replace_webhooks(asking)
    try:
        wait_for(lambda: webhooks_ask(asking) == [True] * 2 and asking.admits(), seconds=120)
        for webhook in asking.pods("hetero-webhook").values():
            shown = (None, other, lab.caller)
            answers = [
                lab.inside(partial(answered, webhook["status"]["podIP"], pair)) for pair in shown
            ]
            assert [b"403", b"403", b"400"] == answers
    finally:
        replace_webhooks(either)
        wait_for(lambda: webhooks_ask(either) == [False] * 2 and either.admits(), seconds=120)
        lab.call("DELETE", f"{space}/callers")


def replace_webhooks(release: Release) -> None:
    """Have the webhooks of a release's values in place of those that run."""
    (made,) = [
        made
        for made in release.manifests()
        if (made["kind"], made["metadata"]["name"]) == ("Deployment", "hetero-webhook")
    ]
    release.apply(made)


def answered(host: str, pair: tuple[Path, Path] | None) -> bytes:
    """Return what a webhook answers to nonsense from who proves itself so."""
    tls = ssl._create_unverified_context()
    if pair:
        tls.load_cert_chain(*pair)
    with closing(HTTPSConnection(host, 8444, context=tls, timeout=10)) as connection:
        connection.request("POST", "/admit", "{}")
        return str(connection.getresponse().status).encode()


def webhooks_ask(release: Release) -> list[bool]:
    """Return whether each webhook that is to stay asks who brings it pods for a certificate.

    A kubelet of 1.20 may take a minute until the API no longer has one that went.
    """
    return [
        "--client-ca=/etc/hetero-clients/ca.crt" in one["spec"]["containers"][0]["args"]
        for one in release.pods("hetero-webhook").values()
    ]
