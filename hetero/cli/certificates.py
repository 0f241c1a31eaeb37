"""hetero certificates: what the services of a cluster prove themselves by."""

from __future__ import annotations

import click


@click.command()
@click.option("--namespace", required=True, help="Where the services run.")
@click.option("--name", default="hetero", show_default=True, help="What their names begin with.")
@click.option("--rotate-key", is_flag=True, help="Go one step on to another signing key.")
@click.option(
    "--key-alone", is_flag=True, help="Make the signing key alone: another makes certificates."
)
def command(*, namespace: str, name: str, rotate_key: bool, key_alone: bool) -> None:
    """Make the certificates and the signing key of a cluster, or renew them in time.

    \b
      hetero certificates --namespace hetero-system

    --rotate-key announces the next key to agents; run five minutes later or more, it signs with it.
    """
    from hetero.kube.service import start

    if rotate_key:
        click.echo(start.rotate_key(namespace=namespace, name=name))
    else:
        start.certificates(namespace=namespace, name=name, key_alone=key_alone)
