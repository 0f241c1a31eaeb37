"""The extender of the stock kube-scheduler, put together, and its HTTP."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from time import monotonic
from typing import Any

from aiohttp import web
from attrs import define
from msgspec import Raw, json

from hetero.kube.client.api import ApiCalls
from hetero.kube.client.events import Events
from hetero.kube.client.leadership import Leadership
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.objects.reading import reader
from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.claim_informer import ClaimInformer
from hetero.kube.scheduler.expected_mix import ExpectedMix
from hetero.kube.scheduler.inventory import ClusterNodes, QuotaInformer
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.node_names import LastNames
from hetero.kube.scheduler.pod_groups import PodGroups
from hetero.kube.scheduler.pod_informer import PodInformer
from hetero.kube.scheduler.pod_table import PodTable
from hetero.kube.scheduler.preemption import Preemption
from hetero.kube.scheduler.readiness import Readiness
from hetero.kube.scheduler.refused_pods import RefusedPods
from hetero.kube.scheduler.scheduler_metrics import SchedulerMetrics
from hetero.kube.scheduler.signatures import Signatures
from hetero.kube.scheduler.standing_pods import Orphans, StandingPods
from hetero.kube.scheduler.untried_pods import UntriedPods
from hetero.kube.scheduler.verbs import NodeVerbs, Placer, PodBinder
from hetero.kube.scheduler.waker import Waker
from hetero.kube.words.owned_words import owned_words
from hetero.kube.words.pod_request import Vocabulary
from hetero.kube.words.quota import Quotas
from hetero.kube.words.settings import Settings
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.kube.words.word_events import WordEvents
from hetero.model.errors import HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.demand import Demand

log = logging.getLogger(__name__)

#: The largest request taken: names of some 100,000 nodes.
_MOST_BYTES = 16 * 2**20
_DAY_S = 86_400

_ARGS = json.Decoder(dict[str, Raw])
_NULL = Raw(b"null")

Verb = Callable[[Plain], Awaitable[Any]]


@define(eq=False)
class ExtenderCalls:
    """Answers kube-scheduler's calls by HTTP."""

    verbs: tuple[Verb, ...]
    readiness: Readiness
    untried: UntriedPods
    metrics: SchedulerMetrics
    last_node_names: LastNames

    def app(self) -> web.Application:
        """Return the HTTP service."""
        app = web.Application(client_max_size=_MOST_BYTES)
        for verb in self.verbs:
            app.router.add_post(f"/{verb.__name__}", self._answer(verb))
        return app

    def _answer(self, verb: Verb) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            began_s, outcome = monotonic(), "error"
            self.untried.heard()
            try:
                body = await request.read()
                await self.readiness.until_ready()
                response = _response(await verb(self._read(body)))
                outcome = "ok"
                return response
            except HeteroError as error:
                log.warning("%s: %s", verb.__name__, error)
                return _response({"Error": str(error)})
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                sentence = f"{verb.__name__}: not what kube-scheduler sends: {error!r}"
                log.warning("%s", sentence)
                return _response({"Error": sentence}, status=400)
            finally:
                self.metrics.decided(verb.__name__, outcome, monotonic() - began_s)

        return answer

    def _read(self, body: bytes) -> Plain:
        """Return the arguments of a call, by their names in lower case."""
        texts = {name.lower(): text for name, text in _ARGS.decode(body).items() if text != _NULL}
        node_names_json = texts.pop("nodenames", None)
        decoders = {"pod": reader(Pod).object}
        args = {name: decoders.get(name, json.decode)(text) for name, text in texts.items()}
        if node_names_json is not None:
            args["nodenames"] = self.last_node_names.read(node_names_json)
        return args


