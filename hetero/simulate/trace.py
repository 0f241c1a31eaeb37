"""Reads clusters and workloads: the openb CSV files (their columns are data), and our own JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from attrs import frozen

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Device,
    Fractional,
    Request,
    Selector,
    Step,
    codec,
)
from hetero.model.errors import BadInput
from hetero.model.units import MiB
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod

#: The format counts shares in thousandths of a card; with 1000 MiB a card, one is a MiB.
_THOUSANDTHS = 1000
_LARGEST_NUMBER = 1 << 40  # of any number in a file: a typing error, not a machine


@frozen(kw_only=True)
class Trace:
    """A cluster and the pods seen on it."""

    name: str
    nodes: tuple[PlacedNode, ...]
    pods: tuple[PlacedPod, ...]
    lives: tuple[float, ...] = ()  # seconds, of each pod; none where the trace has no times


@frozen(kw_only=True)
class _Format:
    """The layout of a folder of CSV files: file names, and columns by their meaning."""

    vendor: str
    nodes: str
    pods: str
    node: Mapping[str, str]
    pod: Mapping[str, str]


def read(path: Path, *, pods: str | None = None) -> Trace:
    """Return the trace at `path`: a folder of openb CSV files, or one JSON file of ours.

    In a folder `pods` names the list, `default` for `openb_pod_list_default.csv`. Raises
    `BadInput` with the file and the row.
    """
    if path.is_file():
        return _json(path)
    if not path.is_dir():
        raise BadInput(f"{path}: no such trace (a folder of openb CSV files or a JSON file)")
    list_name = pods or "default"
    columns_json = files("hetero.simulate").joinpath("openb.json").read_text()
    format_ = codec.loads(columns_json, _Format, source="openb.json")
    rows = list(_pods(path / format_.pods.format(name=list_name), format_))
    lives = [life for _, life in rows if life is not None]
    return Trace(
        name=list_name,
        nodes=tuple(_nodes(path / format_.nodes, format_)),
        pods=tuple(pod for pod, _ in rows),
        lives=tuple(lives) if len(lives) == len(rows) else (),
    )


def _json(path: Path) -> Trace:
    """Read `{"nodes": [PlacedNode…], "pods": [PlacedPod…]}`, each as the codec writes them."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path}: not an object with nodes and pods")
    records: dict[str, list[object]] = {"nodes": [], "pods": []}
    for list_key, record_type in (("nodes", PlacedNode), ("pods", PlacedPod)):
        rows = document.get(list_key)
        if not isinstance(rows, list) or not rows:
            raise BadInput(f"{path}: {list_key} is not a list of at least one")
        for row_number, plain_row in enumerate(rows, start=1):
            source = f"{path}: {list_key} {row_number}"
            records[list_key].append(codec.loads(json.dumps(plain_row), record_type, source=source))
    nodes = tuple(node for node in records["nodes"] if isinstance(node, PlacedNode))
    for node in nodes:
        for device in node.devices:
            _sound(f"{path}: node {node.name!r}", device)
    return Trace(
        name=path.stem,
        nodes=nodes,
        pods=tuple(pod for pod in records["pods"] if isinstance(pod, PlacedPod)),
    )


def _sound(source: str, device: Device) -> None:
    """Raise `BadInput` for a device with an invalid capacity."""
    for counter in (CORE, MEMORY, SLOTS):
        if counter not in device.capacity:
            raise BadInput(f"{source}: device {device.uuid!r} does not count {counter}")
    for counter, amount in device.capacity.items():
        if not 0 <= amount <= _LARGEST_NUMBER:
            raise BadInput(f"{source}: device {device.uuid!r} has {amount} {counter}")


def _nodes(path: Path, form: _Format) -> Iterator[PlacedNode]:
    granularity = Fractional(memory=Step(MiB))
    capacity = {CORE: 100, MEMORY: _THOUSANDTHS * MiB, SLOTS: _THOUSANDTHS}
    for row in _rows(path, form.node):
        node_name, model = row.text("name"), row.text("model")
        yield PlacedNode(
            name=node_name,
            devices=tuple(
                Device(
                    uuid=f"{node_name}/{index}",
                    vendor=form.vendor,
                    model=model,
                    index=index,
                    capacity=capacity,
                    granularity=granularity,
                )
                for index in range(row.number("cards", most=1024))
            ),
            host={"cpu": row.number("cpu"), "memory": row.number("memory") * MiB},
        )


def _pods(path: Path, form: _Format) -> Iterator[tuple[PlacedPod, float | None]]:
    """Yield the pods, each with its life in seconds, None where the file has no times."""
    for row in _rows(path, form.pod, optional=("models", "created", "began", "ended")):
        card_count, share_milli = row.number("cards", most=1024), row.number("share")
        if share_milli > _THOUSANDTHS:
            row.wrong("share", "is more than a whole card (1000)")
        if card_count and not share_milli:
            row.wrong("share", "is 0 for a pod that wants cards")
        request = None
        if card_count:
            ask = Ask() if share_milli == _THOUSANDTHS else Ask(memory=share_milli * MiB)
            models = tuple(part for part in row.text("models").split("|") if part)
            request = Request(asks=(ask,) * card_count, model=Selector(include=models))
        host_amounts = {"cpu": row.number("cpu"), "memory": row.number("memory") * MiB}
        pod = PlacedPod(
            name=row.text("name"), containers=(PlacedContainer(request=request, host=host_amounts),)
        )
        yield pod, _life(row)


def _life(row: _Row) -> float | None:
    if not row.text("ended"):
        return None
    began_s = row.number("began" if row.text("began") else "created")
    return float(max(row.number("ended") - began_s, 0))


@frozen
class _Row:
    """A line of a CSV file, with its place for error messages."""

    path: Path
    line: int
    columns: Mapping[str, str]
    values: Mapping[str, str]

    def text(self, meaning: str) -> str:
        return self.values.get(self.columns[meaning]) or ""

    def number(self, meaning: str, *, most: int = _LARGEST_NUMBER) -> int:
        cell = self.text(meaning)
        if not (cell.isascii() and cell.isdecimal()):
            self.wrong(meaning, "is not a whole number of at least 0")
        if int(cell) > most:
            self.wrong(meaning, f"is more than {most}")
        return int(cell)

    def wrong(self, meaning: str, reason: str) -> NoReturn:
        location = f"{self.path}, line {self.line}"
        raise BadInput(f"{location}: {self.columns[meaning]} {self.text(meaning)!r} {reason}")


def _rows(
    path: Path, columns: Mapping[str, str], *, optional: tuple[str, ...] = ()
) -> Iterator[_Row]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or ()
            needed_columns = [
                column for meaning, column in columns.items() if meaning not in optional
            ]
            missing_columns = [column for column in needed_columns if column not in header]
            if missing_columns:
                raise BadInput(f"{path}, line 1: no column {', '.join(missing_columns)}")
            is_empty = True
            for cell_texts in reader:
                is_empty = False
                if None in cell_texts or None in cell_texts.values():
                    raise BadInput(f"{path}, line {reader.line_num}: not {len(header)} columns")
                yield _Row(path, reader.line_num, columns, cell_texts)
            if is_empty:
                raise BadInput(f"{path}: no row below the heading")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: {error}") from None
