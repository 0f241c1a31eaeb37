"""The table of grants that `ps`, `inventory` and `top` show, and which grants are asked for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from hetero.cli._render import UNKNOWN, Part, Table, Text, age, core_of, few, memory_of, table
from hetero.model.errors import NotFound
from hetero.model.units import MiB, format_memory, format_percent, rounded_memory
from hetero.node.ledger.ledger import ContainerInfo
from hetero.node.node import Node
from hetero.node.view.idle_holders import idle_holders
from hetero.node.view.observe import (
    DeviceView,
    ForeignView,
    GrantView,
    Process,
    QueuedRequest,
    Share,
)

#: How many programs without a grant are named on a card.
_MOST_NAMED_PROGRAMS = 4


class Name(click.ParamType[str]):
    """A name, which an unset variable of a shell is not."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it is."""
        return value if value.strip() else self.fail("is empty.", param, ctx)


class Filter(click.Option):
    """An option by which a view is chosen: a second one is refused, not taken for the first."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["multiple"] = True
        super().__init__(*arguments, **settings)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value, None where it was not given."""
        values = super().process_value(ctx, value)
        if len(values) > 1:
            shown_values = ", ".join(map(str, values))
            raise click.UsageError(
                f"{self.opts[-1]} is given {len(values)} times ({shown_values}): give it once", ctx
            )
        return values[0] if values else None


user_option = click.option(
    "-u", "--user", cls=Filter, type=Name(), metavar="NAME", help="Only this user's grants."
)
device_option = click.option(
    "-d",
    "--device",
    cls=Filter,
    type=Name(),
    metavar="NAME",
    help="Only grants of this card: VENDOR:INDEX, its number or UUID.",
)


def of_user(grants: Sequence[GrantView], user: str | None) -> tuple[GrantView, ...]:
    """Return the grants of a user, all of them where none is named."""
    return tuple(grant for grant in grants if user in (None, grant.user))


def no_grants_text(*, user: str | None, device: str | None) -> str:
    """Return the sentence that no grant was found of a user and a device, None for any."""
    owner_text = f" of user {user}" if user else ""
    return "no grants stand" + owner_text + (f" on device {device}" if device else "")


def device_selector_of(node: Node, grants: Sequence[GrantView], device: str | None) -> str | None:
    """Return the inventory index, UUID or prefix of one by which `on_device` knows a device.

    Raises `NotFound` for a device that no grant is on and that is not of this machine.
    """
    if device is None or on_device(grants, device):
        return device
    from hetero.placement.match import named  # here: only who names a device waits for it

    matching_devices = named(node.discover().devices, device)
    if not matching_devices:
        raise NotFound(f"no device {device!r} here: `hetero inventory` lists those there are")
    return matching_devices[0].uuid if len(matching_devices) == 1 else device


def on_device(grants: Sequence[GrantView], device: str | None) -> tuple[GrantView, ...]:
    """Return the grants that have some of a device, all of them where none is named."""
    return tuple(
        grant for grant in grants if any(_is_named(share, device) for share in grant.shares)
    )


def foreign_on(
    views: Sequence[ForeignView], *, user: str | None, device: str | None
) -> tuple[ForeignView, ...]:
    """Return what is used without a grant by a user and on a device, None for any."""
    return tuple(
        view
        for view in views
        if _is_named(view, device)
        if user is None or any(process.user == user for process in view.use.processes)
    )


def _is_named(view: Share | ForeignView, device: str | None) -> bool:
    return (
        device is None
        or device in (str(view.device_number), view.card)
        or view.device.startswith(device)
    )


#: The columns of a grant, and those that go first where not all fit.
_COLUMNS = (
    *("grant", "name", "user", "core used", "memory used", "note", "template", "driver"),
    *("policy", "age", "pids", "container", "command"),
)
_DROPPED_COLUMNS = (
    *("driver", "age", "policy", "user", "template", "pids", "command", "container", "name"),
    *("note", "card"),
)


def _grants_table(first_column: str) -> Table:
    return table(
        *(first_column, *_COLUMNS),
        right=("core used", "memory used", "driver", "age"),
        elides=("name", "container", "command"),
        optional=("name", "note", "template", "driver", "container"),
        drops=_DROPPED_COLUMNS,
    )


