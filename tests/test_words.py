"""One word has one meaning: words that were given up stay out, each where it was given up.

Over 400 lines because the table of words is one, and is read as one.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import click
import pytest

from hetero.node.ledger.ledger import Grant
from tests.words import (
    Place,
    Retired,
    Used,
    c_names,
    c_prose,
    cli_words,
    constants,
    json_keys,
    python_names,
    python_prose,
    schema_keys,
    used,
)

PYTHON, C, CLI, SETTING = Place.PYTHON, Place.C, Place.CLI, Place.SETTING
JSON, ANNOTATION, FILE, PROSE = Place.JSON, Place.ANNOTATION, Place.FILE, Place.PROSE
#: What users write and read: the words that are the same in all of them.
WRITTEN = (CLI, SETTING, JSON, ANNOTATION)

#: This test names what it forbids.
HERE = {"tests/*words.py": "the table itself, and samples for its readers"}
CONTRIBUTING = {**HERE, "CONTRIBUTING.md": "lists the old paths until the next release"}


def python(word: str, successor: str, *paths: str, anywhere: bool = False) -> Retired:
    return Retired(word, successor, (PYTHON,), anywhere=anywhere, paths=paths or ("*",), but=HERE)


def c(word: str, successor: str, *paths: str) -> Retired:
    return Retired(word, successor, (C,), anywhere=True, paths=paths or ("*",))


def written(word: str, successor: str, *places: Place) -> Retired:
    return Retired(word, successor, places or WRITTEN, anywhere=True)


def file(word: str, successor: str, *paths: str) -> Retired:
    """A file's whole name without its ending, and the same name in a test's."""
    return Retired(word, successor, (FILE,), paths=paths or ("*",), but=HERE)


def prose(word: str, successor: str, *paths: str) -> Retired:
    return Retired(word, successor, (PROSE,), paths=paths or ("*",), but=CONTRIBUTING)


PYTHON_NAMES = (
    python("Grant", "DeviceAllocation", "hetero/model/*", "hetero/placement/*", "vendors/*"),
    python("grants", "pieces", "hetero/model/*", "hetero/placement/*", "vendors/*"),
    python("Standing", "Grant"),
    python("Limit", "DeviceLimit"),
    python("Look", "Snapshot"),
    python("look", "snapshot"),
    python("LOOK", "DISCOVER", "hetero/kube/*", "tests/kube/*"),
    python("Hold", "GrantHandle (ledger), DeviceUsage (placement)"),
    python("Taken", "Admission"),
    python("kept", "pinned", "hetero/*", "tests/node/*", "tests/container/*", "tests/kube/*"),
    python("keep", "pin", "hetero/kube/*"),
    python("keeper", "owner", anywhere=True),
    python("let_go", "unpin", anywhere=True),
    python("give_back", "abort", anywhere=True),
    python("Company", "CoTenancy"),
    python("what", "key (of CoTenancy)", "hetero/model/*"),
    python("beside", "compatible_with (of CoTenancy)", "hetero/model/*"),
    Retired("Choice", "Selector", (PYTHON,), but={**HERE, "hetero/cli/*": "a class of click's"}),
    python("only", "include"),
    python("never", "exclude"),
    python("Words", "ResourceNames"),
    python("words", "resource_names", "hetero/kube/*", "hetero/plugin/*", "tests/kube/world.py"),
    python("WORDS", "RESOURCE_NAMES", "vendors/*", "examples/*"),
    python("grade", "qos_class", anywhere=True),
    python("grades", "qos_classes", anywhere=True),
    python("Multi", "MultiDevice"),
    # Elsewhere it is the "by" of a relation that its function names.
    python("by", "measured_by", "hetero/model/*", "hetero/plugin/*", "vendors/*"),
    python("ONE_POLICY", "policy_slots"),
    python("one_policy", "policy_slots"),
    python("Wish", "PodRequest (kube), DemandClass (placement)"),
    python("wish", "request", anywhere=True),
    python("wishes", "requests", anywhere=True),
    python("Wanted", "SignedContainer"),
    python("waste", "fragmentation"),
    python("whole", "whole_cards", "hetero/kube/scheduler/*"),
    python("room", "free_milli", "hetero/kube/*", "hetero/placement/*"),
    python("seat", "place_pod", anywhere=True),
    python("seated", "placed", anywhere=True),
    python("sit", "place", anywhere=True),
    python("roster", "SchedulerCache", anywhere=True),
    python("enter", "update_node", "hetero/kube/scheduler/*", "tests/kube/*"),
    python("leave", "remove_node", "hetero/kube/scheduler/*", "tests/kube/*"),
    python("adopt", "restore_pod", "hetero/kube/scheduler/*", "tests/kube/*"),
    python("rung", "enforcement", anywhere=True),
    python("rungs", "enforcements", anywhere=True),
    python("divides", "granularity"),
    python("uncovered", "bypass", anywhere=True),
    python("dice", "rng"),
    python("turn", "time slice", anywhere=True),
    python("turns", "time slices", anywhere=True),
    python("kin", "siblings", anywhere=True),
    # hetero.container has a Shares of its own: the named ones of a node.
    python("Shares", "Allocator", "hetero/kube/*"),
    python("meet", "update_pod, note_kubelet", "hetero/kube/*", "tests/kube/*"),
    python("stir", "reconcile_due", anywhere=True),
    python("survey", "read_cluster", anywhere=True),
    python("bring", "injection", "hetero/*", "tests/kube/*", "tests/vendors/*"),
)

FILE_NAMES = (
    file("question", "guard"),
    file("words", "resource_names", "hetero/*", "tests/*/*"),
    file("value", "frozen"),
    file("entries", "entry_points"),
    file("grouped", "device_groups"),
    file("asks", "request_parser"),
    file("cards", "discovery"),
    file("policy", "placement_policy"),
    file("rest", "residual_share"),
    file("uncovered", "bypass"),
    # The limiters' unit that reads a grant's directory is one of C's own.
    file("tenant", "grant_dir", "*.py"),
    file("grant", "grant_file", "*.py"),
    file("region", "usage_region", "*.py"),
    file("vocabulary", "pod_request"),
    file("wire", "annotations"),
    file("bring", "driver_injection"),
    file("former", "hami_migration"),
    file("tally", "scheduler_metrics"),
    file("survey", "cluster_view"),
    file("shares", "allocator", "hetero/kube/*"),
    *(
        file(f"fakes7{vendor}", "fake_drivers_<vendor>")
        for vendor in ("", "_dcmi", "_cndev", "_hydmi", "_ixml", "_mtml", "_mxsml")
    ),
    file("doors", "entry_points"),
    file("roster", "cache"),
)

C_NAMES = (
    c("kin", "siblings"),
    c("hungry", "power_limited"),
    c("modest", "unconstrained"),
    c("price", "charge_rate"),
    c("par", "unity"),
    c("mark", "fence"),
    c("lane", "tracked_stream"),
    c("lanes", "tracked_streams"),
    c("life", "generation"),
    c("home", "stream_context"),
    c("thin", "throttle"),
    c("brief", "low_latency"),
    c("dice", "rng"),
    c("cold_ns", "warmup_ns"),
    c("tell", "advertise"),
    c("told", "advertised"),
    c("passage", "launch_ticket"),
    c("shelf", "management_fake"),
    c("seat", "slot"),
    c("turn", "time slice"),
    c("turns", "time slices"),
    c("wish", "request"),
    c("wishes", "params"),
)

WRITTEN_WORDS = (
    written("rung", "enforcement"),
    written("rungs", "enforcements"),
    written("divides", "granularity"),
    written("order", "placement"),
    written("frag", "fragmentation"),
    written("waste", "fragmentation"),
    written("avoid", "exclude"),
    Retired("set", "resize", (CLI,)),
    Retired("--policy", "--placement", (CLI,), paths=("hetero simulate",)),
    written("former", "adopt-scheduler"),
    written("callers", "client-ca"),
    written("writer", "allocation-writer", SETTING),
    Retired("--writer", "--allocation-writer", (CLI,)),
    written("split", "max_sharers"),
    Retired(
        "without",
        "exclude",
        WRITTEN,
        anywhere=True,
        but={
            "hetero simulate": "what a cluster is asked to do without",
            "hetero/cli/simulate.py": "the same by its parameter's name",
            "hetero/kube/what_if/*.py": "the same in its document",
        },
    ),
    written("door", "entry point"),
    written("doors", "entry points"),
    written("mate", "co-tenant"),
    written("mates", "co-tenants"),
    written("turn", "time slice"),
    written("turns", "time slices"),
    written("keeper", "owner"),
    written("kept", "pinned"),
    written("grade", "qos_class"),
    written("wish", "request"),
    written("dice", "rng"),
    Retired(
        "standing",
        "grants",
        WRITTEN,
        but={"hetero/model/allocation.py": "the allocations that stand on an inventory's devices"},
    ),
    # Devices have parts that exist; as a setting it said what becomes of partitioned devices.
    Retired("parts", "partitioned", (SETTING,), paths=("hetero/*",)),
    Retired("only", "include", (SETTING, JSON)),
    Retired("never", "exclude", (SETTING, JSON)),
    Retired("by", "measured_by", (JSON,)),
    Retired("beside", "compatible_with", (SETTING, JSON)),
)

#: Only words without an ordinary meaning, and phrases.
PROSE_WORDS = (
    prose("rung", "enforcement"),
    prose("rungs", "enforcements"),
    prose("kin", "siblings"),
    prose("card-mate", "co-tenant"),
    prose("card-mates", "co-tenants"),
    prose("dice", "rng"),
    prose("keeper", "owner"),
    prose("keepers", "owners"),
    prose("let_go", "unpin"),
    prose("give_back", "abort"),
    prose("roster", "scheduler cache"),
    prose("hungry", "power-limited"),
    prose("modest", "unconstrained"),
    prose("uncovered", "bypassing"),
    prose("look()", "snapshot()"),
    prose("ONE_POLICY", "policy_slots"),
    prose("--avoid-vendor", "--exclude-vendor"),
    prose("--avoid-model", "--exclude-model"),
    prose("--avoid-uuid", "--exclude-uuid"),
    prose("--former", "--adopt-scheduler"),
    prose("--callers", "--client-ca"),
    prose("--writer", "--allocation-writer"),
    prose("hetero set", "hetero resize"),
    prose("split =", "max_sharers ="),
    prose("without =", "exclude ="),
    prose("parts =", "partitioned =", "docs/*", "hetero/*", "deploy/*", "README.md"),
    # "In turn" and "turns into" have an ordinary meaning; a card's turn is a time slice.
    prose("takes turns", "shares the device in time slices"),
    prose("take turns", "share the device in time slices"),
    prose("taking turns", "alternating, sharing in time slices"),
    prose("take no turns", "run outside time slices"),
    prose("in turns", "alternating, in time slices"),
    prose("a turn", "a time slice"),
    prose("the turn", "the time slice"),
    prose("the turns", "the time slices"),
    prose("few turns", "few time slices"),
    prose("of turns", "of time slices"),
    prose("last turn", "last time slice"),
    prose("turn order", "the order of time slices"),
    prose("its turn", "its time slice"),
    prose("its turns", "its time slices"),
    prose("neighbour's turn", "neighbour's time slice"),
    prose("whose turn", "who has the time slice"),
    # Things have an order; what chooses among devices and nodes is a placement policy.
    *(
        prose(f"{before} {word}", "placement policy", "hetero/*", "simulator/*", "benchmarks/*")
        for before in ("aware", "our", "named", "one", "per", "of an", "what an")
        for word in ("order", "orders")
    ),
    prose("orders of placing", "placement policies"),
    prose("orders over", "placement policies over", "hetero/*"),
    prose("the order's", "the policy's", "hetero/placement/*", "hetero/simulate/*"),
    prose("several orders", "several placement policies"),
    prose("the orders", "the placement policies", "hetero/*", "docs/*"),
    prose("order {name!r}", "placement {name!r}", "hetero/*"),
    prose("seat", "place (a pod), slot (of a region)"),
    prose("seats", "places, slots"),
    prose("seated", "placed"),
    prose("is kept for", "is pinned for", "hetero/*", "tests/*"),
    prose("was let go", "was unpinned"),
    prose("is let go", "is unpinned"),
    prose("until let go", "until unpinned"),
    prose("`look`", "`snapshot`", "hetero/*"),
    prose("`standing`", "`grant`", "hetero/*"),
    prose("`writer`", "`allocation_writer`", "hetero/*"),
    prose("`former`", "`adopt_schedulers`", "hetero/*"),
    prose("`room`", "`free_milli`", "hetero/placement/*"),
    prose("whole[cards]", "whole_cards[cards]", "hetero/placement/*"),
    prose("waste", "fragmentation", "hetero/placement/*"),
)

TABLE = (*PYTHON_NAMES, *FILE_NAMES, *C_NAMES, *WRITTEN_WORDS, *PROSE_WORDS)


def violations(place: Place, words: tuple[Used, ...]) -> list[str]:
    """Return where words are used that are retired there, with their successors."""
    rows = [row for row in TABLE if place in row.places]
    # Most names are used often: each is compared with the table once.
    named = {
        text: [row for row in rows if row.is_in(text, place)]
        for text in {one.text for one in words}
    }
    return [
        f"{one}: {row.word!r} is now {row.successor}"
        for one in words
        for row in named[one.text]
        if row.applies_to(one.path)
    ]


@pytest.mark.parametrize("place", Place, ids=lambda place: str(place.value))
def test_no_retired_word_is_used(place: Place) -> None:
    assert [] == violations(place, used(place))


#: How many words there are at least in each place: a reader that finds fewer has lost its way.
FEWEST = {
    PYTHON: 50_000,
    C: 30_000,
    CLI: 150,
    SETTING: 20,
    JSON: 200,
    ANNOTATION: 5,
    FILE: 300,
    PROSE: 5_000,
}


@pytest.mark.parametrize("place", Place, ids=lambda place: str(place.value))
def test_every_place_is_read(place: Place) -> None:
    assert len(used(place)) >= FEWEST[place]


@attrs.frozen
class Sample:
    """A value that the codec would write with a key that is retired."""

    rung: str


@click.group()
@click.option("--avoid-vendor")
def sample() -> None:
    """Have an option that is retired, and a command below."""


@sample.command("set")
@click.option("--placement", type=click.Choice(["frag"]))
def sample_set(placement: str) -> None:
    """Have a name and a choice that are retired."""


#: What each reader finds in a small sample, with the retired words of it.
SAMPLES: dict[str, tuple[Place, Iterator[Used], list[str]]] = {
    "a class, a parameter and what it is called with": (
        PYTHON,
        python_names("class Standing: ...\ndef f(keeper): g(only=keeper.let_go)", "hetero/x.py"),
        ["Standing", "keeper", "only", "keeper", "let_go"],
    ),
    "an import under another name": (
        PYTHON,
        python_names("from hetero import Roster as Wanted", "hetero/x.py"),
        ["Roster", "Wanted"],
    ),
    "a part of a name": (
        PYTHON,
        python_names("rung_of = kind = wrung = _WISH", "hetero/x.py"),
        ["rung_of", "_WISH"],
    ),
    "C without comments, strings and characters": (
        C,
        c_names("/* kin */ int kin_of(char *s) { s = \"kin\"; s = 'k' + mark; } // par", "x.c"),
        ["kin_of", "mark"],
    ),
    "commands, options and choices": (CLI, cli_words(sample), ["--avoid-vendor", "set", "frag"]),
    "a column's title": (CLI, constants('"""rung"""\ntable("rung")', "hetero/cli/x.py"), ["rung"]),
    "a setting": (
        SETTING,
        constants('known=("split", "parts")', "hetero/node/settings.py"),
        ["split", "parts"],
    ),
    "a value of the chart": (
        SETTING,
        schema_keys({"properties": {"webhook": {"properties": {"callers": {}}}}}, "x.json"),
        ["callers"],
    ),
    "a key of JSON": (JSON, json_keys([Sample]), ["rung"]),
    "an annotation": (
        ANNOTATION,
        constants('ORDER = "hetero.io/node-order"', "hetero/kube/words/x.py"),
        ["hetero.io/node-order"],
    ),
    "a file": (FILE, iter([Used("survey", "hetero/kube/survey.py")]), ["survey"]),
    "a comment, a docstring and a message": (
        PROSE,
        python_prose('def f():\n    """Keeper."""\n    g("the rung")  # dice, kind', "hetero/x.py"),
        ['"""Keeper."""', '"the rung"', "# dice, kind"],
    ),
    "a comment of two lines in C": (
        PROSE,
        c_prose("/* Where tenants take\n * turns. */ int kin;", "limiters/x.c"),
        ["/* Where tenants take turns. */"],
    ),
    "a retired word of a message": (
        PROSE,
        python_prose(
            'f(f"order {name!r} is none")\ng("grant is kept for it")\nh("put in order")',
            "hetero/x.py",
        ),
        ['f"order {name!r} is none"', '"grant is kept for it"'],
    ),
    "a part of a function's name": (
        PYTHON,
        python_names("def _seat_somewhere(turns): ...", "hetero/x.py"),
        ["_seat_somewhere", "turns"],
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_retired_word_is_found(name: str) -> None:
    place, words, retired = SAMPLES[name]

    found = sorted(one.text for one in words if violations(place, (one,)))

    assert sorted(retired) == found


def test_an_ordinary_word_that_holds_a_retired_one_is_left_alone() -> None:
    words = ("kind", "wrung", "kin_d", "Limiter", "dices")

    assert [] == violations(PYTHON, tuple(Used(word, "hetero/x.py") for word in words[:2]))
    assert [] == violations(PROSE, tuple(Used(word, "hetero/x.py") for word in words))


def test_a_grant_is_the_record_with_an_id_an_owner_and_a_time() -> None:
    assert {"id", "owner", "since"} <= {one.name for one in attrs.fields(Grant)}
