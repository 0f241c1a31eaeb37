/* What one process has used of its grant's share: the grant's account, which all its processes write, and its own. */
#ifndef HETERO_ACCOUNT_H
#define HETERO_ACCOUNT_H

#include "time_slice.h"

#include "../core/grant.h"
#include "../core/region.h"

/* Who owes more than this launches nothing beside what is in flight. */
#define ACCOUNT_MUCH_NS INT64_C(1000000000)

/* Nobody else wants the device when nobody was seen to for so long: who has it may say nothing between two steps. */
#define ACCOUNT_UNWANTED_NS UINT64_C(1000000000)

struct account {
    const struct hetero_grant_device *grant_device;
    struct hetero_region_device *shared_counts; /* in memory that the tenant can write */
    struct hetero_region_device own_counts;     /* of this process alone, where other processes cannot write */
    uint64_t asked_at_ns;                       /* since when launchers have wanted the device */
    uint32_t launch_count;                      /* counted so far; it wraps around */
    uint64_t payment_asked_at_ns;               /* when it was last asked whether a debt of before is to be paid, */
    uint64_t others_wanted_at_ns;               /* and others were last seen to want the device then */
};

/* What the grant may still use. Whatever is written into the shared account, this process alone is never ahead of its
 * grant's share by more than could have been owed. */
int64_t account_balance(const struct account *account, uint64_t now_ns);

/* Whether this process alone is no further ahead than that. */
bool account_allows(const struct account *account, uint64_t now_ns);

/* When the grant's account was brought up to a moment last. */
uint64_t account_stamp(const struct account *account);

/* While a neighbour was busy outside of its time slices for so long, launchers wanted the device. */
void account_keep(struct account *account, uint64_t busy_ns);

/* The device was used for `spent_ns` until now; for `own_ns` if no sibling had a part of it. */
void account_spend(struct account *account, struct time_slice *time_slice, uint64_t now_ns, uint64_t spent_ns,
                   uint64_t own_ns);

/* The device was used past the time slices, of a process that exits: what the grant may still use at `now_ns`. */
int64_t account_spend_at_exit(struct account *account, uint64_t now_ns, uint64_t spent_ns);

/* Of this process alone: a sibling charges the grant for it. */
void account_spend_own(struct account *account, struct time_slice *time_slice, uint64_t now_ns, uint64_t own_ns);

/* A device of a gang was used for `spent_ns` until now; `lent`: an elastic gang owes none of it beyond a time slice.
 * So much of what was charged for it is given back. */
void account_spend_device(struct hetero_region_device *device, uint64_t asked_ns, uint64_t now_ns, uint32_t core,
                          uint64_t spent_ns, bool lent);
void account_refund_device(struct hetero_region_device *device, int64_t refund_ns);

/* In a row of a gang, whose lead charges the grant: of this process alone. It owes `most_ns` at most, and where its use
 * was lent no more than before. */
void account_spend_in_row(struct account *account, uint64_t now_ns, uint32_t core, uint64_t used_ns, int64_t most_ns,
                          bool lent);

/* Of what was not asked for, no more than a burst is kept. */
void account_keep_burst(struct account *account);

/* So much was charged too much. */
void account_refund(struct account *account, uint64_t refund_ns);

/* So much was, because a neighbour was not believed: it does not fade. */
void account_give_back(struct account *account, uint64_t refund_ns);

/* For so long a launcher has waited for the gate. */
void account_stopped(struct account *account, uint64_t waited_ns);

/* What other processes of the grant have used, now and before. */
uint64_t account_siblings(const struct account *account);

/* So many launches have been made since the start. */
void account_count(struct account *account, uint32_t launch_count);

#endif
