"""With its flag a grant pays for all that the driver counts: contexts, code, of each process."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import tenancy
from tenancy import CONTEXT, MIB, Grant, Rack, Terms, meanwhile

from tests.programs import next_line

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = ("contexts_uncharged",)

#: What a context takes on the simulated card, and what the node says that it does.
TAKEN = 100 * MIB
MAKE = """
def context():
    made = c_void_p()
    code = cuda.cuCtxCreate_v2(byref(made), c_uint(0), c_int(0))
    return made if code == 0 else code
"""
#: A program that makes the primary context, says its answer and keeps it.
ONE_CONTEXT = """
call("cuInit", 0)
say(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)))
input()
"""


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A card of 1 GiB on which a context takes 100 MiB."""
    return Rack.of(tmp_path, more=f"context = {TAKEN // MIB} MiB")


def granted(rack: Rack, mib: int, context: int = TAKEN, name: str = "grant") -> Grant:
    return rack.grant(Terms(memory=mib * MIB, flags=CONTEXT, context=context), name=name)


def test_each_context_of_a_process_is_charged(rack: Rack) -> None:
    code = f"""{MAKE}
start()
free = [info()[0] >> 20]
for _ in range(3):
    context()
    free.append(info()[0] >> 20)
say(free)
"""
    assert [300, 200, 100, 0] == granted(rack, 400).run(code)


def test_without_the_flag_contexts_are_not_charged(rack: Rack) -> None:
    grant = rack.grant(Terms(memory=200 * MIB, context=TAKEN))
    assert [200, True] == grant.run(f"""{MAKE}
start(), context(), context()
say([info()[0] >> 20, take("plain", {200 * MIB}) > 1000])
""")


def test_each_process_has_a_context_of_its_own_charged(rack: Rack) -> None:
    grant = granted(rack, 350)
    with ExitStack() as programs:
        answers = []
        for _ in range(4):
            program = grant.start(ONE_CONTEXT)
            programs.enter_context(meanwhile(program))
            answers.append(next_line(program))
        assert (["0\n"] * 3 + ["2\n"], 300 * MIB) == (answers, grant.usage().used)


def test_the_driver_is_not_asked_for_a_context_that_does_not_fit(rack: Rack) -> None:
    grant = granted(rack, 150)
    assert [2, 2] == grant.run(f"""{MAKE}
start()
say([context(), context()])
""")
    assert (100 * MIB, 2) == (grant.usage().peak, grant.usage().denied)


def test_what_a_context_takes_beyond_what_the_node_says_is_charged(rack: Rack) -> None:
    assert [100, 0] == granted(rack, 200, context=60 * MIB, name="a little").run(f"""{MAKE}
start()
free = [info()[0] >> 20]
context()
say([*free, info()[0] >> 20])
""")
    assert [2, 2] == granted(rack, 70, context=60 * MIB, name="too little").run(f"""{MAKE}
call("cuInit", 0)
say([context(), cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0))])
""")


def test_what_the_node_does_not_know_is_charged_as_the_driver_counts_it(rack: Rack) -> None:
    assert [150, 50] == granted(rack, 250, context=0).run(f"""{MAKE}
start()
free = [info()[0] >> 20]
context()
say([*free, info()[0] >> 20])
""")


def test_what_the_node_says_too_much_is_room_for_what_has_no_size(rack: Rack) -> None:
    """Streams and code are charged by the process's figure, which is below the charge then."""
    assert [80, 80] == granted(rack, 200, context=120 * MIB).run("""
start()
free = [info()[0] >> 20]
call("cuStreamCreate", byref(c_void_p()), c_uint(1))
say([*free, info()[0] >> 20])
""")


def test_a_context_that_ends_gives_its_memory_back_but_the_last(rack: Rack) -> None:
    """The driver keeps part of the last one, so its charge stays for the next."""
    grant = granted(rack, 300)
    assert [100, 200, 200] == grant.run(f"""{MAKE}
start()
own = context()
free = [info()[0] >> 20]
call("cuCtxDestroy_v2", own)
free.append(info()[0] >> 20)
call("cuDevicePrimaryCtxRelease_v2", c_int(0))
start()
say([*free, info()[0] >> 20])
""")
    assert 200 * MIB == grant.usage().peak


def test_a_primary_context_that_stands_needs_no_room(rack: Rack) -> None:
    assert [0, 0] == granted(rack, 150).run(f"""
start()
take("plain", {50 * MIB})
say([cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)), info()[0]])
""")


def test_threads_that_retain_the_primary_context_at_once_need_room_for_one(rack: Rack) -> None:
    assert [0] * 8 == granted(rack, 110).run("""
call("cuInit", 0)
answers = []
def retain(number):
    answers.append(cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(0)))
in_threads(8, retain)
say(answers)
""")


def test_a_context_that_the_driver_refuses_is_not_charged(rack: Rack) -> None:
    grant = granted(rack, 2000)
    with meanwhile(program := rack.start(f"start()\ntake('plain', {800 * MIB})\nsay(1)\ninput()")):
        next_line(program)
        refused = grant.start(f"{MAKE}\nstart()\nsay(context())\ninput()")
        with meanwhile(refused):
            assert ("2\n", 100 * MIB) == (next_line(refused), grant.usage().used)


def test_with_a_fault_contexts_are_beyond_the_limit(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", tenancy.with_faults("cuda"))
    monkeypatch.setenv("HETERO_FAULT", "contexts_uncharged")
    grant = granted(rack, 64)
    program = grant.start(ONE_CONTEXT)
    with meanwhile(program):
        assert "0\n" == next_line(program)
