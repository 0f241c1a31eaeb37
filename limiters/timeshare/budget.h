/* The arithmetic of a share: a balance of device time that grows at the share's rate of wall time and is spent by use.
 *
 * Debt is carried without bound: what one time slice runs over is taken off the next, and the error of the long run
 * goes to zero. Credit is not saved up: a grant that did not ask is owed a burst at most. One that asked and was
 * kept waiting keeps what it is owed: up to a second, which fades, of what hand-overs take; in full, up to half a
 * minute, of what a neighbour took outside of its time slices (`kept_ns`).
 */
#ifndef HETERO_BUDGET_H
#define HETERO_BUDGET_H

#include "../core/region.h"

/* How long a grant runs before another may. Two busy tenants that hand a card over every 10 ms reach together 97.8 % of
 * one alone, every 5 ms 94.8 %, every 2 ms 89.4 % (100 us kernels, measured on one H200); longer time slices cost
 * latency. With nobody waiting it runs longer by its share of twice that: what a pause costs a program (its caches, the
 * card's clocks) is then paid once for a longer time. */
#define BUDGET_TIME_SLICE_NS INT64_C(10000000)

/* A program that needs less than its share may use the device for so long in a row. */
#define BUDGET_BURST_NS INT64_C(100000000)

/* A process that was stopped before it settled is late by no more than this. */
#define BUDGET_AHEAD_NS UINT64_C(2000000000)

/* The most that anybody is owed, without and with what neighbours took; and in how long what is owed beyond a time
 * slice fades: long against the 20 to 50 ms after which neighbours run again, short against what a person would call
 * unfair. */
#define BUDGET_ARREARS_NS INT64_C(1000000000)
#define BUDGET_KEPT_NS    INT64_C(30000000000)
#define BUDGET_FADE_NS    INT64_C(2000000000)

/* The account is in memory that the tenant can write: no balance is beyond what can come of use. */
#define BUDGET_DEBT_NS INT64_C(3600000000000)

static inline int64_t budget_between(int64_t least_ns, int64_t value_ns, int64_t most_ns)
{
    return value_ns < least_ns ? least_ns : value_ns > most_ns ? most_ns : value_ns;
}

/* What of the balance does not fade, and the most that the balance can be. */
static inline int64_t budget_kept(const struct hetero_region_device *account)
{
    return budget_between(0, atomic_load_explicit(&account->kept_ns, memory_order_relaxed), BUDGET_KEPT_NS);
}

static inline int64_t budget_most(const struct hetero_region_device *account)
{
    return budget_between(BUDGET_ARREARS_NS, budget_kept(account) + BUDGET_TIME_SLICE_NS, BUDGET_KEPT_NS);
}

static inline int64_t budget_read(const struct hetero_region_device *account)
{
    int64_t balance_ns = atomic_load_explicit(&account->balance_ns, memory_order_relaxed);
    return budget_between(-BUDGET_DEBT_NS, balance_ns, budget_most(account));
}

static inline int64_t budget_share(uint64_t elapsed_ns, uint32_t core)
{
    /* An hour holds every wait that matters and keeps the product in range. */
    uint64_t counted_ns = elapsed_ns < UINT64_C(3600000000000) ? elapsed_ns : UINT64_C(3600000000000);
    return (int64_t)(counted_ns * core / HETERO_CORE_FULL);
}

/* The most that a grant is owed which did not ask: what a burst takes beyond the share of the time that it lasts. */
static inline int64_t budget_burst(uint32_t core)
{
    int64_t most_ns = BUDGET_BURST_NS - budget_share(BUDGET_BURST_NS, core);
    return most_ns > BUDGET_TIME_SLICE_NS ? most_ns : BUDGET_TIME_SLICE_NS;
}

static inline double budget_faded(uint64_t elapsed_ns)
{
    return elapsed_ns < BUDGET_FADE_NS ? (double)elapsed_ns / BUDGET_FADE_NS : 1;
}

