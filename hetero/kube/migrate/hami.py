"""Makes hetero's values and settings of HAMi's, and says of each leaf what becomes of it.

The table is `hami.toml`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from attrs import define, field, frozen

from hetero.kube.migrate.conversion import CONVERTERS, Leaf
from hetero.kube.migrate.toml_text import toml_text
from hetero.kube.words import settings
from hetero.model.errors import BadInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Path = tuple[str, ...]
#: What the table calls the leaves of each document, and what the documents are called in errors.
_VALUES, _DEVICES, _NODES = "values", "device-config", "node-config"
#: Files of HAMi's ConfigMaps.
_DEVICE_FILE, _NODE_FILE = "device-config.yaml", "config.json"
#: The node of the example in HAMi's values.
_EXAMPLE_NODE = "your-node-name"
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@frozen(kw_only=True)
class Rule:
    """What becomes of leaves: a key of the chart, or a setting, or a sentence."""

    paths: tuple[str, ...] = field(converter=tuple)
    value: str = ""
    setting: str = ""
    convert: str = ""
    of: str = ""
    sentence: str = ""

    def rest(self, path: _Path) -> _Path | None:
        """Return what a star at the end of the rule's paths stands for, None if none is meant."""
        for own_path in self.paths:
            parts = own_path.split(".")
            has_star = parts[-1] == "*"
            fixed = parts[:-1] if has_star else parts
            is_long_enough = len(path) >= len(fixed) if has_star else len(path) == len(fixed)
            if is_long_enough and all(
                part in ("*", key) for part, key in zip(fixed, path[: len(fixed)], strict=True)
            ):
                return path[len(fixed) :]
        return None

    @property
    def has_star(self) -> bool:
        """Whether all below its paths is meant."""
        return any(own_path.endswith("*") for own_path in self.paths)

    def leads_to(self, path: _Path) -> bool:
        """Return whether a path of the rule begins so."""
        beginnings = (own_path.split(".")[: len(path)] for own_path in self.paths)
        return any(
            len(parts) == len(path)
            and all(part in ("*", key) for part, key in zip(parts, path, strict=True))
            for parts in beginnings
        )


