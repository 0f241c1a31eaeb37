"""What blocks say of other programs than hetero: shells, make, kubectl, files of the repository."""

import configparser
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from hetero.node.simulation import simulation
from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.test_blocks import invocations, parsed
from tests.programs import completed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]

SHELL = blocks("sh", "console")
#: Folders of the repository: a word that begins with one names a file or folder of it.
FOLDERS = ("benchmarks/", "deploy/", "docs/", "examples/", "limiters", "simulator", "vendors/")
#: Programs whose words are tried: by `test_blocks.py`, `test_helm_commands.py`, and here.
TRIED = {"hetero", "helm", "kubectl", "make"}
#: Programs of which the files that they are given are looked for, and no more.
FILES_ALONE = {
    *(".", "cc", "cd", "docker", "echo", "export", "git", "grep", "jq", "pip", "podman", "pytest"),
    *("python", "python3", "rm", "systemctl", "time", "umount", "unset", "valgrind"),
}


def commands(block: Block) -> list[list[str]]:
    """Return the words of each command of a block."""
    command_words: list[list[str]] = [[]]
    for line in block.commands:
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        words.whitespace_split, words.commenters = True, "#"
        for word in (*words, ";"):
            if re.fullmatch(r"[|&;]+", word):
                command_words.append([])
            elif command_words[-1] or not re.match(r"\w+=(?!\$\()", word):
                command_words[-1].append(word)
    return [words for words in command_words if words]


COMMANDS = [(block, words) for block in SHELL for words in commands(block)]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_shell_understands_the_block(block: Block) -> None:
    text = "\n".join(block.commands)
    done = completed(["bash", "-n"], input=text)

    assert "" == done.stderr


def test_every_program_is_one_that_a_test_knows() -> None:
    unknown = {
        (str(block), words[0])
        for block, words in COMMANDS
        if words[0].rpartition("/")[2] not in TRIED | FILES_ALONE
        and not words[0].startswith(FOLDERS)
        and "=$(" not in words[0]
    }
    assert set() == unknown


def test_what_is_made_is_a_target_of_the_makefile() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = {name for line in re.findall(r"^([\w -]+):", text, re.M) for name in line.split()}
    made = {(str(block), word) for block, words in COMMANDS if words[0] == "make"
            for word in words[1:] if "=" not in word and not word.startswith("-")}  # fmt: skip

    assert len(made) >= 15
    assert [] == sorted(one for one in made if one[1] not in targets)


def test_a_file_of_the_repository_that_a_command_names_is_there() -> None:
    named = {
        (str(block), name)
        for block, words in COMMANDS
        for word in words
        if (name := word.removeprefix("./").partition(":")[0].rstrip(",")).startswith(FOLDERS)
    }

    assert len(named) >= 15
    assert [] == sorted(one for one in named if not list(ROOT.glob(one[1].partition("[")[0])))


def test_what_kubectl_asks_of_hetero_is_in_the_chart() -> None:
    """Not names that a reader chooses: of Jobs made by hand, and of a reader's own bindings."""
    made = yaml.safe_load_all(render.render(namespace="hetero-system", values={}))
    names = {(one["kind"].lower(), one["metadata"]["name"]) for one in made}
    asked = {
        (str(block), kind, name)
        for block, words in COMMANDS
        if words[0] == "kubectl"
        for kind, name in re.findall(
            r"\b(clusterrole|cronjob|daemonset|deployment|app)[=/](hetero-[\w-]+)", " ".join(words)
        )
    }
    apps = {name for kind, name in names if kind in ("daemonset", "deployment")}

    assert len(asked) >= 4
    assert [] == sorted(
        one for one in asked if one[1:] not in names and (one[1] != "app" or one[2] not in apps)
    )


@pytest.mark.parametrize("block", blocks("ini", "dockerfile"), ids=str)
def test_a_file_of_another_program_is_one(block: Block, tmp_path: Path) -> None:
    """A unit of systemd, a rack of the simulator, NVIDIA's container runtime, an image."""
    if block.language == "dockerfile":
        words = {line.split()[0] for line in block.text.splitlines()}
        assert {"FROM"} <= words <= {"FROM", "COPY", "RUN"}
    elif "[Unit]" in block.text:
        unit = configparser.ConfigParser()
        unit.read_string(block.text)
        line = unit["Service"]["ExecStart"]
        (words_of_ours,) = invocations(Block(block.path, block.line, "sh", line, None))
        parsed(words_of_ours)
    elif "[device]" in block.text:
        (tmp_path / "one.rack").write_text(block.text)
        assert simulation({"HETERO_RACK": str(tmp_path / "one.rack")}) is not None
    else:
        assert len(tomllib.loads(block.text)) >= 2