/* What the balance is at `now_ns` for a grant that has been asking since `asked_at_ns`. */
static inline int64_t budget_balance(const struct hetero_region_device *account, uint64_t asked_at_ns, uint64_t now_ns,
                                     uint32_t core)
{
    int64_t balance_ns = budget_read(account);
    uint64_t since_ns = atomic_load_explicit(&account->stamp_ns, memory_order_relaxed);
    if (since_ns == 0 || since_ns > now_ns)
        return balance_ns;
    if (asked_at_ns > since_ns) {
        int64_t rested_ns = balance_ns + budget_share(asked_at_ns - since_ns, core);
        int64_t burst_ns = budget_burst(core), most_ns = balance_ns > burst_ns ? balance_ns : burst_ns;
        balance_ns = rested_ns < most_ns ? rested_ns : most_ns;
        since_ns = asked_at_ns < now_ns ? asked_at_ns : now_ns;
    }
    /* Hand-overs take some of the device's time. Where the shares add up to all of it, everybody would be owed ever
     * more, and the balances would not tell which grant is owed most; so what is owed beyond a time slice fades. */
    int64_t lasting_ns = budget_kept(account) + BUDGET_TIME_SLICE_NS, most_ns = budget_most(account);
    if (balance_ns > lasting_ns)
        balance_ns -= (int64_t)((double)(balance_ns - lasting_ns) * budget_faded(now_ns - since_ns));
    balance_ns += budget_share(now_ns - since_ns, core);
    return balance_ns < most_ns ? balance_ns : most_ns;
}

/* A neighbour was busy outside of its time slices for so long, while we asked: our share of that does not fade. */
static inline void budget_keep(struct hetero_region_device *account, uint64_t busy_ns, uint32_t core)
{
    int64_t kept_ns = budget_kept(account) + budget_share(busy_ns, core);
    atomic_store_explicit(&account->kept_ns, budget_between(0, kept_ns, BUDGET_KEPT_NS), memory_order_relaxed);
}

/* Bring the account up to `now_ns`, then spend `spent_ns`. The caller holds the device's time slice. */
static inline void budget_settle(struct hetero_region_device *account, uint64_t asked_at_ns, uint64_t now_ns,
                                 uint32_t core, uint64_t spent_ns)
{
    int64_t balance_ns = budget_balance(account, asked_at_ns, now_ns, core) - (int64_t)spent_ns;
    int64_t kept_ns = budget_between(0, budget_kept(account), balance_ns > 0 ? balance_ns : 0);
    atomic_store_explicit(&account->balance_ns, balance_ns, memory_order_relaxed);
    atomic_store_explicit(&account->kept_ns, kept_ns, memory_order_relaxed);
    /* What a sibling brought up to a later moment does not grow twice; a stamp of far ahead is nobody's. */
    uint64_t stamp_ns = atomic_load_explicit(&account->stamp_ns, memory_order_relaxed);
    bool is_later = stamp_ns > now_ns && stamp_ns - now_ns < BUDGET_AHEAD_NS;
    atomic_store_explicit(&account->stamp_ns, is_later ? stamp_ns : now_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&account->gpu_ns, spent_ns, memory_order_relaxed);
}

/* The account's balance at `now_ns` was `balance_before_ns`, and then it was spent from. Of its debt is owed to others
 * what was spent while one of them was there with work. */
static inline void budget_owe(struct hetero_region_device *account, int64_t balance_before_ns, bool beside)
{
    int64_t balance_ns = atomic_load_explicit(&account->balance_ns, memory_order_relaxed);
    int64_t debt_ns = balance_ns < 0 ? -balance_ns : 0, debt_before_ns = balance_before_ns < 0 ? -balance_before_ns : 0;
    int64_t owed_ns = budget_between(0, atomic_load_explicit(&account->owed_ns, memory_order_relaxed), debt_before_ns);
    owed_ns += beside && debt_ns > debt_before_ns ? debt_ns - debt_before_ns : 0;
    atomic_store_explicit(&account->owed_ns, owed_ns < debt_ns ? owed_ns : debt_ns, memory_order_relaxed);
}

/* A burst is the most that is in the account. */
static inline void budget_keep_burst(struct hetero_region_device *account, uint32_t core)
{
    int64_t most_ns = budget_burst(core);
    if (atomic_load_explicit(&account->balance_ns, memory_order_relaxed) > most_ns)
        atomic_store_explicit(&account->balance_ns, most_ns, memory_order_relaxed);
}

/* How long until a balance is out of debt. */
static inline uint64_t budget_wait(int64_t balance_ns, uint32_t core)
{
    return balance_ns >= 0 ? 0 : (uint64_t)-balance_ns / core * HETERO_CORE_FULL + HETERO_CORE_FULL / core;
}

/* What contexts get of a device together while the driver slices it: the rest is lost between two slices (four busy
 * processes on an H200). */
#define BUDGET_TOGETHER_PERCENT 93u

/* What one of the contexts gets that have work in flight for so long: the driver slices the device evenly among them.
 */
static inline uint64_t budget_part(uint64_t shared_ns, unsigned other_count)
{
    return other_count == 0 ? shared_ns : shared_ns / (1 + other_count) * BUDGET_TOGETHER_PERCENT / 100;
}

#endif
