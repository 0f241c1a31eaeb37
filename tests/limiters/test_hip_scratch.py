"""Scratch, which AMD's runtime takes for the arrays and spills of a kernel's threads, is charged.

The runtime and what it does with scratch are AMD's own; the simulated card stops a queue before a
kernel that needs more than the queue has, as a card's processor does. The library below is loaded
in front of the program as well: so the kernel's driver answers (simulator/drivers/kfd_driver.c).
"""

import signal
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
import test_hip_cards
from simulated import Machine
from tenancy import Grant, Rack
from test_hip import RACK, granted

pytestmark = pytest.mark.hip


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A card of 1 GiB for tenants."""
    return Rack(tmp_path, Machine(tmp_path, RACK), api="hip_driver")


def environment_of(grant: Grant) -> dict[str, str]:
    below = hetero_simulator.fake_drivers() / "libhsakmt.so.1"
    return {**grant.environment, "LD_PRELOAD": f"{grant.limiter} {below}"}


def above_the_driver(grant: Grant, program: str) -> Any:
    """Run a program that has a kernel whose threads have so many words of their own."""
    return grant.rack.run(DEEP + program, **environment_of(grant))


DEEP = '''
def deep(words):
    module, function, source = c_void_p(), c_void_p(), b"""
extern "C" __global__ void deep(int *out, int n) {
    volatile int own[WORDS];
    for (int i = 0; i < n; i++)
        own[i % WORDS] = i;
    *out = own[n % WORDS];
}"""
    call("hipModuleLoadData", byref(module), built(source.replace(b"WORDS", b"%d" % words)))
    call("hipModuleGetFunction", byref(function), module, b"deep")
    return function
def ran(function, on, groups):
    """Have so many groups of 64 threads run."""
    words = (c_uint64 * 2)()
    arguments = (c_void_p * 2)(*(ctypes.addressof(words) + 8 * each for each in range(2)))
    one, none = c_uint(1), c_uint(0)
    assert 0 == hip.hipModuleLaunchKernel(
        function, c_uint(groups), one, one, c_uint(64), one, one, none, on, arguments, None
    )
    call("hipStreamSynchronize", on)
'''


def test_scratch_is_charged_for_each_queue_and_within_the_limit(rack: Rack) -> None:
    """A kernel for which there is no room runs with fewer threads at a time, as on a full card.

    The card holds 64 units x 32 waves x 64 lanes: 34 MiB for the 272 bytes of a thread, 258 MiB for
    2064. What no kernel uses is had again by an allocation.
    """
    program = """
small, large, one, two = deep(64), deep(512), stream(), stream()
launch(spin(), 1, one)
launch(spin(), 1, two)
call("hipDeviceSynchronize")
base, seen = on_card(), []
def snapshot():
    free, total = memory()
    seen.append([(on_card() - base) / MIB, total - free])
for function, on, groups in ((small, one, 1), (small, two, 1), (large, two, 10000)):
    ran(function, on, groups)
    snapshot()
took = malloc(66 * MIB) > 0
snapshot()
say([seen, took])
"""
    grant = granted(rack, 100)
    (first, both, more, last), took = above_the_driver(grant, program)
    assert [[34, 34], [68, 68], True, [100, 100]] == [first, both, took, last]
    # As many waves of each unit as fit beside the first queue's: 16 of 32.
    assert [98.5, 99] == more
    assert (100 << 20, 0) == (grant.usage().used, grant.usage().denied)


def test_scratch_is_charged_to_the_card_that_it_is_of(tmp_path: Path) -> None:
    program = """
call("hipSetDevice", 1)
on = stream()
launch(spin(), 1, on)
base = [on_card(card) for card in range(2)]
ran(deep(64), on, 1)
say([(on_card(card) - base[card]) // MIB for card in range(2)])
"""
    grant = test_hip_cards.granted(tmp_path, 64, 64)
    assert [0, 34] == above_the_driver(grant, program)
    assert [0, 34 << 20] == [grant.usage(card).used for card in range(2)]


def test_memory_that_is_refused_is_at_no_address(rack: Rack) -> None:
    program = "say([[malloc(MIB) for _ in range(70)][-1], memory()[0]])"
    assert [0, 0] == granted(rack, 64).run(program)


def test_a_kernel_that_has_no_room_at_all_ends_its_program_as_on_a_full_card(rack: Rack) -> None:
    program = """
function, on = deep(512), stream()
malloc(WHOLE * MIB)
while malloc(MIB):
    pass
ran(function, on, 10000)
"""
    ended = []
    for grant, whole in ((None, 1000), (granted(rack, 64), 30)):
        text = DEEP + program.replace("WHOLE", str(whole))
        environment = environment_of(grant) if grant else {}
        with rack.start(text, **environment) as process:
            try:
                errors = process.communicate(timeout=60)[1]
            finally:
                process.kill()
        ended.append((process.returncode, "HSA_STATUS_ERROR_OUT_OF_RESOURCES" in errors))
    assert [(-signal.SIGABRT, True)] * 2 == ended
