"""Makes what the services prove themselves by: an authority and their certificates.

Run again it renews what is about to end and leaves the rest alone.
"""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone

from attrs import frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from hetero.kube.client.api import Api, ApiError
from hetero.kube.server.key_pair import Pair, issue
from hetero.kube.service.stored import Stored

#: Renewed when so little of its time is left: two weeks before anybody is told that it ends.
_RENEW = timedelta(days=45)
#: Whom each certificate is for: the extender is called inside its pod, the caller by nobody.
_CALLER = "caller"
_HOSTS = {"scheduler": "localhost", "webhook": "{0}-webhook.{1}.svc", _CALLER: ""}
#: On the pods of the scheduler's Deployment: which certificate of the caller they started with.
_SERIAL = "hetero.io/caller"
_PEM = serialization.Encoding.PEM


@frozen(kw_only=True)
class Names:
    """What is made: Secrets `<name>-…` in a namespace, and the webhook that is to trust them."""

    namespace: str
    name: str
    webhook: str


async def renew(api: Api, names: Names) -> None:
    """Make or renew all Secrets, and have the API server trust the webhook."""

    def secret(part: str) -> Stored:
        return Stored(api, names.namespace, "secrets", f"{names.name}-{part}")

    stored = await secret("ca").read()
    authority = Pair.read(stored) if stored else issue(f"{names.name}-ca", issuer=None)
    if not stored:
        await secret("ca").write(authority.texts(), new=True)
    ca = authority.cert.public_bytes(_PEM)
    for part in _HOSTS:
        old = await secret(f"{part}-tls").read()
        if old and _lasts(Pair.read(old), authority):
            continue
        hosts = _HOSTS[part].format(names.name, names.namespace).split()
        pair = issue(f"{names.name}-{part}", issuer=authority, hosts=hosts)
        await secret(f"{part}-tls").write({**pair.texts(), "ca.crt": ca}, new=old is None)
        if old and part == _CALLER:
            await _roll(api, names, pair)
    await _trust(api, names, ca)


def _lasts(pair: Pair, authority: Pair) -> bool:
    try:
        pair.cert.verify_directly_issued_by(authority.cert)
    except (InvalidSignature, ValueError):
        return False
    return pair.cert.not_valid_after_utc - datetime.now(timezone.utc) > _RENEW


async def _roll(api: Api, names: Names, pair: Pair) -> None:
    """Have the scheduler's pods replaced, one by one.

    kube-scheduler reads the certificate that it calls an extender with once, when it starts.
    """
    notes = {_SERIAL: str(pair.cert.serial_number)}
    template = {"template": {"metadata": {"annotations": notes}}}
    path = f"/apis/apps/v1/namespaces/{names.namespace}/deployments/{names.name}-scheduler"
    try:
        await api.patch(path, {"spec": template})
    except ApiError as error:
        if error.status != 404:
            raise


async def _trust(api: Api, names: Names, ca: bytes) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + names.webhook
    configuration, bundle = await api.get(path), base64.b64encode(ca).decode()
    if any(hook["clientConfig"].get("caBundle") != bundle for hook in configuration["webhooks"]):
        for hook in configuration["webhooks"]:
            hook["clientConfig"]["caBundle"] = bundle
        await api.put(path, configuration)
