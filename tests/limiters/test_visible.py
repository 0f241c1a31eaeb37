"""Numbers in CUDA_VISIBLE_DEVICES are the grant's, in NVML's order; the driver reads UUIDs."""

from pathlib import Path

import pytest
import tenancy
from tenancy import CONTEXT, UUIDS, Rack, Terms

#: The faults (limiters/core/fault.h) that a test here finds.
FAULTS = ("numbers_untranslated",)

#: The UUIDs of the devices that CUDA lists, and what the variable says afterwards.
SEEN = """
import os, uuid
def seen():
    code, count, names = cuda.cuInit(0), c_int(), []
    cuda.cuDeviceGetCount(byref(count))
    for ordinal in range(count.value):
        text = (ctypes.c_char * 16)()
        call("cuDeviceGetUuid", text, c_int(ordinal))
        names.append(f"GPU-{uuid.UUID(bytes=text.raw)}")
    return [code, names, os.environ.get("CUDA_VISIBLE_DEVICES")]
say(seen())
"""
FIRST, SECOND = UUIDS


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    return Rack.of(tmp_path, cards=2)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0", [SECOND]),
        ("0,1", [SECOND, FIRST]),
        ("1, 0", [FIRST, SECOND]),
        (f"1,{SECOND}", [FIRST, SECOND]),
        (FIRST, [FIRST]),
        (f"{FIRST},{SECOND}", [FIRST, SECOND]),
        ("0,2", [SECOND]),
    ],
)
def test_numbers_are_the_grants_devices(rack: Rack, visible: str, expected: list[str]) -> None:
    """It has the cards in the other order than the driver."""
    grant = rack.grant(Terms(uuid=SECOND), Terms(uuid=FIRST))
    assert [0, expected, visible] == grant.run(SEEN, CUDA_VISIBLE_DEVICES=visible)


@pytest.mark.parametrize("visible", ["2", "-1", ""])
def test_a_list_without_a_device_of_the_grant_shows_none(rack: Rack, visible: str) -> None:
    code, names, after = rack.grant(Terms()).run(SEEN, CUDA_VISIBLE_DEVICES=visible)
    assert (100, [], visible) == (code, names, after)


def test_a_number_that_is_not_of_the_grant_is_told_in_one_line(rack: Rack) -> None:
    process = rack.grant(Terms(uuid=SECOND)).start(SEEN, CUDA_VISIBLE_DEVICES="0,1")
    _, errors = process.communicate(timeout=60)
    assert 1 == errors.count("\n")
    assert (
        "device 1 is not of the grant, whose devices are 0 to 0 in CUDA_VISIBLE_DEVICES" in errors
    )


def test_a_child_narrows_the_list_of_the_grant(rack: Rack) -> None:
    """As Ray and torchrun do; it is a fork that has not come to the driver."""
    grant = rack.grant(Terms(uuid=SECOND), Terms(uuid=FIRST))
    code = SEEN.replace("say(seen())", "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nsay(seen())")
    assert [0, [FIRST], "1"] == grant.run(code, CUDA_VISIBLE_DEVICES="0,1")


@pytest.mark.parametrize(("flags", "code"), [(0, 0), (CONTEXT, 2)])
def test_no_context_is_made_on_a_card_that_is_not_granted_where_contexts_count(
    rack: Rack, flags: int, code: int
) -> None:
    """Else many of them would fill it. One line says why."""
    program = """
call("cuInit", 0)
say([cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), c_int(card)) for card in (0, 1, 0)])
"""
    process = rack.grant(Terms(uuid=SECOND, flags=flags)).start(program)
    out, errors = process.communicate(timeout=60)
    assert f"[{code}, 0, {code}]\n" == out
    assert 1 == errors.count("is not of the grant: nothing of it is given")


def test_with_a_fault_numbers_are_the_drivers(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_FAULT", "numbers_untranslated")
    grant = rack.grant(Terms(uuid=SECOND), limiter=tenancy.with_faults("cuda"))
    assert [0, [FIRST], "0"] == grant.run(SEEN, CUDA_VISIBLE_DEVICES="0")