@frozen(kw_only=True)
class Migration:
    """What HAMi's files come to: values of the chart, with the settings as one of them.

    `written` are the leaves that are in them, `silent` those that say nothing or what is so anyway,
    `sentences` what is so of each of the others.
    """

    values: Mapping[str, Any]
    written: tuple[str, ...]
    silent: tuple[str, ...]
    sentences: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The values as YAML, with what is so of the others as comments."""
        leaf_count = len(self.written) + len(self.silent) + len(self.sentences)
        lines = [
            f"# {leaf_count} leaves of HAMi's: {len(self.written)} are in these values, "
            f"{len(self.silent)} say nothing or what is so anyway, {len(self.sentences)} are in "
            "the sentences at the end.",
            _yaml_text(self.values),
        ]
        names_by_sentence: dict[str, list[str]] = {}
        for name, sentence in self.sentences:
            names_by_sentence.setdefault(sentence, []).append(name)
        if self.silent:
            lines.append(f"# say nothing, or what is so anyway: {', '.join(self.silent)}")
        lines += [
            f"# {', '.join(names)}: {sentence}" for sentence, names in names_by_sentence.items()
        ]
        return "\n".join(lines) + "\n"


def migrate(values_path: Path, config_paths: Sequence[Path]) -> Migration:
    """Return what HAMi's values come to, with its device and node configurations.

    A configuration may be a ConfigMap. Raises `BadInput` for a file that is none of these.
    """
    made = _Draft()
    made.read(_VALUES, _mapping(_text(values_path), str(values_path)), str(values_path))
    for path in config_paths:
        document = _mapping(_text(path), str(path))
        if document.get("kind") == "ConfigMap":
            for name, text in (document.get("data") or {}).items():
                made.read_file(name, text, f"{path}: {name}")
        elif "nodeconfig" in document:
            made.read_nodes(document, str(path))
        else:
            made.read(_DEVICES, document, str(path))
    return made.finished()


@define(eq=False)
class _Draft:
    """What is written so far."""

    values: dict[str, Any] = field(factory=dict)
    cluster: dict[str, Any] = field(factory=dict)  # the settings
    written: list[str] = field(factory=list)
    silent: list[str] = field(factory=list)
    sentences: list[tuple[str, str]] = field(factory=list)
    _image_parts: dict[str, dict[str, str]] = field(factory=dict)

    def read(self, kind: str, document: Mapping[str, Any], source: str) -> None:
        """Take up a document. Raises `BadInput`."""
        for path, value in _leaves(document, _rules()[kind], ()) if document else ():
            name = ".".join(path) if kind == _VALUES else f"{kind} {'.'.join(path)}"
            self._take(kind, path, name, value, document, source, ())

    def read_file(self, file_name: str, text: str, source: str) -> None:
        """Take up a file of a ConfigMap; others than HAMi's say nothing."""
        if file_name == _DEVICE_FILE:
            self.read(_DEVICES, _mapping(text, source), source)
        elif file_name == _NODE_FILE:
            self.read_nodes(_mapping(text, source), source)

    def read_nodes(self, document: Mapping[str, Any], source: str) -> None:
        """Take up a node configuration. Raises `BadInput`."""
        nodes = document.get("nodeconfig") or []
        if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
            raise BadInput(f"{source}: nodeconfig is no list of nodes")
        for node in nodes:
            node_name = str(node.get("name", ""))
            if node_name in ("", _EXAMPLE_NODE):
                continue
            own = {key: value for key, value in node.items() if key != "name"}
            for path, value in _leaves(own, _rules()[_NODES], ()):
                name = f"{_NODES} {node_name} {'.'.join(path)}"
                self._take(_NODES, path, name, value, own, source, ("nodes", node_name))

    def finished(self) -> Migration:
        """Return all of it. Raises `BadInput` for settings that hetero does not take."""
        for target, parts in self._image_parts.items():
            names = [parts[key] for key in ("registry", "repository") if parts.get(key)]
            tag = f":{parts['tag']}" if "tag" in parts else ""
            _put(self.values, tuple(target.split(".")), f"{'/'.join(names)}{tag}")
        for target, value in _table()["unsaid"].items():
            path = tuple(target.split("."))
            if _get(self.values, path) is None:
                _put(self.values, path, value)
        if self.cluster:
            text = toml_text(self.cluster)
            cluster_settings = settings.read(text, source_name="HAMi's settings, as hetero's")
            self.values["settings"] = text
            if cluster_settings.resources:
                self._list_resources(cluster_settings)
        return Migration(
            values=self.values,
            written=tuple(self.written),
            silent=tuple(self.silent),
            sentences=tuple(self.sentences),
        )

    def _list_resources(self, cluster_settings: settings.Settings) -> None:
        """Write all names of resources, of which some are others than by default."""
        registry = cluster_settings.registry(os.environ)
        try:
            vocabulary = cluster_settings.vocabulary(registry)
        finally:
            registry.close()
        sizes = vocabulary.size_resources
        self.values["resources"] = {
            "cards": sorted(vocabulary.resources - sizes),
            "parts": sorted(sizes),
        }

    def _take(
        self,
        kind: str,
        path: _Path,
        name: str,
        value: Any,
        document: Mapping[str, Any],
        source: str,
        below: _Path,
    ) -> None:
        """Write a leaf to its target, which in the settings is in the table `below`, or say why."""
        rule, rest = _rule(kind, path)
        if rule is None:
            self.sentences.append((name, "HAMi 2.10.0 has no such value"))
        elif value in _EMPTY:
            self.silent.append(name)
        elif rule.convert == "device-configuration":
            self.read(_DEVICES, _mapping(str(value), f"{source}: {name}"), source)
            self.written.append(name)
        elif rule.convert == "node-configuration":
            self.read_nodes(_mapping(str(value), f"{source}: {name}"), source)
            self.written.append(name)
        elif rule.convert == "image":
            self._take_image(rule, path, name, str(value), document)
        elif not (rule.value or rule.setting):
            self.sentences.append((name, rule.sentence))
        else:
            self._convert(rule, path, rest, name, value, document, below)

    def _convert(
        self,
        rule: Rule,
        path: _Path,
        rest: _Path,
        name: str,
        value: Any,
        document: Mapping[str, Any],
        below: _Path,
    ) -> None:
        of = rule.of.format_map(_parent(document, path))
        is_written = False
        for target, tree, table in (
            (rule.value, self.values, ()),
            (rule.setting, self.cluster, below),
        ):
            if not target:
                continue
            keys = [key for key in target.split(".") if key != "*" or target.startswith("nodes.*")]
            target_path = (*table, *keys, *rest)
            leaf = Leaf(value=value, before=_get(tree, target_path), of=of, document=document)
            try:
                converted = CONVERTERS[rule.convert](leaf)
            except BadInput as error:
                self.sentences.append((name, rule.sentence or str(error)))
                return
            if converted is not None:
                _put(tree, target_path, converted)
                is_written = True
        (self.written if is_written else self.silent).append(name)

    def _take_image(
        self, rule: Rule, path: _Path, name: str, value: str, document: Mapping[str, Any]
    ) -> None:
        if not _parent(document, path).get("repository"):
            self.sentences.append((name, rule.sentence))
            return
        self._image_parts.setdefault(rule.value, {})[path[-1]] = value
        self.written.append(name)


