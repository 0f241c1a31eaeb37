"""Stores the expected mix in a ConfigMap, for the next process of the scheduler.

The text is JSON. Classes of pods that differ in amounts alone share one request. Each class is a
list of its cards, memory in percent, core in percent, weight, memory, and what it takes of each
counter of the host. The amounts from memory on are counted in `units`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import gcd, isfinite
from time import time
from typing import Any

from attrs import define, evolve, field, frozen

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import ConfigMap, Pod
from hetero.kube.objects.reading import read
from hetero.model import Request, codec
from hetero.model.errors import BadInput
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedPod
from hetero.placement.demand import Demand, PodClass, RequestClass, with_size, without_size

log = logging.getLogger(__name__)

#: Seconds from one look to the next, and so from one write to the next at least.
SAVE_PERIOD_S = 600.0
#: Seconds that the last write may take: who holds the Lease waits for it.
_LAST_SAVE_S = 1.0
#: The most bytes that are written, and the part by which a weight has to move for that.
MOST_BYTES, _LEAST_CHANGE = 8192, 0.1
_KEY = "mix"


@frozen(kw_only=True)
class _Group:
    """Classes with one request but for their sizes, which take of the same counters of the host."""

    request: Request
    plain: bool = False
    needs: tuple[str, ...] = ()
    units: tuple[int, ...] = ()
    classes: tuple[tuple[float, ...], ...] = ()


@frozen(kw_only=True)
class _Written:
    """The content of the ConfigMap. Weights are in units of a pod that arrived at second `at`."""

    at: float
    arrived: float = 0.0
    ended: float = 0.0
    host: Mapping[str, float] = field(factory=dict)
    groups: tuple[_Group, ...] = ()


@define(eq=False)
class ExpectedMix:
    """The demand of one scheduler, and the ConfigMap `where` (`namespace/name`) that stores it.

    `leads` returns whether this scheduler writes, `led` whether it did until it was told to end.
    Pods created until `until_s`, in seconds since 1970, are counted in the stored mix.
    """

    api: ApiCalls
    cache: SchedulerCache
    where: str
    leads: Callable[[], bool]
    led: Callable[[], bool]
    until_s: float = 0.0
    _written: Demand = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._written = Demand(self.cache.demand.half_life_s)

    async def read(self) -> None:
        """Load the stored mix. Without one, the mix starts from the pods that stand."""
        while True:
            try:
                config_map = await self.api.get(self._path)
                break
            except ApiError as error:
                if error.status in (403, 404):
                    log.warning("expected mix: not kept: %s", error)
                    return
                log.warning("expected mix: %s", error)
                await asyncio.sleep(1)
        text = read(ConfigMap, config_map).data.get(_KEY)
        if text is None:
            return
        try:
            self.until_s = restore(self.cache.demand, text, source=f"ConfigMap {self.where}")
        except BadInput as error:
            log.warning("expected mix: it starts from the pods that stand: %s", error)
            return
        self._written = self.cache.demand.copy()

    async def follow(self) -> None:
        """Write the mix every `SAVE_PERIOD_S`, and at the end, if it changed."""
        try:
            while True:
                await asyncio.sleep(SAVE_PERIOD_S)
                await self._follow(self.leads)
        except asyncio.CancelledError:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._follow(self.led), _LAST_SAVE_S)
            raise

    async def _follow(self, writes: Callable[[], bool]) -> None:
        if writes() and self.moved(time()):
            try:
                await self.write(time())
            except ApiError as error:
                log.warning("expected mix: %s", error)

    def moved(self, now_s: float) -> bool:
        """Return whether a weight differs from the written one; a decay of all does not count."""
        (current, *_), (previous, *_) = self.cache.demand.at(now_s), self._written.at(now_s)
        return any(
            abs(current.get(key, 0.0) - previous.get(key, 0.0))
            >= _LEAST_CHANGE * previous.get(key, 0.0)
            for key in current.keys() | previous.keys()
        )

    async def write(self, now_s: float) -> None:
        """Write the mix. Raises `ApiError`."""
        demand = self.cache.demand.copy()
        text = written(self.cache, now_s)
        await self.api.patch(self._path, {"data": {_KEY: text}})
        self._written = demand

    @property
    def _path(self) -> str:
        namespace, _, name = self.where.partition("/")
        return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def arrive(
    cache: SchedulerCache, mix: ExpectedMix | None, pod: Pod, placed_pod: PlacedPod, now_s: float
) -> None:
    """Count a pod in the expected mix, unless the stored mix counts it."""
    if mix is None or pod.created > mix.until_s:
        cache.arrive(pod.metadata.uid, placed_pod, now_s)


def written(cache: SchedulerCache, now_s: float) -> str:
    """Return the text of the mix. Where it is too long, the nearest classes are joined."""
    demand, mean_size = cache.demand.copy(), cache.rows().prices(cache.weights).mean_size
    while len(text := _text(demand, now_s)) > MOST_BYTES:
        demand.join(mean_size, most=len(demand.weights) * 7 // 8)
    return text


def _text(demand: Demand, now_s: float) -> str:
    weights, host, arrived, ended = demand.at(now_s)
    rows: dict[tuple[RequestClass, tuple[str, ...]], list[tuple[list[float], list[int]]]] = {}
    for (request_class, needs), weight in weights.items():
        unit_class, size = without_size(request_class)
        memory_bytes, memory_percent, core_percent = size or (0, 0, 0)
        # Sizes and cards stand with each class, so that one request serves them all.
        numbers = [request_class.cards, memory_percent, core_percent, _short(weight)]
        row = numbers, [memory_bytes, *(need for _, need in needs)]
        key = evolve(unit_class, cards=1) if size else unit_class, tuple(name for name, _ in needs)
        rows.setdefault(key, []).append(row)
    groups = tuple(
        _group(unit_class.request, plain=unit_class.plain, needs=needs, rows=classes)
        for (unit_class, needs), classes in rows.items()
        if unit_class.request is not None
    )
    document = _Written(
        at=now_s,
        arrived=_short(arrived),
        ended=_short(ended),
        host={name: _short(amount) for name, amount in host.items()},
        groups=groups,
    )
    return json.dumps(_without_defaults(codec.to_plain(document)), separators=(",", ":"))


def _group(
    request: Request,
    *,
    plain: bool,
    needs: tuple[str, ...],
    rows: list[tuple[list[float], list[int]]],
) -> _Group:
    units = [gcd(*column) or 1 for column in zip(*(amounts for _, amounts in rows), strict=True)]
    classes = (
        (*class_numbers, *(amount // unit for amount, unit in zip(amounts, units, strict=True)))
        for class_numbers, amounts in rows
    )
    return _Group(
        request=request, plain=plain, needs=needs, units=tuple(units), classes=tuple(classes)
    )


def restore(demand: Demand, text: str, *, source: str) -> float:
    """Set the demand to the written one; return its time in seconds. Raises `BadInput`."""
    document = codec.loads(text, _Written, source=source)
    weights: dict[PodClass, float] = {}
    for group in document.groups:
        for row in group.classes:
            pod = _class_of(group, row, source=source)
            weights[pod] = weights.get(pod, 0.0) + row[3]
    demand.restore(weights, document.host, document.arrived, document.ended, now_s=document.at)
    return document.at


def _class_of(group: _Group, row: tuple[float, ...], *, source: str) -> PodClass:
    length = 5 + len(group.needs)
    is_valid = len(row) == length and len(group.units) == length - 4 and row[0] >= 1
    if not is_valid or min(row) < 0 or not isfinite(sum(row)):
        raise BadInput(f"{source}: {row} is not a class of pods")
    cards, memory_percent, core_percent = map(int, row[:3])
    counts = zip(row[4:], group.units, strict=True)
    memory_bytes, *amounts = (int(count) * unit for count, unit in counts)
    request_class = RequestClass(group.request, cards, group.plain)
    if group.plain:
        request_class = with_size(request_class, (memory_bytes, memory_percent, core_percent))
    return request_class, tuple(zip(group.needs, amounts, strict=True))


def _short(number: float) -> float:
    """Return a number rounded to three digits."""
    rounded = float(f"{number:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


def _without_defaults(plain: Any) -> Any:
    """Return a document without empty values: readers have the same defaults."""
    if isinstance(plain, dict):
        return {
            name: _without_defaults(value)
            for name, value in plain.items()
            if value not in (None, False, [], {})
        }
    return [_without_defaults(item) for item in plain] if isinstance(plain, list) else plain
