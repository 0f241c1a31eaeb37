"""hetero migrate: another product's configuration as hetero's."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def command() -> None:
    """Print what another product's configuration is in hetero's.

    \b
      hetero migrate hami values.yaml > hetero.yaml
      helm install hetero deploy/chart -f hetero.yaml ...
    """


@command.command("hami")
@click.argument("values", type=click.Path(path_type=Path))
@click.argument("configs", metavar="[CONFIG]...", type=click.Path(path_type=Path), nargs=-1)
def _hami(values: Path, configs: tuple[Path, ...]) -> None:
    """Print values of hetero's chart that do what the VALUES of HAMi's chart do.

    CONFIG is a device-config.yaml or a config.json of HAMi's, or a ConfigMap with one (`kubectl get
    configmap -o yaml`). The settings of nodes and pods are among the values. Each leaf of HAMi's is
    in them, or in a sentence at the end that says what is so; the first line counts them.

    \b
      helm get values hami -n kube-system > values.yaml
      hetero migrate hami values.yaml > hetero.yaml
    """
    from hetero.kube.migrate.hami import migrate

    click.echo(migrate(values, configs).text, nl=False)
