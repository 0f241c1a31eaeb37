"""hetero certificates: what the services of a cluster prove themselves by."""

from __future__ import annotations

import click


@click.command()
@click.option("--namespace", required=True, help="Where the services run.")
@click.option("--name", default="hetero", show_default=True, help="What their names begin with.")
def command(*, namespace: str, name: str) -> None:
    """Make the certificates and the signing key of a cluster, or renew them in time.

    \b
      hetero certificates --namespace hetero-system
    """
    from hetero.kube.service import start

    start.certificates(namespace=namespace, name=name)
