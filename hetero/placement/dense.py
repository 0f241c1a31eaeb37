"""The rows in numpy's form: all shapes of a changed node, or all nodes of a shape, in one go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hetero.placement.mix import POINTS
from hetero.placement.price import NEVER, Prices, Shape

_Ints = NDArray[np.int64]


class DenseRows:
    """Rows as one matrix, shapes by nodes; every entry is `Prices.cost`, worked out in bulk.

    A shape gets a row when it is first asked for after a lesson, and from then on every change of
    a node refreshes that node's column. State 0 stands for "no card": nodes have different numbers
    of them, so the cluster's states count from 1 here.
    """

    def __init__(self, prices: Prices) -> None:
        """Copy the nodes' state; rows are made when they are first asked for."""
        cluster = prices.cluster
        nodes, most = len(cluster.nodes), max((len(c) for c in cluster.cards), default=0)
        self._prices = prices
        self._cards = np.zeros((nodes, max(most, 1)), dtype=np.int32)
        self._kind = np.zeros(nodes, dtype=np.int32)  # of each node's first card
        self._host = np.zeros((nodes, len(cluster.counters)), dtype=np.int64)
        self._free_milli = np.zeros(nodes, dtype=np.int64)
        self._many = np.ones(nodes, dtype=np.int64)  # cards
        self._hollow = np.zeros(nodes, dtype=np.int64)  # cards nobody holds
        self._closed = np.zeros(nodes, dtype=bool)
        self._empty: NDArray[np.bool_] = np.zeros(1, dtype=bool)  # by state
        self._changed = set(range(nodes))
        self._pull()
        self.forget()

    def best(self, shape: Shape) -> int | None:
        """Return the cheapest node, the first among equals; None if the shape fits nowhere."""
        row = self._row(shape)
        if not len(row):
            return None
        number = int(row.argmin())
        return None if row[number] >= NEVER else number

    def ranked(self, shape: Shape) -> Iterator[int]:
        """Yield the nodes it may fit on, cheapest first."""
        row = self._row(shape)
        policy = row.argsort(kind="stable")[: int((row < NEVER).sum())]
        yield from policy.tolist()

    def touch(self, number: int) -> None:
        """Note that a node changed."""
        self._changed.add(number)

    def forget(self) -> None:
        """Note that all costs changed."""
        prices = self._prices
        self._whole_cards = np.array(prices.whole_cards, dtype=np.int64)
        self._place: dict[int, int] = {}  # a shape's row, by its number
        self._shapes: list[Shape] = []  # by row
        self._rows: _Ints = np.zeros((64, len(self._cards)), dtype=np.int64)
        self._want: _Ints = np.zeros((64, self._host.shape[1]), dtype=np.int64)
        self._want_cards: _Ints = np.zeros(64, dtype=np.int64)
        self._size: _Ints = np.zeros((len(prices.cluster.kinds) or 1, 64), dtype=np.int64)
        self._costs: _Ints = np.full((len(self._empty), 64), NEVER, dtype=np.int64)

    def reasons(self, shape: Shape) -> dict[str, int]:
        """Return how many nodes refuse the shape for which reason."""
        self._catch_up()
        prices = self._prices
        codes: _Ints = np.array([-1, *prices.reason_codes(shape)])
        said = codes[self._cards]
        found = said.max(axis=1)
        found[found == 0] = 1  # those that fit are too few, or are all that is wanted
        found[(said == 0).sum(axis=1) >= shape.cards] = 0
        for place in reversed(range(self._host.shape[1])):
            found[self._host[:, place] < shape.host[place]] = -3 - place
        found[self._closed] = -2
        said_by = zip(*np.unique(found, return_counts=True), strict=True)
        return {prices.reason_name(int(code)): int(count) for code, count in said_by}

    def _row(self, shape: Shape) -> _Ints:
        self._catch_up()
        place = self._place.get(shape.number)
        if place is None:
            place = self._add(shape)
        row: _Ints = self._rows[place]
        return row

    def _add(self, shape: Shape) -> int:
        """Give a shape its row."""
        place = self._place[shape.number] = len(self._shapes)
        self._shapes.append(shape)
        if place == len(self._rows):
            for name in ("_rows", "_want", "_want_cards"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate((old, np.zeros_like(old))))
            self._size = np.concatenate((self._size, np.zeros_like(self._size)), axis=1)
            self._costs = np.concatenate((self._costs, np.full_like(self._costs, NEVER)), axis=1)
        self._want[place] = shape.host
        self._want_cards[place] = shape.cards
        for kind in self._prices.cluster.kinds[: len(self._size)]:
            self._size[kind.number, place] = self._prices.size(shape, kind)
        costs = self._prices.card_costs(shape)[: len(self._empty) - 1]
        self._costs[1 : len(costs) + 1, place] = costs
        self._rows[place] = self._block(np.arange(len(self._cards)), slice(place, place + 1))[:, 0]
        return place

    def _catch_up(self) -> None:
        """Refresh the columns of the nodes that changed."""
        if not self._changed:
            return
        changed = self._pull()
        upto = len(self._shapes)
        if upto:
            self._rows[:upto, changed] = self._block(changed, slice(0, upto)).T

    def _pull(self) -> _Ints:
        """Copy what changed out of the cluster and return the nodes' numbers."""
        cluster = self._prices.cluster
        for number in self._changed:
            cards = cluster.cards[number]
            self._cards[number, : len(cards)] = [card + 1 for card in cards]
            if cards:
                self._kind[number] = cluster.states[cards[0]].kind.number
                self._many[number] = len(cards)
            self._host[number] = cluster.host[number]
            self._free_milli[number] = cluster.free_milli[number]
            self._hollow[number] = cluster.empty[number]
            self._closed[number] = cluster.closed[number]
        known = len(self._empty) - 1
        if known < len(cluster.states):
            new = cluster.states[known:]
            self._empty = np.concatenate((self._empty, [state.empty for state in new]))
            if hasattr(self, "_costs"):
                self._learn_states(known, len(new))
        changed = np.array(sorted(self._changed), dtype=np.int64)
        self._changed.clear()
        return changed

    def _learn_states(self, known: int, new: int) -> None:
        """Fill in what all shapes with a row cost on states not met before."""
        while len(self._costs) < known + new + 1:
            self._costs = np.concatenate((self._costs, np.full_like(self._costs, NEVER)))
        for place, shape in enumerate(self._shapes):
            costs = self._prices.card_costs(shape)[known : known + new]
            self._costs[known + 1 : known + new + 1, place] = costs

    def _block(self, nodes: _Ints, places: slice) -> _Ints:
        """Return `Prices.cost` of these nodes (down) for the shapes of these rows (across)."""
        prices = self._prices
        weights = prices.weights
        cards, hollow, free_milli = self._cards[nodes], self._hollow[nodes], self._free_milli[nodes]
        # A card's emptiness rides in the lowest bit: among equal costs a used card is cut first.
        coded = self._costs[:, places][cards] * 2 + self._empty[cards][:, :, None]
        total = self._opened(coded.min(axis=1), hollow)
        many = self._want_cards[places]
        several = np.flatnonzero(many > 1)
        if len(several):
            total[:, several] = self._cheapest(coded[:, :, several], many[several], hollow)
        total[:, many == 0] = 0
        total += (weights.node * free_milli // self._many[nodes])[:, None]
        left = self._host[nodes][:, None, :] - self._want[places][None, :, :]
        if weights.host:
            after = np.maximum(free_milli[:, None] - self._size[:, places][self._kind[nodes]], 0)
            total += weights.host * (
                self._stranded(after, left) - self._stranded(free_milli, self._host[nodes])[:, None]
            )
        unfit = (total >= NEVER >> 1) | (left < 0).any(axis=2) | self._closed[nodes][:, None]
        total[unfit] = NEVER
        return total

    def _cheapest(self, coded: _Ints, many: _Ints, hollow: _Ints) -> _Ints:
        """Return the cost of the `many` cheapest cards of each node, for each shape."""
        least = np.sort(coded, axis=1)
        last, across = np.minimum(many, coded.shape[1]) - 1, np.arange(len(many))
        cost = np.cumsum(least >> 1, axis=1)[:, last, across]
        opened = np.cumsum(least & 1, axis=1)[:, last, across]
        cost[:, many > coded.shape[1]] = NEVER
        return self._opened(cost * 2, hollow, opened)

    def _opened(self, coded: _Ints, hollow: _Ints, opened: _Ints | None = None) -> _Ints:
        """Return decoded costs with what it means for the nodes' empty cards that some opened."""
        rest = hollow[:, None] - (coded & 1 if opened is None else opened)
        whole_cards = self._whole_cards[np.maximum(rest, 0)] - self._whole_cards[hollow][:, None]
        costs: _Ints = (coded >> 1) + self._prices.weights.whole_cards * whole_cards
        return costs

    def _stranded(self, free_milli: _Ints, host: _Ints) -> _Ints:
        points = free_milli * POINTS
        served = points
        for place, rate in enumerate(self._prices.rates):
            if rate is not None:
                served = np.minimum(served, host[..., place] * rate.points // rate.amount)
        return points - served
