"""Makes certificates and their keys: of an authority, by one, or signed by nobody."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY, _LASTS = timedelta(days=3650), timedelta(days=90)
#: Clocks of the cluster may be an hour apart, and whoever looks is not at its edge.
_BACK = timedelta(hours=1, minutes=5)
_PEM = serialization.Encoding.PEM


@frozen(kw_only=True)
class Pair:
    """A certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, texts: Mapping[str, bytes]) -> Pair:
        """Return the pair in a Secret."""
        cert, key = texts["tls.crt"], texts["tls.key"]
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
        .not_valid_before(now - _BACK)
        .not_valid_after(now + lasts)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    )
    if by is not None:
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        made = made.add_extension(names, critical=False)
    return Pair(cert=made.sign(by.key if by else key, hashes.SHA256()), key=key)


def own_context(name: str) -> ssl.SSLContext:
    """Return a server's context with a pair of its own, in memory, as kubelets have it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with TemporaryDirectory() as folder:  # which others cannot enter
        for part, text in issue(name, by=None, hosts=[name]).texts().items():
            (Path(folder) / part).write_bytes(text)
        context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    return context
