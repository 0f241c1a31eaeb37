"""With a fault, memory and time get past the limiter for Ascend (limiters/core/fault.h)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import test_acl
import test_acl_launches
from tenancy import Rack, with_faults

Test = Callable[[Rack], None]


def _books(rack: Rack) -> None:
    test_acl.test_what_is_charged_is_what_the_card_has_of_the_process(rack, "EXACT")


def _forced(rack: Rack) -> None:
    test_acl.test_what_goes_with_its_device_is_the_grants_again(rack, "aclrtResetDeviceForce(0)")


def _closed(rack: Rack) -> None:
    test_acl.test_a_runtime_whose_calls_of_the_driver_are_not_seen_gets_no_memory(rack.directory)


def _codes(rack: Rack) -> None:
    test_acl.test_a_refusal_has_the_code_of_no_memory_whatever_the_runtime_makes_of_it(
        rack.directory
    )


_LAUNCHES = test_acl_launches.test_each_function_that_launches_passes_the_gate_once
_PHYSICAL = test_acl.test_physical_memory_is_charged_until_its_last_handle_and_mapping_go
#: By fault: the tests that fail with it.
TESTS_BY_FAULT: dict[str, tuple[Test, ...]] = {
    "executes_ungated": (_LAUNCHES,),
    "exported_blocks_refunded": (_PHYSICAL,),
    "forced_resets_unseen": (_forced,),
    "hal_frees_unseen": (_books,),
    "handles_unanswered": (test_acl.test_each_door_to_the_driver_leads_to_the_limiter,),
    "hal_uncharged": (
        test_acl.test_each_layer_says_its_own_code_at_the_limit,
        test_acl.test_each_door_to_the_driver_leads_to_the_limiter,
        test_acl.test_memory_of_a_pool_is_charged_until_the_driver_has_it_back,
    ),
    "launches_below_ungated": (_LAUNCHES,),
    "loader_calls_unanswered": (
        test_acl.test_a_program_finds_the_driver_s_folder_by_the_address_of_its_functions,
    ),
    "physical_uncharged": (_PHYSICAL,),
    "refusal_unnamed": (_codes,),
    "reset_memory_refunded": (test_acl.test_a_reset_that_ends_nothing_gives_nothing_back,),
    "shared_memory_refunded": (
        test_acl.test_memory_that_another_process_has_open_stays_charged_until_that_is_over,
    ),
    "unseen_driver_trusted": (_closed,),
}
#: What a test says then where its program does not come to say what is compared: launches that are
#: waited for in vain.
SAID = dict.fromkeys(
    ("executes_ungated", "launches_below_ungated"), r"(?s)^exit 1\n.* in counted\n"
)
PAIRS = [(fault, test) for fault, tests in TESTS_BY_FAULT.items() for test in tests]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "test"), PAIRS, ids=[f"{fault}-{test.__name__}" for fault, test in PAIRS]
)
def test_with_a_fault_its_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, test: Test
) -> None:
    monkeypatch.setattr(test_acl, "LIMITER", with_faults("acl"))
    monkeypatch.setenv("HETERO_FAULT", fault)
    with pytest.raises(AssertionError, match=SAID.get(fault, r"^\s*assert ")) as failure:
        test(test_acl.racked(tmp_path, "cann8"))
    print(failure.value)
