"""hetero webhook: admission of pods that ask for cards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import LISTENING, driver_option, listen, listen_options


@click.command()
@click.option(
    "--scheduler", "scheduler_name", default="hetero-scheduler", show_default=True, help="For pods."
)
@click.option(
    "--adopt-scheduler",
    "adopted_scheduler_names",
    multiple=True,
    metavar="NAME",
    help="A scheduler whose pods we take.",
)
@click.option(
    "--allocation-writer",
    "allocation_writer_name",
    required=True,
    metavar="USER",
    help="Who alone writes allocations.",
)
@click.option(
    "--other-writer",
    "other_writer_names",
    multiple=True,
    metavar="USER",
    help="Who writes HAMi's allocations, where it runs beside.",
)
@click.option("--agent", required=True, metavar="USER", help="The agents' service account.")
@click.option(
    "--old-kubelets",
    "serves_old_kubelets",
    is_flag=True,
    help="Kubelets before 1.31 may be in the cluster: they refuse what init containers ask of a "
    "card, so it is noted in an annotation.",
)
@click.option(
    "--autoscaler",
    "has_autoscaler",
    is_flag=True,
    help="Nodes state memory and core of their cards, for autoscalers: agents may have them do so, "
    "and pods' amounts of memory are written without suffix.",
)
@click.option(
    "--vendor-runtime",
    "vendor_runtime_classes",
    multiple=True,
    metavar="NAME",
    help="A runtime class that brings cards by itself: it brings none to pods that ask for none.",
)
@click.option(
    "--allocation",
    type=click.Choice(["classic", "dra", "both"]),
    default="classic",
    show_default=True,
    help="How pods get devices: by extender and device plugins, by claims, or as each pod's "
    "annotation hetero.io/by-claims says.",
)
@driver_option
@click.option(
    "--client-ca",
    type=click.Path(path_type=Path),
    help="The CA that the API server proves: nobody else is answered. Where its admission "
    "configuration names a certificate.",
)
@click.option(
    "--client-name",
    "allowed_client_names",
    multiple=True,
    metavar="NAME",
    help="The common name of the API server's certificate; none: any of that CA.",
)
@click.option(
    "--allow-network",
    "allowed_cidrs",
    multiple=True,
    metavar="CIDR",
    help="Where API servers call from: nobody else is answered. None: whoever calls from no pod.",
)
@click.option(
    "--allow-namespace",
    "allowed_namespaces",
    multiple=True,
    metavar="NAME",
    help="A namespace whose pods are answered, too: some API servers call through pods there.",
)
@click.option("--open", "is_open_to_all", is_flag=True, help="Answer whoever reaches the port.")
@listen_options
def command(
    *, client_ca: Path | None, allocation: str, agent: str, driver: str, **options: Any
) -> None:
    """Fill in what pods leave out, and refuse nonsense in one sentence.

    \b
      hetero webhook --port 8444 --cert tls.crt --key tls.key \\
          --allocation-writer system:serviceaccount:hetero-system:hetero-scheduler \\
          --agent system:serviceaccount:hetero-system:hetero-agent
    """
    from hetero.kube.dra.way import AllocationWay
    from hetero.kube.service import start
    from hetero.kube.words.runtime_variables import InjectionWay

    where = {name: options.pop(name) for name in LISTENING}
    start.webhook(
        listen(**where, client_ca=client_ca, optional=True),
        allocation_way=AllocationWay(allocation),
        agent_user_name=agent,
        driver_injection_way=InjectionWay(driver),
        environ=os.environ,
        **options,
    )
