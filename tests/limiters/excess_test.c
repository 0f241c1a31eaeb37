/* What a grant's processes tell of themselves to who compares them with the driver, and what that counts besides. */
#include "machine/check.h"

#include "../../limiters/core/ledger.h"

#include <sys/wait.h>

TEST(what_root_counts_besides_is_held_and_refused_for_until_root_takes_it_back)
{
    static struct region region;
    static struct hetero_grant grant;
    EXPECT(true, region_open(&region, usage_file()));
    region.grant = &grant;
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 1, 500, 1000));
    grant.devices[1].excess_bytes = 400;

    EXPECT(900, ledger_used(&region, 1));
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 1, 101, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 1, 100, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 1000, 1000)); /* another device's */
    EXPECT(600, region.shared->devices[1].peak_bytes);
    grant.devices[1].excess_bytes = UINT64_MAX;
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 1, 1, 1000));
    EXPECT(UINT64_MAX, ledger_used(&region, 1));
    grant.devices[1].excess_bytes = 0;
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 1, 400, 1000));
}

TEST(all_that_was_ever_reserved_bounds_what_was_held_in_between)
{
    static struct region region;
    EXPECT(true, region_open(&region, usage_file()));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 300, 1000));
    ledger_release(&region, 0, 300);
    EXPECT(LEDGER_OVER, ledger_reserve(&region, 0, 2000, 1000));
    EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 0, 200, 1000));

    EXPECT(500, region.shared->devices[0].reserved_total_bytes);
}

TEST(what_is_uncharged_is_this_processs_own_and_is_not_below_nothing)
{
    static struct region region;
    const char *path = usage_file();
    EXPECT(true, region_open(&region, path));
    ledger_report(&region, HETERO_REPORT_UNCHARGED, 2, 700);
    ledger_report(&region, HETERO_REPORT_UNCHARGED, 2, -200);
    ledger_report(&region, HETERO_REPORT_SHARED, 2, 50);
    ledger_report(&region, HETERO_REPORT_SHARED, 2, -90);
    EXPECT(500, region_slot(&region)->reports[HETERO_REPORT_UNCHARGED][2]);
    EXPECT(0, region_slot(&region)->reports[HETERO_REPORT_SHARED][2]);
    EXPECT(0, ledger_used(&region, 2));

    pid_t child = fork();
    if (child == 0) { /* in a slot that a dead process left as it was */
        region_forget(&region);
        region.shared->slots[1].reports[HETERO_REPORT_UNCHARGED][2] = 900;
        EXPECT(LEDGER_GRANTED, ledger_reserve(&region, 2, 1, 1000));
        EXPECT(1, region.slot_index);
        EXPECT(0, region_slot(&region)->reports[HETERO_REPORT_UNCHARGED][2]);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(0, status);
}
