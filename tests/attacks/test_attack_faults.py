"""Each attack succeeds when a fault takes out what holds it (limiters/core/fault.h)."""

import re
from pathlib import Path

import pytest
import tenancy
import test_acl_faults
import test_contexts
import test_exec
import test_figures
import test_hip_faults
import test_model
import test_processes
import test_visible
from attacks import (
    ATTACKS,
    BY_NAME,
    OF_OTHERS,
    OF_TIME,
    grant_for,
    honest_result,
    report_of,
    simulated_rack,
    start,
)

LIMITERS = tenancy.LIMITER.parents[2]
FAULTS = LIMITERS / "core/faults.def"
#: By fault: the attacks that are not held with it.
ATTACKS_BY_FAULT: dict[str, tuple[str, ...]] = {
    # core
    "descriptor_unchecked": ("reused_numbers",),
    "forks_unnoticed": ("unnoticed_forks",),
    "late_release_forgotten": ("stopped_sibling",),
    "libc_by_search_order": ("own_functions",),
    "loader_calls_unanswered": ("libc_dlsym", "libc_dlvsym"),
    "opening_may_wait": ("shared_files",),
    "readers_take_slots": ("nvml_readers",),
    "slot_lock_in_a_descriptor": ("closed_files",),
    "symbols_resolved_late": ("in_constructor",),
    # timeshare
    "exit_unannounced": ("working_exit",),
    "exit_uncharged": ("endless_exit",),
    "exits_charged_apart": ("many_exits",),
    "gate_open_without_governor": ("frozen_thread",),
    "handler_inside_while_it_waits": ("signal_handler",),
    "long_kernels_at_once": ("many_launchers",),
    "rare_long_kernels_unseen": ("rare_long_kernels",),
    "signals_inside_the_lock": ("signal_handler",),
    "streams_untracked": ("many_streams",),
    "stuck_launcher_waited_for": ("stuck_launcher",),
    "time_slices_at_exit": ("exit_handler",),
    "timer_slack_left": ("late_sleeper",),
    "trailing_work_forgiven": ("long_kernels", "long_graphs"),
    "unfenced_work_forgotten": ("late_captures",),
    # shared and cuda
    "arguments_read_twice": ("changing_arguments", "local_memory"),
    "captured_pools_uncharged": ("racing_pools",),
    "charges_of_others_make_room": ("early_charges",),
    "code_growth_uncharged": ("module_arrays",),
    "contexts_uncharged": ("many_contexts",),
    "context_ends_uncharged": ("ended_contexts",),
    "own_events_named": ("own_events",),
    "context_limits_uncharged": ("context_limits",),
    "early_charges_make_room": ("early_charges",),
    "every_context_ends": ("other_contexts",),
    "exported_blocks_refunded": ("exported_blocks",),
    "exported_pools_unknown": ("ended_owners",),
    "fat_binaries_unread": ("module_arrays",),
    "frees_believed_early": ("blocked_frees",),
    "governor_unprepared": ("no_more_files",),
    "graph_memory_uncharged": ("outliving_graphs",),
    "graph_nodes_uncharged": ("graph_nodes",),
    "graph_updates_uncharged": ("outliving_graphs",),
    "hidden_bytes_make_room": ("early_charges",),
    "kernel_functions_unknown": ("local_memory",),
    "lazy_globals_uncharged": ("module_arrays",),
    "libraries_in_one_context": ("other_contexts",),
    "library_use_unnoticed": ("module_arrays",),
    "local_memory_in_graphs_uncharged": ("local_memory",),
    "local_memory_uncharged": ("local_memory",),
    "made_names_unguarded": ("changing_arguments",),
    "managed_memory_unbatched": ("managed_pools",),
    "mappings_unlocked": ("retained_blocks",),
    "module_arrays_uncharged": ("module_arrays",),
    "one_device_gated": ("several_devices",),
    "others_frees_believed": ("ended_owners",),
    "page_tables_uncharged": ("page_tables",),
    "pinned_pools_buried": ("racing_pools",),
    "pitch_unguarded": ("changing_arguments",),
    "pool_growth_uncharged": ("pools_of_a_byte",),
    "pool_unnamed": ("racing_pools",),
    "pools_stay_charged": ("honest_memory",),
    "prefetches_ungated": ("ungated_work",),
    "raised_local_memory_uncharged": ("local_memory",),
    "raw_lookup_unanswered": ("raw_lookup",),
    "recaptures_unnoticed": ("hidden_captures",),
    "shared_memory_refunded": ("ended_owners", "seldom_doors"),
    "sizes_unrounded": ("rounded_sizes",),
    "stream_ends_keep_frees": ("blocked_frees",),
    "streams_read_twice": ("changing_streams",),
    "surplus_ends_passed_on": ("ended_management",),
    "tiles_by_key_alone": ("sparse_arrays",),
    "tiles_hold_no_block": ("sparse_arrays",),
    "tiles_read_twice": ("sparse_arrays",),
    "views_unsettled": ("seldom_doors",),
}
PAIRS = [(fault, attack) for fault, attacks in ATTACKS_BY_FAULT.items() for attack in attacks]


def test_each_attack_that_is_held_has_a_fault_that_lets_it_through() -> None:
    held = {attack.name for attack in (*ATTACKS, *OF_TIME, *OF_OTHERS) if attack.held}
    assert held - {"floods"} == {attack for _, attack in PAIRS}  # nothing charges those calls


def test_each_fault_is_in_the_limiter_and_in_a_table_of_tests() -> None:
    listed = re.findall(r"^FAULT_NAME\((\w+)\)", FAULTS.read_text(), re.MULTILINE)
    sources = [*LIMITERS.glob("*/*.[ch]"), *LIMITERS.glob("*/*.def")]
    text = "".join(source.read_text() for source in sources if source.stem != "fault")
    use = r"\b(?:FAULT|FAULT_PAUSE|FAULT_VALUE|UNLESS_FAULT)\((\w+)[,)]"
    used = set(re.findall(use, text)) - {"fault"}  # a parameter
    elsewhere = {*test_hip_faults.TESTS_BY_FAULT, *test_model.FAULTS, *test_processes.FAULTS}
    elsewhere |= {
        *test_contexts.FAULTS,
        *test_exec.FAULTS,
        *test_figures.FAULTS,
        *test_visible.FAULTS,
        *test_acl_faults.TESTS_BY_FAULT,
    }
    tested = {*ATTACKS_BY_FAULT, *elsewhere}

    assert len(listed) == len(set(listed))
    assert set(listed) == used
    assert set(listed) == tested


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "name"), PAIRS, ids=[f"{fault}-{name}" for fault, name in PAIRS])
def test_an_attack_succeeds_with_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, name: str
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", tenancy.with_faults("cuda"))
    monkeypatch.setenv("HETERO_FAULT", fault)
    if name in BY_NAME:
        attack = BY_NAME[name]
        grant = grant_for(attack, simulated_rack(attack, tmp_path))
        answer = report_of(start(attack, grant, tmp_path))
    else:
        (attack,) = (each for each in OF_OTHERS if each.name == name)
        answer = honest_result(attack, tmp_path)
    assert not answer["held"], answer["got"]
    assert attack not in OF_TIME or not answer["got"].startswith("exit"), answer["got"]
    print(answer["got"])