def holdings(grants: Sequence[GrantView], *, wide: bool = False) -> Part:
    """Return the table of who holds what, one line for each device of a grant.

    `wide` adds what the driver takes on top, and the images of containers.
    """
    holdings_table = _grants_table("card")
    for grant in grants:
        for position, share in enumerate(grant.shares):
            row = _cells(grant, share, is_first=not position, wide=wide)
            holdings_table.add_row(*(row[column] for column in holdings_table.columns))
    return [holdings_table, *remarks(grants)]


def tree(
    rows: Sequence[DeviceView], grants: Sequence[GrantView], *, wide: bool = False
) -> tuple[Table, dict[int, list[list[Text]]]]:
    """Return the table of who holds what below each card, and its rows by the card's number.

    The rows lack the first column, in which the branch of the tree stands. Behind grants come
    programs without one.
    """
    cells_by_number: dict[int, list[dict[str, Text]]] = {row.device_number: [] for row in rows}
    for grant in grants:
        for share in grant.shares:
            if share.device_number in cells_by_number:
                row_cells = _cells(grant, share, is_first=True, wide=wide)
                cells_by_number[share.device_number].append(row_cells)
    for row in rows:
        cells_by_number[row.device_number] += _foreign_cells(row)
    return _grants_table(""), {
        number: [[cells.get(column, Text()) for column in _COLUMNS] for cells in all_cells]
        for number, all_cells in cells_by_number.items()
    }


def _foreign_cells(row: DeviceView) -> list[dict[str, Text]]:
    """Return the cells of the programs that use a card without a grant, the largest first."""
    use = row.foreign
    if use is None or not use.memory:
        return []
    cells = [
        {
            "grant": "no grant",
            "user": process.user or UNKNOWN,
            "core used": "" if process.core is None else f"{process.core:.0f} %",
            "memory used": rounded_memory(process.memory),
            "pids": str(process.pid),
            "command": process.program or "",
        }
        for process in use.processes[:_MOST_NAMED_PROGRAMS]
    ]
    more_bytes = use.memory - sum(
        process.memory for process in use.processes[:_MOST_NAMED_PROGRAMS]
    )
    if more_bytes > 0:
        more_count = len(use.processes[_MOST_NAMED_PROGRAMS:])
        cells.append(
            {
                "grant": "no grant",
                "user": f"{more_count} more" if more_count else UNKNOWN,
                "core used": "" if use.core is None or use.processes else f"{use.core:.0f} %",
                "memory used": ("~" if use.estimated else "") + rounded_memory(more_bytes),
            }
        )
    return [
        {column: Text(cell_text, "yellow") for column, cell_text in cell_texts.items()}
        for cell_texts in cells
    ]


def remarks(grants: Sequence[GrantView]) -> list[Part]:
    """Return a line for whatever of grants their users should know, and tables do not say."""
    past_lines = [
        Text(f"process {excess.pid} of grant {grant.id} {excess.what} past its limiter", "red")
        for grant in grants
        for excess in grant.bypass
    ]
    excess_lines = [
        Text(f"{excess.subject} {excess.what}", "red" if excess.is_over else "")
        for grant in grants
        for share in grant.shares
        if (excess := share.excess) and excess.is_told
    ]
    owing_lines = [Text(str(owes), "yellow") for grant in grants for owes in grant.owing]
    wait_lines = [Text(str(wait), "yellow") for grant in grants for wait in grant.waits]
    unknown_lines = [
        Text(
            f"grant {grant.id} asked for {_functions(grant.unknown_function_count)} "
            "its limiter does not know"
        )
        for grant in grants
        if grant.unknown_function_count
    ]
    gone_lines = [
        Text(f"grant {grant.id} lost its work on its card: {grant.hurt}", "red")
        for grant in grants
        if grant.hurt
    ]
    idle_lines = [
        Text(f"grant {grant.id}: held by {_names(holders)}, and no process of it uses the card")
        for grant in grants
        if (holders := idle_holders(grant))
    ]
    return [
        *(*gone_lines, *past_lines, *owing_lines, *wait_lines, *excess_lines, *unknown_lines),
        *idle_lines,
    ]


def _names(processes: Sequence[Process]) -> str:
    """Return a few processes by name: `sh (12), python3 (13)`."""
    names = [f"{process.program} ({process.pid})" for process in processes[:_MOST_NAMED_PROGRAMS]]
    more_count = len(processes) - len(names)
    return ", ".join([*names, *([f"{more_count} more"] if more_count else [])])


