"""The limiter for HIP in front of AMD's own runtime, on machines with several simulated cards."""

import json
import sys
from pathlib import Path

import hetero_limiters
import pytest
from simulated import Machine
from tenancy import MIB, Grant, Rack, Terms
from test_hip import SPIN, device

from tests.programs import completed

pytestmark = pytest.mark.hip

HERE = Path(__file__).parent


def uuid(number: int) -> str:
    return f"GPU-423592d2d74e6a1{number:x}"


def machine(directory: Path, cards: int) -> Machine:
    sections = (f"{device(uuid(each))}pci = 0000:{each + 16:02x}:00.0\n" for each in range(cards))
    return Machine(directory, SPIN + "".join(sections))


def granted(directory: Path, *limits: int, core: tuple[int, ...] = (100,) * 8) -> Grant:
    """A grant of all cards of a machine, with a limit in MiB and a share of the time on each."""
    rack = Rack(directory, machine(directory, len(limits)), api="hip_driver")
    terms = [
        Terms(memory=limit * MIB, core=share * 100, uuid=uuid(card))
        for card, (limit, share) in enumerate(zip(limits, core, strict=False))
    ]
    return rack.grant(*terms, limiter=hetero_limiters.library("hip"))


#: What a program sees of all cards: where they are, and what is free of each, in MiB.
SEEN = """
count, bus = ctypes.c_int(), ctypes.create_string_buffer(16)
call("hipGetDeviceCount", byref(count))
def seen(card):
    call("hipSetDevice", card)
    call("hipDeviceGetPCIBusId", bus, 16, card)
    return [bus.value.decode(), *memory()]
cards = [seen(card) for card in range(count.value)]
"""


def test_eight_cards_are_eight_devices_with_a_limit_each(tmp_path: Path) -> None:
    limits = [8 * card + 8 for card in range(8)]
    program = f"""
{SEEN}
got = []
for card in range(8):
    call("hipSetDevice", card)
    got.append([malloc((8 * card + 10) * MIB) > 0, malloc((8 * card + 6) * MIB) > 0])
say([cards, got, [memory()[0] for card in range(8) if code("hipSetDevice", card) == 0],
     [on_card(card) // MIB for card in range(8)]])
"""
    grant = granted(tmp_path, *limits)
    cards, got, left, taken = grant.run(program)
    assert [
        [f"0000:{card + 16:02x}:00.0", limits[card], limits[card]] for card in range(8)
    ] == cards
    assert [[False, True]] * 8 == got
    assert [2] * 8 == left
    assert [(limit - 2) * MIB for limit in limits] == [grant.usage(card).used for card in range(8)]
    assert taken == limits


def test_a_grant_of_the_second_card_is_one_device_and_has_none_of_the_first(
    tmp_path: Path,
) -> None:
    """As `hetero run` starts a program: ROCR_VISIBLE_DEVICES names the card by its unique id."""
    program = f"""
from hip_driver import *
import os
{SEEN}
say([cards, os.environ["ROCR_VISIBLE_DEVICES"], malloc(66 * MIB), malloc(62 * MIB) > 0,
     code("hipSetDevice", 1), [on_card(card) // MIB for card in range(2)]])
"""
    paths = {"PYTHONPATH": str(HERE), "HETERO_STATE": str(tmp_path / "state")}
    environment = machine(tmp_path, 2).environment(**paths)
    share = ("--vendor", "amd", "--device", "1", "--memory", "64Mi", "--core", "50")
    command = [sys.executable, "-m", "hetero.cli", "run", "-q", *share]
    done = completed([*command, "--", sys.executable, "-c", program], env=environment, timeout=60)
    assert 0 == done.returncode, done.stderr
    cards, named, over, within, other, taken = json.loads(done.stdout)
    assert [["0000:11:00.0", 64, 64]] == cards
    assert (uuid(1), 0, True) == (named, over, within)
    assert 101 == other  # hipErrorInvalidDevice
    assert [0, 64] == taken


