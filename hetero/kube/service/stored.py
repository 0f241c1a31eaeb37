"""One Secret or ConfigMap of the release, as the bytes it holds by name."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping

from attrs import frozen

from hetero.kube.client.api import Api, ApiError

log = logging.getLogger(__name__)


@frozen
class Stored:
    """An object of the API with data; `kind` is "secrets" or "configmaps"."""

    api: Api
    namespace: str
    kind: str
    name: str

    async def read(self) -> dict[str, bytes] | None:
        """Return its data by name, None if the object does not exist. Raises `ApiError`."""
        try:
            stored_object = await self.api.get(f"{self._all}/{self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return {
            data_key: self._bytes(text)
            for data_key, text in (stored_object.get("data") or {}).items()
        }

    async def write(self, texts: Mapping[str, bytes | None], *, is_new: bool) -> None:
        """Create it, or change it: a value of None removes a name, names not given stay."""
        data = {
            data_key: None if text is None else self._text(text) for data_key, text in texts.items()
        }
        kind = {"secrets": "Secret", "configmaps": "ConfigMap"}[self.kind]
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": self.name}, "data": data}
        if is_new:
            await self.api.post(self._all, body)
        else:
            await self.api.patch(f"{self._all}/{self.name}", body)
        log.info("%s %s: %s", kind, self.name, "made" if is_new else "renewed")

    @property
    def _all(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{self.kind}"

    def _bytes(self, stored_text: str) -> bytes:
        return base64.b64decode(stored_text) if self.kind == "secrets" else stored_text.encode()

    def _text(self, text_bytes: bytes) -> str:
        return (
            base64.b64encode(text_bytes).decode() if self.kind == "secrets" else text_bytes.decode()
        )
