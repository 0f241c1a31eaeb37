"""hetero scheduler: the extender of a cluster's kube-scheduler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import PORT, listen, listen_options
from hetero.model.errors import BadInput


@click.command()
@click.option("--client-ca", type=click.Path(path_type=Path), help="The CA that callers prove.")
@click.option(
    "--lease",
    metavar="NAMESPACE/NAME",
    help="Lead while the kube-scheduler on this host holds this Lease.",
)
@click.option("--metrics", type=PORT, help="The port /metrics is served on; none: not at all.")
@listen_options
def command(
    *,
    config: Path | None,
    client_ca: Path | None,
    lease: str | None,
    metrics: int | None,
    insecure: bool,
    **where: Any,
) -> None:
    """Answer kube-scheduler: which nodes serve a pod, how well, and bind it.

    \b
      hetero scheduler --port 8443 --cert tls.crt --key tls.key --client-ca ca.crt

    HETERO_KEY_FILE names the file of the key that signs allocations.
    """
    from hetero.kube.service import start

    if client_ca is None and not insecure:
        raise BadInput(
            "give --client-ca: any client that may call the extender can give cards away"
        )
    start.scheduler(
        listen(client_ca=client_ca, insecure=insecure, **where),
        config=config,
        lease=lease,
        metrics=metrics,
        environ=os.environ,
    )
