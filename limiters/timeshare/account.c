/* The accounts of one process (account.h); their arithmetic is budget.h's. */
#include "account.h"

#include "budget.h"

#include "../core/tenant.h"

/* What nobody else wanted an elastic grant does not pay back: it owes so much at most. */
static void lend(struct hetero_region_device *from, int64_t balance_ns, int64_t least_ns)
{
    atomic_store_explicit(&from->balance_ns, least_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&from->borrowed_ns, (uint64_t)(least_ns - balance_ns), memory_order_relaxed);
}

static void spend(const struct account *account, struct hetero_region_device *from, struct time_slice *time_slice,
                  uint64_t now_ns, uint64_t spent_ns)
{
    uint32_t core = terms_core(account->grant_device);
    int64_t balance_before_ns = budget_balance(from, account->asked_at_ns, now_ns, core);
    budget_settle(from, account->asked_at_ns, now_ns, core, spent_ns);
    /* One time slice at most, and what it took while another waited, or ran beside it by right. */
    int64_t least_ns = balance_before_ns < -BUDGET_TIME_SLICE_NS ? balance_before_ns : -BUDGET_TIME_SLICE_NS;
    int64_t balance_ns = atomic_load_explicit(&from->balance_ns, memory_order_relaxed);
    if (terms_policy(account->grant_device) == HETERO_POLICY_ELASTIC && balance_ns < least_ns &&
        !time_slice_wanted(time_slice) && !time_slice_beside_another_by_right(time_slice))
        lend(from, balance_ns, least_ns);
    budget_owe(from, balance_before_ns, time_slice_contended(time_slice));
    int64_t shared_ns = atomic_load_explicit(&account->shared_counts->owed_ns, memory_order_relaxed);
    int64_t own_ns = atomic_load_explicit(&account->own_counts.owed_ns, memory_order_relaxed);
    time_slice_owes_much(time_slice, shared_ns > ACCOUNT_MUCH_NS || own_ns > ACCOUNT_MUCH_NS);
}

void account_keep(struct account *account, uint64_t busy_ns)
{
    budget_keep(account->shared_counts, busy_ns, terms_core(account->grant_device));
    budget_keep(&account->own_counts, busy_ns, terms_core(account->grant_device));
}

void account_spend(struct account *account, struct time_slice *time_slice, uint64_t now_ns, uint64_t spent_ns,
                   uint64_t own_ns)
{
    spend(account, account->shared_counts, time_slice, now_ns, spent_ns);
    account_spend_own(account, time_slice, now_ns, own_ns);
}

void account_spend_own(struct account *account, struct time_slice *time_slice, uint64_t now_ns, uint64_t own_ns)
{
    spend(account, &account->own_counts, time_slice, now_ns, own_ns);
}

void account_spend_device(struct hetero_region_device *device, uint64_t asked_ns, uint64_t now_ns, uint32_t core,
                          uint64_t spent_ns, bool lent)
{
    int64_t balance_before_ns = budget_balance(device, asked_ns, now_ns, core);
    budget_settle(device, asked_ns, now_ns, core, spent_ns);
    int64_t least_ns = balance_before_ns < -BUDGET_TIME_SLICE_NS ? balance_before_ns : -BUDGET_TIME_SLICE_NS;
    int64_t balance_ns = atomic_load_explicit(&device->balance_ns, memory_order_relaxed);
    if (lent && balance_ns < least_ns)
        lend(device, balance_ns, least_ns);
}

void account_refund_device(struct hetero_region_device *device, int64_t refund_ns)
{
    atomic_fetch_add_explicit(&device->balance_ns, refund_ns, memory_order_relaxed);
}

void account_spend_in_row(struct account *account, uint64_t now_ns, uint32_t core, uint64_t used_ns, int64_t most_ns,
                          bool lent)
{
    int64_t balance_before_ns = budget_balance(&account->own_counts, account->asked_at_ns, now_ns, core);
    budget_settle(&account->own_counts, account->asked_at_ns, now_ns, core, used_ns);
    int64_t least_ns = lent && balance_before_ns < 0 ? balance_before_ns : -most_ns;
    if (atomic_load_explicit(&account->own_counts.balance_ns, memory_order_relaxed) < least_ns)
        atomic_store_explicit(&account->own_counts.balance_ns, least_ns, memory_order_relaxed);
}

int64_t account_spend_at_exit(struct account *account, uint64_t now_ns, uint64_t spent_ns)
{
    atomic_fetch_add_explicit(&account->shared_counts->gpu_ns, spent_ns, memory_order_relaxed);
    atomic_fetch_sub_explicit(&account->shared_counts->balance_ns, (int64_t)spent_ns, memory_order_relaxed);
    /* Whether others are there is not looked at any more: what of this is debt is owed. */
    atomic_fetch_add_explicit(&account->shared_counts->owed_ns, (int64_t)spent_ns, memory_order_relaxed);
    return budget_balance(account->shared_counts, account->asked_at_ns, now_ns, terms_core(account->grant_device));
}

void account_keep_burst(struct account *account)
{
    budget_keep_burst(account->shared_counts, terms_core(account->grant_device));
    budget_keep_burst(&account->own_counts, terms_core(account->grant_device));
}

void account_refund(struct account *account, uint64_t refund_ns)
{
    atomic_fetch_add_explicit(&account->shared_counts->balance_ns, (int64_t)refund_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&account->own_counts.balance_ns, (int64_t)refund_ns, memory_order_relaxed);
}

void account_give_back(struct account *account, uint64_t refund_ns)
{
    account_refund(account, refund_ns);
    budget_keep(account->shared_counts, refund_ns, HETERO_CORE_FULL);
    budget_keep(&account->own_counts, refund_ns, HETERO_CORE_FULL);
}

void account_stopped(struct account *account, uint64_t waited_ns)
{
    atomic_fetch_add_explicit(&account->shared_counts->stopped_ns, waited_ns, memory_order_relaxed);
}

uint64_t account_siblings(const struct account *account)
{
    return atomic_load_explicit(&account->shared_counts->gpu_ns, memory_order_relaxed) -
           atomic_load_explicit(&account->own_counts.gpu_ns, memory_order_relaxed);
}

void account_count(struct account *account, uint32_t launch_count)
{
    atomic_fetch_add_explicit(&account->shared_counts->launches, (uint32_t)(launch_count - account->launch_count),
                              memory_order_relaxed);
    account->launch_count = launch_count;
}

static int64_t own_balance(const struct account *account, uint64_t now_ns)
{
    return budget_balance(&account->own_counts, account->asked_at_ns, now_ns, terms_core(account->grant_device)) +
           BUDGET_ARREARS_NS;
}

int64_t account_balance(const struct account *account, uint64_t now_ns)
{
    int64_t shared_balance_ns = budget_balance(account->shared_counts, account->asked_at_ns, now_ns,
                                               terms_core(account->grant_device));
    int64_t own_balance_ns = own_balance(account, now_ns);
    return shared_balance_ns < own_balance_ns ? shared_balance_ns : own_balance_ns;
}

bool account_allows(const struct account *account, uint64_t now_ns)
{
    return own_balance(account, now_ns) >= 0;
}

uint64_t account_stamp(const struct account *account)
{
    return atomic_load_explicit(&account->shared_counts->stamp_ns, memory_order_relaxed);
}
