"""Every Helm command of the documents: its options, and that its values reach the manifests."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hetero.kube.words.settings import read
from tests.docs.blocks import ROOT, Block, blocks

sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]

CHART = ROOT / "deploy/chart"
OWN = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
#: What a page is read for: each kind of node has a file of values, which some command names.
KINDS = {path.name for path in (ROOT / "deploy/values").glob("*.yaml")}

#: What a reader has before a command takes it: the settings that a page shows, and an authority.
WRITTEN = {
    "settings.toml": next(
        block.text for block in blocks("toml") if block.path.name == "cluster-settings.md"
    ),
    "ca.crt": "-----BEGIN CERTIFICATE-----\n",
    "hetero.yaml": "compat: hami\n",  # as `hetero migrate hami` prints it
}

#: Digests of all values: what a value that nothing reads changes, too.
_OF_ALL_VALUES = re.compile(r"\b[0-9a-f]{64}\b|(?<=hetero-certificates-)[0-9a-f]{8}\b")


class Wrong(Exception):
    """What is wrong with a command."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("helm")
    for name in ("verb", "release", "chart"):
        parser.add_argument(name)
    parser.add_argument("-n", "--namespace", required=True)
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    parser.add_argument("-f", "--values", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--set-file", action="append", default=[])
    return parser


def commands() -> list[tuple[Block, list[str]]]:
    """Return the words of each command that installs the chart, or upgrades it."""
    return [
        (block, words[1:])
        for block in blocks("sh", "console")
        for line in block.commands
        if (words := shlex.split(line, comments=True))[:1] == ["helm"]
        and words[1] in ("install", "upgrade")
    ]


COMMANDS = commands()


def merged(under: Any, over: Any) -> Any:
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    return {**under, **{name: merged(under.get(name), one) for name, one in over.items()}}


def nested(path: str, value: Any) -> Any:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def values_of(words: list[str]) -> dict[str, Any]:
    """Return what a command sets over the chart's own values, or raise `Wrong`."""
    asked, left = _parser().parse_known_args(words)
    if left:
        raise Wrong(f"unknown: {left}")
    if asked.chart != "deploy/chart":
        raise Wrong(f"{asked.chart} is no chart")
    parts: list[dict[str, Any]] = []
    for name in asked.values:
        if name not in WRITTEN and not (ROOT / name).is_file():
            raise Wrong(f"{name} is not there")
        parts.append(yaml.safe_load(WRITTEN.get(name) or (ROOT / name).read_text()))
    for setting in asked.set:
        path, _, text = setting.partition("=")
        parts.append(nested(path, yaml.safe_load(text)))
    for setting in asked.set_file:
        path, _, name = setting.partition("=")
        if name not in WRITTEN:
            raise Wrong(f"{name} is not shown")
        parts.append(nested(path, WRITTEN[name]))
    whole = manifests(together(parts))
    for place, part in enumerate(parts):
        with suppress(render.Refused):  # it needs this part
            if manifests(together(parts[:place] + parts[place + 1 :])) == whole:
                raise Wrong(f"{part} changes nothing")
    values: dict[str, Any] = json.loads(together(parts))
    return values


def together(parts: list[dict[str, Any]]) -> str:
    return json.dumps(reduce(merged, parts, {}))


@cache
def manifests(values: str) -> str:
    """Return what the chart makes of values (JSON), without digests of all of them."""
    text: str = render.render(namespace="hetero-system", values=json.loads(values))
    return _OF_ALL_VALUES.sub("", text)


@pytest.mark.parametrize(
    ("block", "words"), COMMANDS, ids=[f"{block} {words[-1]}" for block, words in COMMANDS]
)
def test_a_command_of_helm_renders_what_its_values_say(block: Block, words: list[str]) -> None:
    values = values_of(words)

    jsonschema.Draft7Validator(SCHEMA).validate(merged(OWN, values))
    made = list(yaml.load_all(manifests(json.dumps(values)), Loader=yaml.CSafeLoader))
    assert "DaemonSet" in {one["kind"] for one in made}
    read(values.get("settings", ""), source_name=str(block))


def test_each_kind_of_node_has_a_command() -> None:
    named = {Path(word).name for _, words in COMMANDS for word in words if "deploy/values/" in word}

    assert len(KINDS) >= 8
    assert named == KINDS
    ways = {word for _, words in COMMANDS for word in words if word.startswith("allocation=")}
    assert {"allocation=both", "allocation=dra"} == ways


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("install hetero deploy/chart -n a --set agent.drivr=envvar", "changes nothing"),
        ("install hetero deploy/chart -n a --sett image=a", "unknown"),
        ("install hetero deploy/charts -n a --set image=a", "no chart"),
        ("install hetero deploy/chart -n a -f deploy/values/none.yaml", "not there"),
        ("install hetero deploy/chart -n a --set-file settings=none.toml", "not shown"),
        ("install hetero deploy/chart -n a --set-file setting=settings.toml", "changes nothing"),
    ],
)
def test_a_command_that_says_something_wrong_is_found(words: str, message: str) -> None:
    with pytest.raises(Wrong, match=message):
        values_of(words.split())


def test_what_is_rendered_without_helm_names_the_readers_images(tmp_path: Path) -> None:
    (block,) = (one for one in blocks("sh") if "deploy/render.py" in one.text)
    lines = [line for line in block.commands if not line.startswith("kubectl")]
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "hetero-venv").symlink_to(sys.prefix)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    script = "\n".join(lines).replace("vX.Y.Z", "v1.30.2")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=environ, check=True)

    text = (tmp_path / "hetero.yaml").read_text()
    images = set(re.findall(r"^ *(?:- )?image: (\S+)$", text, re.M))
    assert {"REGISTRY/hetero:0.1.0", "registry.k8s.io/kube-scheduler:v1.30.2"} == images
