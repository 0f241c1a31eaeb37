"""One row per shape of pod with its cost on every node: what makes the next placement cheap."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Protocol

from hetero.placement.price import NEVER, Prices, Shape


class Rows(Protocol):
    """What the index needs of its rows."""

    def best(self, shape: Shape) -> int | None:
        """Return the cheapest node, the first among equals; None if the shape fits nowhere."""

    def ranked(self, shape: Shape) -> Iterator[int]:
        """Yield the nodes it may fit on, cheapest first."""

    def touch(self, number: int) -> None:
        """Note that a node changed."""

    def forget(self) -> None:
        """Note that all costs changed."""

    def reasons(self, shape: Shape) -> dict[str, int]:
        """Return how many nodes refuse the shape for which reason."""


def rows(prices: Prices, *, dense: bool | None) -> Rows:
    """Return the rows of the prices, in numpy's form if asked for or, undecided, if installed."""
    if dense is False:
        return PlainRows(prices)
    try:
        from hetero.placement.dense import DenseRows  # only here: numpy is an extra
    except ImportError:
        if dense:
            raise
        return PlainRows(prices)
    return DenseRows(prices)


class PlainRows:
    """Rows in plain Python: a shape's row catches up with the changes when it is asked for."""

    def __init__(self, prices: Prices) -> None:
        """Start empty: rows are made when they are first asked for."""
        self._prices = prices
        self._rows: dict[int, array[int]] = {}
        self._upto: dict[int, int] = {}  # how much of the changes a row knows
        self._changed: list[int] = []

    def best(self, shape: Shape) -> int | None:
        """Return the cheapest node, the first among equals; None if the shape fits nowhere."""
        row = self._row(shape)
        if not row:
            return None
        least = min(row)
        return None if least >= NEVER else row.index(least)

    def ranked(self, shape: Shape) -> Iterator[int]:
        """Yield the nodes it may fit on, cheapest first."""
        row = self._row(shape)
        yield from sorted((i for i, c in enumerate(row) if c < NEVER), key=row.__getitem__)

    def touch(self, number: int) -> None:
        """Note that a node changed."""
        self._changed.append(number)
        if len(self._changed) > 4 * len(self._prices.cluster.nodes) + 1000:
            self._rows.clear()  # making a row anew is then cheaper than catching up
            self._changed.clear()

    def forget(self) -> None:
        """Note that all costs changed."""
        self._rows.clear()
        self._changed.clear()

    def reasons(self, shape: Shape) -> dict[str, int]:
        """Return how many nodes refuse the shape for which reason."""
        counts: dict[str, int] = {}
        for number in range(len(self._prices.cluster.nodes)):
            reason = self._prices.reason_name(self._prices.reason(number, shape))
            counts[reason] = counts.get(reason, 0) + 1
        return counts

    def _row(self, shape: Shape) -> array[int]:
        prices, row = self._prices, self._rows.get(shape.number)
        if row is None:
            every = range(len(prices.cluster.nodes))
            row = self._rows[shape.number] = array("q", (prices.cost(i, shape) for i in every))
        else:
            for number in set(self._changed[self._upto[shape.number] :]):
                row[number] = prices.cost(number, shape)
        self._upto[shape.number] = len(self._changed)
        return row
