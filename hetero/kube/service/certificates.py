"""Creates a certificate authority and the certificates of the services.

A later run renews the certificates that end soon and leaves the others.
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
_RENEWAL_TIME = timedelta(days=45)
#: Whom each certificate is for: the extender is called inside its pod, the caller by nobody.
_CALLER = "caller"
_HOSTS_BY_SERVICE = {"scheduler": "localhost", "webhook": "{0}-webhook.{1}.svc", _CALLER: ""}
#: On the pods of the scheduler's Deployment: which certificate of the caller they started with.
_SERIAL = "hetero.io/caller"
_PEM = serialization.Encoding.PEM


@frozen(kw_only=True)
class Names:
    """Names of the objects: Secrets `<name>-…` in a namespace, and the webhook configuration."""

    namespace: str
    name: str
    webhook: str


async def renew(api: Api, names: Names) -> None:
    """Create or renew all Secrets, and write the authority to the webhook configuration."""

    def secret(secret_part: str) -> Stored:
        return Stored(api, names.namespace, "secrets", f"{names.name}-{secret_part}")

    stored_texts = await secret("ca").read()
    authority = Pair.read(stored_texts) if stored_texts else issue(f"{names.name}-ca", issuer=None)
    if not stored_texts:
        await secret("ca").write(authority.texts(), is_new=True)
    ca_pem = authority.cert.public_bytes(_PEM)
    for service in _HOSTS_BY_SERVICE:
        old_texts = await secret(f"{service}-tls").read()
        if old_texts and _lasts(Pair.read(old_texts), authority):
            continue
        hosts = _HOSTS_BY_SERVICE[service].format(names.name, names.namespace).split()
        pair = issue(f"{names.name}-{service}", issuer=authority, hosts=hosts)
        await secret(f"{service}-tls").write(
            {**pair.texts(), "ca.crt": ca_pem}, is_new=old_texts is None
        )
        if old_texts and service == _CALLER:
            await _rollout_restart(api, names, pair)
    await _trust(api, names, ca_pem)


def _lasts(pair: Pair, authority: Pair) -> bool:
    try:
        pair.cert.verify_directly_issued_by(authority.cert)
    except (InvalidSignature, ValueError):
        return False
    return pair.cert.not_valid_after_utc - datetime.now(timezone.utc) > _RENEWAL_TIME


async def _rollout_restart(api: Api, names: Names, pair: Pair) -> None:
    """Trigger a rolling restart of the Deployment of the scheduler.

    kube-scheduler reads its client certificate for the extender once, when it starts.
    """
    annotations = {_SERIAL: str(pair.cert.serial_number)}
    template = {"template": {"metadata": {"annotations": annotations}}}
    path = f"/apis/apps/v1/namespaces/{names.namespace}/deployments/{names.name}-scheduler"
    try:
        await api.patch(path, {"spec": template})
    except ApiError as error:
        if error.status != 404:
            raise


async def _trust(api: Api, names: Names, ca_pem: bytes) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + names.webhook
    webhook_configuration, ca_bundle = await api.get(path), base64.b64encode(ca_pem).decode()
    if any(
        webhook["clientConfig"].get("caBundle") != ca_bundle
        for webhook in webhook_configuration["webhooks"]
    ):
        for webhook in webhook_configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = ca_bundle
        await api.put(path, webhook_configuration)
