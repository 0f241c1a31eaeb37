"""With a fault, memory gets past the limiter for HIP (limiters/core/fault.h)."""

from collections.abc import Callable
from pathlib import Path

import hetero_limiters
import pytest
import test_hip
import test_hip_pools
import test_hip_scratch
from simulated import Machine
from tenancy import Rack, with_faults

Test = Callable[..., None]


def _at_once(rack: Rack) -> None:
    test_hip_pools.test_what_of_a_pool_is_freed_at_once_is_had_again(rack.directory)


def _beside_a_thread(rack: Rack) -> None:
    test_hip_pools.test_what_a_thread_takes_of_a_pool_while_another_frees_stays_charged(
        rack.directory
    )


def _arrays(rack: Rack) -> None:
    test_hip.test_arrays_that_hipcc_left_in_a_program_are_charged_until_it_is_unloaded(rack, 100)


def _launches(rack: Rack) -> None:
    test_hip.test_arrays_that_hipcc_left_in_a_program_are_charged_until_it_is_unloaded(rack, 50)


_MODULES = test_hip.test_a_module_is_charged_for_its_code_and_arrays_until_it_is_unloaded
_IN_USE = test_hip.test_what_of_a_pool_is_in_use_stays_charged_when_the_pool_goes
_GAVE_BACK = test_hip.test_what_a_pool_gave_back_is_had_again_while_some_of_it_is_in_use
_TWICE = test_hip.test_memory_that_a_program_frees_twice_is_the_pools_once
_SCRATCH = test_hip_scratch.test_scratch_is_charged_for_each_queue_and_within_the_limit
#: By fault: the tests that fail with it.
TESTS_BY_FAULT: dict[str, tuple[Test, ...]] = {
    "chunk_reuse_unnoticed": (_GAVE_BACK, _beside_a_thread),
    "chunks_of_other_pools_unnoticed": (test_hip.test_what_one_pool_has_of_another_stays_charged,),
    "destroyed_pool_refunded": (_IN_USE,),
    "double_free_passed_on": (_TWICE,),
    "failed_launch_as_others": (_launches,),
    "freed_chunks_as_used": (_at_once,),
    "gone_pools_known": (test_hip.test_a_pool_that_was_destroyed_is_no_pool_any_more,),
    "host_memory_of_the_card": (test_hip.test_memory_of_the_host_is_the_hosts,),
    "loaded_arrays_uncharged": (_arrays,),
    "module_charged_twice": (_MODULES,),
    "pool_loss_unnoticed": (_IN_USE,),
    "pool_returns_unnoticed": (_GAVE_BACK,),
    "reset_memory_refunded": (
        test_hip.test_memory_of_a_device_that_is_reset_stays_charged_as_long_as_the_card_has_it,
    ),
    "reused_address_as_freed": (_TWICE,),
    "scratch_stays_charged": (_SCRATCH,),
    "scratch_uncharged": (_SCRATCH,),
    "segments_by_offset": (_arrays,),
    "small_arrays_refunded": (
        test_hip.test_small_arrays_leave_no_room_that_the_card_does_not_have,
    ),
    "small_images_uncharged": (_arrays,),
    "unloaded_program_charged": (_arrays,),
    "unused_scratch_kept": (_SCRATCH,),
}
#: What a test says then where its program does not come to say what is compared: what AMD's runtime
#: says of an image that it should not have had, what was refused, an alarm for one that waits.
SAID = {
    "segments_by_offset": r"(?s)^exit -6\n.*IsAddressInSegment",
    "module_charged_twice": r"(?s)^exit 1\n.* 42 MiB refused: 42 of 64 ",
    "pool_returns_unnoticed": r"(?s)^exit 1\n.* 22 MiB refused: 52 of 64 ",
    "gone_pools_known": r"^exit -14\n",
    "double_free_passed_on": r"^exit -11\n",
}
PAIRS = [(fault, test) for fault, tests in TESTS_BY_FAULT.items() for test in tests]


@pytest.mark.hip
@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "test"), PAIRS, ids=[f"{fault}-{test.__name__}" for fault, test in PAIRS]
)
def test_with_a_fault_its_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, test: Test
) -> None:
    library = with_faults("hip")
    monkeypatch.setattr(test_hip, "LIMITER", library)
    monkeypatch.setattr(hetero_limiters, "library", lambda _api: library)
    monkeypatch.setenv("HETERO_FAULT", fault)
    rack = Rack(tmp_path, Machine(tmp_path, test_hip.RACK), api="hip_driver")
    with pytest.raises(AssertionError, match=SAID.get(fault, "^assert ")) as failure:
        test(rack)
    print(failure.value)
