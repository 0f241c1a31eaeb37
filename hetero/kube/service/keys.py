"""Keeps the key that signs allocations, and tells agents its public half; changes it in steps.

A step announces the next key, the step after it signs with that. Both keys are good from the first
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
_SETTLES = 300
_KEY, _NEXT, _PREVIOUS, _SINCE = "key.pem", "next.pem", "previous.pem", "since"


async def provide(api: Api, namespace: str, name: str) -> None:
    """Make the key unless it is there, and tell agents which keys sign."""
    secret = _secret(api, namespace, name)
    stored = await secret.read()
    if stored is None or _KEY not in stored:
        made = {_KEY: SigningKey.new().text(), _SINCE: _now()}
        await secret.write(made, new=stored is None)
        stored = {**(stored or {}), **made}
    await _publish(api, namespace, name, stored)


async def rotate(api: Api, namespace: str, name: str) -> str:
    """Go one step on to another key; return what to do next. Raises `BadInput` if it is too early.

    The step that signs with the next key leaves the former one valid: what it signed stands and is
    signed anew by the scheduler.
    """
    secret = _secret(api, namespace, name)
    stored = await secret.read()
    if stored is None or _KEY not in stored:
        raise BadInput(f"Secret {secret.name}: there is no key yet: `hetero certificates` makes it")
    left = int(stored[_SINCE]) + _SETTLES - int(time())
    if left > 0:
        raise BadInput(f"Secret {secret.name}: pods may not know its keys yet: wait {left} s")
    change: dict[str, bytes | None]
    if _NEXT in stored:
        public = SigningKey.of(stored[_KEY]).public.text().encode()
        change = {_KEY: stored[_NEXT], _NEXT: None, _PREVIOUS: public, _SINCE: _now()}
        message = "the next key signs now; what the former one signed is signed anew"
    else:
        change = {_NEXT: SigningKey.new().text(), _PREVIOUS: None, _SINCE: _now()}
        message = f"the next key is announced; run this again in {_SETTLES} s to sign with it"
    await secret.write(change, new=False)
    after = {**stored, **change}
    await _publish(api, namespace, name, {k: v for k, v in after.items() if v is not None})
    return message


async def _publish(api: Api, namespace: str, name: str, stored: Mapping[str, bytes]) -> None:
    keys = SigningKey.of(stored[_KEY]).public
    if _NEXT in stored:
        keys += SigningKey.of(stored[_NEXT]).public
    if _PREVIOUS in stored:
        keys += PublicKeys.of(stored[_PREVIOUS].decode())
    public = Stored(api, namespace, "configmaps", f"{name}-keys")
    was, text = await public.read(), keys.text().encode()
    if was is None or was.get("keys.pem") != text:
        await public.write({"keys.pem": text}, new=was is None)


def _secret(api: Api, namespace: str, name: str) -> Stored:
    return Stored(api, namespace, "secrets", f"{name}-key")


def _now() -> bytes:
    return str(int(time())).encode()
