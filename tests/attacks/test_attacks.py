"""What programs get that try to get more than their grant, on the simulated driver."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attacks import ATTACKS, BY_NAME, HERE, SOON, grant_for, report_of, seen, simulated_rack, start
from tenancy import Rack

from tests.programs import completed


def _held(directory: Path, name: str) -> None:
    attack = BY_NAME[name]
    grant = grant_for(attack, simulated_rack(attack, directory))
    answer = report_of(start(attack, grant, directory))
    assert answer["held"], answer["got"]
    print(answer["got"])


def test_libcs_dlsym_by_dlsym_leads_to_the_limiter(tmp_path: Path) -> None:
    _held(tmp_path, "libc_dlsym")


def test_libcs_dlsym_by_dlvsym_leads_to_the_limiter(tmp_path: Path) -> None:
    _held(tmp_path, "libc_dlvsym")


def test_a_programs_own_functions_of_libcs_names_do_not_answer_the_limiter(tmp_path: Path) -> None:
    _held(tmp_path, "own_functions")


def test_children_that_libc_does_not_tell_of_share_their_parents_limit(tmp_path: Path) -> None:
    _held(tmp_path, "unnoticed_forks")


def test_siblings_that_close_the_limiters_descriptors_share_their_limit(tmp_path: Path) -> None:
    _held(tmp_path, "closed_files")


def test_a_programs_files_under_the_limiters_numbers_stay_its_own(tmp_path: Path) -> None:
    _held(tmp_path, "reused_numbers")


def test_a_program_that_can_open_no_more_files_keeps_its_time_slices(tmp_path: Path) -> None:
    _held(tmp_path, "no_more_files")


def test_a_thousand_and_thirty_readers_leave_a_slot_for_who_allocates(tmp_path: Path) -> None:
    _held(tmp_path, "nvml_readers")


def test_memory_freed_beside_a_stopped_sibling_is_there_again(tmp_path: Path) -> None:
    _held(tmp_path, "stopped_sibling")


def test_a_launch_in_a_constructor_or_a_destructor_does_not_hang(tmp_path: Path) -> None:
    _held(tmp_path, "in_constructor")


def test_twenty_small_fills_in_an_exit_handler_take_less_than_15_ms(tmp_path: Path) -> None:
    _held(tmp_path, "exit_handler")


def test_work_in_an_exit_handler_gets_the_share(tmp_path: Path) -> None:
    _held(tmp_path, "endless_exit")


def test_a_launch_in_a_signal_handler_does_not_hang(tmp_path: Path) -> None:
    _held(tmp_path, "signal_handler")


def test_exported_blocks_count_until_nobody_has_them(tmp_path: Path) -> None:
    _held(tmp_path, "exported_blocks")


def test_memory_that_outlives_its_graph_counts(tmp_path: Path) -> None:
    _held(tmp_path, "outliving_graphs")


def test_arrays_of_modules_count_however_they_are_written_and_loaded(tmp_path: Path) -> None:
    _held(tmp_path, "module_arrays")


def test_a_pool_counts_with_what_it_reserves(tmp_path: Path) -> None:
    _held(tmp_path, "pools_of_a_byte")


def test_what_the_threads_of_kernels_have_counts(tmp_path: Path) -> None:
    _held(tmp_path, "local_memory")


def test_stacks_heaps_and_printfs_queues_count(tmp_path: Path) -> None:
    _held(tmp_path, "context_limits")


def test_blocks_that_only_sparse_arrays_refer_to_count(tmp_path: Path) -> None:
    _held(tmp_path, "sparse_arrays")


def test_memory_freed_behind_work_counts_until_the_work_is_done(tmp_path: Path) -> None:
    _held(tmp_path, "blocked_frees")


def test_memory_whose_owner_ended_counts_while_it_is_open(tmp_path: Path) -> None:
    _held(tmp_path, "ended_owners")


def test_managed_memory_of_pools_counts(tmp_path: Path) -> None:
    _held(tmp_path, "managed_pools")


def test_the_drivers_lookup_leads_to_the_limiter_by_all_its_names(tmp_path: Path) -> None:
    _held(tmp_path, "raw_lookup")


def test_the_end_of_a_context_gives_back_its_own_memory_alone(tmp_path: Path) -> None:
    _held(tmp_path, "other_contexts")


def test_sizes_count_as_the_driver_rounds_them(tmp_path: Path) -> None:
    _held(tmp_path, "rounded_sizes")


def test_a_block_retained_while_it_is_unmapped_counts(tmp_path: Path) -> None:
    _held(tmp_path, "retained_blocks")


def test_what_the_driver_keeps_of_graphs_counts(tmp_path: Path) -> None:
    _held(tmp_path, "graph_nodes")


def test_what_seldom_calls_take_or_keep_counts(tmp_path: Path) -> None:
    _held(tmp_path, "seldom_doors")


def test_what_is_charged_before_the_card_has_it_makes_no_room(tmp_path: Path) -> None:
    _held(tmp_path, "early_charges")


def test_page_tables_of_far_addresses_count(tmp_path: Path) -> None:
    _held(tmp_path, "page_tables")


def test_arguments_that_another_thread_changes_make_no_room(tmp_path: Path) -> None:
    _held(tmp_path, "changing_arguments")


def test_ordered_memory_counts_while_captures_end_and_pools_change(tmp_path: Path) -> None:
    _held(tmp_path, "racing_pools")


def test_honest_use_of_what_attacks_use_gets_the_whole_limit(tmp_path: Path) -> None:
    _held(tmp_path, "honest_memory")


def test_captures_begun_by_other_names_have_the_programs_nodes_alone(tmp_path: Path) -> None:
    _held(tmp_path, "hidden_captures")


PARTS = """
#include "memory.h"
static void fails(void) { open_card(); must((int)CU(cuMemUnmap)(1, 1), "cuMemUnmap"); }
static void hangs(void)
{
    open_card();
    CUstream stream = blocked_stream();
    CU(cuStreamSynchronize)(stream);
}
static void crashes(void) { open_card(); CU(cuMemGetInfo_v2)((size_t *)1, (size_t *)1); }
static void works(void) { open_card(); }
int main(void)
{
    static const struct part parts[] = {
        {"one", fails}, {"two", hangs}, {"three", crashes}, {"four", works}};
    RUN_PARTS(parts);
}
"""


def test_a_part_that_fails_or_does_not_end_is_told_of_by_its_call(tmp_path: Path) -> None:
    rack, program = Rack.of(tmp_path), tmp_path / "parts"
    words = ["cc", "-D_GNU_SOURCE", "-DPART_S=2", f"-I{HERE}", "-x", "c", "-", "-o", str(program)]
    subprocess.run(words, input=PARTS, text=True, check=True)
    answer = report_of(rack.machine.spawn([str(program)], ATTACK_MEMORY=str(64 << 20)))
    assert not answer["held"]
    assert [
        "4 ways",
        "one: cuMemUnmap answered 1",
        "two: not at its end after 2 s, in cuStreamSynchronize",
        "three: status 0xb in cuMemGetInfo_v2",
    ] == answer["got"].split("; ")


ISOLATION = Path(__file__).parents[2] / "docs/isolation.md"


@pytest.mark.parametrize("name", [each.name for each in ATTACKS if not each.held])
def test_what_user_space_cannot_close_is_in_the_table_of_what_is_not_closed(
    tmp_path: Path, name: str
) -> None:
    attack = BY_NAME[name]
    answer = report_of(start(attack, grant_for(attack, simulated_rack(attack, tmp_path)), tmp_path))
    listed = [line for line in ISOLATION.read_text().splitlines() if f"`{name}.c`" in line]

    assert [True] == ["not closed" in line for line in listed]
    assert not answer["held"], answer["got"]
    assert "MiB" in answer["got"]  # it ran, and got past the limit


def test_what_user_space_cannot_close_is_seen_by_who_watches(tmp_path: Path) -> None:
    """Side by side, each on a machine of its own: to see it takes half a minute."""

    def seconds(name: str) -> float:
        (tmp_path / name).mkdir()
        rack = Rack.of(tmp_path / name)
        return seen(BY_NAME[name], rack.machine, rack.directory)

    names = [attack.name for attack in ATTACKS if not attack.held]
    with ThreadPoolExecutor() as pool:
        took = dict(zip(names, pool.map(seconds, names), strict=True))
    print(*(f"{name} seen after {each:.0f} s of {SOON}" for name, each in took.items()))
    assert max(took.values()) < 3 * SOON


def test_an_attack_that_is_not_there_is_refused_in_one_line() -> None:
    command = [sys.executable, str(HERE / "attacks.py"), "libc_dlsym", "no_such", "nor_this"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = completed(command, env=environment)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("no_such, nor_this: no such attack; there are libc_dlsym, ")
    assert 1 == done.stderr.count("\n")
