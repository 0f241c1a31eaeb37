"""The options of commands that serve HTTPS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetero.model.errors import BadInput

if TYPE_CHECKING:
    from hetero.kube.service.start import Listen

_File = click.Path(path_type=Path)
#: 0 takes any that is free.
PORT = click.IntRange(0, 65535)
#: Those of `listen_options` that are for `listen`.
LISTENING = ("host", "port", "cert", "key", "insecure")


def listen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where to listen and which settings to read."""
    for option in (
        click.option("--config", "config_path", type=_File, help="The settings, a TOML file."),
        click.option("--insecure", is_flag=True, help="Serve plain HTTP. For tests alone."),
        click.option("--key", type=_File, help="The certificate's private key."),
        click.option("--cert", type=_File, help="The certificate; it is reloaded when it changes."),
        click.option("--port", type=PORT, required=True, help="The port to answer on."),
        click.option(
            "--host",
            default="0.0.0.0",  # noqa: S104 - a pod's own
            show_default=True,
            help="The address to answer on.",
        ),
    ):
        command = option(command)
    return command


#: Of the agent, and of the webhook, which tells containers what the agent is not to tell them.
driver_option = click.option(
    "--driver",
    type=click.Choice(
        [*("files", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"), "cdi", "runtime"]
    ),
    default="files",
    show_default=True,
    help="Who brings a card's driver into containers: the agent; the vendor's runtime, told by a "
    "variable (runtime is the same) or by mounts; or CDI, by annotations or by the kubelet (cdi is "
    "the same).",
)


def metrics_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where metrics are served, and to whom."""
    for option in (
        click.option(
            "--insecure-metrics",
            is_flag=True,
            help="Serve /metrics in plain HTTP, to everybody who reaches the port.",
        ),
        click.option(
            "--metrics",
            type=PORT,
            help="The port /metrics is served on, by HTTPS, to who may get /metrics in the "
            "cluster; none: not at all.",
        ),
    ):
        command = option(command)
    return command


def listen(
    *,
    host: str,
    port: int,
    cert: Path | None,
    key: Path | None,
    insecure: bool,
    client_ca: Path | None = None,
    optional: bool = False,
    caller: Path | None = None,
) -> Listen:
    """Return where to listen. Raises `BadInput`.

    Callers have a certificate of `client_ca`; if it is `optional`, those who need one. The end of
    theirs, `caller`, is told of, too.
    """
    from hetero.kube.service.https import Certificates
    from hetero.kube.service.start import Listen

    if insecure:
        return Listen(host=host, port=port, certificates=None)
    if cert is None or key is None:
        raise BadInput("give --cert and --key")
    certificates = Certificates(
        cert=cert, key=key, client_ca=client_ca, optional=optional, caller=caller
    )
    return Listen(host=host, port=port, certificates=certificates)
