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

_AUTHORITY_LIFE, _CERTIFICATE_LIFE = timedelta(days=3650), timedelta(days=90)
#: Clocks of the cluster may be an hour apart, so certificates begin that much earlier.
_CLOCK_SKEW = timedelta(hours=1, minutes=5)
_PEM = serialization.Encoding.PEM


@frozen(kw_only=True)
class Pair:
    """A certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def read(cls, pem_by_file: Mapping[str, bytes]) -> Pair:
        """Return the pair in a Secret."""
        certificate_pem, key_pem = pem_by_file["tls.crt"], pem_by_file["tls.key"]
        private_key = serialization.load_pem_private_key(key_pem, None)
        assert isinstance(private_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - we wrote it
        return cls(cert=x509.load_pem_x509_certificate(certificate_pem), key=private_key)

    def texts(self) -> dict[str, bytes]:
        """Return the pair as a Secret has it."""
        key_format, no_encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return {
            "tls.crt": self.cert.public_bytes(_PEM),
            "tls.key": self.key.private_bytes(_PEM, key_format, no_encryption),
        }


def issue(common_name: str, *, issuer: Pair | None, hosts: Sequence[str] = ()) -> Pair:
    """Return a new pair for `common_name`, an authority's where nobody signs it (`issuer` None)."""
    private_key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    validity = _CERTIFICATE_LIFE if issuer else _AUTHORITY_LIFE
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.cert.subject if issuer else subject)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        alternative_names = x509.SubjectAlternativeName(
            [x509.DNSName(host_name) for host_name in hosts]
        )
        builder = builder.add_extension(alternative_names, critical=False)
    return Pair(
        cert=builder.sign(issuer.key if issuer else private_key, hashes.SHA256()), key=private_key
    )


def own_context(common_name: str) -> ssl.SSLContext:
    """Return a server's context with a pair of its own, in memory, as kubelets have it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with TemporaryDirectory() as directory:  # which others cannot enter
        for file_name, pem in issue(common_name, issuer=None, hosts=[common_name]).texts().items():
            (Path(directory) / file_name).write_bytes(pem)
        context.load_cert_chain(f"{directory}/tls.crt", f"{directory}/tls.key")
    return context
