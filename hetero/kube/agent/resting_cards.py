"""The cards that could give a pod no share a moment ago, and that no other pod is sent to yet.

A kubelet fails a refused pod for good, and its controller makes the next one at once. Where the
cause is the node's, as a full disk or a program that holds the card, only the scheduler can end
that. So such a card is published as cordoned for a while. Its holders keep it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import gmtime, monotonic, strftime, time

from attrs import define, evolve, field

from hetero.model import Device, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.model.frozen import frozen
from hetero.node.card_book import LONGEST_REASON
from hetero.node.ledger.grant_dir import replace

log = logging.getLogger(__name__)

#: Seconds for which a card rests the first time, and at most: each time twice as long as before. A
#: cause that is over soon costs the first, and one that lasts fails a pod in the longest.
FIRST_REST_S, LONGEST_REST_S = 15.0, 600.0
#: Seconds that a refusal waits until the scheduler is told of it: its controller's next pod would
#: be sent there, too. The kubelet admits no other pod meanwhile.
_PUBLISH_WAIT_S = 1.0
#: Where more pods than these were refused by cards of one vendor, all of its cards rest: the fault
#: is then hardly one card's.
_MANY = 1


@frozen
class _Rest:
    """`refused_at_s` is None for a card that rests since others of its vendor refused pods."""

    until_s: float  # by the clock that starts with the machine
    length_s: float
    sentence: str  # how long, for people, and why
    refused_at_s: float | None = None


@frozen
class _Rests:
    """The contents of the file."""

    by_uuid: Mapping[str, _Rest]


@define(eq=False)
class RestingCards:
    """The resting cards of one node; `publish` publishes its inventory, or raises `HeteroError`.

    They are written to `path`, below the state of this boot, so that an agent that starts anew
    sends no pods there either.
    """

    path: Path
    publish: Callable[[], Awaitable[None]]
    # What the node's events are to tell.
    untold: list[str] = field(init=False, factory=list)
    _rest_by_uuid: dict[str, _Rest] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._rest_by_uuid = _read(self.path)

    async def note_refusal(
        self, uuids: Iterable[str], vendor_uuids: Iterable[str], reason: str
    ) -> None:
        """Record that these cards could give a pod no share, and have the scheduler know it.

        `vendor_uuids` are all cards of their vendors on this node.
        """
        now_s, refusing_uuids, all_uuids = monotonic(), {*uuids}, {*vendor_uuids}
        noted_by_uuid = {
            uuid: rest
            for uuid, rest in self._rest_by_uuid.items()
            if now_s - rest.until_s < LONGEST_REST_S
        }
        resting_uuids = {uuid for uuid, rest in noted_by_uuid.items() if rest.until_s > now_s}
        if refusing_uuids <= resting_uuids:
            return
        refusal_times = {
            noted_by_uuid[uuid].refused_at_s for uuid in noted_by_uuid.keys() & all_uuids
        }
        new_uuids = refusing_uuids
        if len(refusal_times - {None}) >= _MANY:
            new_uuids = all_uuids | refusing_uuids
        lengths_s = [noted_by_uuid[uuid].length_s for uuid in noted_by_uuid.keys() & new_uuids]
        length_s = min(2 * max(lengths_s), LONGEST_REST_S) if lengths_s else FIRST_REST_S
        until_text = strftime("%H:%M:%S UTC", gmtime(time() + length_s))
        rest = _Rest(now_s + length_s, length_s, f"until {until_text}: {_line(reason)}")
        for uuid in new_uuids:
            before = noted_by_uuid.get(uuid, rest)
            is_own = uuid in refusing_uuids
            noted_by_uuid[uuid] = evolve(
                rest, refused_at_s=now_s if is_own else before.refused_at_s
            )
        which = ", ".join(sorted(new_uuids))
        who_rests = f"card {which} rests" if len(new_uuids) == 1 else f"cards {which} rest"
        self.untold.append(f"{who_rests} {rest.sentence}")
        self._set(noted_by_uuid)
        with suppress(HeteroError, asyncio.TimeoutError):  # it is published at the next look
            await asyncio.wait_for(self.publish(), _PUBLISH_WAIT_S)

    def note_share(self, uuids: Iterable[str], vendor_uuids: Iterable[str]) -> None:
        """Record that these cards gave a pod its share: others rest no more on their account."""
        sharing_uuids, all_uuids = {*uuids}, {*vendor_uuids}
        kept = {
            uuid: rest
            for uuid, rest in self._rest_by_uuid.items()
            if uuid not in sharing_uuids
            and (rest.refused_at_s is not None or uuid not in all_uuids)
        }
        if len(kept) < len(self._rest_by_uuid):
            self._set(kept)

    def published(self, devices: Iterable[Device]) -> tuple[Device, ...]:
        """Return the devices as the scheduler is told of them: those that rest are cordoned."""
        now_s = monotonic()
        return tuple(
            evolve(device, cordon=f"rests {rest.sentence}")
            if device.usable
            and (rest := self._rest_by_uuid.get(device.uuid))
            and rest.until_s > now_s
            else device
            for device in devices
        )

    def _set(self, rest_by_uuid: dict[str, _Rest]) -> None:
        self._rest_by_uuid = rest_by_uuid
        try:
            replace(self.path, codec.dumps(_Rests(rest_by_uuid)).encode(), mode=0o644)
        except OSError as error:  # such as the full disk that they rest for
            log.warning("%s: %s: an agent that starts anew does not know", self.path, error)


def _read(path: Path) -> dict[str, _Rest]:
    """Return what an agent before this one wrote; of another boot, or broken, it says nothing."""
    try:
        rests = codec.loads(path.read_text(), _Rests, source=str(path))
    except (OSError, UnicodeDecodeError, BadInput):
        return {}
    now_s = monotonic()
    return {
        uuid: rest
        for uuid, rest in rests.by_uuid.items()
        if rest.until_s - now_s <= rest.length_s <= LONGEST_REST_S
    }


def _line(reason: str) -> str:
    """Return a reason as views and events have it."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 1]}…"