@cache
def _table() -> Mapping[str, Any]:
    document: dict[str, Any] = tomllib.loads(files(__package__).joinpath("hami.toml").read_text())
    return document


@cache
def _rules() -> Mapping[str, tuple[Rule, ...]]:
    kinds = (_VALUES, _DEVICES, _NODES)
    return {kind: tuple(Rule(**row) for row in _table()[kind]) for kind in kinds}


def leaf_paths(kind: str) -> tuple[str, ...]:
    """Return the paths of the table for `values`, `device-config` or `node-config`."""
    return tuple(path for rule in _rules()[kind] for path in rule.paths)


def _rule(kind: str, path: _Path) -> tuple[Rule | None, _Path]:
    for rule in _rules()[kind]:
        rest = rule.rest(path)
        if rest is not None:
            return rule, rest
    return None, ()


def _leaves(document: Any, rules: Sequence[Rule], path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Yield the leaves below a path: what a rule means, and what has nothing below it."""
    is_meant = any(rule.rest(path) == () and not rule.has_star for rule in rules)
    below: Mapping[str, Any] | None = None
    if isinstance(document, Mapping) and document and not is_meant:
        below = {str(key): value for key, value in document.items()}
    elif (
        isinstance(document, list)
        and document
        and not is_meant
        and any(rule.leads_to((*path, "0")) for rule in rules)
    ):
        below = {str(position): value for position, value in enumerate(document)}
    if below is None:
        yield path, document
        return
    for key, value in below.items():
        yield from _leaves(value, rules, (*path, key))


def _parent(document: Any, path: _Path) -> Mapping[str, Any]:
    """Return the table in which a leaf is."""
    for key in path[:-1]:
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document if isinstance(document, Mapping) else {}


def _get(tree: Mapping[str, Any], path: _Path) -> Any:
    at: Any = tree
    for key in path:
        at = at.get(key) if isinstance(at, Mapping) else None
    return at


def _put(tree: dict[str, Any], path: _Path, value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or 'not a text'}") from None


def _mapping(text: str, source: str) -> Mapping[str, Any]:
    """Return a table in YAML or JSON. Raises `BadInput`."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{source}: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadInput(f"{source}: is no table of values: give HAMi's file as it is")
    return document


def _yaml_text(values: Mapping[str, Any]) -> str:
    """Return values as YAML, with texts of several lines as blocks."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        pass

    def text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, text_node)
    return str(yaml.dump(dict(values), Dumper=Dumper, sort_keys=False, width=120)).rstrip()
