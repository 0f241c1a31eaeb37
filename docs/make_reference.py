"""Generates the reference: command line, settings, annotations, and the two Python interfaces.

    python docs/make_reference.py FOLDER         (`make docs` does it, into build/)

Nothing generated is committed. `tests/docs/test_site.py` holds that nothing is left out.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click

import hetero
from hetero import plugin
from hetero.cli import hetero as command_line
from hetero.kube.words import settings as cluster_settings
from hetero.node import settings as node_settings
from hetero.plugin import hookspecs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parent.parent
#: A group that starts in column 0 or is indented alike: what a docstring shows as it stands.
_INDENTED = re.compile(r"^ {2,}\S")


def write(folder: Path) -> tuple[str, ...]:
    """Write the pages into a folder and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "cli.md": command_line_page(),
        "settings.md": settings_page(),
        "annotations.md": annotations_page(),
        "python.md": interface_page(hetero, "For users: `hetero`"),
        "plugin.md": interface_page(plugin, "For vendors: `hetero.plugin`") + hooks(),
    }
    for name, text in pages.items():
        (folder / name).write_text(text)
    return tuple(pages)


# --- command line ---------------------------------------------------------------------------------


def commands(group: click.Group = command_line) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name: `run`, `share create`."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if command is None or command.hidden:
            continue
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", below) for inner, below in commands(command))


def command_line_page() -> str:
    """Return the page of all commands, options and arguments."""
    parts = ["# Command line\n", _help(command_line)]
    for name, command in commands():
        parts += [f"## hetero {name}\n", _usage(name, command), _help(command), _options(command)]
    return "\n".join(part for part in parts if part)


def _usage(name: str, command: click.Command) -> str:
    pieces = command.collect_usage_pieces(click.Context(command))
    return f"```text\nhetero {name} {' '.join(pieces)}\n```\n"


def _help(command: click.Command) -> str:
    return _prose(inspect.cleandoc(command.help or ""))


def _options(command: click.Command) -> str:
    rows = list(options_of(command))
    if not rows:
        return ""
    return "| option | meaning | default |\n|---|---|---|\n" + "".join(
        f"| {', '.join(map(_code, (name, *variables)))} | {_cell(about, code=False)} "
        f"| {_cell(default, code=False)} |\n"
        for name, about, default, variables in rows
    )


#: How a help text says a default that the code finds when it runs.
_DEFAULT = re.compile(r"\s*Default: ([^.;]+)\.|\s+\[([^\]]+)\]$")


def options_of(command: click.Command) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield name, meaning, default and environment variables of each option."""
    context = click.Context(command)
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if not isinstance(parameter, click.Option) or record is None:
            continue
        extra, about = parameter.get_help_extra(context), parameter.help or ""
        stated = _DEFAULT.search(about)
        default = extra.get("default") or (
            stated[1] or stated[2] if stated else _said(parameter.get_default(context))
        )
        notes = [str(extra[word]) for word in ("range", "required") if word in extra]
        about = _line(_DEFAULT.sub("", about)) + (f" ({', '.join(notes)})" if notes else "")
        yield record[0], about, default, _variables(parameter)


def _variables(option: click.Option) -> tuple[str, ...]:
    named = option.envvar or ()
    return tuple(f"${name}" for name in ((named,) if isinstance(named, str) else named))


def _said(default: object) -> str:
    """Return a default that no help text says: not of flags, lists and what is not set."""
    is_shown = isinstance(default, (str, int)) and not isinstance(default, bool)
    return str(default) if is_shown else ""


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


# --- settings -------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of a node's settings and of a cluster's, each from its class."""
    return "\n".join(
        (
            "# Settings\n",
            "Two TOML files. An unknown key is an error, and what is left out has its default.\n",
            "## A node: `/etc/hetero/node.toml`\n",
            "`HETERO_CONFIG` names another file.\n",
            _keys(node_settings.NodeSettings, node_settings.read_settings),
            "\nAll together, as an example:\n",
            f"```toml\n{_sample(node_settings.NodeSettings)}\n```\n",
            "## A cluster: `settings` in the chart's values\n",
            "`hetero scheduler`, `webhook` and `agent` take the same file by `--settings`.\n",
            _keys(cluster_settings.Settings, cluster_settings._settings),
            "\nAll together, as an example:\n",
            f"```toml\n{_sample(cluster_settings.Settings)}\n```\n",
        )
    )


