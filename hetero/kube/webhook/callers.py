"""Tells the API server from programs in pods by their addresses, where no certificate does.

An API server proves itself to webhooks only where its own configuration says so. Its address is
the one that it publishes, or another of its host, or that of a pod that it calls through. What
tenants run has a pod's, which its kubelet publishes a little after it runs.
docs/decisions/callers.md says what else was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from time import monotonic
from typing import Any

from aiohttp import web
from attrs import define, field

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Address, Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.server.answers import Answers
from hetero.kube.server.sources import FORWARDED
from hetero.kube.words.pod import ended
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Network = IPv4Network | IPv6Network

#: Seconds for which an address that nobody publishes is refused: kubelets may be late with a pod's.
UNKNOWN_S = 30.0
#: Seconds for which answers are good while the API server gives none, and addresses kept.
_STALE_S, _MOST_ADDRESSES = 300.0, 4096
_SERVERS = "/api/v1/namespaces/default/endpoints/kubernetes"
_REFUSED = "this is for the API server, not for pods nor who has it ask: webhook.allowedNetworks"


@define(eq=False)
class Callers:
    """Lets in API servers, pods of some namespaces, and addresses that are no pod's.

    Where `networks` are named, who calls from there and nobody else.
    """

    api: ApiCalls
    networks: Collection[Network] = ()
    namespaces: Collection[str] = ("kube-system",)
    _servers: Answers[frozenset[str]] = field(
        init=False, factory=lambda: Answers(_no_refusal, _STALE_S, 1.0)
    )
    _pods: Answers[str | None] = field(init=False, factory=lambda: Answers(_no_refusal, _STALE_S))
    # By all addresses of all pods: the API finds pods by their first one alone.
    _others: Answers[dict[str, str]] = field(
        init=False, factory=lambda: Answers(_no_refusal, _STALE_S)
    )
    _published_until_s: dict[str, float] = field(
        init=False, factory=dict
    )  # API servers', until when
    _unknown_since_s: dict[str, float] = field(init=False, factory=dict)  # since when, by address

    def directly(self, handler: Handler) -> Handler:
        """Return the handler for who calls by itself, not through the API server's proxies."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if FORWARDED in request.headers:
                raise web.HTTPForbidden(text=_REFUSED)
            return await self.known(handler)(request)

        return guarded

    def known(self, handler: Handler) -> Handler:
        """Return the handler for who calls from where the API server may."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                is_allowed = await self._may(_plain(request.remote or ""))
            except ApiError as error:
                raise web.HTTPServiceUnavailable(text=str(error)) from None
            if not is_allowed:
                raise web.HTTPForbidden(text=_REFUSED)
            return await handler(request)

        return guarded

    async def _may(self, address: IPv4Address | IPv6Address) -> bool:
        if self.networks:
            return any(address in network for network in self.networks)
        address_text = str(address)
        # First, since root on any node may say of a pod there that it has this address.
        published_addresses = await self._servers.get("", address_text, self._published)
        if address_text in published_addresses or monotonic() < self._published_until_s.get(
            address_text, 0.0
        ):
            return True
        namespace = await self._pods.get(
            address_text, address_text, lambda: self._namespace_of(address_text)
        )
        if namespace is None and not self._is_of_a_servers_family(address):
            namespace = (await self._others.get("", address_text, self._addresses)).get(
                address_text
            )
        if namespace is not None:
            self._unknown_since_s.pop(address_text, None)
            return namespace in self.namespaces
        return self._long_unknown(address_text)

    def _is_of_a_servers_family(self, address: IPv4Address | IPv6Address) -> bool:
        """Whether an API server has an address of this family: pods' first ones are of it, too."""
        return any(
            ip_address(published_address).version == address.version
            for published_address in self._published_until_s
        )

    def _long_unknown(self, address: str) -> bool:
        """Whether nobody has published an address of a pod for so long that it is a host's."""
        since_s = self._unknown_since_s.get(address)
        if since_s is None:
            log.warning("%s is no known API server's: refused for %.0f s", address, UNKNOWN_S)
            while len(self._unknown_since_s) >= _MOST_ADDRESSES:
                self._unknown_since_s.pop(next(iter(self._unknown_since_s)))
            since_s = self._unknown_since_s[address] = monotonic()
        return monotonic() - since_s >= UNKNOWN_S

    async def _published(self) -> frozenset[str]:
        """Return the addresses that API servers say are theirs, but for while they restart."""
        subsets = (await self.api.get(_SERVERS)).get("subsets") or ()
        addresses = frozenset(
            address["ip"] for subset in subsets for address in subset.get("addresses") or ()
        )
        self._published_until_s |= dict.fromkeys(addresses, monotonic() + _STALE_S)
        return addresses

    async def _namespace_of(self, address: str) -> str | None:
        """Return the namespace of the pod whose first address this is, None if it is none's."""
        return (await self._addresses(fieldSelector=f"status.podIP={address}")).get(address)

    async def _addresses(self, **selector: str) -> dict[str, str]:
        """Return the namespaces of pods that have addresses for themselves, by address.

        Where two pods say that they have the same one, it is that of the one that is let in: root
        on a node may say so of a pod there, and could stop all admission where the API server calls
        through pods. Who is root there is answered anyhow, from the node's own network.
        """
        query = {**selector, "resourceVersion": "0"}
        namespace_by_ip: dict[str, str] = {}
        for pod in read_all(Pod, (await self.api.get("/api/v1/pods", query))["items"]):
            if pod.spec.host_network or ended(pod):
                continue
            for address in (Address(ip=pod.status.pod_ip), *pod.status.pod_ips):
                if address.ip and namespace_by_ip.get(address.ip) not in self.namespaces:
                    namespace_by_ip[address.ip] = pod.metadata.namespace
        return namespace_by_ip


def by_head(guards: Mapping[str, Callable[[Handler], Handler]]) -> Any:
    """Return the middleware that has the guard of a path decide by the head of a request alone.

    Of who is refused no body is read, which would be held in memory until all of it is there.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        guard = guards.get(resource.canonical) if resource else None
        return await (guard(handler) if guard else handler)(request)

    return guarded


def _no_refusal(_: object) -> bool:
    """Say of an answer that it counts against nobody."""
    return False


def networks(network_texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks that somebody names. Raises `BadInput`."""
    try:
        return tuple(ip_network(network_text) for network_text in network_texts)
    except ValueError as error:
        raise BadInput(f"webhook.allowedNetworks: {error}") from None


def _plain(address_text: str) -> IPv4Address | IPv6Address:
    """Return an address; one of the fourth version as such where a socket of both says it."""
    address = ip_address(address_text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
