"""Keeps what the API server answered for a while, so that callers of ours cannot use us to load it.

Who is refused again and again is soon not asked for, and few are asked for at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

from attrs import define, field

from hetero.kube.client.api import ApiError
from hetero.model.errors import HeteroError

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")

#: Seconds for which an answer holds, as kube-apiserver's own delegates have it, and for which a
#: refusal counts against its source.
HOLDS = 10.0
#: Refusals of one source in that time, after which it is not asked for.
REFUSALS = 8
#: Questions at a time, seconds that one may take, and answers and sources kept.
_AT_ONCE, _PATIENCE, _MOST = 4, 3.0, 4096


class TooManyRefusals(HeteroError):
    """A source was refused so often that nobody is asked about it for now."""


@define(eq=False)
class Answers(Generic[_T]):
    """What was answered, by question; `refuses` says which answers count against their source.

    An answer holds for so many seconds. Where none is to be had, one that is at most `stale`
    seconds past its time is good.
    """

    refuses: Callable[[_T], bool]
    stale: float = 0.0
    holds: float | None = None  # None: HOLDS
    _known: dict[bytes, tuple[_T, float]] = field(init=False, factory=dict)
    _refused: dict[str, tuple[int, float]] = field(init=False, factory=dict)
    _places: asyncio.Semaphore = field(init=False, factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def get(self, question: str, source: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer to a question that somebody at `source` brings.

        Raises `ApiError` and `TooManyRefusals`.
        """
        key = hashlib.sha256(question.encode()).digest()  # it may hold a token
        if key not in self._known or monotonic() >= self._known[key][1]:
            async with self._places:
                await self._renew(key, source, ask)
        return self._known[key][0]

    async def _renew(self, key: bytes, source: str, ask: Callable[[], Awaitable[_T]]) -> None:
        """Ask, unless somebody did meanwhile, and keep the answer."""
        known, now = self._known.get(key), monotonic()
        if known and now < known[1]:
            return
        count, until = self._refused.get(source, (0, 0.0))
        if now >= until:
            count, until = 0, now + HOLDS
        if count >= REFUSALS:
            raise TooManyRefusals(f"{source}: refused {count} times: ask again in {HOLDS:.0f} s")
        try:
            answer = await asyncio.wait_for(ask(), _PATIENCE)
        except (ApiError, asyncio.TimeoutError) as error:
            if known and now < known[1] + self.stale:
                return
            raise ApiError("who asks", 0, str(error) or f"no answer in {_PATIENCE} s") from None
        if self.refuses(answer):
            _put(self._refused, source, (count + 1, until))
        _put(self._known, key, (answer, monotonic() + (self.holds or HOLDS)))


def _put(into: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep a value as the newest of so many."""
    into.pop(key, None)
    while len(into) >= _MOST:
        into.pop(next(iter(into)))
    into[key] = value