def settings_of(
    settings: type[Any], read: Any
) -> Iterator[tuple[str, str, object, frozenset[str], str]]:
    """Yield key, example, default, fields and meaning of each key in the class's example.

    The fields are found by the loader: those that the key alone changes. One that the example
    leaves at its default is found by its name.
    """
    table, of_table = "", ""
    for line, about in _commented(_sample(settings)):
        if line.startswith("["):
            table, of_table = line, about
            continue
        key, _, value = line.partition("=")
        key, value = key.strip(), value.strip()
        document = tomllib.loads(f"{table}\n{key} = {value}\n")
        changed = _changed(settings(), read(document))
        bare = key.replace("-", "_")
        names = {field.name for field in attrs.fields(settings)}
        fields = changed or frozenset({bare} & names)
        default = getattr(settings(), min(fields), None) if len(fields) == 1 else None
        said_of = "; ".join(filter(None, (of_table, about)))
        of_table = ""
        yield f"{table} {key}".strip(), value, default, fields, said_of


def _changed(before: Any, after: Any) -> frozenset[str]:
    return frozenset(
        field.name
        for field in attrs.fields(type(before))
        if getattr(before, field.name) != getattr(after, field.name)
    )


def _keys(settings: type[Any], read: Any) -> str:
    rows = []
    for key, shown, default, _, about in settings_of(settings, read):
        about = _cell(about, code=False)
        rows.append(f"| `{_cell(key)}` | `{_cell(shown)}` | {_default(default)} | {about} |")
    head = "| key | example | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _default(value: object) -> str:
    if value is None or attrs.has(type(value)):
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (tuple, dict)):
        return "" if value else "none"
    return f"`{value}`"


def _sample(settings: type[Any]) -> str:
    """Return the example in the docstring of a class of settings: all but its first paragraph."""
    return inspect.cleandoc(settings.__doc__ or "").partition("\n\n")[2]


def _commented(sample: str) -> Iterator[tuple[str, str]]:
    """Yield each line of TOML with its comment, which may go on in the lines below."""
    commented: list[tuple[str, str]] = []
    for line in sample.splitlines():
        code, _, about = line.partition("#")
        if code.strip():
            commented.append((code.strip(), about.strip()))
        elif about and commented:
            commented[-1] = (commented[-1][0], f"{commented[-1][1]} {about.strip()}")
    yield from commented


# --- annotations ----------------------------------------------------------------------------------

#: Names that are no annotation or label: audiences of tokens, kinds of CDI devices, resources.
NO_ANNOTATIONS = {"AUDIENCE", "KIND", "TEMPLATES", "TOKEN", "_SERIAL"}


def annotations_of_code() -> Iterator[tuple[str, str, str]]:
    """Yield name, meaning and module of each annotation and label that the code reads or writes."""
    for path in sorted((CHECKOUT / "hetero" / "kube").rglob("*.py")):
        source = path.read_text()
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if not isinstance(node, ast.Assign) or NO_ANNOTATIONS & set(_targets(node)):
                continue
            comment = _above(lines, node.lineno - 1)
            for name in _names_in(node.value):
                yield name, comment, str(path.relative_to(CHECKOUT))


def _targets(node: ast.Assign) -> list[str]:
    return [
        one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)
    ]


def _names_in(value: ast.expr) -> list[str]:
    if isinstance(value, ast.JoinedStr):  # f"{DRIVER}/asked"
        tail = "".join(str(one.value) for one in value.values if isinstance(one, ast.Constant))
        return [f"hetero.io{tail}"] if re.fullmatch(r"/[a-z-]+", tail) else []
    texts = value.elts if isinstance(value, ast.Tuple) else [value]
    return [
        one.value
        for one in texts
        if isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and one.value.startswith("hetero.io/")
    ]


def _above(lines: list[str], number: int) -> str:
    """Return the `#:` comment above a line."""
    lines_above: list[str] = []
    while number and lines[number - 1].startswith("#:"):
        number -= 1
        lines_above.insert(0, lines[number].removeprefix("#:").strip())
    return " ".join(lines_above)