def _functions(count: int) -> str:
    return (
        "a function of the driver that" if count == 1 else f"{count} of the driver's functions that"
    )


def _cells(grant: GrantView, share: Share, *, is_first: bool, wide: bool) -> dict[str, Text]:
    """Return the cells of one device of a grant; what is the grant's own only with the first."""
    overhead_mib = None if share.overhead_bytes is None or not wide else share.overhead_bytes // MiB
    share_cells = {
        "card": share.card or UNKNOWN,
        "core used": core_of(share, wide=wide),
        "template": share.template or "",
        "driver": "" if overhead_mib is None else f"+{overhead_mib} MiB",
    }
    grant_cells = {
        "grant": grant.id,
        "name": name_of(grant),
        "user": grant.user,
        "policy": grant.policy.value,
        "age": age(grant.since_utc),
        "pids": few(grant.processes),
        "container": ", ".join(
            container_of(container, wide=wide) for container in grant.containers
        ),
        "command": program_of(grant),
    }
    text_by_column = {
        column: Text(cell_text) for column, cell_text in {**share_cells, **grant_cells}.items()
    }
    if not is_first:
        text_by_column.update({column: Text() for column in grant_cells})
    text_by_column["note"] = note_of(grant, share)
    text_by_column["memory used"] = share_memory(share)
    return text_by_column


def share_memory(share: Share) -> Text:
    """Return the memory that a share used of its limit; more than that stands out."""
    is_over = (share.memory_used_bytes or 0) > share.memory_bytes and not share.spill
    return Text(
        memory_of(share.memory_used_bytes, share.memory_bytes), "bold red" if is_over else ""
    )


def note_of(grant: GrantView, share: Share) -> Text:
    """Return what its user should know of a share: refusals, an end, memory with the host."""
    if share.denied_count:
        return Text(f"{share.denied_count} refused", "bold red")
    if grant.ended:
        return Text("ended")
    return Text("spills" if share.spill else "")


def name_of(grant: GrantView) -> str:
    """Return what people call a grant: the share it is, or the label its user gave it."""
    return grant.share or grant.label or ""


def program_of(grant: GrantView) -> str:
    """Return a grant's command without the program's folder, which would leave no room for it."""
    return command_line(grant.command)


def command_line(command: Sequence[str]) -> str:
    """Return a command without the program's folder."""
    program, *arguments = command or ("",)
    return shlex.join([program.rpartition("/")[2], *arguments]) if program else ""


def wanted(view: QueuedRequest) -> str:
    """Return what a request asks for, in a few words: `20 GiB, 30 %, 2 devices`."""
    sizes = [
        f"{view.memory_percent} % of memory" if view.memory_percent else None,
        None if view.memory_bytes is None else format_memory(view.memory_bytes),
        None if view.core_percent is None else format_percent(view.core_percent),
    ]
    words = [*filter(None, sizes)]
    if view.whole or not any(sizes[:2]):
        words.insert(0, "whole")
    if view.device is not None:
        words.append(f"card {view.device}")
    elif view.device_count > 1:
        words.append(f"{view.device_count} devices")
    return ", ".join((*words, *view.vendors, *view.models))


def queue_lines(waiting_views: Sequence[QueuedRequest]) -> list[Part]:
    """Return who waits: what is kept for them is not shown as free."""
    if not waiting_views:
        return []
    texts = [
        f"{view.id} of {view.user} ({wanted(view)})"
        for view in waiting_views[:_MOST_NAMED_PROGRAMS]
    ]
    more_count = len(waiting_views) - len(texts)
    if more_count:
        texts.append(f"{more_count} more")
    verb, whom = ("waits", "it") if len(waiting_views) == 1 else ("wait", "them")
    return [Text(f"{', '.join(texts)} {verb}: what is kept for {whom} is not free", "yellow")]


def container_of(container: ContainerInfo, *, wide: bool = False) -> str:
    """Return a container's name, or its id where it has none; its image, too, where it is wide."""
    shown_name = container.name if container.name != container.id else container.id[:12]
    return (
        f"{shown_name} {container.id[:12]} {container.image or ''}".rstrip() if wide else shown_name
    )
