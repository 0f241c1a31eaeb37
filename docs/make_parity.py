"""Writes docs/from-hami.md: what HAMi's users write and rely on, and what hetero does with it.

`python docs/make_parity.py` writes the page from tests/parity/rows.toml. With `--check` it writes
nothing: it ends with 1, and a line for each row that is not shown, where the tests that a row names
are not there or, in the last run that recorded, did not send its words (tests/parity/recorder.py).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import cattrs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parent.parent
ROWS = CHECKOUT / "tests" / "parity" / "rows.toml"
PAGE = CHECKOUT / "docs" / "from-hami.md"
#: What each process of `make test` sent, by test.
RECORDS = CHECKOUT / "build" / "parity"

#: Verdicts of a row, in the order of the page's counts, and how many rows may have one.
VERDICTS: Mapping[str, int | None] = {
    "same": None,
    "better": None,
    "on purpose": None,
    "later": 60,
    "not shown": 25,
    "partial": None,
    "missing": None,
}
#: Rows of these verdicts are shown by tests, and of these something is open.
SHOWN, OPEN = ("same", "better"), ("partial", "missing")

_HEAD = """\
# HAMi, row by row

What a user of HAMi 2.10.0 can write, read or rely on, and what hetero does with it.
`docs/make_parity.py` makes this page from `tests/parity/rows.toml`. [From
HAMi](guides/from-hami.md) says how a cluster moves.

Rows that are the *same* or *better* name the tests that show it. Each of these tests sends the
row's words: to the API server or the webhook, real or a stand-in for it, to the chart, to settings,
to a command line, or to a program under the limiter; of metrics it reads them. `make parity`
compares that after `make test`.

- *On purpose*: hetero does otherwise, and the row says why.
- *Later*: MIG on demand, five further vendors, video and Vulkan, Kata, remote GPUs, IMEX, GDS and
  GDRCopy, other schedulers, metrics and dashboards.
- *Not shown*: what would show it is not at hand, and the row says what that is.
- *Partial* and *missing* stand first below.
"""


@attrs.frozen
class Row:
    """A thing that HAMi's users know, what hetero does with it, and what shows it.

    `words` are what its tests send; `code` is what a break of it takes from the product's texts:
    the words themselves where it is empty. `lacks` is what would show a row that is not shown.
    """

    key: str
    section: str
    item: str
    hami: str
    hetero: str
    verdict: str
    words: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    lacks: str = ""


def read_rows(path: Path = ROWS) -> tuple[Row, ...]:
    """Return the rows of a table. Raises `cattrs.BaseValidationError` for what is no row."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    document = tomllib.loads(path.read_text())
    rows = [{**row, "section": title} for title, rows in document.items() for row in rows]
    return tuple(converter.structure(row, Row) for row in rows)


def page(rows: Sequence[Row]) -> str:
    """Return the page of these rows."""
    counts = Counter(row.verdict for row in rows)
    open_rows = [row for row in rows if row.verdict in OPEN]
    parts = [
        _HEAD,
        "| verdict | rows |\n|---|---|\n"
        + "".join(f"| {verdict} | {counts[verdict]} |\n" for verdict in VERDICTS)
        + f"| all | {len(rows)} |\n",
        "## What is open\n\n" + _table(open_rows),
    ]
    for title in dict.fromkeys(row.section for row in rows):
        parts.append(f"## {title}\n\n" + _table([row for row in rows if row.section == title]))
    return "\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    head = "| | what | HAMi | hetero | verdict | shown by |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row.key} | {_cell(row.item)} | {_cell(row.hami)} | {_cell(row.hetero)} "
        f"| {row.verdict} | {_shown_by(row)} |\n"
        for row in rows
    )


def _cell(text: str) -> str:
    """Return a text for a cell: signs of Markdown outside of code are themselves."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _shown_by(row: Row) -> str:
    if row.lacks:
        return f"lacks {_cell(row.lacks)}"
    return "<br>".join(f"`{test}`" for test in row.tests)


def absent_tests(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each test that a row names and nobody wrote."""
    for row in rows:
        for test in row.tests:
            file, _, name = test.partition("::")
            path = CHECKOUT / file
            if not path.exists() or not re.search(
                rf"^(async )?def {name}\(", path.read_text(), re.M
            ):
                yield f"{row.key}: there is no test {test}"


def not_sent(rows: Sequence[Row], sent: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield a line for each row whose tests did not send its words."""
    for row in rows:
        if row.verdict not in SHOWN:
            continue
        missing = [
            word for word in row.words if not any(word in sent.get(t, ()) for t in row.tests)
        ]
        if missing:
            yield f"{row.key}: its tests did not send {', '.join(missing)}"
        yield from (f"{row.key}: {test} was not run" for test in row.tests if test not in sent)


def recorded(folder: Path = RECORDS) -> dict[str, set[str]]:
    """Return what each test sent when it ran last, in all processes of that run together."""
    runs: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        run = path.stem if path.stem.startswith("alone") else path.stem.partition("-")[0]
        runs[run] = [*runs.pop(run, []), path]
    sent: dict[str, set[str]] = {}
    for paths in runs.values():
        of_run: dict[str, set[str]] = {}
        for path in paths:
            for test, words in json.loads(path.read_text()).items():
                of_run.setdefault(test, set()).update(words)
        sent |= of_run
    return sent


def main() -> None:
    """Write the page, or say what of it is not shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what tests sent")
    checks = parser.parse_args().check
    rows = read_rows()
    if not checks:
        PAGE.write_text(page(rows))
        return
    sent = recorded()
    if not sent:
        sys.exit(f"no test was recorded below {RECORDS.relative_to(CHECKOUT)}: run make test")
    if faults := [*absent_tests(rows), *not_sent(rows, sent)]:
        sys.exit("\n".join(faults))
    print(
        f"{sum(row.verdict in SHOWN for row in rows)} rows are shown by tests that sent their words"
    )


if __name__ == "__main__":
    main()
