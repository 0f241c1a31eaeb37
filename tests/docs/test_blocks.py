"""Every fenced block of the documents is tried: parsed, compiled, loaded or run.

YAML is for an API server: `tests/kube/test_dra_examples.py`. C is built by `tests/test_guide.py`.
"""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path

import click
import pytest

from hetero.cli import hetero as command_line
from hetero.kube.words import settings as cluster_settings
from hetero.node.settings import read_settings
from tests.docs.blocks import ROOT, Block, blocks, documents, prose, read
from tests.programs import completed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Tried here or by another test; `text` is what a program prints, `ini` is for other programs.
LANGUAGES = {"c", "console", "dockerfile", "ini", "mermaid", "python", "sh", "text", "toml", "yaml"}
MOST_UNTRIED = 5
#: What stands for a grant in documents.
GRANT = "trainer"


def every_block() -> list[Block]:
    return [block for path in documents() for block in read(path)]


def test_every_block_says_its_language() -> None:
    assert [] == [str(one) for one in every_block() if one.language not in LANGUAGES]
    assert len(every_block()) >= 60


def test_few_blocks_are_untried_and_say_why() -> None:
    assert len([one for one in every_block() if one.no_test is not None]) <= MOST_UNTRIED


def test_no_code_is_indented_where_no_test_would_find_it() -> None:
    indented = []
    for path in documents():
        before, listed = "", False
        for number, line in prose(path):
            if re.match(r"\s*([-*]|\d+\.) ", line):
                listed = True
            elif line and not line.startswith(" "):
                listed = False
            if re.match(r"    \S", line) and not before and not listed:
                indented.append(f"{path.relative_to(ROOT)}:{number}")
            before = line
    assert [] == indented


# --- shell ----------------------------------------------------------------------------------------


def invocations(block: Block) -> Iterator[list[str]]:
    """Yield the words of each `hetero …` in a block, without its variables and redirections."""
    for line in block.commands:
        words = shlex.shlex(line.replace("…", ""), posix=True, punctuation_chars="|&;()<>")
        words.whitespace_split, words.commenters = True, "#"
        current: list[str] = []
        for word in (*words, ";"):
            if re.fullmatch(r"[|&;()<>]+", word):
                yield from _ours(current)
                current = []
            else:
                current.append(word)


def _ours(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if words and Path(words[0]).name == "hetero":
        yield words[1:]


SHELL = [(block, words) for block in blocks("sh", "console") for words in invocations(block)]


def parsed(words: list[str]) -> None:
    """Have click parse a command with its own options; whether files are there does not matter."""
    context = command_line.make_context("hetero", list(words))
    command: click.Command = command_line
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            assert command.invoke_without_command
            break
        name, subcommand, left = command.resolve_command(context, rest)
        assert subcommand is not None
        context = subcommand.make_context(name, left, parent=context)
        command = subcommand
    if command.name == "bench" and (name := context.params["benchmark"]):
        bench = import_module(f"hetero_benchmarks.{name}").command
        bench.make_context(name, list(context.params["arguments"]))


@pytest.mark.parametrize(
    ("block", "words"), SHELL, ids=[f"{block} {shlex.join(words)}" for block, words in SHELL]
)
def test_a_command_is_understood(
    block: Block, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _param, _ctx: Path(value))
    try:
        with suppress(click.exceptions.Exit):  # --help, --version
            parsed(words)
    except click.ClickException as error:
        pytest.fail(f"{block}: {error.format_message()}")


@pytest.mark.parametrize(
    "words", [["run", "--memori", "1Gi"], ["shares", "ls"], ["ps", "--seconds", "no"]]
)
def test_a_command_that_hetero_has_not_is_found(words: list[str]) -> None:
    with pytest.raises(click.ClickException):
        parsed(words)


def test_a_command_in_a_sentence_is_there() -> None:
    """What it works on may be left out there."""
    wrong, count = [], 0
    for path in documents():
        text = "\n".join(line for _, line in prose(path))
        for code in re.findall(r"`(hetero [^`]+)`", text):
            count += 1
            try:
                with suppress(click.exceptions.Exit, click.MissingParameter):
                    parsed(shlex.split(code.replace("…", ""))[1:])
            except click.exceptions.NoArgsIsHelpError:
                pass
            except click.ClickException as error:
                wrong.append(f"{path.relative_to(ROOT)}: {code}: {error.format_message()}")
    assert [] == wrong
    assert count > 100


def test_a_program_of_an_installation_is_one_that_it_has() -> None:
    text = "\n".join(path.read_text() for path in documents())
    named = set(re.findall(r"(?:/opt|~)/hetero/bin/([\w-]+)", text))

    scripts = {one.name for one in entry_points(group="console_scripts")}
    assert {"hetero", "pip"} <= named
    assert set() == named - scripts


#: What takes root, a cluster, a card, minutes, or a person at a terminal.
ELSEWHERE = {
    "agent", "bench", "certificates", "daemon", "demo", "explain", "install", "runtime",
    "scheduler", "share", "webhook",
}  # fmt: skip


def runnable(words: list[str]) -> bool:
    """Whether a command needs no card, no root, no cluster, and ends by itself."""
    if not words or words[0] in ELSEWHERE or {"--cluster", "NODE", "openb"} & set(words):
        return words[:2] == ["demo", "--list"]
    if words[0] in ("top", "ps", "inventory") and {"--watch", "-w"} & set(words):
        return False
    return words[0] != "top" or "--once" in words


RUN = sorted({tuple(words) for _, words in SHELL if runnable(words)})


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A simulated machine with a user's programs, on which a program labelled trainer runs."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "train.py").write_text("")
    for name in ("job", "serve"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "hami.yaml").write_text("schedulerName: hami-scheduler\n")
    (folder / "device-config.yaml").write_text("nvidia: {defaultGPUNum: 1}\n")
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HETERO_RACK": "mixed",
        "HETERO_STATE": str(folder / "state"),
    }
    argv = ["hetero", "run", "--device", "0", "--label", GRANT, "--memory", "1Gi"]
    argv += ["--", "sleep", "600"]
    with subprocess.Popen(argv, cwd=folder, env=environ, stderr=subprocess.DEVNULL) as trainer:
        while Path(f"/proc/{trainer.pid}/comm").read_text().strip() != "sleep":
            assert trainer.poll() is None
            time.sleep(0.05)
        yield folder, environ
        trainer.kill()


