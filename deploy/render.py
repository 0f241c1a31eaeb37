"""Renders the chart for those without Helm: the part of its template language the chart uses.

python deploy/render.py --namespace hetero-system [--values FILE]... > hetero.yaml
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "chart"
_ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)


def render(*, namespace: str, values: Mapping[str, Any]) -> str:
    """Return all manifests of the chart, with `values` over its own, ready for kubectl apply."""
    chosen = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    root = {"Values": chosen, "Release": {"Namespace": namespace, "Name": "hetero"}}
    parts = [
        _fill(list(_tokens(path.read_text())), root)
        for path in sorted((CHART / "templates").glob("*.yaml"))
    ]
    return "\n---\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


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
        kind, said = tokens[place]
        place += 1
        if kind == "text":
            out.append(said)
            continue
        word, _, rest = said.partition(" ")
        if word not in ("if", "with", "range"):
            out.append(str(_value(said, root, dot)))
            continue
        end = _end(tokens, place)
        body, place = tokens[place:end], end + 1
        value = _value(rest, root, dot)
        if word == "range":
            out += [_fill(body, root, one) for one in value]
        elif value:
            out.append(_fill(body, root, value if word == "with" else dot))
    return "".join(out)


def _end(tokens: list[tuple[str, str]], place: int) -> int:
    depth = 1
    for number in range(place, len(tokens)):
        if tokens[number][0] == "action":
            word = tokens[number][1].partition(" ")[0]
            depth += (word in ("if", "with", "range")) - (word == "end")
        if depth == 0:
            return number
    raise ValueError("a block of the chart does not end")


def _value(said: str, root: Mapping[str, Any], dot: Any) -> Any:
    first, *pipes = [part.split() for part in said.split("|")]
    value = _call(first, root, dot)
    for pipe in pipes:
        value = _call([*pipe, value], root, dot)
    return value


def _call(words: list[Any], root: Mapping[str, Any], dot: Any) -> Any:
    def look(word: Any) -> Any:
        if not isinstance(word, str) or not word.startswith("."):
            return word.strip('"') if isinstance(word, str) else word
        if word == ".":
            return dot
        found: Any = root
        for name in word[1:].split("."):
            found = found[name]
        return found

    match words:
        case ["toYaml", value]:
            return yaml.safe_dump(look(value), sort_keys=False).rstrip("\n")
        case ["nindent", amount, text]:
            lines = str(look(text) if str(text).startswith(".") else text).rstrip("\n").split("\n")
            return "".join("\n" + " " * int(amount) + line for line in lines)
        case ["sha256sum", value]:
            return sha256(str(look(value)).encode()).hexdigest()
        case ["quote", value]:
            return f'"{look(value)}"'
        case ["eq", one, other]:
            return look(one) == look(other)
        case [value]:
            return look(value)
    raise ValueError(f"the chart says {words}, which render.py does not know")


def main() -> None:
    """Print the manifests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", default="hetero-system")
    parser.add_argument("--values", type=Path, action="append", default=[])
    chosen = parser.parse_args()
    values: dict[str, Any] = {}
    for path in chosen.values:
        values = _merged(values, yaml.safe_load(path.read_text()))
    print(render(namespace=chosen.namespace, values=values), end="")


if __name__ == "__main__":
    main()
