"""Without the lines that decide who runs when, a program misses its share."""

from pathlib import Path

import pytest
from tenancy import LIMITER, in_virtual_time_without

LIMITERS = LIMITER.parents[2]

Edit = tuple[str, str, str]
#: By what is taken out: in which file which text becomes which, and the test that fails then.
REVERTS: dict[str, tuple[Edit, str]] = {
    "the end of a wait for a launch of one's own": (
        (
            "timeshare/spin.c",
            "#define SPINS_LONG_NS (30000 * MS)",
            "#define SPINS_LONG_NS (60000 * MS)",
        ),
        "long_kernels_test: "
        "a_kernel_that_waits_for_a_launch_of_its_own_grant_gets_it_in_half_a_minute",
    ),
    "that it is not ended at once": (
        (
            "timeshare/spin.c",
            "#define SPINS_LONG_NS (30000 * MS)",
            "#define SPINS_LONG_NS (1000 * MS)",
        ),
        "long_kernels_test: what_a_kernel_of_twelve_seconds_took_from_its_neighbour_is_given_back",
    ),
    "the launches that a kernel may spin for": (
        ("timeshare/spin.c", "#define SPINS    4u", "#define SPINS    0u"),
        "spins_test: a_launch_that_a_kernel_spins_for_is_made_in_fifty_milliseconds",
    ),
    "the small copies that a kernel may spin for": (
        ("timeshare/spin.c", "#define SPINS_SMALL 8u", "#define SPINS_SMALL 0u"),
        "spins_test: small_copies_that_a_kernel_spins_for_are_made_at_once",
    ),
    "launches that are timed where they run": (
        ("timeshare/light.h", "#define LIGHT_TIMED         8u", "#define LIGHT_TIMED         1e9"),
        "adaptive_test: a_program_that_is_short_while_it_is_held_has_its_share",
    ),
    "that they are timed beside others": (
        (
            "timeshare/light_run.c",
            "    return (light->graphs.are_launched || is_unsure(governor)) &&",
            "    return light->graphs.are_launched &&",
        ),
        "adaptive_test: a_program_that_is_short_while_it_is_held_has_its_share",
    ),
    "that an engine goes on in the time slice of one that borrows": (
        (
            "timeshare/time_slice.c",
            "ANY(time_slice, runs(it) && !borrows(it));",
            "ANY(time_slice, runs(it));",
        ),
        "engines_test: an_elastic_engine_goes_on_while_its_neighbour_borrows",
    ),
    "that it does not pay for what it had beside one that borrows": (
        (
            "timeshare/time_slice.c",
            "ANY(time_slice, it->busy_process_count > 0 && !borrows(it));",
            "ANY(time_slice, it->busy_process_count > 0);",
        ),
        "engines_test: an_elastic_engine_goes_on_while_its_neighbour_borrows",
    ),
    "that a hold beside others may tell nothing": (
        (
            "timeshare/light_run.c",
            "if (light->graphs.are_launched && !is_certain(governor, ns))",
            "if (false)",
        ),
        "engines_test: holds_that_last_a_turn_of_others_longer_are_not_charged",
    ),
    "that the next launch is drawn among few": (
        (
            "timeshare/light.h",
            "#define LIGHT_SPREAD_GRAPH_LAUNCHES 512u",
            "#define LIGHT_SPREAD_GRAPH_LAUNCHES 8192u",
        ),
        "engines_test: an_engine_alone_is_charged_what_its_rare_prefills_take",
    ),
    "what neighbours used while a prefill was in flight": (
        (
            "timeshare/light_run.c",
            "neighbours_leave(governor, elapsed(watch->charged_until_at_ns, now))",
            "elapsed(watch->charged_until_at_ns, now)",
        ),
        "engines_test: an_engine_that_has_less_than_it_needs_is_charged_what_it_takes",
    ),
    "that high priority without time slices asks for no low latency": (
        (
            "timeshare/governor.c",
            "== HETERO_PRIORITY_HIGH && !light_needs_no_slice(governor))",
            "== HETERO_PRIORITY_HIGH)",
        ),
        "engines_test: training_beside_an_engine_of_high_priority_has_its_share",
    ),
    "what tells a wait from work": (
        (
            "timeshare/tracked_streams.c",
            "streams->engine->passed(stream->waits[0].before_fence);",
            "false;",
        ),
        "waits_test: a_program_that_waits_for_a_launch_of_its_own_goes_on",
    ),
    "what is done behind a wait": (
        (
            "timeshare/governor.c",
            "charged_until_at_ns = works || gate_waits(&governor->gate) ? now_ns : 0;",
            "charged_until_at_ns = works ? now_ns : 0;",
        ),
        "waits_test: work_behind_functions_on_the_host_has_its_share",
    ),
    "the end of a drain": (
        (
            "timeshare/governor.c",
            "#define DRAIN_NS (100 * MS)",
            "#define DRAIN_NS (1000000 * MS)",
        ),
        "stops_test: "
        "a_tenant_stopped_again_and_again_while_its_kernels_run_costs_its_neighbour_nothing",
    ),
    "a launch that came after the clock was read": (
        (
            "timeshare/governor.c",
            "if (elapsed(course->charged_until_at_ns, now_ns) > PAGES_STOPPED_NS) "
            "/* it was stopped",
            "if (now_ns - course->charged_until_at_ns > PAGES_STOPPED_NS) /* it was stopped",
        ),
        "priority_test: shares_beside_high_priority_are_shares",
    ),
    "what was in flight at the last look before a stop": (
        (
            "timeshare/governor.c",
            "course->busy_at_ns + course->idle_gap_ns <= course->looked_at_ns && !wanted",
            "course->busy_at_ns + course->idle_gap_ns <= course->closed_at_ns && !wanted",
        ),
        "stops_test: "
        "a_tenant_stopped_again_and_again_while_its_kernels_run_costs_its_neighbour_nothing",
    ),
    "what neighbours in debt took": (
        (
            "timeshare/governor.c",
            "        account_keep(&governor->account, elapsed(since_ns, now_ns));",
            "        (void)since_ns;",
        ),
        "long_kernels_test: what_a_kernel_of_twelve_seconds_took_from_its_neighbour_is_given_back",
    ),
    "what was charged because a neighbour was not believed": (
        (
            "timeshare/governor.c",
            "account_give_back(&governor->account, doubt_end(&governor->doubt, &governor->pace));",
            "(void)account_give_back;",
        ),
        "long_kernels_test: what_one_long_kernel_took_is_owed_in_full_up_to_half_a_minute",
    ),
    "that it was slower": (
        ("timeshare/doubt.h", "#define DOUBT_TIMES       1.5", "#define DOUBT_TIMES       0.0"),
        "shares_test: a_tenant_that_said_that_it_was_busy_for_long_buys_another_nothing_afterwards",
    ),
    "that launches in debt become rare": (
        ("timeshare/spin.c", "SPINS_LONG_NS && !spin->has_passed_long", "SPINS_LONG_NS"),
        "long_kernels_test: kernels_of_most_of_a_minute_in_a_row_start_ever_more_seldom",
    ),
    "that turns of others make no kernel long": (
        (
            "timeshare/gate.c",
            "elastic && !atomic_load_explicit(&gate->others_work, memory_order_relaxed);",
            "elastic;",
        ),
        "long_kernels_test: "
        "beside_a_long_kernel_those_of_a_millisecond_are_not_taken_for_long_ones",
    ),
    "what a time slice leaves in flight": (
        (
            "timeshare/governor.c",
            "begin_trail(governor, now_ns, !drained);",
            "governor->trail.charged_until_at_ns = 0;",
        ),
        "long_kernels_test: two_with_kernels_of_seconds_have_their_shares",
    ),
    "one's part of what several have": (
        (
            "timeshare/governor.c",
            "uint64_t ran_ns = budget_part(ours_ns, other_count);",
            "uint64_t ran_ns = budget_part(ours_ns, 0);",
        ),
        "long_kernels_test: two_with_kernels_of_seconds_have_their_shares",
    ),
    "the book": (
        ("timeshare/pages.c", "    if (neighbour->book.is_overdrawn) {", "    if (false) {"),
        "shares_test: a_tenant_that_never_gives_its_time_slice_up_"
        "costs_its_neighbour_its_own_share_at_most",
    ),
    "that a launcher waits for longer beside others": (
        (
            "timeshare/gate.c",
            "THROTTLE_NS << atomic_load_explicit(&gate->others_work, memory_order_relaxed);",
            "THROTTLE_NS;",
        ),
        "random_test: on_short_machines_nobody_is_kept_from_a_card_by_what_others_do",
    ),
    "who goes on beside others": (
        ("timeshare/light.h", "(runs && !alone ? 1 : 3)", "3"),
        "light_test: who_runs_beside_others_goes_on_while_it_is_likely_that_it_needs_little",
    ),
    "who begins again": (
        (
            "timeshare/light_run.c",
            "others == 0 && time_slice_held(&governor->time_slice) ? 1 : others",
            "others",
        ),
        "light_test: an_elastic_decoder_runs_beside_an_elastic_prefill",
    ),
    "launches that are charged anew": (
        (
            "timeshare/light.h",
            "struct light_reckoned *reckoned = &light->reckoned;",
            "struct light_reckoned none = {0}, *reckoned = &none;",
        ),
        "light_test: a_program_whose_kernels_get_longer_has_no_more_than_its_share",
    ),
    "long kernels that were charged by number": (
        (
            "timeshare/light_run.c",
            "course->ahead_ns += light_has_more(&governor->light, made.kernels);",
            "(void)light_has_more;",
        ),
        "light_test: kernels_of_all_sizes_are_charged_once",
    ),
    "what a page may say that it used without a time slice": (
        (
            "timeshare/pages.c",
            "used_ns = used_ns < neighbour->book.light_claim_ns ? used_ns : "
            "neighbour->book.light_claim_ns;",
            "",
        ),
        "shares_test: a_tenant_that_says_that_it_used_much_buys_another_no_more_than_its_own_share",
    ),
    "how long a time slice is waited for": (
        (
            "timeshare/time_slice.h",
            "#define TIME_SLICE_PATIENCE_NS INT64_C(300000000)",
            "#define TIME_SLICE_PATIENCE_NS INT64_C(3000000000)",
        ),
        "siblings_test: "
        "a_process_that_is_stopped_in_its_time_slice_keeps_its_siblings_for_half_a_second_at_most",
    ),
    "that two short kernels are in flight beside high priority": (
        (
            "timeshare/gate.c",
            "#define IN_FLIGHT_SHORT            2u",
            "#define IN_FLIGHT_SHORT            1u",
        ),
        "priority_test: "
        "training_whose_thread_is_hardly_faster_than_the_card_has_nine_tenths_of_what_requests_leave",
    ),
    "that processes of a grant are in its time slice together": (
        (
            "timeshare/governor.c",
            "elapsed(governor->company.stamp_seen_at_ns, now_ns) < IDLE_NS && account_allows",
            "false && account_allows",
        ),
        "siblings_test: "
        "processes_of_a_grant_are_in_its_time_slice_together_where_a_service_runs_them",
    ),
    "that a time slice of theirs is charged once": (
        (
            "timeshare/governor.c",
            "    if (follows(governor))",
            "    if (false)",
        ),
        "siblings_test: "
        "processes_of_a_grant_are_in_its_time_slice_together_where_a_service_runs_them",
    ),
    "that it ends when all of theirs is done": (
        (
            "timeshare/governor.c",
            "time_slice_siblings(&governor->time_slice) == 0;",
            "true;",
        ),
        "siblings_test: "
        "processes_of_a_grant_are_in_its_time_slice_together_where_a_service_runs_them",
    ),
    "for how long one that was stopped is charged": (
        (
            "timeshare/governor.c",
            "elapsed(from_ns, to_ns) < PAGES_STOPPED_NS ? from_ns : to_ns - PAGES_STOPPED_NS",
            "from_ns",
        ),
        "stops_test: "
        "a_tenant_stopped_for_long_behind_its_time_slice_does_not_pay_for_all_of_the_stop",
    ),
}


def test_each_line_that_decides_who_runs_is_there_once() -> None:
    for (file, before, _), _test in REVERTS.values():
        assert 1 == (LIMITERS / file).read_text().count(before), (file, before)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REVERTS)
def test_without_what_decides_who_runs_a_program_misses_its_share(
    tmp_path: Path, name: str
) -> None:
    edit, test = REVERTS[name]
    assert 1 == in_virtual_time_without(edit, test, tmp_path)
