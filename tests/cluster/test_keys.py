"""Certificates and keys: they are renewed without a restart, and who is stolen forges nothing.

Rows 2 and 8 of the table in test_trust.py.
"""

import base64
import re
import socket
import ssl
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from cryptography import x509

from hetero.kube.server import key_pair
from hetero.kube.server.key_pair import Pair, issue
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, SIGNATURE, published_devices
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model import Device
from tests.cluster.conftest import run_all, share, usually_on
from tests.cluster.lab import Lab, Plain
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.secrets import CANARY, SECRETS, leaks, note_secrets, root_of
from tests.cluster.users import PODS, as_bearer
from tests.kube.control_plane import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("noted")]


# --- certificates ---------------------------------------------------------------------------------


def pair(lab: Lab, part: str) -> Pair:
    """Return a certificate of the release's, with its key."""
    data = lab.call("GET", f"{SECRETS}/hetero-{part}")["data"]
    return Pair.read({name: base64.b64decode(text) for name, text in data.items()})


def served(release: Release) -> dict[str, x509.Certificate]:
    """Return what each webhook proves itself by now."""

    def act(host: str) -> bytes:
        tls = ssl._create_unverified_context()
        with socket.create_connection((host, 8444), 10) as plain, tls.wrap_socket(plain) as made:
            certificate = made.getpeercert(binary_form=True)
            assert certificate is not None
            return certificate

    return {
        name: x509.load_der_x509_certificate(
            release.lab.inside(partial(act, one["status"]["podIP"]))
        )
        for name, one in release.pods("hetero-webhook").items()
    }


def ending_soon(lab: Lab, part: str = "webhook") -> x509.Certificate:
    """Give a part a certificate of the release's authority that ends within thirty days."""
    authority = pair(lab, "ca")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_pair, "_CERTIFICATE_LIFE", timedelta(days=29))
        hosts = [f"hetero-webhook.{NAMESPACE}.svc"] if part == "webhook" else []
        made = issue(f"hetero-{part}", issuer=authority, hosts=hosts)
    data = {name: base64.b64encode(text).decode() for name, text in made.texts().items()}
    lab.patch(f"{SECRETS}/hetero-{part}-tls", {"data": data})
    return made.cert


def ends_of(lab: Lab, serving: Plain, port: int) -> dict[str, float]:
    """Return when a pod of the release says that each certificate ends."""
    metrics = lab.ask(f"https://{serving['status']['podIP']}:{port}", "GET", "/metrics").decode()
    name = "hetero_certificate_expiration_timestamp_seconds"
    matches = re.findall(rf'^{name}{{certificate="(\w+)"}} (.+)$', metrics, re.M)
    return {certificate: float(ends) for certificate, ends in matches}


@usually_on("kube136")
def test_certificates_begin_an_hour_back_are_told_of_and_renewed_without_a_restart(
    either: Release,
) -> None:
    lab, now = either.lab, datetime.now(timezone.utc)
    for part in ("ca", "webhook-tls", "scheduler-tls", "caller-tls"):
        begins = pair(lab, part).cert.not_valid_before_utc
        assert begins < now - timedelta(hours=1)

    old = ending_soon(lab)
    either.wait_for_files(lambda: {old} == set(served(either).values()))
    events = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason=CertificateEnds"

    def warned() -> set[str]:
        items = lab.call("GET", events)["items"]
        return {one["involvedObject"]["name"] for one in items if "UTC: renew it" in one["message"]}

    wait_for(lambda: either.pods("hetero-webhook").keys() <= warned())
    name, webhook = next(iter(either.pods("hetero-webhook").items()))
    assert {"server", "authority"} == ends_of(lab, webhook, 8444).keys()
    end_shown = ends_of(lab, webhook, 8444)["server"]
    assert end_shown == pytest.approx(old.not_valid_after_utc.timestamp(), abs=1)
    ends_shown = ends_of(lab, either.leading(), 9396)
    for part, certificate in (
        ("ca", "authority"),
        ("scheduler-tls", "server"),
        ("caller-tls", "caller"),
    ):
        ends = pair(lab, part).cert.not_valid_after_utc.timestamp()
        assert ends_shown[certificate] == pytest.approx(ends, abs=1)
    assert either.admits()

    started = webhook["status"]["containerStatuses"][0]["state"]
    either.renew_certificates()
    either.wait_for_files(lambda: old not in served(either).values())
    assert either.admits()
    assert started == either.pods("hetero-webhook")[name]["status"]["containerStatuses"][0]["state"]


# --- keys -----------------------------------------------------------------------------------------


