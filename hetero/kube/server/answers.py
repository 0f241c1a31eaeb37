"""Caches answers of the API server, so that our callers cannot use us to load it.

A client that is refused again and again is soon not asked about, and few questions are asked at a
time.
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
ANSWER_LIFE_S = 10.0
#: Refusals of one source in that time, after which it is not asked for.
MOST_REFUSALS = 8
#: Questions at a time, seconds that one may take, and answers and sources kept.
_MOST_QUESTIONS, _QUESTION_TIMEOUT_S, _MOST_KEPT = 4, 3.0, 4096


class TooManyRefusals(HeteroError):
    """A client was refused so often that the API server is not asked about it for now."""


@define(eq=False)
class Answers(Generic[_T]):
    """Answers by question; `refuses` says which answers count against the client.

    An answer is used for `answer_life_s`, and where no new one can be had for `stale_s` more.
    """

    refuses: Callable[[_T], bool]
    stale_s: float = 0.0
    answer_life_s: float | None = None  # None: ANSWER_LIFE_S
    _answer_by_hash: dict[bytes, tuple[_T, float]] = field(init=False, factory=dict)
    _refusal_by_client: dict[str, tuple[int, float]] = field(init=False, factory=dict)
    _places: asyncio.Semaphore = field(
        init=False, factory=lambda: asyncio.Semaphore(_MOST_QUESTIONS)
    )

    async def get(self, question: str, client: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the answer to a question that `client` brings.

        Raises `ApiError` and `TooManyRefusals`.
        """
        question_hash = hashlib.sha256(question.encode()).digest()  # it may hold a token
        if (
            question_hash not in self._answer_by_hash
            or monotonic() >= self._answer_by_hash[question_hash][1]
        ):
            async with self._places:
                await self._renew(question_hash, client, ask)
        return self._answer_by_hash[question_hash][0]

    async def _renew(
        self, question_hash: bytes, client: str, ask: Callable[[], Awaitable[_T]]
    ) -> None:
        """Ask, unless another request did meanwhile, and keep the answer."""
        known_answer, now_s = self._answer_by_hash.get(question_hash), monotonic()
        if known_answer and now_s < known_answer[1]:
            return
        refusal_count, until_s = self._refusal_by_client.get(client, (0, 0.0))
        if now_s >= until_s:
            refusal_count, until_s = 0, now_s + ANSWER_LIFE_S
        if refusal_count >= MOST_REFUSALS:
            raise TooManyRefusals(
                f"{client}: refused {refusal_count} times: ask again in {ANSWER_LIFE_S:.0f} s"
            )
        try:
            answer = await asyncio.wait_for(ask(), _QUESTION_TIMEOUT_S)
        except (ApiError, asyncio.TimeoutError) as error:
            if known_answer and now_s < known_answer[1] + self.stale_s:
                return
            raise ApiError(
                "who asks", 0, str(error) or f"no answer in {_QUESTION_TIMEOUT_S} s"
            ) from None
        if self.refuses(answer):
            _put(self._refusal_by_client, client, (refusal_count + 1, until_s))
        _put(
            self._answer_by_hash,
            question_hash,
            (answer, monotonic() + (self.answer_life_s or ANSWER_LIFE_S)),
        )


def _put(store: dict[_K, _V], key: _K, answer: _V) -> None:
    """Keep a value as the newest of so many."""
    store.pop(key, None)
    while len(store) >= _MOST_KEPT:
        store.pop(next(iter(store)))
    store[key] = answer
