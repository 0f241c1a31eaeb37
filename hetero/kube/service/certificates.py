"""Makes what the services prove themselves by: an authority, their certificates, the signing key.

Run again it renews what is about to end and leaves the rest alone.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetero.kube.api.client import Api, ApiError, Plain

log = logging.getLogger(__name__)

_AUTHORITY, _LASTS = timedelta(days=3650), timedelta(days=90)
#: Renewed when so little of its time is left.
_RENEW = timedelta(days=30)
#: Whom each certificate is for: the extender is called inside its pod, the caller by nobody.
_HOSTS = {"scheduler": "localhost", "webhook": "{0}-webhook.{1}.svc", "caller": ""}
_PEM = serialization.Encoding.PEM


@frozen(kw_only=True)
class Names:
    """What is made: Secrets `<name>-…` in a namespace, and the webhook that is to trust them."""

    namespace: str
    name: str
    webhook: str


@frozen(kw_only=True)
class Pair:
    """A certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, secret: Plain) -> Pair:
        """Return the pair in a Secret."""
        cert, key = (base64.b64decode(secret["data"][name]) for name in ("tls.crt", "tls.key"))
        private = serialization.load_pem_private_key(key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)  # noqa: S101 - we wrote it
        return cls(cert=x509.load_pem_x509_certificate(cert), key=private)

    def texts(self) -> dict[str, bytes]:
        """Return the pair as a Secret has it."""
        plain, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return {
            "tls.crt": self.cert.public_bytes(_PEM),
            "tls.key": self.key.private_bytes(_PEM, plain, none),
        }


def issue(name: str, *, by: Pair | None, hosts: Sequence[str] = ()) -> Pair:
    """Return a new pair for `name`, an authority's where nobody signs it (`by` None)."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    lasts = _LASTS if by else _AUTHORITY
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.cert.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lasts)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if by is not None:
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        made = made.add_extension(names, critical=False)
    return Pair(cert=made.sign(by.key if by else key, hashes.SHA256()), key=key)


async def renew(api: Api, names: Names) -> None:
    """Make or renew all Secrets, and have the API server trust the webhook."""
    found = await _secret(api, names, "ca")
    authority = Pair.read(found) if found else issue(f"{names.name}-ca", by=None)
    if not found:
        await _write(api, names, "ca", authority.texts(), new=True)
    ca = authority.cert.public_bytes(_PEM)
    for part in _HOSTS:
        old = await _secret(api, names, f"{part}-tls")
        if old and _lasts(Pair.read(old), authority):
            continue
        hosts = _HOSTS[part].format(names.name, names.namespace).split()
        pair = issue(f"{names.name}-{part}", by=authority, hosts=hosts)
        await _write(api, names, f"{part}-tls", {**pair.texts(), "ca.crt": ca}, new=old is None)
    if not await _secret(api, names, "key"):
        await _write(api, names, "key", {"key": secrets.token_hex(32).encode()}, new=True)
    await _trust(api, names, ca)


def _lasts(pair: Pair, authority: Pair) -> bool:
    signed = pair.cert.issuer == authority.cert.subject
    return signed and pair.cert.not_valid_after_utc - datetime.now(timezone.utc) > _RENEW


async def _trust(api: Api, names: Names, ca: bytes) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + names.webhook
    found, bundle = await api.get(path), base64.b64encode(ca).decode()
    if any(hook["clientConfig"].get("caBundle") != bundle for hook in found["webhooks"]):
        for hook in found["webhooks"]:
            hook["clientConfig"]["caBundle"] = bundle
        await api.put(path, found)


async def _secret(api: Api, names: Names, part: str) -> Plain | None:
    try:
        return await api.get(f"{_secrets(names)}/{names.name}-{part}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


async def _write(
    api: Api, names: Names, part: str, texts: Mapping[str, bytes], *, new: bool
) -> None:
    name = f"{names.name}-{part}"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {key: base64.b64encode(text).decode() for key, text in texts.items()},
    }
    if new:
        await api.post(_secrets(names), secret)
    else:
        await api.patch(f"{_secrets(names)}/{name}", secret)
    log.info("secret %s: %s", name, "made" if new else "renewed")


def _secrets(names: Names) -> str:
    return f"/api/v1/namespaces/{names.namespace}/secrets"
