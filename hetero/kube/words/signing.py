"""The signatures of allocations: Ed25519, so that a program that verifies cannot sign.

The scheduler alone has the private key. Agents have the public keys: two of them while the key is
rotated. Allocations that the previous key signed stay valid until they are signed again.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from attrs import field, frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from hetero.model.errors import BadInput

#: Names the file of the private key, for the scheduler.
KEY_FILE = "HETERO_KEY_FILE"
#: Names the file of the public keys, for all others.
PUBLIC_KEYS = "HETERO_PUBLIC_KEYS"

#: Begins whatever is signed, so that a signature is good for nothing else.
_WHAT = b"hetero.io/allocation v1"
_END = "-----END PUBLIC KEY-----"
#: Hex digits of a signature.
_SIGNATURE_DIGITS = 128
#: Digests of what was verified, until so many were: an agent asks for the same ones again and
#: again. Neither what was refused is kept, which anybody may have written, nor any text.
_verified: set[bytes] = set()
_MOST_VERIFIED = 4096


@frozen(kw_only=True)
class PublicKeys:
    """The public keys, 32 bytes each, whose owners may sign."""

    raw: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, path: str) -> PublicKeys:
        """Return the keys in a PEM file. Raises `BadInput` when there is none."""
        try:
            return cls.of(Path(path).read_text())
        except OSError as error:
            reason = f"{error.strerror} (is the ConfigMap mounted?)"
        except ValueError as error:
            reason = str(error)
        raise BadInput(f"public keys {path}: {reason}")

    @classmethod
    def of(cls, pem_text: str) -> PublicKeys:
        """Return the keys in PEM. Raises `ValueError`."""
        return cls(raw=_raw(pem_text))

    def text(self) -> str:
        """Return the keys in PEM."""
        return "".join(_public(raw_key).decode() for raw_key in self.raw)

    def __add__(self, other_keys: PublicKeys) -> PublicKeys:
        return PublicKeys(raw=tuple(dict.fromkeys((*self.raw, *other_keys.raw))))

    def signed(self, signed_text: str, signature: str, *, uid: str, node: str) -> bool:
        """Return whether one of the keys signed an allocation for this pod on this node."""
        if len(signature) != _SIGNATURE_DIGITS:
            return False
        message = _message(signed_text, uid, node)
        return any(_signed(raw_key, message, signature) for raw_key in self.raw)


@frozen(kw_only=True)
class SigningKey:
    """The private key."""

    private: Ed25519PrivateKey = field(repr=False, eq=False)

    @classmethod
    def new(cls) -> SigningKey:
        """Return a new key."""
        return cls(private=Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: str) -> SigningKey:
        """Return the key in a PEM file. Raises `BadInput`."""
        try:
            return cls.of(Path(path).read_bytes())
        except OSError as error:
            reason = f"{error.strerror} (is the Secret mounted?)"
        except ValueError:  # what it says is nothing to be shown: it may quote the file
            reason = "is not an Ed25519 key in PEM: `hetero certificates` makes one"
        raise BadInput(f"signing key {path}: {reason}")

    @classmethod
    def of(cls, pem_bytes: bytes) -> SigningKey:
        """Return the key in PEM. Raises `ValueError`."""
        private_key = load_pem_private_key(pem_bytes, None)
        if not isinstance(private_key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 key")
        return cls(private=private_key)

    def text(self) -> bytes:
        """Return the key in PEM."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def public(self) -> PublicKeys:
        """The public key, which verifies this key's signatures."""
        return PublicKeys(raw=(self.private.public_key().public_bytes_raw(),))

    def sign(self, signed_text: str, *, uid: str, node: str) -> str:
        """Return the signature of an allocation's text for this pod on this node, in hex."""
        return self.private.sign(_message(signed_text, uid, node)).hex()


def _message(signed_text: str, uid: str, node: str) -> bytes:
    # Lengths go first: no part can pass for the end of the one before it.
    parts = [_WHAT, *(part.encode() for part in (signed_text, uid, node))]
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _signed(raw_key: bytes, message: bytes, signature: str) -> bool:
    """Return whether the owner of a key signed a message."""
    try:
        signature_bytes = bytes.fromhex(signature)
        digest = sha256(raw_key + signature_bytes + message).digest()
        if digest not in _verified:
            Ed25519PublicKey.from_public_bytes(raw_key).verify(signature_bytes, message)
            if len(_verified) >= _MOST_VERIFIED:
                _verified.clear()
            _verified.add(digest)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=8)
def _raw(pem_text: str) -> tuple[bytes, ...]:
    keys = tuple(_read(part + _END) for part in pem_text.split(_END)[:-1])
    if not keys:
        raise ValueError("no public key is in it")
    return keys


def _read(pem_text: str) -> bytes:
    public_key = load_pem_public_key(pem_text.strip().encode())
    if not isinstance(public_key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return public_key.public_bytes_raw()


def _public(raw: bytes) -> bytes:
    public_key = Ed25519PublicKey.from_public_bytes(raw)
    return public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
