"""Puts the services together from their command lines and runs them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen

from hetero.kube.api import settings
from hetero.kube.api.annotations import KEY_FILE, Key
from hetero.kube.api.client import Access, Api
from hetero.kube.api.lease import Lease
from hetero.kube.api.pod_request import Vocabulary
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.service.certificates import Names, renew
from hetero.kube.service.https import Certificates, serve
from hetero.kube.webhook.admission import Webhook
from hetero.model.errors import BadInput


@frozen(kw_only=True)
class Listen:
    """Where a service listens, and with which certificates; none: plain HTTP, for tests alone."""

    host: str
    port: int
    certificates: Certificates | None


def scheduler(
    listen: Listen,
    *,
    config: Path | None,
    lease: str | None,
    mix: str | None,
    metrics: int | None,
    environ: Mapping[str, str],
) -> None:
    """Run the extender until it is told to stop.

    `lease` is kube-scheduler's and `mix` the ConfigMap of the expected mix, as `namespace/name`.
    """
    path = environ.get(KEY_FILE)
    if mix is not None and not all(mix.partition("/")):
        raise BadInput(f"mix {mix!r}: write namespace/name")
    if not path:
        raise BadInput(f"{KEY_FILE} is not set: it names the file of the signing key")
    key, chosen = Key.read(path), settings.load(config)
    _log()
    vocabulary = _vocabulary(chosen)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            contender = _lease(api, lease) if lease else None
            made = Scheduler(
                api=api,
                vocabulary=vocabulary,
                key=key,
                lease=contender,
                node_placement=chosen.node_placement,
                device_placement=chosen.device_placement,
                choose=chosen.choose,
                half_life=chosen.half_life_days * 86_400,
                mix_in=mix,
            )
            beside = [
                made.follow_nodes(),
                made.follow_pods(),
                made.follow_quotas(),
                made.groups.follow(),
            ]
            if contender:
                beside.append(contender.follow())
            if made.mix:
                await made.mix.read()  # before pods are listed, which would be counted twice
                beside.append(made.mix.follow())
            await serve(
                made.app(),
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
                metrics=(made.scheduler_metrics.app(), metrics) if metrics else None,
                beside=tuple(beside),
            )

    asyncio.run(run())


def webhook(
    listen: Listen,
    *,
    config: Path | None,
    scheduler: str,
    adopt_schedulers: Iterable[str],
    allocation_writer: str,
) -> None:
    """Run the webhook until it is told to stop."""
    chosen = settings.load(config)
    _log()
    vocabulary = _vocabulary(chosen)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            made = Webhook(
                vocabulary=vocabulary,
                scheduler=scheduler,
                allocation_writer=allocation_writer,
                adopt_schedulers=frozenset(adopt_schedulers),
                api=api,
                runtime_classes=chosen.runtime_classes,
            )
            await serve(
                made.app(),
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
            )

    asyncio.run(run())


def certificates(*, namespace: str, name: str) -> None:
    """Make or renew certificates and the signing key in the API, once."""
    _log()

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            await renew(api, Names(namespace=namespace, name=name, webhook=name))

    asyncio.run(run())


def _lease(api: Api, lease: str) -> Lease:
    namespace, _, name = lease.partition("/")
    if not namespace or not name:
        raise BadInput(f"lease {lease!r}: write namespace/name")
    return Lease(api, namespace, name, socket.gethostname())


def _vocabulary(chosen: settings.Settings) -> Vocabulary:
    """Return what pods ask by; no vendor is asked after that."""
    registry = chosen.registry()
    try:
        return chosen.vocabulary(registry)
    finally:
        registry.close()


def _log() -> None:
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)