def test_a_stolen_agent_forges_nothing(either: Release) -> None:
    lab, root = either.lab, root_of(either, "n1")
    lab.add("mine", share())
    run_all(lab, "mine")
    api = (root / "var/run/secrets/kubernetes.io/serviceaccount/token").read_text()
    own = (root / "var/run/secrets/hetero/token").read_text()
    held = [path.read_bytes() for path in root.glob("etc/hetero-*/*") if path.is_file()]

    def inventory(node: str) -> str:
        notes = lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
        return str(notes[INVENTORY])

    others = inventory("n2")
    notes = {"metadata": {"annotations": {INVENTORY: others, ALLOCATION: "{}"}}}
    for path in ("/api/v1/nodes/n2", "/api/v1/nodes/n1", f"{PODS}/mine"):
        with pytest.raises(OSError, match=r"403 .* cannot patch resource"):
            as_bearer(lab, api, "PATCH", path, notes)
    with pytest.raises(OSError, match=r"403 .* cannot get resource"):
        as_bearer(lab, api, "GET", f"{SECRETS}/hetero-key")
    assert any(b"BEGIN PUBLIC KEY" in text for text in held)
    assert not [text for text in held if b"PRIVATE" in text]

    publish = f"/api/v1/namespaces/{NAMESPACE}/services/https:hetero-webhook:https/proxy/inventory"
    with pytest.raises(OSError, match="403 the token is of no pod of the agent"):
        as_bearer(lab, api, "POST", publish, {"token": api, "inventory": others})

    def devices(node: str) -> tuple[Device, ...]:
        """Without what runs on for pods that are over, which ends meanwhile."""
        return published_devices(inventory(node), node=node)

    before_n1, before_n2 = devices("n1"), devices("n2")
    answered = as_bearer(
        lab, api, "POST", publish, {"token": own, "inventory": others, "node": "n2"}
    )
    assert {"node": "n1"} == answered
    wait_for(lambda: before_n1 == devices("n1"))  # its agent mends it
    assert before_n2 == devices("n2")


def step(release: Release, name: str) -> SigningKey:
    """Rotate the signing key one step, and return the key that signs after it."""
    (cron,) = [m for m in release.manifests() if m["metadata"]["name"] == "hetero-rotate-key"]
    spec = cron["spec"]["jobTemplate"]["spec"]
    secret, long_ago = f"{SECRETS}/hetero-key", base64.b64encode(b"1000").decode()
    release.lab.patch(secret, {"data": {"since": long_ago}})
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    release.lab.call("POST", jobs, {"metadata": {"name": name}, "spec": spec})
    wait_for(lambda: release.lab.call("GET", f"{jobs}/{name}")["status"].get("succeeded"))
    return SigningKey.of(base64.b64decode(release.lab.call("GET", secret)["data"]["key.pem"]))


@usually_on("kube")
def test_two_keys_are_good_while_one_takes_the_others_place(either: Release) -> None:
    lab = either.lab
    lab.add("before", share())
    run_all(lab, "before")

    def known(node: str) -> PublicKeys:
        return PublicKeys.read(str(root_of(either, node) / "etc/hetero-keys/keys.pem"))

    def signed(key: SigningKey, name: str) -> bool:
        scheduled = lab.pods()[name]
        about, node = scheduled["metadata"], scheduled["spec"]["nodeName"]
        text, signature = (about["annotations"][one] for one in (ALLOCATION, SIGNATURE))
        return key.public.signed(text, signature, uid=about["uid"], node=node)

    former = step(either, "announce")
    assert signed(former, "before")
    either.wait_for_files(lambda: all(len(known(node).raw) == 2 for node in lab.racks))
    key = step(either, "sign")

    assert key.public != former.public
    either.wait_for_files(lambda: signed(key, "before"))
    lab.add("after", share())
    run_all(lab, "after")
    assert signed(key, "after")

    step(either, "end")  # which ends the former one, had it been stolen
    either.wait_for_files(
        lambda: not any({*former.public.raw} & {*known(node).raw} for node in lab.racks)
    )
    assert all({*key.public.raw} < {*known(node).raw} for node in lab.racks)
    assert {"Running"} == set(lab.phases().values())


# --- secrets --------------------------------------------------------------------------------------


def test_no_log_says_a_secret(either: Release) -> None:
    """Those of all tests are looked through when all have run: test_permissions.py."""
    canary = {"token": CANARY, "inventory": "{}"}
    for webhook in either.pods("hetero-webhook").values():
        server = f"https://{webhook['status']['podIP']}:8444"
        with pytest.raises(OSError, match="403"):
            either.lab.ask(server, "POST", "/inventory", canary)
        with pytest.raises(OSError, match="401"):
            either.lab.ask(server, "GET", "/metrics", token=f"Bearer {CANARY}")

    written = [path.read_text() for path in either.lab.logs()]
    assert any("inventory: refused to nobody's token" in text for text in written)
    assert len([text for text in written if "serving on" in text]) >= len(either.lab.racks)
    assert len(note_secrets(either)) > 4 * len(either.lab.racks)
    assert [] == [*leaks(either.lab)]
