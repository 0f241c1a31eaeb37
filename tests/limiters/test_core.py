"""The limiter's core as an ordinary library: its tests, under sanitizers, fuzzed, killed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tenancy import LIMITER

from tests.programs import completed

HERE = Path(__file__).parent
LIMITERS = LIMITER.parents[2]
BUILD = LIMITERS / "build"
#: What a fuzzer starts from, by what it is about.
CORPUS = {
    kind: sorted((HERE / "corpus").glob(f"{kind}-*"))
    for kind in ("grant", "region", "tenant", "image")
}
#: What runs it, and the same as libFuzzer has it.
FUZZERS = dict.fromkeys(CORPUS, ("fuzz", "libfuzzer")) | {
    "image": ("image_fuzz", "libfuzzer_of_images")
}
#: Every test of theirs, by the program it is in.
TESTS = {
    line[len("TEST(") : -len(")")]: source.stem
    for source in sorted(HERE.glob("*_test.c"))
    for line in source.read_text().splitlines()
    if line.startswith("TEST(")
}
#: Hours of virtual time.
LONGEST = (
    "a_hundred_thousand_killed_tenants_are_each_followed_within_5_ms",
    "no_gang_stands_still_in_a_million_rows",
)
#: Minutes of virtual time, which take ten times as long under a sanitizer and run no other code.
LONG = (
    "no_engine_is_charged_more_than_its_share",
    "an_engine_alone_is_slowed_only_below_its_need",
    "an_engine_alone_is_charged_what_its_rare_prefills_take",
    "an_engine_that_has_less_than_it_needs_is_charged_what_it_takes",
    "engines_that_need_a_third_have_what_they_have_without_a_limiter",
    "engines_whose_steps_are_a_graph_behind_small_launches_have_what_they_have_without_a_limiter",
    "two_engines_that_need_two_thirds_have_what_they_have_without_a_limiter",
    "holds_that_last_a_turn_of_others_longer_are_not_charged",
    "what_was_lent_is_back_within_10_ms_and_what_is_in_flight",
    "shares_beside_high_priority_are_shares",
    "tenants_that_lose_their_processor_never_have_the_slice_together",
    "processes_of_a_grant_get_their_share_of_what_they_have_alone",
    "processes_of_a_grant_are_in_its_time_slice_together_where_a_service_runs_them",
    "kernels_of_most_of_a_minute_in_a_row_start_ever_more_seldom",
    "short_kernels_beside_high_priority_and_a_long_kernel_get_their_share",
    "four_quarters_are_quarters",
    "a_tenant_that_says_that_processes_of_its_own_are_busy_has_its_share",
    "a_tenant_that_says_that_it_is_owed_most_costs_its_neighbours_a_few_points_and_no_more",
    "what_a_pause_costs_a_program_is_made_good",
    "whoever_shares_a_card_has_its_share_and_none_of_its_processes_starves",
    "programs_of_small_and_rare_long_kernels_have_their_shares",
    "a_program_whose_long_kernels_are_rare_takes_nothing_from_others",
    "a_program_whose_kernels_get_longer_has_no_more_than_its_share",
    "kernels_of_all_sizes_are_charged_once",
    "a_tenant_that_says_that_it_used_much_buys_another_no_more_than_its_own_share",
    "a_share_of_a_busy_device_is_kept_whatever_the_kernels_take",
    "alone_kernels_of_any_length_get_their_share",
    "a_tenth_of_kernels_of_two_seconds_costs_its_neighbour_nothing_for_long",
    "two_with_kernels_of_seconds_have_their_shares",
    "what_one_long_kernel_took_is_owed_in_full_up_to_half_a_minute",
    "kernels_of_any_length_on_lent_time_cost_their_neighbour_nothing",
    "a_tenant_that_never_gives_its_time_slice_up_costs_its_neighbour_its_own_share_at_most",
    "a_tenant_that_says_that_it_is_always_busy_buys_another_no_more_than_its_own_share",
    "a_tenant_stopped_in_its_slice_is_waited_for_once_and_has_its_share_again",
    "a_tenant_stopped_again_and_again_while_its_kernels_run_costs_its_neighbour_nothing",
    "a_tenant_stopped_while_each_of_its_kernels_runs_gets_no_more_than_its_share",
    "beside_one_that_waits_no_more_nothing_is_lent",
    "on_machines_of_honest_tenants_each_has_its_share_within_a_point",
    "on_machines_of_long_kernels_each_has_its_share_within_two_points",
    "on_machines_whose_tenants_come_and_go_each_has_its_share_while_it_is_there",
    "on_long_machines_nobody_is_kept_from_a_card_by_what_others_do",
    "a_gang_alone_has_its_share",
    "what_a_gang_alone_leaves_idle_costs_it_nothing",
    "a_gang_on_cards_of_unlike_speed_has_its_share",
    "two_gangs_on_cards_of_unlike_speed_have_half_each",
    "a_gang_whose_processes_launch_unlike_numbers_has_its_share",
    "two_gangs_on_the_same_cards_have_half_each",
    "a_gang_and_programs_of_one_card_have_half_each",
    "a_gang_whose_host_is_busy_elsewhere_has_its_share",
    "a_gang_whose_hosts_pause_has_its_share",
    "a_gang_that_is_hardly_stopped_is_ahead_of_its_devices",
    "two_gangs_whose_hosts_pause_have_what_their_lead_saves",
    "a_host_hardly_faster_than_its_device_costs_rows_beside_others_only",
    "a_period_of_40_or_400_ms_leaves_each_its_share",
    "a_row_that_was_lent_comes_back_at_its_end",
    "processes_that_wait_for_each_other_in_any_way_go_on",
    "a_graph_overruns_a_row_by_one_operation",
    "a_gang_that_is_never_idle_keeps_its_neighbours_share",
    "a_gang_of_four_has_its_share_beside_two_of_two",
    "a_gang_of_two_nodes_has_its_share_whatever_their_clocks_say",
    "programs_beside_a_gang_of_two_nodes_keep_their_share",
    "high_priority_in_a_row_is_counted_and_charged_to_nobody",
    "processes_that_exchange_nothing_each_have_their_share",
    "whether_processes_wait_for_each_other_is_found_out",
    "a_launcher_that_is_let_through_as_it_falls_asleep_comes_at_once",
    "no_gang_stands_still_in_ten_thousand_rows",
    "gangs_and_programs_of_one_card_at_random_have_their_shares",
    *LONGEST,
)
#: Those in which threads of one process meet.
THREADED = (
    "threads_of_one_process_never_reserve_more_than_the_limit",
    "garbage_in_the_region_raises_no_limit_and_stops_nobody",
    "a_stopped_holder_of_the_slice_is_waited_for_once",
    "a_page_that_is_short_or_torn_or_another_is_silent",
    "the_slice_is_one_tenants_of_a_priority_at_a_time",
    "threads_pass_the_gate_of_a_governor_in_real_time",
)


def _run(program: str, *arguments: object, timeout: float = 550) -> str:
    command = [str(BUILD / program), *map(str, arguments)]
    done = completed(command, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [name for name in TESTS if name not in LONGEST])
def test_core(name: str) -> None:
    print(_run(TESTS[name], name))


@pytest.mark.parametrize(
    "seed",
    [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2_501, 10_001, 2_500))],
)
def test_on_ten_thousand_machines_nobody_is_kept_from_a_card(seed: int) -> None:
    name = "on_short_machines_nobody_is_kept_from_a_card_by_what_others_do"
    print(_run("random_test", name, seed, 2_500))


@pytest.mark.parametrize("name", [name for name in TESTS if name not in LONG])
@pytest.mark.usefixtures("instrumented")
def test_core_leaves_its_memory_whole_and_its_arithmetic_defined(name: str) -> None:
    few = (1, 25) if TESTS[name] == "random_test" else ()  # a machine takes half a second there
    _run(f"address/{TESTS[name]}", name, *few)


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.usefixtures("instrumented")
def test_core_has_no_data_race(name: str) -> None:
    _run(f"thread/{TESTS[name]}", name)


@pytest.mark.parametrize(
    ("kind", "mutations"),
    [("grant", 10_000), ("region", 3_000), ("tenant", 100), ("image", 20_000)],
)
@pytest.mark.usefixtures("instrumented")
def test_no_input_of_the_fuzzers_and_no_mutation_of_one_harms_the_core(
    kind: str, mutations: int
) -> None:
    _run(f"address/{FUZZERS[kind][0]}", mutations, *CORPUS[kind])


@pytest.mark.measured
def test_after_kill_9_the_next_owner_is_there_at_once() -> None:
    print(_run("kill_test", 1000))


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in LONG if name not in LONGEST])
@pytest.mark.usefixtures("instrumented")
def test_minutes_of_virtual_time_leave_memory_whole(name: str) -> None:
    few = (1, 25) if TESTS[name] == "random_test" else ()
    _run(f"address/{TESTS[name]}", name, *few, timeout=3600)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "mutations"),
    [("grant", 500_000), ("region", 500_000), ("tenant", 5_000), ("image", 2_000_000)],
)
@pytest.mark.usefixtures("instrumented")
def test_a_million_mutations_harm_the_core_no_more(kind: str, mutations: int) -> None:
    _run(f"address/{FUZZERS[kind][0]}", mutations, *CORPUS[kind], timeout=3600)


@pytest.mark.soak
def test_after_kill_9_at_a_hundred_thousand_points_nothing_is_stuck() -> None:
    print(_run("kill_test", 100_000, timeout=3600))


@pytest.mark.soak
@pytest.mark.parametrize("name", LONGEST)
def test_hours_of_virtual_time_find_nobody_kept_from_a_card(name: str) -> None:
    print(_run(TESTS[name], name, timeout=3600))


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "on_machines_of_long_kernels_each_has_its_share_within_two_points",
        "on_machines_whose_tenants_come_and_go_each_has_its_share_while_it_is_there",
    ],
)
def test_on_four_hundred_machines_each_has_its_share(name: str) -> None:
    print(_run("random_test", name, 1, 400, timeout=3600))


@pytest.mark.soak
def test_in_a_million_time_slices_nobody_is_kept_from_a_card() -> None:
    name = "on_long_machines_nobody_is_kept_from_a_card_by_what_others_do"
    printed = _run("random_test", name, 1, 13_000, timeout=3600)
    print(printed)
    counted = re.search(r"(\d+) time slices", printed)
    assert counted is not None
    assert int(counted[1]) >= 1_000_000


@pytest.mark.soak
def test_in_a_million_rows_and_time_slices_gangs_and_programs_of_one_card_have_their_shares() -> (
    None
):
    name = "gangs_and_programs_of_one_card_at_random_have_their_shares"
    printed = _run("gangs_test", name, 1, 1_500, 1.5, timeout=3600)
    print(printed.splitlines()[-1])
    counted = re.search(r"(\d+) rows and (\d+) time slices", printed)
    assert counted is not None
    assert int(counted[1]) + int(counted[2]) >= 1_000_000


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", CORPUS)
@pytest.mark.skipif(
    shutil.which("clang") is None,
    reason="libFuzzer comes with clang (Debian: apt-get install clang)",
)
def test_libfuzzer_finds_nothing_in_ten_minutes(tmp_path: Path, kind: str) -> None:
    fuzzer = FUZZERS[kind][1]
    subprocess.run(["make", "-s", "-C", LIMITERS, f"build/{fuzzer}"], check=True, timeout=300)
    for seed in CORPUS[kind]:
        shutil.copy(seed, tmp_path)
    length = max(seed.stat().st_size for seed in CORPUS[kind])
    _run(fuzzer, "-max_total_time=600", f"-max_len={max(length, 2113)}", tmp_path, timeout=900)
