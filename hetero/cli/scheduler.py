"""hetero scheduler: the extender of a cluster's kube-scheduler."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import LISTENING, listen, listen_options, metrics_options
from hetero.model.errors import BadInput


@click.command()
@click.option("--client-ca", type=click.Path(path_type=Path), help="The CA that callers prove.")
@click.option(
    "--caller-cert",
    type=click.Path(path_type=Path),
    help="What kube-scheduler proves itself by: when it ends is told of, too.",
)
@click.option(
    "--lease",
    metavar="NAMESPACE/NAME",
    help="Lead while this process holds this Lease; give --supervisor, too.",
)
@click.option(
    "--supervisor",
    metavar="SOCKET",
    help="Where kube-scheduler's supervisor connects, a path or @NAME: kube-scheduler runs while "
    "this one leads.",
)
@click.option(
    "--kube-scheduler",
    metavar="URL",
    help="Where kube-scheduler says that it lives: one that is silent for 3 s is ended.",
)
@click.option(
    "--mix",
    "mix_config_map",
    metavar="NAMESPACE/NAME",
    help="Keep what was learned of the pods that arrive in this ConfigMap.",
)
@click.option(
    "--agent",
    "agent_user_name",
    metavar="USER",
    help="The agents' service account: nodes without a ready pod of it take nobody.",
)
@click.option(
    "--scheduler-name",
    "scheduler_names",
    multiple=True,
    metavar="NAME",
    help="A name by which pods are for kube-scheduler: one that tries none of them for 10 s is "
    "started anew.",
)
@click.option(
    "--claims",
    "counts_claims",
    is_flag=True,
    help="Count what claims hold, too: in quotas, in metrics, and of cards that they had before.",
)
@metrics_options
@listen_options
def command(
    *,
    client_ca: Path | None,
    caller_cert: Path | None,
    lease: str | None,
    supervisor: str | None,
    kube_scheduler: str | None,
    metrics: int | None,
    insecure_metrics: bool,
    **options: Any,
) -> None:
    """Answer kube-scheduler: which nodes serve a pod, how well, and bind it.

    \b
      hetero scheduler --port 8443 --cert tls.crt --key tls.key --client-ca ca.crt

    HETERO_KEY_FILE names the file of the key that signs allocations.
    """
    where = {name: options.pop(name) for name in LISTENING}
    if client_ca is None and not where["insecure"]:
        raise BadInput(
            "give --client-ca: any client that may call the extender can give cards away"
        )
    if (lease is None) != (supervisor is None):
        raise BadInput("give --lease and --supervisor together")
    if kube_scheduler is not None and lease is None:
        raise BadInput("--kube-scheduler: give --lease and --supervisor, too")
    from hetero.kube.service import leader, start

    if lease and supervisor and not leader.is_child(os.environ):
        # The extender is this command again, as a child of this process.
        argv = (sys.executable, "-m", "hetero.cli", *sys.argv[1:])
        leader.lead(lease=lease, supervisor=supervisor, healthz=kube_scheduler, argv=argv)
        return
    metrics_address = {**where, "port": metrics, "insecure": where["insecure"] or insecure_metrics}
    start.scheduler(
        listen(**where, client_ca=client_ca, caller=caller_cert),
        metrics_listen=listen(**metrics_address) if metrics else None,
        environ=os.environ,
        **options,
    )
