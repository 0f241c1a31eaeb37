"""Publishes what a node's agent says its node has, on that Node and on no other.

An agent proves by its own pod's token where it runs. So it needs no right to change Nodes, and one
that was stolen speaks for the node that it was stolen from.
"""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Mapping

from aiohttp import web
from attrs import field, frozen

from hetero.kube.client.access_review import UserInfo, user_of
from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.server.answers import Answers, TooManyRefusals
from hetero.kube.server.sources import passed_on_by
from hetero.kube.words.annotations import AUDIENCE, INVENTORY, published_devices
from hetero.model.errors import BadInput, HeteroError

log = logging.getLogger(__name__)

_POD = "authentication.kubernetes.io/pod-"
_ACCOUNT = "system:serviceaccount:"


@frozen(kw_only=True)
class Inventories:
    """Answers agents, whose service account has the user name `agent_user`.

    `status_resources` are the extended resources that agents may publish in the status of their
    Node.
    """

    api: ApiCalls
    agent_user: str
    status_resources: frozenset[str] = frozenset()
    _agents: Answers[UserInfo | None] = field(init=False, factory=lambda: Answers(operator.not_))

    async def answer(self, request: web.Request) -> web.Response:
        """Publish the inventory in a request; an error says why in `message`."""
        try:
            body = json.loads(await request.read())
            token, inventory_text = str(body["token"]), str(body["inventory"])
            sizes = {str(name): int(amount) for name, amount in body.get("sizes", {}).items()}
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            return _refused(400, f"not an inventory: {error!r}")
        try:
            node = await self._node_of(token, source_address=passed_on_by(request))
            if node is None:
                return _refused(403, "the token is of no pod of the agent: nothing is published")
            published_devices(inventory_text, node=node)
            self._expect_sizes(sizes)
            patch = {"metadata": {"annotations": {INVENTORY: inventory_text}}}
            await self.api.patch(f"/api/v1/nodes/{node}", patch)
            if sizes:
                amounts = {name: str(amount) for name, amount in sizes.items()}
                status = {"status": {"capacity": amounts, "allocatable": amounts}}
                await self.api.patch(f"/api/v1/nodes/{node}/status", status)
        except BadInput as error:
            return _refused(400, str(error))
        except TooManyRefusals as error:
            return _refused(429, str(error))
        except HeteroError as error:
            return _refused(503, str(error))
        return web.json_response({"node": node})

    def _expect_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise `BadInput` if an agent has its node state what is not for it to state."""
        for name, amount in sizes.items():
            if name not in self.status_resources or amount < 0:
                raise BadInput(f"{amount} {name} is no size of cards that this webhook states")

    async def _node_of(self, token: str, *, source_address: str) -> str | None:
        """Return the node of the agent's pod that a token is bound to, None if it is of none."""
        user = await self._agents.get(token, source_address, lambda: self._agent_of(token))
        if user is None:
            return None
        pod_name, pod_uid = (_single(user, f"{_POD}{field_name}") for field_name in ("name", "uid"))
        namespace = user.name.removeprefix(_ACCOUNT).partition(":")[0]
        try:
            plain_pod = await self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod_name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        pod = read(Pod, plain_pod)
        return pod.spec.node_name or None if pod.metadata.uid == pod_uid else None

    async def _agent_of(self, token: str) -> UserInfo | None:
        """Return the agent whose token this is, None for anybody else's."""
        user = await user_of(self.api, token, audience=AUDIENCE)
        if user is not None and user.name == self.agent_user:
            return user
        log.warning("inventory: refused to %s", user.name if user else "nobody's token")
        return None


def _single(user: UserInfo, extra_name: str) -> str:
    return "".join(user.extra.get(extra_name, ())[:1])


def _refused(status: int, reason: str) -> web.Response:
    return web.json_response({"message": reason}, status=status)