def test_enough_commands_are_run() -> None:
    assert len(RUN) >= 25


@pytest.mark.parametrize("words", RUN, ids=shlex.join)
def test_a_command_runs(words: tuple[str, ...], machine: tuple[Path, dict[str, str]]) -> None:
    folder, environ = machine
    if "release" in words:
        argv = ("run", "--label", "ending", "--memory", "1Gi", "--", "sleep", "600")
        with subprocess.Popen(
            ["hetero", *argv], cwd=folder, env=environ, stderr=subprocess.PIPE
        ) as ending:
            assert ending.stderr is not None
            ending.stderr.readline()  # what it got
            words = tuple("ending" if word in (GRANT, "GRANT") else word for word in words)
            _succeeds(folder, environ, words)
        return
    words = tuple(GRANT if word == "GRANT" else word for word in words)
    _succeeds(folder, environ, words)


def _succeeds(folder: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    words = tuple("1" if before == "--seconds" else word for before, word in pairwise(("", *words)))
    done = completed(["hetero", *words], cwd=folder, env=environ)
    refused = "--alloc" in words or "--uninstall-check" in words  # what these are to show
    assert done.returncode in ((1, 3) if refused else (0,)), done.stdout + done.stderr


# --- other languages ------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_are_loaded(block: Block) -> None:
    document = tomllib.loads(block.text)
    if "build-system" in document:  # installed by tests/test_guide.py
        assert "hetero.plugin.vendor" in document["project"]["entry-points"]
    elif {"nodes", "defaults", "resources", "runtime-classes", "node-placement"} & document.keys():
        cluster_settings.read(block.text, source_name=str(block))
    else:
        read_settings(document)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_is_compiled_and_its_imports_are_there(block: Block) -> None:
    tree = ast.parse(block.text)
    own = set(re.findall(r"This is `(\w+)\.py`", block.path.read_text()))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert [] == [name for name in imported - own if importlib.util.find_spec(name) is None]
    named = {
        (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in own
        for alias in node.names
    } | {
        ("hetero.plugin", node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "plugin"
    }
    importable = [(module, name) for module, name in named if hasattr(import_module(module), name)]
    assert [] == sorted(named - set(importable))


def test_the_vendor_in_the_readme_is_the_example() -> None:
    (shown,) = (block for block in blocks("python") if block.path.name == "README.md")
    example = (ROOT / "examples/hetero-acme/hetero_acme.py").read_text()

    assert [] == [part for part in shown.text.split("\n\n\n") if part.strip() not in example]


def test_c_is_in_the_guide_alone_whose_test_builds_it() -> None:
    assert {"adding-a-vendor.md"} == {block.path.name for block in blocks("c")}


def test_newcomer_a8_the_job_of_the_readme_has_its_rate_alone_beside_that_of_its_share() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    jobs = [line.partition("#")[0].split() for line in lines if "hetero-job-cuda" in line]
    alone, shared = jobs

    assert [word for word in shared if word not in ("--core", "30")] == alone
    assert ["--core", "30"] == shared[shared.index("--core") :][:2]
