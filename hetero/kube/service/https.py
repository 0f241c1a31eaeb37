"""Serves HTTPS with certificates that are renewed on disk, until the process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from attrs import frozen
from cryptography import x509
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hetero.kube.server.sources import Handler, opened
from hetero.kube.service.until_stopped import until_stopped
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

#: How often certificates on disk are looked at, in seconds.
POLL_PERIOD_S = 5.0
#: How long before a certificate ends somebody is told, and how often.
_EXPIRY_NOTICE_TIME, _EXPIRY_NOTICE_PERIOD = timedelta(days=30), timedelta(days=1)

#: Where kubelets ask whether a service answers at all, and whether callers will take its answers.
ALIVE, READY = "/livez", "/readyz"

#: Tells people a sentence.
Tell = Callable[[str], Awaitable[None]]


@frozen(kw_only=True)
class Certificates:
    """Where a service's certificate and key lie, and which authority its clients need.

    Without a certificate of `client_ca` no client gets in, unless it is `optional`: then `proved`
    decides. The end of `caller`, a certificate that others use, is reported as well.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    optional: bool = False
    caller: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context with the files on disk. Raises `BadInput`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake for each message of a client's
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL if self.optional else ssl.CERT_REQUIRED
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the files on disk; connections made from now on use them."""
        try:
            end_time = self.ends()
            if end_time <= datetime.now(timezone.utc):
                raise BadInput(
                    f"certificate {self.cert}: expired at {end_time:%F %T} UTC: renew it"
                )
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            raise BadInput(f"certificate {self.cert}: {error}") from None

    def state(self) -> tuple[bytes, ...]:
        """Return the contents of the files, to detect a change."""
        paths = (self.cert, self.key, self.client_ca)
        return tuple(path.read_bytes() for path in paths if path is not None)

    def ends(self) -> datetime:
        """Return when the certificate on disk ends. Raises `OSError` and `ValueError`."""
        return x509.load_pem_x509_certificate(self.cert.read_bytes()).not_valid_after_utc

    def all_ends(self) -> Iterator[tuple[str, Path, datetime]]:
        """Yield the use, the path and the end of each certificate on disk.

        The authority of the service, which callers trust, is one of them.
        """
        path_by_name = {
            "server": self.cert,
            "authority": self.cert.with_name("ca.crt"),
            "clients": self.client_ca,
            "caller": self.caller,
        }
        for file_name, path in path_by_name.items():
            if path is not None and (file_name != "clients" or path != path_by_name["authority"]):
                with suppress(OSError, ValueError):  # `follow` says what is wrong with its own
                    certificates = x509.load_pem_x509_certificates(path.read_bytes())
                    yield (
                        file_name,
                        path,
                        min(certificate.not_valid_after_utc for certificate in certificates),
                    )

    async def warn(self, tell: Tell) -> None:
        """Report each day, for ever, each certificate that ends soon."""
        warned_at_by_file: dict[str, datetime] = {}
        while True:
            now = datetime.now(timezone.utc)
            for file_name, path, end_time in self.all_ends():
                if end_time - now > _EXPIRY_NOTICE_TIME:
                    warned_at_by_file.pop(file_name, None)
                elif (
                    file_name not in warned_at_by_file
                    or now - warned_at_by_file[file_name] > _EXPIRY_NOTICE_PERIOD
                ):
                    warned_at_by_file[file_name] = now
                    await tell(f"certificate {path}: ends at {end_time:%F %T} UTC: renew it")
            await asyncio.sleep(POLL_PERIOD_S)

    async def follow(self, context: ssl.SSLContext) -> None:
        """Load renewed certificates, for ever; an invalid one is reported and not used."""
        used_state = self.state()
        while True:
            await asyncio.sleep(POLL_PERIOD_S)
            with suppress(OSError):  # being replaced at this moment
                state = self.state()
                if state != used_state:
                    used_state = state
                    try:
                        self.load(context)
                        log.info("certificate %s: renewed", self.cert)
                    except BadInput as error:
                        log.error("%s", error)


@frozen(kw_only=True)
class ExpiryMetric(Collector):
    """The end of a service's certificates on disk, as a metric."""

    certificates: Certificates

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the ends in seconds since 1970; a missing certificate has no sample."""
        metric = GaugeMetricFamily(
            "hetero_certificate_expiration_timestamp_seconds",
            "When a certificate ends: the server's, of its authority, of its clients' authority, "
            "and what kube-scheduler calls it with",
            labels=("certificate",),
        )
        for file_name, _, end_time in self.certificates.all_ends():
            metric.add_metric((file_name,), end_time.timestamp())
        yield metric


@frozen
class Port:
    """An app and where it is served; without certificates in plain HTTP."""

    app: web.Application
    host: str
    port: int
    certificates: Certificates | None


async def serve(
    app: web.Application,
    *,
    host: str,
    port: int,
    certificates: Certificates | None,
    metrics: Port | None = None,
    tasks: tuple[Coroutine[Any, Any, None], ...] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, and run `tasks` until then; one that fails ends it all.

    `metrics` have a port of their own.
    """
    async with AsyncExitStack() as ports:
        for service_port in filter(None, (Port(app, host, port, certificates), metrics)):
            context = service_port.certificates.context() if service_port.certificates else None
            service_port.app.router.add_get(ALIVE, _alive)
            service_port.app.router.add_get(READY, partial(_ready, certificates))
            opened_port = opened(
                service_port.app,
                host=service_port.host,
                port=service_port.port,
                tls_context=context,
            )
            await ports.enter_async_context(opened_port)
            if service_port.certificates and context:
                tasks = (*tasks, service_port.certificates.follow(context))
        log.info("serving on %s:%s", host, port)
        await until_stopped(*tasks)


def proved(handler: Handler, allowed_names: Collection[str]) -> Handler:
    """Admit clients with a certificate of one of these common names; without names: any client."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        peer_certificate = request.transport and request.transport.get_extra_info("peercert")
        name_parts = [
            name_part
            for name_parts in (peer_certificate or {}).get("subject", ())
            for name_part in name_parts
        ]
        common_names = {
            part_value for part_name, part_value in name_parts if part_name == "commonName"
        }
        if not peer_certificate or (allowed_names and common_names.isdisjoint(allowed_names)):
            raise web.HTTPForbidden(text="this is for the API server: no certificate of its own")
        return await handler(request)

    return guarded


async def _alive(_: web.Request) -> web.Response:
    """Answer that this service runs."""
    return web.Response(text="ok")


async def _ready(certificates: Certificates | None, _: web.Request) -> web.Response:
    """Answer whether clients can trust this service: not with an expired certificate."""
    with suppress(OSError, ValueError):
        if certificates is None or certificates.ends() > datetime.now(timezone.utc):
            return web.Response(text="ok")
    return web.Response(status=503, text="the certificate has ended or cannot be read")
