"""Renders the chart for those without Helm: the part of its template language the chart uses.

python deploy/render.py [--namespace NAME] [--kube-version vX.Y.Z] [--values FILE]... > hetero.yaml
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "chart"
#: What is rendered for unless another version is named.
NEWEST = "1.36"
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"[^"]*"|\S+')


class Refused(Exception):
    """The chart does not take these values, and says why."""


def render(*, namespace: str, values: Mapping[str, Any], kubernetes: str = NEWEST) -> str:
    """Return all manifests of the chart for a version of Kubernetes, ready for kubectl apply.

    `values` go over the chart's own.
    """
    chosen = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    version = kubernetes if kubernetes.count(".") > 1 else f"{kubernetes}.0"
    root = {
        "Values": chosen,
        "Release": {"Namespace": namespace, "Name": "hetero"},
        "Capabilities": {"KubeVersion": {"Version": f"v{version.removeprefix('v')}"}},
    }
    parts = [
        _fill(list(_tokens(path.read_text())), root)
        for path in sorted((CHART / "templates").glob("*.yaml"))
    ]
    made = [one for part in parts if part.strip() for one in part.strip("\n").split("\n---\n")]
    # As Helm has it: what begins on an upgrade reads what this release says, not the one before.
    made.sort(key=lambda manifest: "\nkind: ConfigMap\n" not in manifest)
    return "\n---\n".join(made) + "\n"


def _merged(under: Any, over: Any) -> Any:
    if not isinstance(under, dict) or not isinstance(over, Mapping):
        return over
    return {**under, **{name: _merged(under.get(name), value) for name, value in over.items()}}


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts and actions in turn; `{{-` and `-}}` take the white space beside them."""
    upto, eat = 0, False
    for match in _ACTION.finditer(text):
        before = text[upto : match.start()] + ("" if match[2] else match[1])
        yield "text", before.lstrip() if eat else before
        yield "action", match[3]
        upto, eat = match.end(), bool(match[4])
    yield "text", text[upto:].lstrip() if eat else text[upto:]


def _fill(tokens: list[tuple[str, str]], root: Mapping[str, Any], dot: Any = None) -> str:
    out, place = [], 0
    while place < len(tokens):
        kind, text = tokens[place]
        place += 1
        if kind == "text":
            out.append(text)
            continue
        word, _, rest = text.partition(" ")
        if word not in ("if", "with", "range"):
            out.append(_text(_value(text, root, dot)))
            continue
        end = _end(tokens, place)
        body, place = tokens[place:end], end + 1
        value = _value(rest, root, dot)
        if word == "range":
            out += [_fill(body, root, one) for one in value]
        elif value:
            out.append(_fill(body, root, value if word == "with" else dot))
    return "".join(out)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)  # as Go does


def _end(tokens: list[tuple[str, str]], place: int) -> int:
    depth = 1
    for number in range(place, len(tokens)):
        if tokens[number][0] == "action":
            word = tokens[number][1].partition(" ")[0]
            depth += (word in ("if", "with", "range")) - (word == "end")
        if depth == 0:
            return number
    raise ValueError("a block of the chart does not end")


def _value(text: str, root: Mapping[str, Any], dot: Any) -> Any:
    """Return what a pipeline comes to: each part gets the value of the one before it."""
    piped: list[Any] = []
    for part in text.split("|"):
        name, *words = _WORD.findall(part)
        piped = [_call(name, [*(_operand(word, root, dot) for word in words), *piped], root, dot)]
    return piped[0]


def _operand(word: str, root: Mapping[str, Any], dot: Any) -> Any:
    if word.startswith("$."):
        return _operand(word[1:], root, root)
    if not word.startswith("."):
        return word.strip('"')
    if word == ".":
        return dot
    value: Any = root
    for name in word[1:].split("."):
        value = value[name]
    return value


def _call(name: str, values: list[Any], root: Mapping[str, Any], dot: Any) -> Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*values)
    if not values:
        return _operand(name, root, dot)
    raise ValueError(f"the chart says {name} {values}, which render.py does not know")


def _json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", text)  # as Go does


def _required(why: str, value: Any) -> Any:
    if not value:
        raise Refused(why)
    return value


def _nindent(amount: str, text: str) -> str:
    return "".join("\n" + " " * int(amount) + line for line in text.split("\n"))


def _compare(wanted: str, version: str) -> bool:
    """Whether a version is as wanted, by its first two numbers."""
    bound = re.fullmatch(r"(>=|<)(\d+)\.(\d+)-0", wanted)
    if bound is None:
        raise ValueError(f"the chart asks for {wanted}, which render.py does not know")
    has = _VERSION.match(version)
    if has is None:
        raise ValueError(f"{version} is no version of Kubernetes")
    newer = (int(has[1]), int(has[2])) >= (int(bound[2]), int(bound[3]))
    return newer if bound[1] == ">=" else not newer


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "toYaml": lambda value: yaml.safe_dump(value).rstrip("\n"),
    "toJson": _json,
    "b64enc": lambda text: base64.b64encode(text.encode()).decode(),
    "required": _required,
    "nindent": _nindent,
    "trunc": lambda length, text: text[: int(length)],
    "sha256sum": lambda text: sha256(text.encode()).hexdigest(),
    "quote": lambda value: f'"{value}"',
    "replace": lambda old, new, text: text.replace(old, new),
    "lower": lambda text: text.lower(),
    "regexReplaceAll": lambda pattern, text, new: re.sub(pattern, new, text),
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "eq": lambda left, other: left == other,
    "not": lambda value: not value,
    "ne": lambda left, other: left != other,
    "semverCompare": lambda wanted, has: all(_compare(one, has) for one in wanted.split(",")),
}


def _version(text: str) -> str:
    if not _VERSION.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no version: write 1.20 or v1.36.2")
    return text


def main() -> None:
    """Print the manifests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="hetero-system")
    parser.add_argument(
        "--kube-version", type=_version, default=NEWEST, help="of the cluster (%(default)s)"
    )
    parser.add_argument("--values", type=Path, action="append", default=[])
    chosen = parser.parse_args()
    values: dict[str, Any] = {}
    for path in chosen.values:
        values = _merged(values, yaml.safe_load(path.read_text()))
    try:
        text = render(namespace=chosen.namespace, values=values, kubernetes=chosen.kube_version)
    except Refused as refused:
        parser.error(str(refused))
    print(text, end="")


if __name__ == "__main__":
    main()
