"""What a command that changes something prints of it: the grant with its id."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hetero.cli import _json
from hetero.cli._render import card_and_model, core_limit
from hetero.cli._show import dumps
from hetero.model import CORE
from hetero.model.units import format_memory, format_percent
from hetero.node.ledger.grant_file import CORE_FULL
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.rows import GangRow

quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print nothing of what was done.")
id_option = click.option("-q", "--quiet", is_flag=True, help="Print the id of the grant alone.")


def say(*lines: str, quiet: bool) -> None:
    """Print what was done."""
    for line in lines:
        if not quiet:
            click.echo(line)


def tell(
    grant: Grant, *lines: str, quiet: bool, as_json: bool, cdi: tuple[str, ...] | None = None
) -> None:
    """Print what was done, or the grant as JSON; `cdi` are the names of a share's devices."""
    if as_json:
        click.echo(dumps(_json.granted(grant, cdi=cdi)))
    else:
        say(*lines, quiet=quiet)


def limits(grant: Grant) -> Iterator[str]:
    """Yield a line for each limit of a grant."""
    device_by_uuid = {device.uuid: device for device in grant.devices}
    for limit, piece in zip(grant.limits, grant.allocation.pieces, strict=True):
        device = device_by_uuid.get(piece.device)
        card_name = limit.name if device is None else card_and_model(device)
        line_start = f"{grant.id}  {card_name}  memory {format_memory(limit.memory)}"
        if limit.context_bytes:
            line_start += (
                f", of which {format_memory(limit.context_bytes)} are the driver's context"
            )
        if piece.sm_percent is not None:
            yield f"{line_start}  {piece.sm_percent} % of the multiprocessors, at any time"
        elif piece.core is None and piece.takes[CORE] and not piece.template:
            yield f"{line_start}  all of the core"
        else:
            shape_text = f", by template {piece.template}" if piece.template else ""
            core_text = core_limit(limit.core_given(piece, device))
            yield f"{line_start}  core {core_text}{shape_text}"
    for note in grant.allocation.notes:
        yield f"{grant.id}  {note}"
    if grant.served:
        yield (
            f"{grant.id}  shares its card by a service: a program that fails in a kernel ends its "
            "neighbours', and theirs may end yours"
        )


def gang(grant: Grant, row: GangRow | None) -> Iterator[str]:
    """Yield a line where a grant of several devices has less of their time than its shares say."""
    if row is None:
        return
    if not row.length_ns:
        yield (
            f"{grant.id}  no row is free on its devices: each has time slices of its own, and "
            "processes that wait for each other get little"
        )
        return
    if row.length_ns < row.asked_length_ns:
        yield (
            f"{grant.id}  beside others it has {_ms(row.length_ns)} of each "
            f"{_ms(row.period_ns)} ms on its devices, where its share is "
            f"{_ms(row.asked_length_ns)}"
        )
    if len({limit.core for limit in grant.limits if limit.core < CORE_FULL}) > 1:
        yield (
            f"{grant.id}  runs on all its devices at the same time, at "
            f"{format_percent(row.core_share / 100)}, the smallest of its shares: "
            "the rest of the others is free"
        )


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:g}"
