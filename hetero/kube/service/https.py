"""Serves HTTPS with certificates that are renewed on disk, and runs until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aiohttp import web
from attrs import frozen
from cryptography import x509

from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

#: How often certificates on disk are looked at, in seconds.
PERIOD = 5.0


@frozen(kw_only=True)
class Certificates:
    """Where a service's certificate and key lie; with `callers` only callers it signed get in."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context with what is on disk now. Raises `BadInput`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Take what is on disk into use; connections made from now on see it."""
        try:
            ends = x509.load_pem_x509_certificate(self.cert.read_bytes()).not_valid_after_utc
            if ends <= datetime.now(timezone.utc):
                raise BadInput(f"certificate {self.cert}: expired at {ends:%F %T} UTC: renew it")
            context.load_cert_chain(self.cert, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            raise BadInput(f"certificate {self.cert}: {error}") from None

    def state(self) -> tuple[bytes, ...]:
        """Return what is on disk, to see a change by."""
        paths = (self.cert, self.key, self.client_ca)
        return tuple(path.read_bytes() for path in paths if path is not None)

    async def follow(self, context: ssl.SSLContext) -> None:
        """Take renewed certificates into use, for ever; a bad one is told of and not used."""
        used = self.state()
        while True:
            await asyncio.sleep(PERIOD)
            with suppress(OSError):  # being replaced at this moment
                found = self.state()
                if found != used:
                    used = found
                    try:
                        self.load(context)
                        log.info("certificate %s: renewed", self.cert)
                    except BadInput as error:
                        log.error("%s", error)


async def serve(
    app: web.Application,
    *,
    host: str,
    port: int,
    certificates: Certificates | None,
    metrics: tuple[web.Application, int] | None = None,
    beside: tuple[Coroutine[Any, Any, None], ...] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, with the tasks `beside` it; one that fails ends it all.

    `metrics` are served without TLS on a port of their own.
    """
    context = certificates.context() if certificates else None
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=context)
    await site.start()
    runners = [runner]
    if metrics is not None:
        runners.append(web.AppRunner(metrics[0], access_log=None))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], host, metrics[1]).start()
    log.info("serving on %s:%s", host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if certificates and context:
        beside = (*beside, certificates.follow(context))
    tasks = [asyncio.ensure_future(task) for task in (*beside, stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in runners:
            await one.cleanup()
