/* The accounts of one process (account.h); their arithmetic is budget.h's. */
#include "account.h"

#include "budget.h"

#include "../core/tenant.h"

/* What nobody else wanted an elastic grant does not pay back: it owes so much at most. */
static void lend(struct hetero_region_device *from, int64_t balance, int64_t least)
{
    atomic_store_explicit(&from->balance_ns, least, memory_order_relaxed);
    atomic_fetch_add_explicit(&from->borrowed_ns, (uint64_t)(least - balance), memory_order_relaxed);
}

static void spend(const struct account *account, struct hetero_region_device *from, struct time_slice *time_slice,
                  uint64_t now, uint64_t spent_ns)
{
    uint32_t core = terms_core(account->terms);
    int64_t before = budget_balance(from, account->asked_ns, now, core);
    budget_settle(from, account->asked_ns, now, core, spent_ns);
    /* One time slice at most, and what it took while another waited, or ran beside it. */
    int64_t least = before < -BUDGET_TIME_SLICE_NS ? before : -BUDGET_TIME_SLICE_NS;
    int64_t balance = atomic_load_explicit(&from->balance_ns, memory_order_relaxed);
    if (terms_policy(account->terms) == HETERO_POLICY_ELASTIC && balance < least && !time_slice_wanted(time_slice) &&
        time_slice_beside(time_slice) == 0)
        lend(from, balance, least);
    budget_owe(from, before, time_slice_contended(time_slice));
    int64_t shared_ns = atomic_load_explicit(&account->shared->owed_ns, memory_order_relaxed);
    int64_t own_ns = atomic_load_explicit(&account->own.owed_ns, memory_order_relaxed);
    time_slice_owes_much(time_slice, shared_ns > ACCOUNT_MUCH_NS || own_ns > ACCOUNT_MUCH_NS);
}

void account_keep(struct account *account, uint64_t ns)
{
    budget_keep(account->shared, ns, terms_core(account->terms));
    budget_keep(&account->own, ns, terms_core(account->terms));
}

void account_spend(struct account *account, struct time_slice *time_slice, uint64_t now, uint64_t spent_ns,
                   uint64_t own_ns)
{
    spend(account, account->shared, time_slice, now, spent_ns);
    account_spend_own(account, time_slice, now, own_ns);
}

void account_spend_own(struct account *account, struct time_slice *time_slice, uint64_t now, uint64_t own_ns)
{
    spend(account, &account->own, time_slice, now, own_ns);
}

void account_spend_device(struct hetero_region_device *device, uint64_t asked_ns, uint64_t now, uint32_t core,
                          uint64_t spent_ns, bool lent)
{
    int64_t before = budget_balance(device, asked_ns, now, core);
    budget_settle(device, asked_ns, now, core, spent_ns);
    int64_t least = before < -BUDGET_TIME_SLICE_NS ? before : -BUDGET_TIME_SLICE_NS;
    int64_t balance = atomic_load_explicit(&device->balance_ns, memory_order_relaxed);
    if (lent && balance < least)
        lend(device, balance, least);
}

void account_refund_device(struct hetero_region_device *device, int64_t ns)
{
    atomic_fetch_add_explicit(&device->balance_ns, ns, memory_order_relaxed);
}

void account_spend_in_row(struct account *account, uint64_t now, uint32_t core, uint64_t used_ns, int64_t most_ns,
                          bool lent)
{
    int64_t before = budget_balance(&account->own, account->asked_ns, now, core);
    budget_settle(&account->own, account->asked_ns, now, core, used_ns);
    int64_t least = lent && before < 0 ? before : -most_ns;
    if (atomic_load_explicit(&account->own.balance_ns, memory_order_relaxed) < least)
        atomic_store_explicit(&account->own.balance_ns, least, memory_order_relaxed);
}

int64_t account_spend_at_exit(struct account *account, uint64_t now, uint64_t spent_ns)
{
    atomic_fetch_add_explicit(&account->shared->gpu_ns, spent_ns, memory_order_relaxed);
    atomic_fetch_sub_explicit(&account->shared->balance_ns, (int64_t)spent_ns, memory_order_relaxed);
    /* Whether others are there is not looked at any more: what of this is debt is owed. */
    atomic_fetch_add_explicit(&account->shared->owed_ns, (int64_t)spent_ns, memory_order_relaxed);
    return budget_balance(account->shared, account->asked_ns, now, terms_core(account->terms));
}

void account_keep_burst(struct account *account)
{
    budget_keep_burst(account->shared, terms_core(account->terms));
    budget_keep_burst(&account->own, terms_core(account->terms));
}

void account_refund(struct account *account, uint64_t ns)
{
    atomic_fetch_add_explicit(&account->shared->balance_ns, (int64_t)ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&account->own.balance_ns, (int64_t)ns, memory_order_relaxed);
}

void account_give_back(struct account *account, uint64_t ns)
{
    account_refund(account, ns);
    budget_keep(account->shared, ns, HETERO_CORE_FULL);
    budget_keep(&account->own, ns, HETERO_CORE_FULL);
}

void account_stopped(struct account *account, uint64_t ns)
{
    atomic_fetch_add_explicit(&account->shared->stopped_ns, ns, memory_order_relaxed);
}

uint64_t account_siblings(const struct account *account)
{
    return atomic_load_explicit(&account->shared->gpu_ns, memory_order_relaxed) -
           atomic_load_explicit(&account->own.gpu_ns, memory_order_relaxed);
}

void account_count(struct account *account, uint32_t launches)
{
    atomic_fetch_add_explicit(&account->shared->launches, (uint32_t)(launches - account->launches),
                              memory_order_relaxed);
    account->launches = launches;
}

static int64_t own_balance(const struct account *account, uint64_t now)
{
    return budget_balance(&account->own, account->asked_ns, now, terms_core(account->terms)) + BUDGET_ARREARS_NS;
}

int64_t account_balance(const struct account *account, uint64_t now)
{
    int64_t shared = budget_balance(account->shared, account->asked_ns, now, terms_core(account->terms));
    int64_t own = own_balance(account, now);
    return shared < own ? shared : own;
}

bool account_allows(const struct account *account, uint64_t now)
{
    return own_balance(account, now) >= 0;
}

uint64_t account_stamp(const struct account *account)
{
    return atomic_load_explicit(&account->shared->stamp_ns, memory_order_relaxed);
}
