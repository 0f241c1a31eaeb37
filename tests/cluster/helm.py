"""The part of Helm's command line that the guides use, before Helm itself as a library.

`$LAB_VALUES` names a file of values that go above what installs: an image that is empty and nodes
whose cards are simulated want some that no user has.
"""

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from tests.docs.blocks import ROOT
from tests.docs.test_helm_commands import merged, nested

sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]

Values = dict[str, Any]


def _options(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(prog="helm", allow_abbrev=False)
    commands = parser.add_subparsers(dest="verb", required=True)
    for verb in ("install", "upgrade", "template", "uninstall"):
        command = commands.add_parser(verb, allow_abbrev=False)
        command.add_argument("release")
        command.add_argument("-n", "--namespace", default="default")
        if verb == "uninstall":
            continue
        command.add_argument("chart")
        command.add_argument("-f", "--values", action="append", default=[])
        command.add_argument("--set", action="append", default=[])
        command.add_argument("--set-file", action="append", default=[])
        if verb == "install":
            command.add_argument("--create-namespace", action="store_true")
        if verb == "upgrade":
            command.add_argument("--reset-then-reuse-values", action="store_true")
        if verb == "template":
            command.add_argument("--kube-version", required=True)
    return parser.parse_args(arguments)


def _values(options: Namespace) -> Values:
    """Return what a user sets: `--set` goes above files of values."""
    values: Values = {}
    for path in options.values:
        values = merged(values, yaml.safe_load(Path(path).read_text()))
    for text in options.set:
        path, _, value = text.partition("=")
        values = merged(values, nested(path, yaml.safe_load(value)))
    for text in options.set_file:
        path, _, name = text.partition("=")
        values = merged(values, nested(path, Path(name).read_text()))
    return values


async def _run(options: Namespace) -> str:
    """Do what Helm's command does; return what it prints."""
    helm: Any = import_module("helm_sdkpy")
    configuration = helm.Configuration(
        namespace=options.namespace, kubeconfig=os.environ["KUBECONFIG"]
    )
    release = options.release
    if options.verb == "uninstall":
        await helm.Uninstall(configuration).run(release, wait=False)
        return f'release "{release}" uninstalled\n'
    if options.verb == "install":
        own = yaml.safe_load(Path(os.environ["LAB_VALUES"]).read_text())
        done = await helm.Install(configuration).run(
            release,
            options.chart,
            values=merged(_values(options), own),
            create_namespace=options.create_namespace,
            wait=False,
        )
    else:
        before = {}
        if options.reset_then_reuse_values:
            before = await helm.GetValues(configuration).run(release)
        done = await helm.Upgrade(configuration).run(
            release,
            options.chart,
            values=merged(before, _values(options)),
            wait=False,
            reset_values=True,
        )
    return f"NAME: {release}\nSTATUS: deployed\nREVISION: {done.get('version')}\n"


def main(arguments: list[str]) -> str:
    """Run one command; return what it prints."""
    options = _options(arguments)
    if options.verb == "template":  # the same bytes as Helm's: tests/kube/test_helm.py
        text: str = render.render(
            namespace=options.namespace, values=_values(options), kubernetes=options.kube_version
        )
        return text
    return asyncio.run(_run(options))


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
