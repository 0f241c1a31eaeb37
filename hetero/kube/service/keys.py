"""Keeps the key that signs allocations, publishes its public half, and rotates it in steps.

A step announces the next key, the step after it signs with that. Both keys are valid from the first
to the last of them, and the former one until the next is announced.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time

from hetero.kube.client.api import Api
from hetero.kube.service.stored import Stored
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model.errors import BadInput

#: Seconds in which every kubelet has brought a changed Secret or ConfigMap to its pods: it looks
#: once a minute, and what it keeps of them is a minute old at most.
_PROPAGATION_S = 300
_KEY, _NEXT, _PREVIOUS, _SINCE = "key.pem", "next.pem", "previous.pem", "since"


async def provide(api: Api, namespace: str, secret_name: str) -> None:
    """Create the key unless it exists, and publish the public keys to the agents."""
    secret = _secret(api, namespace, secret_name)
    stored_texts = await secret.read()
    if stored_texts is None or _KEY not in stored_texts:
        new_texts = {_KEY: SigningKey.new().text(), _SINCE: _now()}
        await secret.write(new_texts, is_new=stored_texts is None)
        stored_texts = {**(stored_texts or {}), **new_texts}
    await _publish(api, namespace, secret_name, stored_texts)


async def rotate(api: Api, namespace: str, secret_name: str) -> str:
    """Take one step of the rotation; return what to do next. Raises `BadInput` if it is too early.

    The step that signs with the next key keeps the previous one valid. The scheduler signs the
    existing allocations again.
    """
    secret = _secret(api, namespace, secret_name)
    stored_texts = await secret.read()
    if stored_texts is None or _KEY not in stored_texts:
        raise BadInput(f"Secret {secret.name}: there is no key yet: `hetero certificates` makes it")
    left_s = int(stored_texts[_SINCE]) + _PROPAGATION_S - int(time())
    if left_s > 0:
        raise BadInput(f"Secret {secret.name}: pods may not know its keys yet: wait {left_s} s")
    changes: dict[str, bytes | None]
    if _NEXT in stored_texts:
        public_pem = SigningKey.of(stored_texts[_KEY]).public.text().encode()
        changes = {_KEY: stored_texts[_NEXT], _NEXT: None, _PREVIOUS: public_pem, _SINCE: _now()}
        message = "the next key signs now; what the former one signed is signed anew"
    else:
        changes = {_NEXT: SigningKey.new().text(), _PREVIOUS: None, _SINCE: _now()}
        message = f"the next key is announced; run this again in {_PROPAGATION_S} s to sign with it"
    await secret.write(changes, is_new=False)
    texts_after = {**stored_texts, **changes}
    await _publish(
        api,
        namespace,
        secret_name,
        {
            data_key: stored_text
            for data_key, stored_text in texts_after.items()
            if stored_text is not None
        },
    )
    return message


async def _publish(
    api: Api, namespace: str, secret_name: str, stored_texts: Mapping[str, bytes]
) -> None:
    public_keys = SigningKey.of(stored_texts[_KEY]).public
    if _NEXT in stored_texts:
        public_keys += SigningKey.of(stored_texts[_NEXT]).public
    if _PREVIOUS in stored_texts:
        public_keys += PublicKeys.of(stored_texts[_PREVIOUS].decode())
    stored_public = Stored(api, namespace, "configmaps", f"{secret_name}-keys")
    texts_before, keys_pem = await stored_public.read(), public_keys.text().encode()
    if texts_before is None or texts_before.get("keys.pem") != keys_pem:
        await stored_public.write({"keys.pem": keys_pem}, is_new=texts_before is None)


def _secret(api: Api, namespace: str, secret_name: str) -> Stored:
    return Stored(api, namespace, "secrets", f"{secret_name}-key")


def _now() -> bytes:
    return str(int(time())).encode()