#: How memory is taken of the card that is current, and given back, whichever is then.
WAYS = """
class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "handles", "place", "device")]
    _fields_ += [("none", c_void_p), ("reserved", ctypes.c_char * 64)]
def at(card):
    call("hipSetDevice", card)
streams, pools = [], []
for card in range(2):
    at(card)
    streams.append(stream())
    pools.append(c_void_p())
    call("hipMemPoolCreate", byref(pools[card]), byref(Properties(1, 0, 1, card)))
def taken(kind, card, size):
    got, pitch = c_void_p(), c_size_t()
    if kind == "plain":
        answer = code("hipMalloc", byref(got), size)
    elif kind == "pitch":
        answer = code("hipMallocPitch", byref(got), byref(pitch), 64 << 10, size // (64 << 10))
    elif kind == "async":
        answer = code("hipMallocAsync", byref(got), size, streams[card])
    else:
        answer = code("hipMallocFromPoolAsync", byref(got), size, pools[card], streams[card])
    assert answer in (0, OUT_OF_MEMORY), (kind, answer)
    return got if answer == 0 else None
"""


def test_the_ledger_of_each_card_is_its_own_count_after_random_calls(tmp_path: Path) -> None:
    """Also where the card that is current is another when memory is given back."""
    program = f"""
import random
{WAYS}
chosen, held, differ, refused = random.Random(3), [], [], [0, 0]
base = []
for card in range(2):
    at(card)
    malloc(4 * MIB)
    free, total = memory()
    base.append(on_card(card) - (total - free) * MIB)
def over(card):
    at(card)
    free, total = memory()
    return (on_card(card) - base[card]) // MIB - (total - free)
for each in range(3000):
    card = chosen.randrange(2)
    at(card)
    if held and (chosen.random() < 0.48 or len(held) > 60):
        call("hipFree", held.pop(chosen.randrange(len(held))))
    else:
        kind = chosen.choice(("plain", "pitch", "async", "pool"))
        got = taken(kind, card, chosen.randrange(2 * MIB + 64, 12 * MIB))
        refused[card] += got is None
        held += [got] if got else []
    if each % 20 == 0:
        differ += [(each, now) for now in [[over(0), over(1)]] if any(now)]
for one in held:
    call("hipFree", one)
say([differ[:5], [some > 20 for some in refused], [over(0), over(1)]])
"""
    assert [[], [True, True], [0, 0]] == granted(tmp_path, 80, 60).run(program)


def test_a_copy_between_cards_takes_memory_of_neither(tmp_path: Path) -> None:
    program = """
from ctypes import create_string_buffer
call("hipSetDevice", 1)
there, back = malloc(8 * MIB), create_string_buffer(1001)
call("hipMemset", there, 0x5A, 1000)
call("hipSetDevice", 0)
here, can = malloc(8 * MIB), ctypes.c_int()
before = [memory()[0], on_card(0) // MIB, on_card(1) // MIB]
call("hipDeviceCanAccessPeer", byref(can), 0, 1)
if can.value:
    call("hipDeviceEnablePeerAccess", 1, 0)
call("hipMemcpyPeer", here, 0, there, 1, 1001)
call("hipMemcpy", back, here, 1001, 2)
after = [memory()[0], on_card(0) // MIB, on_card(1) // MIB]
call("hipFree", there)
say([back.raw[:1000] == b"Z" * 1000, before, after, on_card(1) // MIB, memory()[0]])
"""
    grant = granted(tmp_path, 64, 32)
    same, before, after, _, left = grant.run(program)
    assert same
    assert before == after
    assert (56, 56) == (before[0], left)
    assert (0, 8 * MIB) == (grant.usage(1).used, grant.usage(0).used)


@pytest.mark.measured
def test_kernels_of_one_card_do_not_wait_for_the_share_of_another(tmp_path: Path) -> None:
    """20 % of the first card and all of the second, by one program."""
    program = """
def worker(card):
    call("hipSetDevice", card)
    call("hipSetDeviceFlags", 4)
    return card, spin(), stream()
def share(worker, times):
    card, function, on = worker
    call("hipSetDevice", card)
    since = time.monotonic()
    for _ in range(times):
        launch(function, 5000, on)
        call("hipStreamSynchronize", on)
    return 100 * times * 0.005 / (time.monotonic() - since)
first, second = worker(0), worker(1)
share(first, 40), share(second, 40)
say([share(first, 40), share(second, 40)])
"""
    first, second = granted(tmp_path, 64, 64, core=(20, 100)).run(program)
    assert first < 40  # more by the credit of a time slice
    assert second > 1.4 * first  # both less on a machine that is slow to wake