class Scheduler:
    """Answers kube-scheduler from what the API says about nodes and pods."""

    def __init__(
        self,
        api: ApiCalls,
        vocabulary: Vocabulary,
        key: SigningKey,
        *,
        previous: PublicKeys | None = None,
        settings: Settings | None = None,
        mix_in: str | None = None,
        lease: Leadership | None = None,
        agents: Agents | None = None,
        untried: UntriedPods | None = None,
        kubelet_watches: KubeletWatches | None = None,
        opens_claims: bool = False,
    ) -> None:
        """Put the parts together.

        `previous` are the keys by which those before this one signed. `mix_in` is the ConfigMap of
        the expected mix, as namespace/name. Without `agents` every node is taken to have one that
        serves; without `lease` this scheduler leads. `opens_claims`: it places pods on nodes that
        give their cards by claims, too, as a simulation does.
        """
        settings, untried = settings or Settings(), untried or UntriedPods()
        watches_of_nodes, last_node_names = kubelet_watches or KubeletWatches(), LastNames()
        events, readiness, quotas = Events(api), Readiness(lease), Quotas(vocabulary)
        cache = SchedulerCache(quotas, demand=Demand(settings.half_life_days * _DAY_S))
        pods, metrics = PodTable(cache), SchedulerMetrics(cache, quotas)
        waker = Waker(api, events, vocabulary, pods, readiness)
        placer = Placer(pods, settings.node_placement, settings.device_placement)
        groups = PodGroups(api, vocabulary, cache, placer.choose, waker.wake)
        preemption = Preemption(api, events, pods, groups.gang, waker.wake)
        signatures = Signatures(api, key, previous or PublicKeys(), pods, readiness.is_ready)
        refused_pods = RefusedPods(api, events, readiness.is_ready)
        # Pods that ask by claims are told by who makes their templates.
        word_events = WordEvents(
            events,
            owned_words(vocabulary.vendors),
            lambda pod: not pod.spec.resource_claims and readiness.is_ready(),
        )
        mix = ExpectedMix(api, cache, mix_in, readiness.is_ready, readiness.led) if mix_in else None
        orphaned_containers = Orphans(pods, waker)
        standing_pods = StandingPods(vocabulary, pods, signatures, groups, orphaned_containers, mix)
        nodes = ClusterNodes(
            api,
            cache,
            agents,
            standing_pods,
            waker,
            readiness,
            opens_claims=opens_claims,
            labels=settings.node_selector,
        )
        subscribers = (
            *(groups, untried, watches_of_nodes, nodes, standing_pods, refused_pods),
            word_events,
        )
        self.cache, self.readiness, self.mix = cache, readiness, mix
        self.groups, self.signatures, self.refused_pods = groups, signatures, refused_pods
        self.claims = ClaimInformer(api, nodes, waker)
        self.quotas = QuotaInformer(api, quotas, waker, readiness)
        self.pods = PodInformer(api, subscribers, nodes, watches_of_nodes, readiness, waker)
        self.verbs = NodeVerbs(
            vocabulary=vocabulary,
            pods=pods,
            placer=placer,
            groups=groups,
            preemption=preemption,
            metrics=metrics,
            mix=mix,
            waker=waker,
            last_node_names=last_node_names,
            answers_one=settings.choose == "one",
        )
        self.binding = PodBinder(
            api=api,
            vocabulary=vocabulary,
            pods=pods,
            placer=placer,
            groups=groups,
            signatures=signatures,
            agents=agents,
            kubelet_watches=watches_of_nodes,
            waker=waker,
            readiness=readiness,
        )
        verbs = (self.verbs.filter, self.verbs.prioritize, self.binding.bind, self.verbs.preempt)
        self.calls = ExtenderCalls(verbs, readiness, untried, metrics, last_node_names)

    @property
    def nodes(self) -> ClusterNodes:
        """The nodes of its cluster."""
        return self.claims.nodes

    def follow(self, *, claims: bool = False) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what is to run for ever: all that this scheduler follows, and what comes of it.

        What claims hold it follows with `claims` alone.
        """
        yield self.nodes.follow()
        yield self._follow_pods()
        yield self.quotas.follow()
        if claims:
            yield self.claims.follow()
        yield self.groups.follow()
        yield self.signatures.follow()
        yield self.refused_pods.follow()
        if self.mix:
            yield self.mix.follow()

    async def _follow_pods(self) -> None:
        """Follow the pods once what was learned of earlier ones is read: none is counted twice.

        One that starts while the API server is away waits here: it serves, so that its kubelet does
        not take it for dead.
        """
        if self.mix:
            await self.mix.read()
        await self.pods.follow()


def _response(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(body), status=status, content_type="application/json")
