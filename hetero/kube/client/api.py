"""The Kubernetes API over one HTTP session: JSON, and lists that are followed for ever."""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import aiohttp
from attrs import define, field, frozen
from msgspec import DecodeError, json

from hetero.kube.objects.kinds import Object, Plain
from hetero.kube.objects.reading import Page, Reader, plain_page, reader
from hetero.model.errors import BadInput, HeteroError

#: Seconds that somebody who looks on waits for a connection.
VIEW_CONNECT_S = 1.5

_T = TypeVar("_T")
_O = TypeVar("_O", bound=Object)

MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
#: Where kubectl looks, too.
_KUBECONFIG = "~/.kube/config"
#: Seconds that an answer may take.
_ANSWER_TIMEOUT_S = 10
#: Seconds between two attempts to follow something that does not answer, at most and on average.
LONGEST_RETRY_S = 15.0
#: Seconds the server keeps a watch open; a little more and a silent connection is given up.
_WATCH_S = 290
_PAGE_ITEMS = 500
#: What is no JSON, or nested past what a parser follows.
_UNREAD = (DecodeError, RecursionError, ValueError)


class ApiError(HeteroError):
    """The API said no; `status` is HTTP's, 0 where no answer came."""

    def __init__(self, failed_call: str, status: int, reason: str) -> None:
        super().__init__(
            f"{failed_call}: {status} {reason}" if status else f"{failed_call}: {reason}"
        )
        self.status = status


@frozen(kw_only=True)
class Access:
    """Where the API is and how it is entered; `token` names a file where it is renewed."""

    server: str
    tls: ssl.SSLContext | None = None
    token: str | None = None
    token_file: Path | None = None

    @classmethod
    def here(cls) -> Access:
        """Return the access of this pod, or else of $KUBECONFIG. Raises `BadInput`."""
        try:
            return cls._of_pod() if _SERVICE_ACCOUNT.exists() else cls._of_kubeconfig()
        except OSError as error:
            raise BadInput(f"Kubernetes: no access ({error}); set KUBECONFIG") from None

    @classmethod
    def _of_pod(cls) -> Access:
        host, port = (
            os.environ[f"KUBERNETES_SERVICE_{variable_suffix}"]
            for variable_suffix in ("HOST", "PORT")
        )
        return cls(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            tls=ssl.create_default_context(cafile=_SERVICE_ACCOUNT.with_name("ca.crt")),
            token_file=_SERVICE_ACCOUNT,
        )

    @classmethod
    def _of_kubeconfig(cls) -> Access:
        paths = os.environ.get("KUBECONFIG") or _KUBECONFIG
        if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep)):
            raise BadInput(f"Kubernetes: no access ({paths}: no such file); set KUBECONFIG")
        # Here alone: it is 25 MiB, and a pod on every node does without.
        from kubernetes import client, config

        settings = client.Configuration()
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=paths, client_configuration=settings
            )
        except config.ConfigException as error:
            raise BadInput(f"Kubernetes: no access ({error}); set KUBECONFIG") from None
        tls_context = None
        if settings.host.startswith("https"):
            tls_context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
            if not settings.verify_ssl:
                tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE
            if settings.cert_file:
                tls_context.load_cert_chain(settings.cert_file, settings.key_file)
        bearer = settings.api_key.get("BearerToken", "")
        token = bearer.removeprefix("bearer ").removeprefix("Bearer ")
        return cls(server=settings.host, tls=tls_context, token=token or None)


