"""A vendor that fails or hangs in enforce: others go on meanwhile, and doctor says what it said."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import hetero.registry.registry
from hetero.model import Ask, Request, Selector
from hetero.model.errors import HeteroError, Refused
from hetero.model.units import GiB
from hetero.node.grants import Admission, LocalGrants
from hetero.node.ledger.ledger import Ledger
from hetero.node.ledger.state import prepare
from hetero.node.node import Node
from hetero.node.view.doctor import Diagnosis, Finding, examine
from hetero.registry.entry_points import Entry
from hetero.registry.fork_server import ForkServer
from hetero.registry.pauses import Pauses
from hetero.registry.registry import Registry
from hetero.registry.supervisor import Supervisor
from tests.registry import hostile
from tests.registry.installed import good, install, install_hostile

from .conftest import drop, standing
from .users import until

DEEDS = (
    "segfault",
    "exit_0",
    "close_descriptors",
    "fork_that_stays",
    "hang",
    "print_much",
    "raise_an_exit",
    "write_everywhere",
)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Return what makes a node of vendors: one command's, or a program's that goes on."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[Registry] = []

    def node(*entries: Entry, goes_on: bool = True) -> Node:
        state = tmp_path / "state"
        pauses = Pauses(state / "vendors.json", partial(prepare, state))
        starter = ForkServer(dict(os.environ))
        made.append(Registry(lambda: entries, starter=starter, pauses=pauses, watch=goes_on))
        return Node(registry=made[-1], ledger=Ledger(state))

    yield node
    for registry in made:
        registry.close()


def take(node: Node, vendor: str) -> Admission:
    return LocalGrants(node).take(
        Request(asks=(Ask(memory=GiB, core=10),), vendor=Selector((vendor,))), command=["test"]
    )


def enforces(node: Node, vendor: str) -> Supervisor:
    (member,) = (one for one in node.registry._members if one.plugin.name == vendor)
    assert isinstance(member.acting, Supervisor)
    return member.acting


@pytest.mark.parametrize("goes_on", [True, False], ids=["in one program", "in another command"])
@pytest.mark.parametrize("hook", ["enforce", "reconcile"])
def test_admissions_releases_and_sweeps_go_on_beside_a_vendor_that_hangs(
    make: Callable[..., Node], tmp_path: Path, *, hook: str, goes_on: bool
) -> None:
    bad = install_hostile(tmp_path, ["hang"], [hook])["hang", hook]
    entries = bad, install(tmp_path, "good", good())
    first = make(*entries, goes_on=goes_on)
    two = first if goes_on else make(*entries, goes_on=False)
    with ThreadPoolExecutor(1) as pool:
        hung: Future[Admission] = pool.submit(take, first, bad.name)
        assert until(lambda: len(standing(two)) == 1)  # it holds its units meanwhile
        assert until(lambda: enforces(first, bad.name)._lock.locked())

        taken = take(two, "good")
        drop(taken.handle)
        messages = LocalGrants(two).sweep()
        rows = {row.name: row.state for row in two.discover().rows}
        waits = not hung.done()
        process = enforces(first, bad.name)._process
        assert process is not None
        process.stop()
        if hook == "enforce":
            with pytest.raises(Refused, match=f"{bad.name}: enforce: its process was ended"):
                hung.result()
        else:  # what was there before is not its grant's concern
            drop(hung.result().handle)

    assert waits
    assert [f"{bad.name}: another hetero is at its slices for more than 0.5 s: try again"] == [
        *messages
    ]
    assert not goes_on or {bad.name: "ok", "good": "ok"} == rows
    assert [] == standing(two)


def test_each_failure_to_enforce_is_a_line_of_doctor_until_it_succeeds(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {
        deed: bad for (deed, _), bad in install_hostile(tmp_path, DEEDS, ["enforce"]).items()
    }
    fails = [deed for deed in DEEDS if deed not in hostile.HARMLESS]
    node = make(*entries.values(), goes_on=False)
    node.discover()
    monkeypatch.setattr(hetero.registry.registry, "ENFORCEMENT_TIMEOUT_S", 1.0)
    refusals = {}
    for deed, entry in entries.items():
        if deed in fails:
            with pytest.raises(HeteroError) as refused:
                take(node, entry.name)
            refusals[deed] = str(refused.value)
        else:
            drop(take(node, entry.name).handle)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    later = make(*entries.values(), goes_on=False)

    line = "{}: kept until a grant of its devices succeeds"
    expected = [Finding("enforce", Diagnosis.BAD, line.format(refusals[deed])) for deed in fails]
    assert expected == [found for found in examine(later) if found.subject == "enforce"]
    assert all("\n" not in why and ": enforce: " in why for why in refusals.values())
    for deed in fails:  # mended
        (tmp_path / f"{entries[deed].value}.py").write_text(good(entries[deed].name))
        drop(take(make(*entries.values(), goes_on=False), entries[deed].name).handle)
    assert () == later.registry.failures()
