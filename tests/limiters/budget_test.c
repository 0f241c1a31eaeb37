/* The arithmetic of a share. */
#include "machine/check.h"

#include "../../limiters/timeshare/budget.h"
#include "../../limiters/timeshare/engine.h"

TEST(a_balance_grows_at_the_share_and_no_further_than_a_burst_at_rest)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 3000, 0);
    EXPECT(3 * MS, budget_balance(&account, 1000 * MS, 1010 * MS, 3000));
    EXPECT(BUDGET_BURST_NS / 10 * 7, budget_balance(&account, 5000 * MS, 5000 * MS, 3000));
}

TEST(one_that_was_kept_waiting_keeps_what_it_is_owed)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 5000, 0);
    EXPECT(50 * MS, budget_balance(&account, 1000 * MS, 1100 * MS, 5000));
    EXPECT(BUDGET_ARREARS_NS, budget_balance(&account, 1000 * MS, 9000 * MS, 5000));
}

TEST(debt_is_carried_in_full)
{
    struct hetero_region_device account = {0};
    budget_settle(&account, 0, 1000 * MS, 2500, 0);
    budget_settle(&account, 1000 * MS, 1100 * MS, 2500, 100 * MS);
    EXPECT(-75 * (int64_t)MS, account.balance_ns);
    EXPECT(100 * MS, account.gpu_ns);
    uint64_t wait = budget_wait(account.balance_ns, 2500);
    EXPECT_NEAR(300e6, 10, (double)wait);
    EXPECT(true, budget_balance(&account, 1100 * MS, 1100 * MS + wait, 2500) >= 0);
}

TEST(an_account_of_garbage_is_bounded)
{
    static const uint64_t garbage[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX, UINT64_C(0xdeadbeefdeadbeef)};
    for (unsigned b = 0; b < 6; b++)
        for (unsigned s = 0; s < 6; s++) {
            struct hetero_region_device wild = {.balance_ns = (int64_t)garbage[b], .stamp_ns = garbage[s]};
            int64_t balance = budget_balance(&wild, 5000 * MS, 6000 * MS, 3000);
            EXPECT(true, balance <= BUDGET_ARREARS_NS && balance >= -BUDGET_DEBT_NS);
            budget_settle(&wild, 5000 * MS, 6000 * MS, 3000, 10 * MS);
            EXPECT(6000 * MS, wild.stamp_ns);
            EXPECT(true, budget_wait(wild.balance_ns, 1) <= (BUDGET_DEBT_NS + 10 * MS) * UINT64_C(10000) + 10000);
        }
}

/* However much of it the account says. */
TEST(an_hour_of_debt_is_the_most_that_is_waited_out)
{
    struct hetero_region_device wild = {.balance_ns = INT64_MIN};
    int64_t balance = budget_balance(&wild, 5000 * MS, 6000 * MS, 3000);
    EXPECT_NEAR(3600e9 / 0.3, 1e6, (double)budget_wait(balance, 3000));
}
