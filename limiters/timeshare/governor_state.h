/* What a governor is made of (governor.h). */
#ifndef HETERO_GOVERNOR_STATE_H
#define HETERO_GOVERNOR_STATE_H

#include "account.h"
#include "budget.h"
#include "doubt.h"
#include "engine.h"
#include "gang.h"
#include "gate.h"
#include "light.h"
#include "pace.h"
#include "power.h"
#include "power_watch.h"
#include "time_slice.h"

#include "../core/tenant.h"

/* So many fences may be in flight beside others: what is launched while they have their turns of the driver is done at
 * once in its own, as it is where there is no gate. */
#define GOVERNOR_IN_FLIGHT 8u

/* What is in flight while the gate is closed, and may spin until another launch is made. */
struct spin {
    uint64_t stalled_at_ns;   /* when the device came no further; 0: it was not looked at since the gate was open */
    uint32_t signaled_fences; /* fences that were signaled by then */
    uint32_t launch_count;    /* launches that were made by then */
    unsigned pass_count;      /* so many launches passed the closed gate since nothing was in flight */
    bool has_passed_long;     /* and one into any stream */
};

/* Holds that are to be made while nobody else has work in flight. */
struct governor_measure {
    bool is_on;                /* those without a time slice are asked to keep away */
    bool was_clear;            /* nobody else had work in flight when the hold was asked for; */
    uint64_t clear_light_ns;   /* and what neighbours had used without a time slice by then */
    uint64_t kept_away_ns;     /* for so long it kept away from others that do so */
    uint64_t away_began_at_ns; /* when it began to */
};

/* What neighbours use without a time slice while it is charged by the clock. */
struct governor_lights {
    uint64_t used_ns;         /* what they had used when the device was charged last */
    uint64_t unsubtracted_ns; /* of that, what was not taken off a charge yet */
    uint64_t switch_loss_ns;  /* what the driver may have lost by going over to them, and was not taken off */
    uint64_t unlit_at_ns;     /* when there was last none beside it */
};

/* Who else uses the device, and when that was seen. */
struct governor_company {
    uint64_t others_wanted_at_ns; /* when others last wanted the device or used it; 0: never */
    uint64_t asked_at_ns;         /* when it was last asked whether they keep us from it; 0: we did not want it */
    uint64_t siblings_used_ns;    /* what siblings had used */
    uint64_t siblings_grew_at_ns; /* when that was last more than before; 0: never */
    uint64_t account_stamp_at_ns; /* the last moment that the grant's account was brought up to */
    uint64_t stamp_seen_at_ns;    /* when that was seen */
};

/* What a pause costs a program (pace.h). */
struct governor_warmup {
    uint32_t charge_rate;  /* when `pace` began, unity or more */
    uint64_t uncharged_ns; /* of what was not charged yet */
};

/* What an ended time slice left in flight. */
struct governor_trail {
    uint64_t charged_until_at_ns; /* up to then it is charged; 0: nothing is in flight */
    bool stands_at_waits;         /* the device stood at waits before all of it then, */
    uint32_t signaled_fences;     /* fences that were signaled by then */
};

/* The last time slice. */
struct governor_last {
    uint64_t gate_closed_at_ns; /* when its gate was closed */
    uint32_t missed_polls;      /* looks of launchers at the gate when one ended to which none came */
};

struct governor {
    struct gate gate; /* what launchers pass */

    /* Written before the governor is published, then constant. */
    const struct engine *engine;
    const struct hetero_grant_device *grant_device;

    /* The thread's own. */
    struct time_slice time_slice;
    struct power_watch watch;
    struct account account;
    uint32_t learnt_core; /* what `power` was learnt at */
    struct power power;
    struct pace pace;
    struct doubt doubt;
    struct light light;
    struct gang gang;
    struct governor_measure measure;
    struct governor_lights lights;
    struct governor_company company;
    struct governor_warmup warmup;
    struct governor_trail trail;
    struct governor_last last;
    struct spin spin;
    uint64_t random_state;
};

/* Whether what the grant's user owed here before is to be paid now: others want the device, or did a moment ago. It is
 * not paid, and keeps nobody, while nobody does. */
static inline bool governor_pays(struct governor *governor, uint64_t now_ns)
{
    struct account *account = &governor->account;
    if (now_ns >= terms_owes_until(governor->grant_device))
        return false;
    bool unwatched = elapsed(account->payment_asked_at_ns, now_ns) > ACCOUNT_UNWANTED_NS; /* since then nobody looked */
    account->payment_asked_at_ns = now_ns;
    if (unwatched || time_slice_contended(&governor->time_slice))
        account->others_wanted_at_ns = now_ns;
    return elapsed(account->others_wanted_at_ns, now_ns) <= ACCOUNT_UNWANTED_NS;
}

/* What the grant may still use: more than a second of debt while a sibling says so whose work is in flight, whatever
 * the account has, which siblings can write; and in debt until what the grant's user owed here before is paid. */
static inline int64_t governor_balance(struct governor *governor)
{
    uint64_t now_ns = governor->engine->now();
    int64_t balance_ns = account_balance(&governor->account, now_ns);
    if (balance_ns >= -ACCOUNT_MUCH_NS && time_slice_owed_by_siblings(&governor->time_slice))
        return -ACCOUNT_MUCH_NS - 1;
    if (!governor_pays(governor, now_ns))
        return balance_ns;
    int64_t owed_ns =
        budget_share(terms_owes_until(governor->grant_device) - now_ns, terms_core(governor->grant_device)) + 1;
    return balance_ns < -owed_ns ? balance_ns : -owed_ns;
}

/* On a card where a service runs several programs at the same time, elastic grants run beside each other: time slices
 * are for those that have a fixed share. */
static inline bool governor_beside(const struct governor *governor)
{
    const struct hetero_grant_device *terms = governor->grant_device;
    return terms_by_service(terms) && terms_policy(terms) == HETERO_POLICY_ELASTIC &&
           terms_priority(terms) == HETERO_PRIORITY_LOW && !governor->time_slice.is_ours &&
           !governor->time_slice.has_joined;
}

/* Whether it goes on so. One that had more than its share stops only while another is owed some, whose work waits. */
static inline bool governor_runs_beside(struct governor *governor, int64_t balance_ns)
{
    struct time_slice *time_slice = &governor->time_slice;
    return governor_beside(governor) && !time_slice_wanted(time_slice) && !time_slice_held(time_slice) &&
           (balance_ns >= 0 || !time_slice_owed(time_slice));
}

static inline uint64_t governor_random(uint64_t *state, uint64_t most)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*state >> 32) % most;
}

#endif