def annotations_page() -> str:
    """Return the page of annotations and labels."""
    rows = [
        f"| `{name}` | {_cell(said, code=False)} |"
        for name, said, _ in sorted(annotations_of_code())
    ]
    return (
        "# Annotations and labels\n\nHAMi's names are in [Kubernetes](../guides/kubernetes.md).\n\n"
        "| name | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


# --- Python ---------------------------------------------------------------------------------------


def interface_page(module: ModuleType, title: str) -> str:
    """Return the page of all names in a module's `__all__`."""
    parts = [f"# {title}\n", _prose(inspect.getdoc(module) or "")]
    parts += [_described(name, getattr(module, name)) for name in module.__all__]
    return "\n".join(parts)


def hooks() -> str:
    """Return the hooks of a vendor, in the order of their module."""
    parts = ["\n## Hooks\n", _prose(inspect.getdoc(hookspecs) or "")]
    for name, hook in vars(hookspecs).items():
        if name.startswith("hetero_"):
            parts += [f"### `{name}`\n", _signature(name, hook), _prose(inspect.getdoc(hook) or "")]
    return "\n".join(parts)


def _described(name: str, member: object) -> str:
    if isinstance(member, (str, int, dict)):
        return f"## `{name}`\n\n`{member!r}`\n"
    text = _prose(inspect.getdoc(member) or "")
    if isinstance(member, ModuleType):
        return f"## `{name}`\n\n{text}"
    if isinstance(member, type) and issubclass(member, enum.Enum):
        rows = "".join(f"| `{each.name}` | `{each.value}` |\n" for each in member)
        return f"## `{name}`\n\n{text}\n| member | value |\n|---|---|\n{rows}"
    parts = "".join((*_fields(member), *_methods(member))) if isinstance(member, type) else ""
    return f"## `{name}`\n\n{_signature(name, member)}\n{text}\n{parts}"


def _fields(kind: type) -> Iterator[str]:
    """Yield a line for each field of a class that says by `#:` what it is."""
    if not attrs.has(kind):
        return
    lines = [line.removeprefix("    ") for line in inspect.getsource(kind).splitlines()]
    for number, line in enumerate(lines):
        field = re.match(r"(\w+): ", line)
        meaning = _above(lines, number)
        if field and meaning:
            yield f"- `{field[1]}`: {_cell(meaning, code=False)}\n"


def _methods(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        about = inspect.getdoc(plain)
        if name.startswith("_") or not about:
            continue
        if isinstance(plain, property):
            yield f"- `{name}`: {_line(about)}\n"
        elif inspect.isfunction(plain):
            yield f"- `{name}{_arguments(plain)}`: {_line(about)}\n"


def _line(about: str) -> str:
    return " ".join(about.split())


def _arguments(member: object) -> str:
    text = str(inspect.signature(member))  # type: ignore[arg-type]
    text = re.sub(r"\(self, \*, |\(self, /, |\(self, |\(cls, ", "(", text).replace("(self)", "()")
    return re.sub(
        r"<([\w.]+): '?([^'>]*)'?>|<function (\w+) at [^>]*>", r"\1\3", text.replace("'", "")
    )


def _signature(name: str, member: object) -> str:
    try:
        arguments = _arguments(member)
    except (TypeError, ValueError):
        return ""
    if isinstance(member, type):
        arguments = arguments.removesuffix(" -> None")
    if len(arguments) > 80:
        arguments = re.sub(r", (?=\w+: |\*)", ",\n    ", arguments.replace("(", "(\n    ", 1))
        arguments = re.sub(r"\)( -> .*)?$", r",\n)\1", arguments)
    return f"```text\n{name}{arguments}\n```\n"


# --- text -----------------------------------------------------------------------------------------


def _prose(text: str) -> str:
    """Return a docstring as Markdown: what is indented, or follows click's \\b, stands as it is."""
    parts = []
    for part in re.split(r"\n\s*\n", text):
        lines = part.splitlines()
        as_it_is = bool(lines) and lines[0].strip() == "\b"
        shown = lines[1:] if as_it_is else lines
        if as_it_is and shown and shown[0].endswith(":"):
            parts.append(f"{shown[0]}\n")
            shown = shown[1:]
        if shown and (as_it_is or all(map(_INDENTED.match, shown))):
            body = "\n".join(shown) if as_it_is else inspect.cleandoc("\n".join(("", *shown)))
            parts.append(f"```text\n{body}\n```\n")
        elif shown:
            parts.append("\n".join(shown).replace("<", "&lt;") + "\n")
    return "\n".join(parts)


def _cell(text: str, *, code: bool = True) -> str:
    text = text.replace("|", "\\|")
    return text if code else text.replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    for page in write(Path(sys.argv[1])):
        print(page)
