"""hetero demo: what sharing a card looks like, in under a minute."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import which

import click

from hetero.cli import fit
from hetero.cli._render import Part, Text, table
from hetero.cli._show import put
from hetero.cli._undoing import undoing
from hetero.cli.inventory import render
from hetero.model import Refusal
from hetero.model.errors import BadInput
from hetero.model.names import did_you_mean
from hetero.node.demo import (
    MANY,
    PLACED_ASKS,
    RACK,
    SHARES,
    Demo,
    Ending,
    default_vendors,
    of_each,
    of_vendor,
    placed,
    placed_vendors,
    settings_for,
    stage,
    vendors,
    why_shares_say_little,
)
from hetero.node.simulation import racks

#: After how many half seconds the card is looked at again: a driver's sample is shorter.
_LOOKS_APART = 4


@click.command()
@click.option("--real", is_flag=True, help="On this machine's own card, not a simulated one.")
@click.option(
    "--vendor", metavar="NAME", help="On simulated cards of this vendor, through its own API."
)
@click.option("--list", "listing", is_flag=True, help="List the simulated machines there are.")
@click.option(
    "--seconds",
    type=click.IntRange(2, 3600),
    default=6,
    show_default=True,
    help="How long the two programs are measured.",
)
def command(*, real: bool, vendor: str | None, listing: bool, seconds: int) -> None:
    """Share one card between two programs and show what each of them gets.

    Then let one go over its memory, and ask for more than is left. Without
    --real everything happens on simulated drivers: the limiter, the ledger and
    the commands are the real ones, the card is not.

    HETERO_RACK=NAME has any command take one of the simulated machines that --list
    shows; HETERO_RACK=FILE one of your own (docs/racks.md).
    """
    if listing:
        put(_racks(racks()))
        return
    if real and os.environ.get("HETERO_RACK"):
        raise BadInput("--real: HETERO_RACK is set, and simulates cards: unset it")
    if vendor is not None:
        _expect_a_demo(vendor, real=real)
    with undoing():
        if vendor is not None and vendor in placed_vendors():
            _placements(vendor)
        elif vendor is not None and vendor in default_vendors():
            _show(real=real, vendor=None, seconds=seconds)
        else:
            _show(real=real, vendor=vendor, seconds=seconds)


def _show(*, real: bool, vendor: str | None, seconds: int) -> None:
    """Show two programs that share a card."""
    with stage(real=real, vendor=vendor) as demo:
        if not real:
            notice = "The cards in this demo are SIMULATED: no real card is used or measured."
            put(Text(notice, "yellow"))
        _title("What is there", "hetero inventory")
        put(render(demo.view()))
        if warning := why_shares_say_little():
            put(["", Text(warning, "yellow")])
        _two_programs(demo, seconds)
        _title("A program that wants twice the memory it was granted")
        _ending(demo.over_memory())
        _title("Afterwards the card is empty again", "hetero inventory")
        put(render(demo.view()))
        if not real and not vendor:
            _many_vendors(demo)
    if not real:
        notice = "The cards were SIMULATED. With a real one: hetero demo --real"
        put(["", Text(notice, "yellow"), f"To do it yourself, line by line: {_setting(vendor)}"])


def _expect_a_demo(vendor_name: str, *, real: bool) -> None:
    if real:
        raise BadInput("--vendor: it simulates cards, and --real takes those that are here")
    if os.environ.get("HETERO_RACK"):
        raise BadInput("--vendor: HETERO_RACK is set, and names the cards: unset it")
    vendor_names = sorted({*default_vendors(), *vendors(), *placed_vendors()})
    if vendor_name not in vendor_names:
        raise BadInput(
            f"--vendor {vendor_name}: there is a demo on cards of {', '.join(vendor_names)}"
            + did_you_mean(vendor_name, vendor_names)
        )


def _placements(vendor_name: str) -> None:
    """Show what requests become on cards that no limiter of ours shares."""
    notice = f"The cards are SIMULATED: requests are placed, and no program runs on {vendor_name}."
    put(Text(notice, "yellow"))
    with placed(vendor_name) as view:
        _title("What is there", f"HETERO_RACK={MANY} hetero inventory")
        put(render(view))
        card_by_uuid = {row.device.uuid: row.device for row in view.devices}
        for ask, flags in PLACED_ASKS:
            _title(
                f"What {flags or 'a request without a size'} becomes",
                f"HETERO_RACK={MANY} hetero fit --vendor {vendor_name} {flags}".rstrip(),
            )
            answer = of_vendor(view, ask, vendor_name)
            put(
                answer.sentence if isinstance(answer, Refusal) else fit.render(answer, card_by_uuid)
            )


def _setting(vendor_name: str | None) -> str:
    """Return what a shell is told before the commands shown can be repeated in it."""
    variables = f"export HETERO_RACK={vendor_name or RACK}"
    if vendor_name and (settings := settings_for(vendor_name)):
        settings_line = settings.replace("\n", "\\n")
        variables = f"printf '{settings_line}' > node.toml; {variables} HETERO_CONFIG=node.toml"
    if which("hetero"):
        return variables
    return f'{variables} PATH="{Path(sys.executable).parent}:$PATH"'


def _racks(description_by_rack: dict[str, str]) -> Part:
    racks_table = table("HETERO_RACK", "what it simulates", folds=("what it simulates",))
    for rack_name, description in description_by_rack.items():
        racks_table.add_row(rack_name, description)
    return racks_table


def _two_programs(demo: Demo, seconds: int) -> None:
    from rich.progress import BarColumn, Progress, TextColumn

    from hetero.cli._draw import terminal_of

    console = terminal_of(sys.stdout)
    device_name = f"{demo.device.model} {demo.device.uuid[:12]}"
    _title(f"Two programs share the {device_name}")
    put([Text(f"$ {demo.shown(share, seconds)}", "dim") for share in SHARES])
    with console.status("one alone, for comparison"):
        alone_rate = demo.alone(2)
    put(f"alone a program makes {alone_rate:.0f} steps/s; at once, measured for {seconds} s:")
    refusal: Ending | None = None
    looks = 0
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(bar_width=40, complete_style="green", finished_style="green"),
        TextColumn("got {task.completed:5.1f} %"),
    )
    with Progress(*columns, console=console) as bars:
        tasks = [
            bars.add_task(f"--memory {demo.memory}Mi --core {share}", total=100) for share in SHARES
        ]
        for shares_got in demo.together(alone_rate, seconds):
            for task, program_share in zip(tasks, shares_got, strict=True):
                bars.update(task, completed=program_share.got)
            looks += refusal is not None
            # Busy is the driver's last sample: at the first look it is of before both worked.
            if (refusal is None or looks == _LOOKS_APART) and demo.shared(seen := demo.view()):
                view = seen
                refusal = refusal or demo.over_core()
    if refusal is None:
        longer = f"--seconds {2 * seconds}"
        put(["", f"The two ended before a third one could ask: give them more time ({longer})."])
    else:
        _title("While they ran, a third one asked for more than is left")
        _ending(refusal)
        _title(
            "and the card was held by (core in use: a mean over ten seconds, their start included)",
            "hetero inventory",
        )
        put(render(view))


def _many_vendors(demo: Demo) -> None:
    view = demo.many()
    (first_piece, *_) = of_each(view).pieces
    _title("Cards of many vendors in one machine", f"HETERO_RACK={MANY} hetero inventory")
    put(render(view))
    _title(
        "What 3000 MiB and 30 % become on a card of each",
        f"HETERO_RACK={MANY} hetero fit --vendor {first_piece.vendor} --memory 3000Mi --core 30",
    )
    put(fit.render(of_each(view), {row.device.uuid: row.device for row in view.devices}))


def _title(text: str, command_line: str | None = None) -> None:
    put(["", Text(text, "bold"), *([Text(f"$ {command_line}", "dim")] if command_line else [])])


def _ending(ending: Ending) -> None:
    lines = ending.output.splitlines()
    put([Text(f"$ {ending.command}", "dim"), *lines, f"exit status {ending.code}"])
