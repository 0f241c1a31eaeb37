"""`hetero top` in a terminal: frame after frame, asked by keys."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from attrs import define, evolve, field
from rich.console import Console

from hetero.cli import inventory
from hetero.cli._draw import Line, layout
from hetero.cli._grants import container_of, name_of, program_of
from hetero.cli._render import Memory, Part, Text
from hetero.cli._screen import Screen
from hetero.cli._top_tables import tables, use_of
from hetero.model.errors import HeteroError
from hetero.node.grants import grants_of, release
from hetero.node.node import Node
from hetero.node.view.history import History
from hetero.node.view.observe import DeviceView, GrantView, NodeView

_KEY_HELP = """
q, Ctrl-C       end
s               sort grants by the next of: device, core, memory, age
/               show only cards and grants with a text in them; nothing: all
t               show grants below their cards, or in a table of their own
e               show idle devices one by one, or in one line
r               release a grant: its processes are ended
x               end a process: SIGTERM
arrows, j k     scroll by a line
PgUp PgDn       scroll by a page; Home and End, g and G to the ends
?               these keys, or the grants again
"""
#: Seconds between asking the processes of a grant to end and killing them.
_GRACE_PERIOD_S = 5.0


@define
class Choices:
    """What the keys chose, and `wide` and the `filters` as the command was begun.

    `notice` is what came of the last key.
    """

    history: History
    sort: int = 0
    idle: bool = False
    keys: bool = False
    tree: bool = False
    wide: bool = False
    filters: str = ""
    text: str = ""
    notice: str = ""
    memories: dict[str, Memory] = field(factory=dict)
    _window_size: tuple[int, int] = (0, 0)

    def fit(self, size: tuple[int, int]) -> None:
        """Forget which columns tables had in a window of another size."""
        if size != self._window_size:
            self._window_size = size
            self.memories = {"devices": Memory(), "grants": Memory()}


def interact(
    query: Callable[[], NodeView],
    node: Node,
    console: Console,
    interval_s: float,
    choices: Choices,
) -> None:
    """Show frame after frame until a key ends it."""

    def look() -> NodeView:
        return choices.history.add(query(), time.monotonic())

    view = look()
    with Screen(console) as screen:
        while pressed_key := screen.show(_frame(view, choices, console), wait_s=interval_s):
            choices.notice = "" if pressed_key == "again" else choices.notice
            match pressed_key:
                case "s":
                    choices.sort = (choices.sort + 1) % len(_SORT_KEYS)
                case "e":
                    choices.idle = not choices.idle
                case "t":
                    choices.tree = not choices.tree
                case "?" | "h":
                    choices.keys = not choices.keys
                case "/":
                    choices.text = screen.ask("only with this text:") or ""
                case "r":
                    choices.notice = _release(screen, node, view)
                    view = look()
                case "x":
                    choices.notice = _end(screen, view)
                case _:
                    view = look()


def _release(screen: Screen, node: Node, view: NodeView) -> str:
    """Ask which grant, and whether; release it, and return what came of it."""
    name = screen.ask("release which grant? its name or id:")
    if not name:
        return ""
    grant = next((each for each in view.grants if name in (each.id, name_of(each))), None)
    if grant is None:
        return f"no grant is called {name!r}"
    question = f"release {name_of(grant) or grant.id}, and end {len(grant.processes)} processes?"
    if screen.ask(f"{question} y or n:") != "y":
        return ""
    try:
        return release(grants_of(node), grant.id, force=True, grace=_GRACE_PERIOD_S)
    except HeteroError as error:
        return str(error)


def _end(screen: Screen, view: NodeView) -> str:
    """Ask which process, and whether; send it SIGTERM, and return what came of it."""
    pid_text = screen.ask("end which process? its pid:")
    if not pid_text:
        return ""
    names = _programs(view)
    if not pid_text.isdecimal() or int(pid_text) not in names:
        return f"{pid_text} is no process that is shown"
    pid = int(pid_text)
    if screen.ask(f"send SIGTERM to {pid} ({names[pid]})? y or n:") != "y":
        return ""
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        return f"process {pid}: {error.strerror}"
    return f"sent SIGTERM to {pid}"


def _programs(view: NodeView) -> dict[int, str]:
    """Return the programs of all processes in a view, by PID."""
    foreign = {
        process.pid: process.program or "?"
        for row in view.devices
        if row.foreign
        for process in row.foreign.processes
    }
    granted = {process.pid: process.program for grant in view.grants for process in grant.running}
    return foreign | granted


# --- frames -----------------------------------------------------------------------------------


def _frame(view: NodeView, choices: Choices, console: Console) -> list[Line]:
    """Return the lines of a frame, the first of which stays when it is scrolled."""
    order_name, order = _SORT_KEYS[choices.sort]
    choices.fit((console.width, console.height))
    text_part = f"only {choices.filters}   " if choices.filters else ""
    text_part += f"/{choices.text}   " if choices.text else ""
    title = (
        f"hetero top   {len(view.devices)} cards, {len(view.grants)} grants   {_real(view)}"
        f"{time.strftime('%H:%M:%S')}   by {order_name}   {text_part}"
        "q quit  s sort  / filter  t tree  e idle  r release  ? keys"
    )
    shown = _with_text(view, choices.text)
    shown = evolve(shown, grants=tuple(sorted(shown.grants, key=order)))
    body: Part
    if choices.keys:
        body = _KEY_HELP.strip("\n").splitlines()
    elif choices.tree:
        body = inventory.render(shown, wide=choices.wide, folded=not choices.idle)
    else:
        body = tables(
            shown,
            fold_idle=not choices.idle,
            wide=choices.wide,
            history=choices.history,
            memories=choices.memories,
        )
    notice_parts: list[Part] = [Text(choices.notice, "yellow")] if choices.notice else []
    # The first line is cut at the edge, as the keys are in the help.
    return [
        *layout(Text(title, "reverse"), console, wide=True),
        *layout([*notice_parts, body], console, wide=choices.wide),
    ]


def _real(view: NodeView) -> str:
    if view.rack_file is None:
        return ""
    return f"SIMULATED by {view.rack_file.rpartition('/')[2]}   "


def _with_text(view: NodeView, text: str) -> NodeView:
    """Return the grants with a text in their names, and the cards that have it or such a grant."""
    if not text:
        return view
    grants = [grant for grant in view.grants if _has(text, _words_of(grant))]
    numbers = {share.device_number for grant in grants for share in grant.shares}
    return evolve(
        view,
        grants=tuple(grants),
        devices=tuple(
            row
            for row in view.devices
            if row.device_number in numbers or _has(text, _words_of_card(row))
        ),
    )


def _has(text: str, words: Sequence[str | None]) -> bool:
    return any(text.lower() in word.lower() for word in words if word)


def _words_of(grant: GrantView) -> list[str | None]:
    return [
        *(grant.id, name_of(grant), grant.user, program_of(grant), grant.policy.value),
        *(process.program for process in grant.running),
        *(str(pid) for pid in grant.processes),
        *(container_of(container, wide=True) for container in grant.containers),
    ]


def _words_of_card(row: DeviceView) -> list[str | None]:
    device = row.device
    return [device.vendor, device.model, device.uuid, device.condition, device.ailment]


#: What grants can be sorted by, with the key of each; they come by device.
_SORT_KEYS: tuple[tuple[str, Callable[[GrantView], tuple[float | str, ...]]], ...] = (
    ("device", lambda grant: ()),  # noqa: ARG005
    ("core", lambda grant: tuple(-part for part in use_of(grant.shares))),
    ("memory", lambda grant: tuple(-part for part in use_of(grant.shares)[::-1])),
    ("age", lambda grant: (grant.since_utc, grant.id)),
)
