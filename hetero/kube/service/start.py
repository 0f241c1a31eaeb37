"""Builds the services from their command lines and runs them."""

from __future__ import annotations

import asyncio
import logging
import os
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
from hetero.kube.service.https import POLL_PERIOD_S, Certificates, ExpiryMetric, Port, proved, serve
from hetero.kube.webhook.admission import Webhook
from hetero.kube.webhook.callers import Callers, Handler, by_head, networks
from hetero.kube.webhook.inventory import Inventories
from hetero.kube.words import settings
from hetero.kube.words.log_level import log_level
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
    config_path: Path | None,
    mix_config_map: str | None,
    agent_user_name: str | None,
    scheduler_names: Iterable[str],
    counts_claims: bool,
    metrics_listen: Listen | None,
    environ: Mapping[str, str],
) -> None:
    """Run the extender until it is told to stop.

    `agent_user_name` is the user that agents are: nodes without one that serves take nobody.
    `mix_config_map` is the ConfigMap of the expected mix, as `namespace/name`. `scheduler_names`
    are the names by which pods are for the kube-scheduler that it serves. With `counts_claims` it
    counts what claims hold, too. The environment says whether it is the child of one that holds a
    Lease; without one it leads.
    """
    if mix_config_map is not None and not all(mix_config_map.partition("/")):
        raise BadInput(f"mix {mix_config_map!r}: write namespace/name")
    (signing_key, previous_keys), cluster_settings = _keys(environ), settings.load(config_path)
    _log(environ)
    vocabulary = _vocabulary(cluster_settings)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            leadership = Leadership.of(environ)
            untried = UntriedPods(frozenset(scheduler_names))
            scheduler = Scheduler(
                api,
                vocabulary,
                signing_key,
                previous=previous_keys,
                settings=cluster_settings,
                mix_in=mix_config_map,
                lease=leadership,
                agents=Agents(agent_user_name) if agent_user_name else None,
                untried=untried,
                kubelet_watches=KubeletWatches(is_away=True),  # nobody knows what was before
            )
            registry = scheduler.calls.metrics.registry
            coroutines = [*scheduler.follow(claims=counts_claims), _follow_keys(scheduler, environ)]
            coroutines += _expiry(listen, api, registry, environ)
            if leadership:
                coroutines.append(
                    leadership.follow(
                        scheduler.readiness.knows_all,
                        lambda: untried.take_stall(held=leadership.held),
                    )
                )
            await serve(
                scheduler.calls.app(),
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
                metrics=_metrics(api, registry, metrics_listen),
                tasks=tuple(coroutines),
            )

    asyncio.run(run())


def webhook(
    listen: Listen,
    *,
    config_path: Path | None,
    scheduler_name: str,
    adopted_scheduler_names: Iterable[str],
    allocation_writer_name: str,
    other_writer_names: Iterable[str],
    agent_user_name: str,
    serves_old_kubelets: bool,
    has_autoscaler: bool,
    allocation_way: AllocationWay,
    driver_injection_way: InjectionWay,
    vendor_runtime_classes: Iterable[str],
    allowed_client_names: Iterable[str],
    allowed_cidrs: Iterable[str],
    allowed_namespaces: Iterable[str],
    is_open_to_all: bool,
    environ: Mapping[str, str],
) -> None:
    """Run the webhook until told to stop, and the controller that makes the templates it names.

    `agent_user_name` is the user name of the agents' service account. `driver_injection_way` is how
    agents bring drivers into containers. If `listen` has a client CA, /admit requires a certificate
    that it signed, and if `allowed_client_names` is not empty, its common name must be in it.
    Unless `is_open_to_all`, callers in pods are refused except from `allowed_namespaces`. If
    `allowed_cidrs` is set, callers outside of these networks are refused as well. Probes and
    metrics are answered to everybody who reaches the port.
    """
    cluster_settings, allowed_ranges = settings.load(config_path), networks(allowed_cidrs)
    _log(environ)
    vocabulary = _vocabulary(cluster_settings)

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            served_way = await _served(api, allocation_way)
            webhook = Webhook(
                vocabulary=vocabulary,
                scheduler_name=scheduler_name,
                allocation_writer_name=allocation_writer_name,
                other_writer_names=frozenset(other_writer_names),
                adopted_scheduler_names=frozenset(adopted_scheduler_names),
                api=api,
                runtime_class_by_vendor=cluster_settings.runtime_classes,
                hides_unasked=cluster_settings.hide_unasked,
                vendor_runtime_classes=frozenset(
                    (*vendor_runtime_classes, *cluster_settings.runtime_classes.values())
                ),
                serves_old_kubelets=serves_old_kubelets,
                has_autoscaler=has_autoscaler,
                allocation_way=served_way,
                driver_injection_way=driver_injection_way,
                refuses_ineffective_words=cluster_settings.ineffective_words == "refuse",
                limiter_log=cluster_settings.limiter_log,
                refuses_privileged_sidecars=cluster_settings.privileged_sidecars == "refuse",
                takes_default_scheduler=cluster_settings.take_default_scheduler,
            )
            certificates = listen.certificates
            guards = dict[str, Callable[[Handler], Handler]]()
            if not is_open_to_all:
                callers = Callers(api, allowed_ranges, frozenset(allowed_namespaces))
                guards |= {"/admit": callers.directly, "/inventory": callers.known}
            if certificates and certificates.client_ca:
                guards["/admit"] = partial(proved, allowed_names=frozenset(allowed_client_names))
            app = webhook.app()
            app.middlewares.append(by_head(guards))
            answer_metrics = metrics_handler(webhook.rights.registry)
            inventories = Inventories(
                api=api,
                agent_user=agent_user_name,
                status_resources=vocabulary.size_resources if has_autoscaler else frozenset(),
            )
            app.router.add_post("/inventory", inventories.answer)
            app.router.add_get("/metrics", Gate(api).guard(answer_metrics))
            coroutines = _expiry(listen, api, webhook.rights.registry, environ)
            if served_way is not AllocationWay.CLASSIC:
                coroutines += (TemplateController(api, vocabulary).follow(),)
            await serve(
                app,
                host=listen.host,
                port=listen.port,
                certificates=listen.certificates,
                tasks=coroutines,
            )

    asyncio.run(run())


