"""Serves metrics to users whom the API server admits, by TokenReview and SubjectAccessReview.

The API server hands no token of its callers on. A user who asks through it has a token made that
serves for this alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from attrs import define, field
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from hetero.kube.client.access_review import user_of
from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.server.answers import Answers, TooManyRefusals

log = logging.getLogger(__name__)

_BEARER = "Bearer "
#: What the API server hands on of a caller that it speaks for, and whom such a token is meant for.
TOKEN, AUDIENCE = "Hetero-Token", "hetero.io/metrics"

#: The status that refuses, None for who may.
Refusal = type[web.HTTPException] | None
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@define(eq=False)
class Gate:
    """Admits users who may `get` the path that they ask for (a nonResourceURL)."""

    api: ApiCalls
    _answers: Answers[Refusal] = field(init=False, factory=lambda: Answers(bool))

    def guard(self, handler: Handler) -> Handler:
        """Return the handler behind this gate."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = await self._refusal(request)
            if refusal is not None:
                raise refusal()
            return await handler(request)

        return guarded

    async def _refusal(self, request: web.Request) -> Refusal:
        authorization, forwarded_token = (
            request.headers.get("Authorization", ""),
            request.headers.get(TOKEN),
        )
        if not authorization.startswith(_BEARER) and not forwarded_token:
            return web.HTTPUnauthorized
        token = forwarded_token or authorization.removeprefix(_BEARER)
        audience = AUDIENCE if forwarded_token else None
        question = f"{request.path} {audience} {token}"
        try:
            return await self._answers.get(
                question, request.remote or "", lambda: self._asked(token, request.path, audience)
            )
        except TooManyRefusals:
            return web.HTTPTooManyRequests
        except ApiError as error:
            log.warning("who asks for %s: %s", request.path, error)
            return web.HTTPServiceUnavailable

    async def _asked(self, token: str, path: str, audience: str | None) -> Refusal:
        user = await user_of(self.api, token, audience=audience)
        if user is None:
            return web.HTTPUnauthorized
        is_allowed = await user.may(self.api, nonResourceAttributes={"path": path, "verb": "get"})
        return None if is_allowed else web.HTTPForbidden


def metrics_handler(registry: CollectorRegistry) -> Handler:
    """Return what answers Prometheus."""

    async def answer(_: web.Request) -> web.Response:
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer


def metrics_app(registry: CollectorRegistry, *, gate: Gate | None) -> web.Application:
    """Return the service of `/metrics`, behind a gate; None admits everybody."""
    app, answer_metrics = web.Application(), metrics_handler(registry)
    app.router.add_get("/metrics", gate.guard(answer_metrics) if gate else answer_metrics)
    return app
