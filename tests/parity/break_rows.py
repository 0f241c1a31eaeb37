"""Breaks what HAMi's rows are served by, and lists the tests of rows that did not notice.

python -m tests.parity.break_rows --seed N [--rows 20] [--only KEY]...

In a copy of the checkout the words of a row (or its `code`) are written otherwise in all that the
product reads them by: strings of Python, templates and values of the chart, tables, the limiters'
sources, which are built anew. So nothing of the row is read any more, and each of its tests has to
fail. Before that each has to pass in the copy.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

CHECKOUT = Path(__file__).parents[2]
sys.path.insert(0, str(CHECKOUT / "docs"))
from make_parity import SHOWN, Row, read_rows  # noqa: E402

#: What is installed, and what installs it in a cluster.
PRODUCT = ("hetero", "vendors", "deploy", "limiters", "benchmarks")
#: Kinds of files of the product, and those that the limiters are built from.
_TEXTS = (".py", ".toml", ".yaml", ".json", ".tpl")
_SOURCES = (".c", ".h", ".def", ".sed", ".mk")
#: What the limiters' sources are searched for: functions of drivers, and variables.
_OF_LIMITERS = re.compile(r"(cu|nvml)[A-Z]\w+|[A-Z][A-Z_]{3,}")
#: Folders of a checkout that no test of a row needs, and those that a copy shares with it.
_LEFT_OUT = (".git", ".venv-clients", ".venv-demo", ".hypothesis", ".kube", ".kube136")
_SHARED = (".venv", ".headers")
_BROKEN = "zz"
#: Where settings of a cluster and a node are read by their last parts, and their tables.
_SETTINGS = ("hetero/kube/words/settings.py", "hetero/node/settings.py")
_TABLES = ("cards", "count", "defaults", "nodes", "runtime-classes", "scale", "vendors")


class Broken:
    """A copy of the checkout in which the words of a row after the other are not read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns(*_LEFT_OUT, *_SHARED, folder.name)
        shutil.copytree(CHECKOUT, folder, symlinks=True, ignore=ignored)
        for name in _SHARED:
            subprocess.run(["cp", "-al", CHECKOUT / name, folder / name], check=True)
        self._move_environment()

    def _move_environment(self) -> None:
        """Have the copy's Python import what the copy has: links to files become files."""
        environment = self.folder / ".venv"
        named = [*environment.glob("lib/*/site-packages/*.pth"), *environment.glob("bin/*")]
        for path in named:
            if path.is_symlink() or not path.is_file():
                continue
            content = path.read_bytes()
            moved = content.replace(bytes(CHECKOUT), bytes(self.folder))
            if moved != content:
                mode = path.stat().st_mode
                path.unlink()
                path.write_bytes(moved)
                path.chmod(mode)

    def unnoticed(self, row: Row) -> list[str]:
        """Return the tests of a row that do not fail while its words are not read."""
        before = {path: path.read_bytes() for path in self._files()}
        changed = dict(self._break(row.code or row.words, before))
        if not changed:
            return ["(its words are nowhere in the product)"]
        try:
            self._write(changed)
            return sorted({*row.tests} - self.failing(row.tests))
        finally:
            self._write({path: before[path] for path in changed})

    def failing(self, tests: Iterable[str]) -> set[str]:
        """Run tests; return those that fail, or whose module cannot be read."""
        names = sorted({*tests})
        pytest = [
            str(self.folder / ".venv/bin/python"),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        options = ["--tb=no", "-rfE", "--timeout=300", "-m", "not hardware"]
        done = subprocess.run(
            [*pytest, *options, *names], cwd=self.folder, capture_output=True, text=True
        )
        lines = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
        failed = {line.partition("[")[0] for line in lines}
        if done.returncode not in (0, 1, 2) or (done.returncode and not failed):
            raise RuntimeError(f"pytest {names}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return {name for name in names if name in failed or name.partition("::")[0] in failed}

    def _files(self) -> Iterator[Path]:
        for part in PRODUCT:
            for path in (self.folder / part).rglob("*"):
                kinds = _TEXTS + (_SOURCES if part == "limiters" else ())
                built = "build" in path.relative_to(self.folder).parts
                if path.suffix in kinds and not built and path.is_file():
                    yield path

    def _break(
        self, words: Sequence[str], files: dict[Path, bytes]
    ) -> Iterator[tuple[Path, bytes]]:
        """Yield files, as they are where none of the words is read.

        A word `path::word` is broken in that file alone, and may be a name of its code. The last
        part of a setting is broken besides, where settings are read.
        """
        texts = {path: content.decode() for path, content in files.items()}
        for word in words:
            file, _, name = word.rpartition("::")
            table, _, setting = name.partition(".")
            for path, text in texts.items():
                at = str(path.relative_to(self.folder))
                if path.suffix in _SOURCES and not _OF_LIMITERS.fullmatch(name):
                    continue
                if not file or file == at:
                    texts[path] = text = written_otherwise(path, text, name)
                if file == at and text.encode() == files[path]:
                    texts[path] = text = text.replace(name, name + _BROKEN)
                if table in _TABLES and setting and at in _SETTINGS:
                    texts[path] = written_otherwise(path, text, name.rpartition(".")[2])
        for path, text in texts.items():
            if text.encode() != files[path]:
                yield path, text.encode()

    def _write(self, files: dict[Path, bytes]) -> None:
        for path, content in files.items():
            path.unlink()  # what the copy shares with the checkout stays as it is
            path.write_bytes(content)
        if any(path.suffix in _SOURCES for path in files):
            subprocess.run(["make", "--silent", "-C", self.folder / "limiters", "all"], check=True)


def written_otherwise(path: Path, text: str, word: str) -> str:
    """Return a file's text with a word written otherwise.

    Of Python only strings count: a name in the code is none that a user writes.
    """
    whole = re.compile(rf"(?<![\w-]){re.escape(word.partition('=')[0])}(?![\w-])")

    def changed(string: str) -> str:
        return whole.sub(lambda match: match[0] + _BROKEN, string)

    if path.suffix != ".py" or not whole.search(text):
        return changed(text)
    lines = text.splitlines(keepends=True)
    tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
    for token in reversed([token for token in tokens if token.type == tokenize.STRING]):
        (first, begin), (last, end) = token.start, token.end
        parts = [token.string]
        if "f" in token.string.lower().partition(token.string[-1])[0]:
            parts = re.split(r"(\{[^{}]*\})", token.string)  # code within an f-string stays
        string = "".join(
            [changed(part) if place % 2 == 0 else part for place, part in enumerate(parts)]
        )
        before, after = lines[first - 1][:begin], lines[last - 1][end:]
        lines[first - 1 : last] = [before + string + after]
    return "".join(lines)


def main() -> None:
    """Print the tests that did not notice, and end with 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--only", action="append", default=[], help="a row by its key")
    chosen = parser.parse_args()
    sys.exit(1 if survivors(chosen.seed, chosen.rows, chosen.only) else 0)


def survivors(seed: int, count: int, only: Sequence[str] = ()) -> list[str]:
    """Break so many rows by a seed; return the tests that did not notice, and print as it goes."""
    shown = [row for row in read_rows() if row.verdict in SHOWN]
    chosen = [row for row in shown if row.key in only]
    chosen = chosen or Random(seed).sample(shown, min(count, len(shown)))
    broken = Broken(CHECKOUT / "build" / "broken")
    sick = broken.failing({test for row in chosen for test in row.tests})
    left = [f"{test} fails without a break" for test in sorted(sick)]
    for row in chosen:
        unnoticed = [f"{row.key} {test}" for test in broken.unnoticed(row) if test not in sick]
        print(f"{row.key}: {'; '.join(unnoticed) or 'noticed'}", flush=True)
        left += unnoticed
    shutil.rmtree(broken.folder)
    print(f"seed {seed}: {len(chosen)} rows, {len(left)} tests did not notice")
    return left


if __name__ == "__main__":
    main()
