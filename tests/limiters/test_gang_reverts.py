"""Without the lines that keep ranks together, a program of several devices misses its share."""

from pathlib import Path

import pytest
from tenancy import LIMITER, in_virtual_time_without

LIMITERS = LIMITER.parents[2]

Edit = tuple[str, str, str]
#: By what is taken out: in which file which text becomes which, and the test that fails then.
REVERTS: dict[str, tuple[Edit, str]] = {
    "rows": (
        ("timeshare/gang_run.c", "return row_is(&pages->own_row);", "return false;"),
        "a_gang_alone_has_its_share",
    ),
    "what keeps clear of rows": (
        (
            "timeshare/time_slice.c",
            "    return neighbour->state >= PAGE_WANTS &&\n           (row_left",
            "    return false && (row_left",
        ),
        "a_gang_and_programs_of_one_card_have_half_each",
    ),
    "the common end": (
        ("timeshare/gang_end.c", "        help(gang, census, now_ns);\n", ""),
        "a_gang_alone_has_its_share",
    ),
    "who is behind by its launches": (
        ("timeshare/gang_end.c", "let_catch_up(gang, census, now_ns);", "false;"),
        "a_gang_on_cards_of_unlike_speed_has_its_share",
    ),
    "who is behind because one stands": (
        ("timeshare/gang_end.c", "!(idle && census->stuck)", "true"),
        "a_gang_whose_processes_launch_unlike_numbers_has_its_share",
    ),
    "busy devices whose launchers wait": (
        ("timeshare/gang_end.c", "crossed && help_kept", "false && help_kept"),
        "processes_that_wait_for_each_other_in_any_way_go_on",
    ),
    "what is written after a clock is read": (
        (
            "timeshare/gang.c",
            "elapsed(census.claimed_at_ns, now_ns) < ROOM_NS",
            "now_ns - census.claimed_at_ns < ROOM_NS",
        ),
        "two_gangs_whose_work_is_in_graphs_have_half_each",
    ),
    "waiting for those before": (
        ("timeshare/gang.c", "HELD_LONG_NS (30 * MS)", "HELD_LONG_NS (10 * MS)"),
        "two_gangs_whose_work_is_in_graphs_have_half_each",
    ),
    "how far launchers may be ahead": (
        ("timeshare/gate.c", "deep > most ? deep : most", "deep > most ? most : most"),
        "a_gang_whose_host_is_busy_elsewhere_has_its_share",
    ),
    "what launches take on average": (
        (
            "timeshare/gang_run.c",
            "mean_launch_ns < OWN_FENCE_MIN_NS ? mean_launch_ns : 0",
            "mean_launch_ns * 0",
        ),
        "small_kernels_that_follow_large_ones_leave_no_device_idle",
    ),
    "what goes on until a step of several nodes is done": (
        (
            "timeshare/gang.c",
            "(by_hand || alone) && !census->died",
            "false",
        ),
        "a_gang_of_two_nodes_has_its_share_whatever_their_clocks_say",
    ),
    "what is idle while nobody waits": (
        ("timeshare/gang.c", "bool holds = look->claimed && ", "bool holds = "),
        "what_a_gang_alone_leaves_idle_costs_it_nothing",
    ),
    "what is not charged at the end of a row": (
        (
            "timeshare/gang.c",
            "claimed && shared->phase == GANG_OPEN && gang",
            "claimed && shared->phase != GANG_CLOSED && gang",
        ),
        "gangs_and_programs_of_one_card_at_random_have_their_shares 37 48",  # some are off
    ),
    "who has launched less where nobody waits": (
        (
            "timeshare/gang_end.c",
            "return !is_apart(gang) && behind > 0",
            "return (!is_apart(gang) || behind > 0) && behind > 0",
        ),
        "processes_that_exchange_nothing_each_have_their_share",
    ),
    "trying again where nothing was held back": (
        ("timeshare/gang_end.c", "gang->probe.due_at_ns = now_ns + PROBE_AGAIN_NS;", ";"),
        "whether_processes_wait_for_each_other_is_found_out",
    ),
    "who falls asleep while it is told to come": (
        ("timeshare/gate.c", "{\n    atomic_fetch_add(&gate->queue.wake_count, 1);", "{"),
        "a_launcher_that_is_let_through_as_it_falls_asleep_comes_at_once",
    ),
    "what high priority is not charged": (
        (
            "timeshare/gang.c",
            "    if (note_intrusion(gang, census, spent_ns))\n        spent_ns = 0;",
            "    note_intrusion(gang, census, spent_ns);",
        ),
        "high_priority_in_a_row_is_counted_and_charged_to_nobody",
    ),
}


def test_each_line_that_keeps_ranks_together_is_there_once() -> None:
    for (file, before, _), _test in REVERTS.values():
        assert 1 == (LIMITERS / file).read_text().count(before), (file, before)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REVERTS)
def test_without_what_keeps_ranks_together_a_gang_misses_its_share(
    tmp_path: Path, name: str
) -> None:
    edit, test = REVERTS[name]
    assert 1 == in_virtual_time_without(edit, f"gangs_test: {test}", tmp_path)