class ApiCalls(Protocol):
    """What a scheduler asks of the API: of `Api`, or of objects in memory that stand for one."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Plain:
        """Return an object or a list. Raises `ApiError`."""

    async def post(self, path: str, body: Plain) -> Plain:
        """Create an object. Raises `ApiError`."""

    async def patch(self, path: str, body: Plain) -> Plain:
        """Merge into an object. Raises `ApiError`."""

    async def follow(
        self,
        path: str,
        kind: type[_O],
        *,
        query: Mapping[str, str] | None = None,
        listed: Callable[[list[_O]], None],
        changed: Callable[[str, _O], None],
        lost: Callable[[Exception], None],
        retry_s: float = LONGEST_RETRY_S,
    ) -> None:
        """List, then watch: `listed` gets all there is, `changed` every event after it."""


@define(eq=False)
class Api:
    """One session with the API.

    A connection may take `connect_timeout_s` seconds; None: as long as the answer.
    """

    access: Access
    connect_timeout_s: float | None = None
    _session: aiohttp.ClientSession = field(init=False)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Api]:
        """Hold the session open."""
        connector = aiohttp.TCPConnector(ssl=self.access.tls or True, limit=100)
        # The API server's audit log and metrics then tell our requests from kube-scheduler's.
        headers = {"User-Agent": "hetero"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as self._session:
            yield self

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Plain:
        """Return an object or a list. Raises `ApiError`."""
        return await self._call("GET", path, _plain, query=query)

    async def items(self, path: str, query: Mapping[str, str] | None = None) -> list[Plain]:
        """Return all objects of a list, which comes in pages. Raises `ApiError`."""
        items, _ = await self._list(path, query or {}, plain_page)
        return items

    async def objects(
        self, path: str, kind: type[_O], query: Mapping[str, str] | None = None
    ) -> list[_O]:
        """Return all objects of a kind in a list, as `items`. Raises `ApiError`."""
        objects, _ = await self._list(path, query or {}, reader(kind).page)
        return objects

    async def text(self, path: str, headers: Mapping[str, str] | None = None) -> str:
        """Return the text that a pod serves at a path behind the API. Raises `ApiError`."""
        return await self._call("GET", path, str, headers=headers)

    async def post(self, path: str, body: Plain) -> Plain:
        """Create an object. Raises `ApiError`."""
        return await self._call("POST", path, _plain, body=body)

    async def put(self, path: str, body: Plain) -> Plain:
        """Replace an object. Raises `ApiError`."""
        return await self._call("PUT", path, _plain, body=body)

    async def patch(self, path: str, body: Plain) -> Plain:
        """Merge into an object. Raises `ApiError`."""
        return await self._call("PATCH", path, _plain, body=body, content_type=MERGE)

    async def apply(self, path: str, body: Plain, *, owner: str) -> Plain:
        """Apply the fields of an object that `owner` manages (server-side apply).

        Fields that `owner` managed before and that are not in `body` are removed. Raises
        `ApiError`.
        """
        query = {"fieldManager": owner, "force": "true"}
        return await self._call("PATCH", path, _plain, body=body, content_type=APPLY, query=query)

    async def delete(self, path: str) -> Plain:
        """Remove an object. Raises `ApiError`."""
        return await self._call("DELETE", path, _plain)

    async def _call(
        self,
        method: str,
        path: str,
        parse: Callable[[str], _T],
        *,
        body: Plain | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> _T:
        """Return the response as `parse` reads it. Raises `ApiError`."""
        call_text = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self.access.server + path,
                data=None if body is None else json.encode(body),
                params=query,
                headers={**self._headers(), **(headers or {}), "Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(
                    total=_ANSWER_TIMEOUT_S, connect=self.connect_timeout_s
                ),
            ) as response:
                response_text = await response.text()
                if response.status >= 400:
                    raise ApiError(
                        call_text, response.status, _message(response_text) or response.reason or ""
                    )
                return parse(response_text)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reason = f"{self.access.server} cannot be reached ({_unreachable(error)})"
            raise ApiError(call_text, 0, reason) from None
        except (aiohttp.ClientError, asyncio.TimeoutError, *_UNREAD) as error:
            raise ApiError(call_text, 0, str(error) or type(error).__name__) from None

    def _headers(self) -> dict[str, str]:
        token = self.access.token
        if self.access.token_file is not None:
            token = self.access.token_file.read_text().strip()  # the kubelet renews it
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def follow(
        self,
        path: str,
        kind: type[_O],
        *,
        query: Mapping[str, str] | None = None,
        metadata_only: bool = False,
        listed: Callable[[list[_O]], None],
        changed: Callable[[str, _O], None],
        lost: Callable[[Exception], None],
        retry_s: float = LONGEST_RETRY_S,
    ) -> None:
        """List, then watch, for ever: `listed` gets all there is, `changed` every event after it.

        What is no object of the kind is passed over. With `metadata_only` objects are their
        metadata alone: what anybody may have written into some, nested past what a parser follows,
        is not read. After a failure (told to `lost`) the list is read anew, later each time, after
        `retry_s` seconds on average in the end, and never at a beat that others share.
        """
        wait_s, reader_of_kind = 0.5, reader(kind)
        while True:
            try:
                items, list_version = await self._list(
                    path, query or {}, reader_of_kind.page, metadata_only=metadata_only
                )
                listed(items)
                wait_s = 0.5
                resource_version: str | None = list_version
                while resource_version is not None:
                    resource_version = await self._watch(
                        path,
                        query or {},
                        resource_version,
                        reader_of_kind,
                        changed,
                        metadata_only=metadata_only,
                    )
            except (ApiError, aiohttp.ClientError, asyncio.TimeoutError, *_UNREAD) as error:
                lost(error)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(wait_s * 2, retry_s)

    async def _list(
        self,
        path: str,
        query: Mapping[str, str],
        decode: Callable[[str], Page[_T]],
        *,
        metadata_only: bool = False,
    ) -> tuple[list[_T], str]:
        items: list[_T] = []
        continue_token = ""
        while True:
            page_query = {
                **query,
                "limit": str(_PAGE_ITEMS),
                **({"continue": continue_token} if continue_token else {}),
            }
            headers = _accept("PartialObjectMetadataList", metadata_only=metadata_only)
            page = await self._call("GET", path, decode, query=page_query, headers=headers)
            items += page.items or ()
            continue_token = page.metadata.continue_token
            if not continue_token:
                return items, page.metadata.resource_version

    async def _watch(
        self,
        path: str,
        query: Mapping[str, str],
        resource_version: str,
        reader_of_kind: Reader[_O],
        changed: Callable[[str, _O], None],
        *,
        metadata_only: bool,
    ) -> str | None:
        """Report changes until the server ends the watch; None if the list must be read again."""
        async with self._session.get(
            self.access.server + path,
            params={
                **query,
                "watch": "true",
                "resourceVersion": resource_version,
                "timeoutSeconds": str(_WATCH_S),
                "allowWatchBookmarks": "true",
            },
            headers={
                **self._headers(),
                **_accept("PartialObjectMetadata", metadata_only=metadata_only),
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_WATCH_S + 30),
        ) as response:
            if response.status >= 400:
                raise ApiError(f"watch {path}", response.status, response.reason or "")
            unread_bytes = b""
            async for chunk in response.content.iter_any():
                *lines, unread_bytes = (unread_bytes + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = reader_of_kind.event(line)
                    if event.type == "ERROR":
                        return None  # what we know is too old
                    resource_version = event.object.metadata.resource_version or resource_version
                    if event.type != "BOOKMARK" and event.object.is_named:
                        changed(event.type, event.object)
        return resource_version


def _unreachable(error: aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError) -> str:
    """Return why there is no connection, in the words of the system if it gives a reason."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    return (cause and cause.strerror) or str(error)


def _accept(kind: str, *, metadata_only: bool) -> dict[str, str]:
    """Return the header that makes the API answer with metadata alone."""
    return {"Accept": f"application/json;as={kind};g=meta.k8s.io;v=v1"} if metadata_only else {}


def _plain(json_text: str) -> Plain:
    decoded_json: Plain = json.decode(json_text or "{}")
    return decoded_json


def _message(json_text: str) -> str:
    """Return what an answer that is an error says about it, as far as it is the API's."""
    try:
        return str(json.decode(json_text)["message"])
    except (*_UNREAD, KeyError, TypeError):
        return ""
