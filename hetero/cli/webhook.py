"""hetero webhook: admission of pods that ask for cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import listen, listen_options


@click.command()
@click.option("--scheduler", default="hetero-scheduler", show_default=True, help="For pods.")
@click.option(
    "--adopt-scheduler",
    "adopt_schedulers",
    multiple=True,
    metavar="NAME",
    help="A scheduler whose pods we take.",
)
@click.option(
    "--allocation-writer", required=True, metavar="USER", help="Who alone writes allocations."
)
@listen_options
def command(
    *,
    config: Path | None,
    scheduler: str,
    adopt_schedulers: tuple[str, ...],
    allocation_writer: str,
    **where: Any,
) -> None:
    """Fill in what pods leave out, and refuse nonsense in one sentence.

    \b
      hetero webhook --port 8444 --cert tls.crt --key tls.key \\
          --allocation-writer system:serviceaccount:hetero-system:hetero-scheduler
    """
    from hetero.kube.service import start

    start.webhook(
        listen(**where),
        config=config,
        scheduler=scheduler,
        adopt_schedulers=adopt_schedulers,
        allocation_writer=allocation_writer,
    )
