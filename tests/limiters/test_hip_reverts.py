"""Without the lines that hold it, memory gets past the limiter for HIP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hetero_limiters
import pytest
import test_hip
import test_hip_pools
import test_hip_scratch
from simulated import Machine
from tenancy import LIMITER, Rack, mutated

LIMITERS = LIMITER.parents[2]

Edit = tuple[str, str, str]


def _at_once(rack: Rack) -> None:
    test_hip_pools.test_what_of_a_pool_is_freed_at_once_is_had_again(rack.directory)


def _beside_a_thread(rack: Rack) -> None:
    test_hip_pools.test_what_a_thread_takes_of_a_pool_while_another_frees_stays_charged(
        rack.directory
    )


_ARRAYS, _MODULES = (
    test_hip.test_arrays_that_hipcc_left_in_a_program_are_charged_until_it_is_unloaded,
    test_hip.test_a_module_is_charged_for_its_code_and_arrays_until_it_is_unloaded,
)
_RESETS = test_hip.test_memory_of_a_device_that_is_reset_stays_charged_as_long_as_the_card_has_it
_GAVE_BACK = test_hip.test_what_a_pool_gave_back_is_had_again_while_some_of_it_is_in_use
_SCRATCH = test_hip_scratch.test_scratch_is_charged_for_each_queue_and_within_the_limit
#: By what is taken out: in which file which text becomes which; then the test that fails, and with
#: what more.
REVERTS: dict[str, tuple[Edit, Any, tuple[int, ...]]] = {
    "the charge of arrays": (
        ("hsa/load.c", "charge_now(device, bytes) != RESULT_OK", "false"),
        _ARRAYS,
        (100,),
    ),
    "what an unloaded program gives back": (
        ("hsa/load.c", "refund(device, held[device].bytes);", ";"),
        _ARRAYS,
        (100,),
    ),
    "small images": (
        ("hsa/load.c", "return (image + PAGE - 1) / PAGE * PAGE;", "return 0;"),
        _ARRAYS,
        (100,),
    ),
    "segments far from their start": (
        (
            "shared/image.c",
            "sum(segment.p_vaddr, segment.p_memsz)",
            "sum(segment.p_offset, segment.p_memsz)",
        ),
        _ARRAYS,
        (100,),
    ),
    "one charge for a module": (
        ("hsa/load.c", "blocks - load_covers(blocks)", "blocks"),
        _MODULES,
        (),
    ),
    "what a destroyed pool had in use": (
        (
            "shared/no_order.c",
            "    settle_all(false);\n    return RESULT_OK;",
            "    give_back_all(pool, is_of);\n    return RESULT_OK;",
        ),
        test_hip.test_what_of_a_pool_is_in_use_stays_charged_when_the_pool_goes,
        (),
    ),
    "what a pool gave back": (
        (
            "shared/no_order.c",
            "else if (all == used(pool))",
            "else if (false)",
        ),
        _GAVE_BACK,
        (),
    ),
    "what of a pool another has": (
        ("shared/no_order.c", "has != NULL ? has : chunk.owner", "chunk.owner"),
        test_hip.test_what_one_pool_has_of_another_stays_charged,
        (),
    ),
    "what of a pool is used again": (
        ("shared/no_order.c", "        used_again(pointer, pool);", "        ;"),
        _GAVE_BACK,
        (),
    ),
    "pools that are gone": (
        ("shared/no_order.c", "else if (at < POOLS && pools[at] == pool)", "else if (false)"),
        test_hip.test_a_pool_that_was_destroyed_is_no_pool_any_more,
        (),
    ),
    "what a pool lost by hipFree": (
        ("shared/no_order.c", "if (sure && has == NULL)", "if (false)"),
        test_hip.test_what_of_a_pool_is_in_use_stays_charged_when_the_pool_goes,
        (),
    ),
    "what is freed twice": (
        ("shared/no_order.c", "kept = at < POOLS &&", "kept = false &&"),
        test_hip.test_memory_that_a_program_frees_twice_is_the_pools_once,
        (),
    ),
    "what is had again where freed memory was": (
        ("shared/no_order.c", "table_get(HELD_POINTER, key, &entry)", "false"),
        test_hip.test_memory_that_a_program_frees_twice_is_the_pools_once,
        (),
    ),
    "what a thread uses again while another frees": (
        ("shared/no_order.c", "        used_again(pointer, pool);", "        ;"),
        _beside_a_thread,
        (),
    ),
    "what a pool keeps of what hipFree frees": (
        (
            "shared/no_order.c",
            "keep_as(HELD_FREED, chunk, sure ?",
            "keep_as(HELD_CHUNK, chunk, sure ?",
        ),
        _at_once,
        (),
    ),
    "what a reset left": (
        ("shared/no_ends.c", "        if (!back)\n", "        if (false)\n"),
        _RESETS,
        (),
    ),
    "what small arrays leave": (
        ("shared/array.c", "if (in_kept_block(entry->device, entry->bytes))", "if (false)"),
        test_hip.test_small_arrays_leave_no_room_that_the_card_does_not_have,
        (),
    ),
    "memory of the host": (
        ("hip/memory.c", "DRIVER(HostMalloc) != NULL ? DRIVER(HostMalloc) : real", "real"),
        test_hip.test_memory_of_the_host_is_the_hosts,
        (),
    ),
    "the charge of scratch": (
        ("hsa/scratch.c", "!charge_at_once(device, bytes)", "false"),
        _SCRATCH,
        (),
    ),
    "scratch that is given back": (
        ("hsa/scratch.c", "if (ours && answer == 0)", "if (false)"),
        _SCRATCH,
        (),
    ),
    "scratch that no kernel uses": (
        ("shared/blocks.c", "BLOCKS_ARE_KEPT && table_find", "false && table_find"),
        _SCRATCH,
        (),
    ),
    "the address of what is refused": (
        ("shared/blocks.c", "*pointer = (pointer_t)0;", "(void)pointer;"),
        test_hip_scratch.test_memory_that_is_refused_is_at_no_address,
        (),
    ),
    "the last error of a launch": (
        ("shared/launch.c", "__builtin_expect(answer != RESULT_OK, 0)", "false"),
        _ARRAYS,
        (50,),
    ),
}
#: What a test says then where its program does not come to say what is compared: what AMD's runtime
#: says of an image that it should not have had, what was refused, an alarm for one that waits.
SAID = {
    "segments far from their start": r"(?s)^exit -6\n.*IsAddressInSegment",
    "one charge for a module": r"(?s)^exit 1\n.* 42 MiB refused: 42 of 64 ",
    "what a pool gave back": r"(?s)^exit 1\n.* 22 MiB refused: 52 of 64 ",
    "pools that are gone": r"^exit -14\n",
    "what is freed twice": r"^exit -11\n",
}


def test_each_revert_is_of_the_sources_as_they_are() -> None:
    for (file, before, _), _test, _more in REVERTS.values():
        assert 1 == (LIMITERS / file).read_text().count(before), (file, before)


@pytest.mark.hip
@pytest.mark.soak
@pytest.mark.parametrize("name", REVERTS)
def test_without_the_line_its_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    edit, test, more = REVERTS[name]
    library = mutated((edit,), tmp_path / "limiters", "hip")
    monkeypatch.setattr(test_hip, "LIMITER", library)
    monkeypatch.setattr(hetero_limiters, "library", lambda _api: library)
    rack = Rack(tmp_path, Machine(tmp_path, test_hip.RACK), api="hip_driver")
    with pytest.raises(AssertionError, match=SAID.get(name, "^assert ")) as failure:
        test(rack, *more)
    print(failure.value)