async def _served(api: Api, allocation_way: AllocationWay) -> AllocationWay:
    """Return how pods are given cards where `both` is said: by no claims that nobody can serve.

    While the API does not answer it stays `both`: pods wait for the webhook.
    """
    if allocation_way is not AllocationWay.BOTH:
        return allocation_way
    try:
        return await served(api, allocation_way, template_probe("default"))
    except ApiError as error:
        log.warning("allocation both: whether claims can be served is not known: %s", error)
        return allocation_way


def certificates(*, namespace: str, name: str, key_alone: bool = False) -> None:
    """Make or renew certificates and the signing key in the API, once; maybe the key alone."""
    _log()

    async def run() -> None:
        async with Api(Access.here()).open() as api:
            if not key_alone:
                await renew(api, Names(namespace=namespace, name=name, webhook=name))
            await keys.provide(api, namespace, name)

    asyncio.run(run())


def rotate_key(*, namespace: str, name: str) -> str:
    """Take the next step of the key rotation; return what to do after it. Raises `BadInput`."""
    _log()

    async def run() -> str:
        async with Api(Access.here()).open() as api:
            return await keys.rotate(api, namespace, name)

    return asyncio.run(run())


def _keys(environ: Mapping[str, str]) -> tuple[SigningKey, PublicKeys]:
    """Return the signing key, and the previous public keys. Raises `BadInput`."""
    key_path, public_path = environ.get(KEY_FILE), environ.get(PUBLIC_KEYS)
    if not key_path:
        raise BadInput(f"{KEY_FILE} is not set: it names the file of the signing key")
    return SigningKey.read(key_path), PublicKeys.read(public_path) if public_path else PublicKeys()


async def _follow_keys(scheduler: Scheduler, environ: Mapping[str, str]) -> None:
    """Follow the keys on disk, for ever; a file that cannot be read is logged once and not used."""
    last_error = ""
    while True:
        try:
            scheduler.signatures.use(*_keys(environ))
            last_error = ""
        except BadInput as error:
            if str(error) != last_error:
                last_error = str(error)
                log.error("%s", error)
        await asyncio.sleep(POLL_PERIOD_S)


def _metrics(api: Api, registry: CollectorRegistry, metrics_listen: Listen | None) -> Port | None:
    """Return the port of the metrics; without certificates any client may read them."""
    if metrics_listen is None:
        return None
    gate = Gate(api) if metrics_listen.certificates else None
    return Port(
        metrics_app(registry, gate=gate),
        metrics_listen.host,
        metrics_listen.port,
        metrics_listen.certificates,
    )


def _expiry(
    listen: Listen, api: Api, registry: CollectorRegistry, environ: Mapping[str, str]
) -> tuple[Coroutine[Any, Any, None], ...]:
    """Report the certificate's end as a metric, and in time in the log and this pod's events."""
    if listen.certificates is None:
        return ()
    registry.register(ExpiryMetric(certificates=listen.certificates))
    events = Events(api)
    namespace, pod_name, uid = (
        environ.get(f"POD_{key}", "") for key in ("NAMESPACE", "NAME", "UID")
    )
    pod = Metadata(namespace=namespace, name=pod_name, uid=uid)

    async def tell(sentence: str) -> None:
        log.warning("%s", sentence)
        if namespace and pod_name and uid:
            await events.tell(pod, "CertificateEnds", sentence)

    return (listen.certificates.warn(tell),)


def _vocabulary(cluster_settings: settings.Settings) -> Vocabulary:
    """Return the resource names of the cluster; no vendor is loaded after that."""
    registry = cluster_settings.registry()
    try:
        return cluster_settings.vocabulary(registry)
    finally:
        registry.close()


def _log(environ: Mapping[str, str] = os.environ) -> None:
    log_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=log_level(environ), format=log_format)
