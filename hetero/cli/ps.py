"""hetero ps: the grants that stand, with what they use."""

from __future__ import annotations

from collections.abc import Sequence

import click
from attrs import evolve

from hetero.cli import _json
from hetero.cli._grants import (
    command_line,
    device_option,
    device_selector_of,
    foreign_on,
    holdings,
    no_grants_text,
    of_user,
    on_device,
    user_option,
    wanted,
)
from hetero.cli._render import UNKNOWN, Part, Text, age, few, foreign_line, heading, table
from hetero.cli._show import Seconds, json_option, show, watch_option, wide_option
from hetero.model.units import format_percent, rounded_memory
from hetero.node.node import Node
from hetero.node.view.observe import ForeignView, GrantsView, QueuedRequest, observe_grants


@click.command()
@click.option(
    "-s",
    "--seconds",
    type=Seconds(min=0.05, max=60),
    help="Take the mean of the core in use over the next so many. Default: since each began.",
)
@click.option(
    "-a", "--all", "with_foreign", is_flag=True, help="And what programs without a grant hold."
)
@click.option("-q", "--quiet", "ids_alone", is_flag=True, help="Print the ids of grants alone.")
@user_option
@device_option
@wide_option
@json_option
@watch_option
def command(
    *,
    seconds: float | None,
    with_foreign: bool,
    ids_alone: bool,
    user: str | None,
    device: str | None,
    wide: bool,
    as_json: bool,
    watch: bool,
) -> None:
    """Show the grants that stand, whose they are, and what they use.

    \b
      hetero ps
      hetero ps --all
      hetero ps --watch
      hetero ps --user alice --device 0 --wide
      hetero ps -q --user alice | xargs -n 1 hetero release --force
      hetero ps --json | jq '.items[].id'

    Core and memory read used/limit; what is not known is a dash. Core use is
    measured only for grants with a core limit. Rest: the grant has no limit and
    gets what its limited neighbours leave. Memory that spills may exceed the
    card: what does not fit lies with the host. Driver: memory that the driver
    itself uses for the processes of the grant (contexts, code), if reported.
    """
    node = Node.here()
    if not (as_json or ids_alone) and (news := node.unseen_news()):
        click.echo(f"hetero: {news}", err=True)

    def query() -> GrantsView:
        view = observe_grants(node, seconds=seconds, foreign=with_foreign)
        device_selector = device_selector_of(node, view.grants, device)
        return evolve(
            view,
            grants=on_device(of_user(view.grants, user), device_selector),
            queue=tuple(
                queued_request
                for queued_request in view.queue
                if user in (None, queued_request.user)
            ),
            foreign=view.foreign and foreign_on(view.foreign, user=user, device=device_selector),
        )

    show(
        query,
        lambda view: (
            [grant.id for grant in view.grants]
            if ids_alone
            else render(view, wide=wide, empty_text=no_grants_text(user=user, device=device))
        ),
        lambda view: _json.grants(view, seconds=seconds),
        as_json=as_json,
        watch=watch,
        wide=wide,
    )


def render(view: GrantsView, *, wide: bool = False, empty_text: str = "no grants stand") -> Part:
    """Return the table of grants; `empty_text` is shown where there is no row."""
    return [
        *heading(view.rack_file),
        *(
            Text(f"grant {unreadable_grant.id}: {unreadable_grant.reason}", "red")
            for unreadable_grant in view.unreadable
        ),
        holdings(view.grants, wide=wide) if view.grants else empty_text,
        *(["", _queue(view.queue)] if view.queue else []),
        *(["", *_foreign(view.foreign)] if view.foreign else []),
    ]


def _queue(waiting_views: Sequence[QueuedRequest]) -> Part:
    """Return the table of requests that wait, the first first."""
    queue_table = table(
        *("place", "waiting", "name", "user", "for", "state", "since", "pids", "command"),
        right=("place", "since"),
        elides=("name", "command"),
        optional=("name", "state"),
        drops=("pids", "command", "user", "name", "state"),
    )
    for view in waiting_views:
        queue_table.add_row(
            *(str(view.place), view.id, view.label or "", view.user, wanted(view)),
            Text("stopped", "yellow") if view.stopped else "",
            *(age(view.since_utc), few(view.processes), command_line(view.command)),
        )
    return queue_table


def _foreign(views: Sequence[ForeignView]) -> list[Part]:
    """Return the table of programs without a grant, those of one device below each other."""
    foreign_table = table(
        *("card", "pid", "user", "memory", "core", "without a grant"),
        right=("pid", "memory", "core"),
        elides=("without a grant",),
        drops=("core", "user"),
    )
    for view in views:
        for process in view.use.processes:
            foreign_table.add_row(
                *(view.card, str(process.pid), process.user or UNKNOWN),
                rounded_memory(process.memory),
                UNKNOWN if process.core is None else format_percent(process.core),
                process.program or UNKNOWN,
            )
    unnamed_lines = [foreign_line(view.card, view.use) for view in views if not view.use.processes]
    return [*([foreign_table] if foreign_table.rows else []), *unnamed_lines]
