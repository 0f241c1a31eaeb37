"""Puts the services together from their command lines and runs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen
from prometheus_client import CollectorRegistry

from hetero.kube.client.api import Access, Api, ApiError
from hetero.kube.client.events import Events
from hetero.kube.client.leadership import Leadership
from hetero.kube.dra.template_controller import TemplateController
from hetero.kube.dra.way import AllocationWay, served, template_probe
from hetero.kube.objects.kinds import Metadata
from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.untried_pods import UntriedPods
from hetero.kube.server.delegated import Gate, metrics_app, metrics_handler
from hetero.kube.service import keys
from hetero.kube.service.certificates import Names, renew
from hetero.kube.service.https import PERIOD, Certificates, ExpiryMetric, Port, proved, serve
from hetero.kube.webhook.admission import Webhook
from hetero.kube.webhook.callers import Callers, Handler, by_head, networks
from hetero.kube.webhook.inventory import Inventories
from hetero.kube.words import settings
from hetero.kube.words.pod_request import Vocabulary
from hetero.kube.words.runtime_variables import InjectionWay
from hetero.kube.words.signing import KEY_FILE, PUBLIC_KEYS, PublicKeys, SigningKey
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)


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
    mix: str | None,
    agent: str | None,
    schedulers: Iterable[str],
    metrics: Listen | None,
    environ: Mapping[str, str],
) -> None:
    """Run the extender until it is told to stop.

    `agent` is the user that agents are: nodes without one that serves take nobody. `mix` is the
    ConfigMap of the expected mix, as `namespace/name`. `schedulers` are the names by which pods are
    for the kube-scheduler that it serves. The environment says whether it is the child of one that
    holds a Lease; without one it leads.
    """
    if mix is not None and not all(mix.partition("/")):
        raise BadInput(f"mix {mix!r}: write namespace/name")
    (key, previous), chosen = _keys(environ), settings.load(config)
    _log()
    vocabulary = _vocabulary(chosen)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            leadership = Leadership.of(environ)
            untried = UntriedPods(frozenset(schedulers))
            made = Scheduler(
                api,
                vocabulary,
                key,
                previous=previous,
                settings=chosen,
                mix_in=mix,
                lease=leadership,
                agents=Agents(agent) if agent else None,
                untried=untried,
                kubelet_watches=KubeletWatches(away=True),  # nobody knows what was before
            )
            registry = made.calls.metrics.registry
            tasks = [*made.follow(), _follow_keys(made, environ)]
            tasks += _expiry(listen, api, registry, environ)
            if leadership:
                tasks.append(
                    leadership.follow(
                        made.readiness.knows_all,
                        lambda: untried.is_silent(held=leadership.held),
                    )
                )
            await serve(
                made.calls.app(),
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
                metrics=_metrics(api, registry, metrics),
                tasks=tuple(tasks),
            )

    asyncio.run(run())


def webhook(
    listen: Listen,
    *,
    config: Path | None,
    scheduler: str,
    adopt_schedulers: Iterable[str],
    allocation_writer: str,
    other_writers: Iterable[str],
    agent: str,
    old_kubelets: bool,
    allocation: AllocationWay,
    driver: InjectionWay,
    vendor_runtimes: Iterable[str],
    client_names: Iterable[str],
    allowed_networks: Iterable[str],
    allowed_namespaces: Iterable[str],
    open_to_all: bool,
    environ: Mapping[str, str],
) -> None:
    """Run the webhook until it is told to stop, and what makes the templates that it names.

    Where `listen` names an authority, pods are admitted for who has a certificate of it alone, by
    the common names `client_names` if there are any. Unless it is `open_to_all`, who calls from a
    pod is not answered, but for pods of `allowed_namespaces`; where there are `allowed_networks`,
    nobody else is. Probes and metrics are for everybody who reaches the port.
    """
    chosen, allowed = settings.load(config), networks(allowed_networks)
    _log()
    vocabulary = _vocabulary(chosen)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            way = await _served(api, allocation)
            made = Webhook(
                vocabulary=vocabulary,
                scheduler=scheduler,
                allocation_writer=allocation_writer,
                other_writers=frozenset(other_writers),
                adopt_schedulers=frozenset(adopt_schedulers),
                api=api,
                runtime_classes=chosen.runtime_classes,
                hide_unasked=chosen.hide_unasked,
                vendor_runtimes=frozenset((*vendor_runtimes, *chosen.runtime_classes.values())),
                old_kubelets=old_kubelets,
                way=way,
                driver=driver,
            )
            at = listen.certificates
            guards = dict[str, Callable[[Handler], Handler]]()
            if not open_to_all:
                by = Callers(api, allowed, frozenset(allowed_namespaces))
                guards |= {"/admit": by.directly, "/inventory": by.known}
            if at and at.client_ca:
                guards["/admit"] = partial(proved, names=frozenset(client_names))
            app = made.app()
            app.middlewares.append(by_head(guards))
            answer = metrics_handler(made.rights.registry)
            app.router.add_post("/inventory", Inventories(api=api, agent=agent).answer)
            app.router.add_get("/metrics", Gate(api).guard(answer))
            tasks = _expiry(listen, api, made.rights.registry, environ)
            if way is not AllocationWay.CLASSIC:
                tasks += (TemplateController(api, vocabulary).follow(),)
            await serve(
                app,
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
                tasks=tasks,
            )

    asyncio.run(run())


async def _served(api: Api, way: AllocationWay) -> AllocationWay:
    """Return how pods are given cards where `both` is said: by no claims that nobody can serve.

    While the API does not answer it stays `both`: pods wait for the webhook.
    """
    if way is not AllocationWay.BOTH:
        return way
    try:
        return await served(api, way, template_probe("default"))
    except ApiError as error:
        log.warning("allocation both: whether claims can be served is not known: %s", error)
        return way


def certificates(*, namespace: str, name: str) -> None:
    """Make or renew certificates and the signing key in the API, once."""
    _log()

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            await renew(api, Names(namespace=namespace, name=name, webhook=name))
            await keys.provide(api, namespace, name)

    asyncio.run(run())


def rotate_key(*, namespace: str, name: str) -> str:
    """Go one step on to another signing key; return what to do next. Raises `BadInput`."""
    _log()

    async def run() -> str:
        async with Api(Access.here()).open() as api:
            return await keys.rotate(api, namespace, name)

    return asyncio.run(run())


def _keys(environ: Mapping[str, str]) -> tuple[SigningKey, PublicKeys]:
    """Return the key to sign with, and those that others signed with. Raises `BadInput`."""
    path, public = environ.get(KEY_FILE), environ.get(PUBLIC_KEYS)
    if not path:
        raise BadInput(f"{KEY_FILE} is not set: it names the file of the signing key")
    return SigningKey.read(path), PublicKeys.read(public) if public else PublicKeys()


async def _follow_keys(made: Scheduler, environ: Mapping[str, str]) -> None:
    """Use the keys on disk, for ever; what cannot be read is told of once and not used."""
    last_error = ""
    while True:
        try:
            made.signatures.use(*_keys(environ))
            last_error = ""
        except BadInput as error:
            if str(error) != last_error:
                last_error = str(error)
                log.error("%s", error)
        await asyncio.sleep(PERIOD)


def _metrics(api: Api, registry: CollectorRegistry, at: Listen | None) -> Port | None:
    """Return the service of metrics: for everybody where it is without certificates."""
    if at is None:
        return None
    gate = Gate(api) if at.certificates else None
    return Port(metrics_app(registry, gate=gate), at.host, at.port, at.certificates)


def _expiry(
    listen: Listen, api: Api, registry: CollectorRegistry, environ: Mapping[str, str]
) -> tuple[Coroutine[Any, Any, None], ...]:
    """Have metrics say when the certificate ends, and the log and this pod's events in time."""
    if listen.certificates is None:
        return ()
    registry.register(ExpiryMetric(certificates=listen.certificates))
    events = Events(api)
    names = ("namespace", "name", "uid")
    namespace, name, uid = (environ.get(f"POD_{name.upper()}", "") for name in names)
    pod = Metadata(namespace=namespace, name=name, uid=uid)

    async def tell(sentence: str) -> None:
        log.warning("%s", sentence)
        if namespace and name and uid:
            await events.tell(pod, "CertificateEnds", sentence)

    return (listen.certificates.warn(tell),)


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
