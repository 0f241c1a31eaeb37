/* The governor's thread (governor.h): it waits out debt, takes the time slice, opens the gate, closes it and charges. */
#include "budget.h"
#include "gate.h"
#include "../core/log.h"
#include "../core/tenant.h"

#include <stdlib.h>
#include <sys/prctl.h>

/* How often a running time slice is looked at: a neighbour with a higher claim waits no longer than this and what is in
 * flight. */
#define TICK_NS       (MS / 2)
#define TICK_LOW_LATENCY_NS (MS / 10)

/* While a neighbour that makes way for a high-priority time slice drains, both run, and each is charged half of the time: the
 * driver gives contexts slices of one length. Longer than this the neighbour's kernels are its own affair. */
#define YIELD_NS (10 * MS)

/* With nothing in flight for so long the time slice ends. Shorter gaps are charged: a program that launches one small kernel
 * after the other keeps the device from others as surely as a long kernel does. */
#define GAP_NS       MS
#define GAP_HIGH_NS (MS / 2) /* of high priority: it is back at once when it wants to */

/* How long a time slice is kept for launchers that have been woken and have not come yet. */
#define WAKE_NS (10 * MS)

/* A time slice is given up after so long even if its work is not done. A kernel that waits for one of another process (a
 * collective) would otherwise wait for ever when both want the same device. */
#define DRAIN_NS (100 * MS)

/* Alone and without a share, processes of a grant that are busy at once lose this part of the device to the driver's
 * going over from one to another, every 2 ms: four got 1872 of the 2004 kernels a second that one got (H200). In time slices
 * they do not, so that their time is dearer by it. */
#define SWITCHING 14u

/* How often somebody who waits out its debt looks whether others run: their power is told from ours by that. Who rested
 * for longer than the second does not know who ran meanwhile. */
#define WATCH_NS     (2 * MS)
#define UNWATCHED_NS (100 * MS)

struct governor *governor_new(const struct engine *engine, const struct hetero_grant_device *terms,
                              struct hetero_region_device *account, const char *directory, unsigned device)
{
    struct governor *governor = calloc(1, sizeof *governor);
    if (governor == NULL)
        return NULL;
    governor->engine = governor->tracked_streams.engine = engine;
    governor->terms = terms;
    governor->account = account;
    governor->stride = 1;
    pthread_mutex_init(&governor->lock, NULL);
    slice_open(&governor->slice, directory, device);
    return governor;
}

void governor_after_fork(struct governor *governor)
{
    slice_close(&governor->slice);
}

static void spend(struct governor *governor, struct hetero_region_device *account, uint64_t now, uint64_t spent_ns)
{
    budget_settle(account, governor->asked_ns, now, terms_core(governor->terms), spent_ns);
    /* Time lent by nobody's loss is not paid back: an elastic grant owes one time slice at most, and what it took while
     * another waited. */
    if (terms_policy(governor->terms) == HETERO_POLICY_ELASTIC &&
        atomic_load_explicit(&account->balance_ns, memory_order_relaxed) < -BUDGET_SLICE_NS &&
        !slice_wanted(&governor->slice))
        atomic_store_explicit(&account->balance_ns, -BUDGET_SLICE_NS, memory_order_relaxed);
}

/* The device was ours from `from` to `to`; or, when the process was stopped meanwhile (a signal, a debugger, a paused
 * container), for as long as its co-tenants waited for it. */
static void charge(struct governor *governor, uint64_t from, uint64_t to)
{
    uint64_t ran_ns = to - from < SLICE_PATIENCE_NS ? to - from : SLICE_PATIENCE_NS;
    power_ran(&governor->power, from, from + ran_ns, true);
    uint64_t waived_ns = governor->waived_ns < ran_ns ? governor->waived_ns : ran_ns;
    governor->waived_ns -= waived_ns;
    uint64_t charged_ns = power_charge(&governor->power, ran_ns - waived_ns);
    if (slice_wanted_by_siblings(&governor->slice))
        charged_ns += charged_ns / SWITCHING;
    spend(governor, governor->account, to, charged_ns);
    spend(governor, &governor->own, to, charged_ns);
    uint32_t count = gate_launches(governor);
    atomic_fetch_add_explicit(&governor->account->launches, (uint32_t)(count - governor->launches_seen),
                              memory_order_relaxed);
    governor->launches_seen = count;
}

/* What the grant may still use; and however the shared account came by its balance, this process alone is never ahead
 * of its grant's share by more than could have been owed. */
static int64_t balance(struct governor *governor)
{
    uint64_t now = governor->engine->now();
    uint32_t core = terms_core(governor->terms);
    int64_t shared = budget_balance(governor->account, governor->asked_ns, now, core);
    int64_t own = budget_balance(&governor->own, governor->asked_ns, now, core) + BUDGET_ARREARS_NS;
    return shared < own ? shared : own;
}

/* Who asks for the card's power (gate.h): the driver may take its time, 130 ms have been seen while other programs
 * started and ended. */
static void *watch_power(void *argument)
{
    struct governor *governor = argument;
    bool ever = false;
    uint32_t seen = atomic_load(&governor->watch);
    for (; seen != UNTOLD && !atomic_load(&governors_retired); seen = atomic_load(&governor->watch)) {
        if (seen != WATCHER_ASKS) {
            gate_sleep(&governor->watch, seen, UINT64_C(1000) * MS);
            continue;
        }
        bool advertised = governor->engine->power(governor->terms->uuid, &governor->reading);
        ever = ever || advertised;
        atomic_store(&governor->watch, advertised ? WATCHER_ASKED : ever ? WATCHER_RESTS : UNTOLD);
    }
    atomic_store(&governor->watch, UNTOLD);
    gate_wake(&governor->watch);
    return NULL;
}

/* A power-limited program makes other launches at other clocks: its time slices before and after are not on one line. What a unconstrained
 * one makes is what its own charge rate is told by. */
static void begin_line(struct governor *governor)
{
    uint32_t charge_rate = governor->power.charge_rate > POWER_UNITY ? governor->power.charge_rate : POWER_UNITY, before = governor->paced_at;
    if (charge_rate * 16 > before * 17 || charge_rate * 17 < before * 16) {
        governor->pace = (struct pace){0};
        governor->paced_at = charge_rate;
    }
}

/* Look now and then at what the card draws: time on a card at its power limit is dearer. */
static void look_at_power(struct governor *governor)
{
    const struct power_reading *reading = &governor->reading;
    uint64_t now = governor->engine->now();
    uint32_t watch = atomic_load(&governor->watch);
    if (watch == UNTOLD || !power_due(&governor->power, now))
        return;
    if (watch == UNWATCHED && !governor->engine->power(governor->terms->uuid, &governor->reading)) {
        if (governor->power.idle_mw == 0)
            atomic_store(&governor->watch, UNTOLD);
        return;
    }
    if (watch == WATCHER_RESTS && atomic_compare_exchange_strong(&governor->watch, &watch, WATCHER_ASKS))
        gate_wake(&governor->watch);
    if (watch != UNWATCHED && watch != WATCHER_ASKED)
        return;
    if (governor->power.idle_mw == 0)
        power_begin(&governor->power, now, reading);
    else
        power_look(&governor->power, now, reading, governor->pace.rate);
    begin_line(governor);
    log_line(LOG_DEBUG, "governor: %u of %u mW, device time at %u/1024", reading->mean_mw, reading->limit_mw,
             governor->power.charge_rate);
    if (watch == WATCHER_ASKED)
        atomic_compare_exchange_strong(&governor->watch, &watch, WATCHER_RESTS);
}

/* Wait out of the time slice, and see whether others run meanwhile. */
static void rest(struct governor *governor, uint64_t ns)
{
    uint64_t now = governor->engine->now(), until = now + ns;
    while (now < until) {
        uint64_t since = now;
        governor->engine->pause(until - now < WATCH_NS ? until - now : WATCH_NS);
        now = governor->engine->now();
        if (slice_held(&governor->slice))
            power_ran(&governor->power, since, now, false);
    }
}

/* What passes between time slices is lost, and where the shares add up to all of the device somebody loses it: all alike, if
 * whoever is owed most runs. High priority is heeded first. */
static bool owed_less(const struct governor *governor)
{
    return terms_priority(governor->terms) == HETERO_PRIORITY_LOW && slice_owed_more(&governor->slice);
}

/* The time slice is about to be ours: a launcher that would have to be woken first is 50 to 200 us late. */
static void make_ready(void *governor_)
{
    struct governor *governor = governor_;
    atomic_store(&governor->gate, GATE_READY);
    gate_wake(&governor->gate);
}

/* Get the time slice with the balance out of debt; or, for an elastic grant, in debt while nobody else wants it.
 * False: the limit was lifted, or a process of the same grant spent what there was. */
static bool obtain(struct governor *governor, bool *borrowed)
{
    const struct hetero_grant_device *terms = governor->terms;
    *borrowed = false;
    for (;;) {
        if (!terms_limit_core(terms) || atomic_load(&governors_retired))
            return false;
        int64_t owed = balance(governor);
        uint64_t wait_ns = budget_wait(owed, terms_core(terms)), most = GATE_LOOK_NS / 2;
        slice_owe(&governor->slice, owed);
        slice_waits(&governor->slice, true);
        if (wait_ns == 0 && !(owed_less(governor) && slice_held(&governor->slice)))
            break;
        if (wait_ns == 0) {
            wait_ns = MS;
        } else if (terms_policy(terms) == HETERO_POLICY_ELASTIC) {
            *borrowed = slice_try(&governor->slice, terms_priority(terms) == HETERO_PRIORITY_HIGH);
            if (*borrowed)
                return true;
            most = MS / 2;
        }
        rest(governor, wait_ns < most ? wait_ns : most);
    }
    uint64_t since = governor->engine->now();
    slice_take(&governor->slice, terms_priority(terms) == HETERO_PRIORITY_HIGH, make_ready, governor);
    power_ran(&governor->power, since, governor->engine->now(), false);
    if (terms_limit_core(terms) && balance(governor) >= 0)
        return true;
    atomic_store(&governor->gate, GATE_CLOSED);
    slice_give(&governor->slice);
    return false;
}

static bool must_end(struct governor *governor, uint64_t now, uint64_t own_until)
{
    const struct hetero_grant_device *terms = governor->terms;
    if (!terms_limit_core(terms) || atomic_load(&governors_retired))
        return true;
    if (terms_priority(terms) == HETERO_PRIORITY_LOW && slice_claimed(&governor->slice))
        return true;
    if (now < own_until)
        return false;
    uint64_t longer = 2 * (uint64_t)budget_share(BUDGET_SLICE_NS, terms_core(terms));
    int64_t owed = balance(governor);
    slice_owe(&governor->slice, owed);
    if (terms_policy(terms) == HETERO_POLICY_FIXED && now >= own_until + longer && owed <= 0)
        return true;
    /* Processes of a grant in debt do not wait for the time slice, only for its being free. */
    if (now >= own_until + 2 * BUDGET_SLICE_NS && owed <= 0 && slice_wanted_by_siblings(&governor->slice))
        return true;
    /* Neighbours that are all owed something would else drift apart, time slice by time slice. */
    return slice_wanted(&governor->slice) &&
           (owed <= 0 || now >= own_until + BUDGET_SLICE_NS || owed_less(governor));
}

/* How long this time slice is when others want theirs and nothing more is owed: of no regular length, so that the samples of
 * the card's power, which are taken on a beat, do not always meet the same tenant (power.h); and longer for a program
 * to which a pause is dear. */
static uint64_t slice_length(struct governor *governor)
{
    governor->rng = governor->rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    uint64_t longer = 20 * (uint64_t)(governor->pace.lost_ms * 1e6);
    return BUDGET_SLICE_NS / 2 + (governor->rng >> 32) % BUDGET_SLICE_NS +
           (longer < BUDGET_SLICE_NS ? longer : BUDGET_SLICE_NS);
}

/* Open the gate, let launches run, close it, wait for them; charge as it goes, so that a kill costs one tick. */
static void run(struct governor *governor, bool borrowed)
{
    const struct engine *engine = governor->engine;
    uint64_t opened = engine->now(), charged = 0, busy = 0, own_until = 0, gap = 0, now;
    uint32_t before = gate_launches(governor), seen = before;
    bool beside = false;
    atomic_store(&governor->first_ns, 0);
    atomic_store(&governor->gate, GATE_OPEN);
    gate_wake(&governor->gate);
    for (;;) {
        bool high = terms_priority(governor->terms) == HETERO_PRIORITY_HIGH;
        bool low_latency = !high && slice_beside_high(&governor->slice);
        atomic_store_explicit(&governor->low_latency, low_latency, memory_order_relaxed);
        uint64_t tick = low_latency || high ? TICK_LOW_LATENCY_NS : TICK_NS;
        gap = high ? GAP_HIGH_NS : GAP_NS;
        now = engine->now();
        uint64_t left = own_until > now ? own_until - now : tick;
        engine->pause(left < tick ? left : tick);
        now = engine->now();
        uint64_t first = atomic_load_explicit(&governor->first_ns, memory_order_relaxed);
        if (first == 0) {
            /* Launchers that were waiting may be slow to wake on a busy machine. */
            if (now - opened > (atomic_load(&governor->waiting) > 0 ? WAKE_NS : gap))
                break;
            continue;
        }
        if (charged == 0 && slice_drains(&governor->slice) && now - first < YIELD_NS) {
            beside = true;
            continue;
        }
        if (charged == 0) {
            charged = busy = beside ? now - (now - first) / 2 : first;
            own_until = charged + (borrowed ? 0 : slice_length(governor));
        }
        uint32_t count = gate_launches(governor);
        bool resting = count == seen && (atomic_load(&governor->traffic) & GATE_INSIDE) == 0 && gate_settled(governor);
        seen = count;
        if (!resting)
            busy = now;
        if (busy > charged) {
            charge(governor, charged, busy);
            charged = busy;
        }
        if (now - busy >= gap || must_end(governor, now, own_until))
            break;
    }
    atomic_store(&governor->gate, GATE_CLOSED);
    bool drained = false, yields = slice_yields(&governor->slice), advertised = false;
    uint64_t closed = engine->now();
    while (!drained && engine->now() - closed < DRAIN_NS && !atomic_load(&governors_retired)) {
        drained = (atomic_load(&governor->traffic) & GATE_INSIDE) == 0 && gate_settled(governor);
        if (!advertised && atomic_load(&governor->backlog) <= 1) {
            slice_ends(&governor->slice);
            advertised = true;
        }
        if (!drained) {
            /* A short wait is told to a few microseconds, which a program of small kernels would be charged for. */
            uint64_t waited = engine->now() - closed;
            engine->pause(waited < 24 * US ? 3 * US : waited > 240 * US ? 30 * US : waited / 8);
        }
    }
    if (!drained)
        log_line(LOG_INFO, "governor: a time slice was given up with work in flight");
    now = engine->now();
    if (drained && charged != 0 && closed - busy < gap && !beside && !yields) {
        uint64_t warmup_ns =
            pace_end(&governor->pace, now - atomic_load(&governor->first_ns), gate_launches(governor) - before);
        /* What a power-limited program's time slices give is in its charge rate, pauses and all. */
        governor->waived_ns = governor->power.charge_rate > POWER_UNITY ? 0 : warmup_ns;
    }
    if (charged == 0) /* nobody came, or only just */
        charged = atomic_load(&governor->first_ns) != 0 ? atomic_load(&governor->first_ns) : now;
    else if (busy + gap <= closed && !slice_wanted(&governor->slice))
        charged = now; /* the gap at the end is charged only if it kept somebody waiting */
    if (yields)
        charged += (now - charged) / 2;
    charge(governor, charged, now);
    if (gate_lock(governor)) {
        governor->timed_ns = 0;
        gate_unlock(governor);
    }
}

void governor_round(struct governor *governor)
{
    bool borrowed;
    if (governor->core != terms_core(governor->terms)) {
        governor->core = terms_core(governor->terms);
        power_forget(&governor->power);
        governor->pace = (struct pace){0}; /* time slices of another length lose something else */
    }
    look_at_power(governor);
    slice_announce(&governor->slice, terms_priority(governor->terms) == HETERO_PRIORITY_HIGH);
    slice_want(&governor->slice, true);
    bool obtained = obtain(governor, &borrowed);
    slice_want(&governor->slice, false);
    if (!obtained)
        return;
    slice_waits(&governor->slice, false);
    run(governor, borrowed);
    slice_give(&governor->slice);
}

void governor_begin(struct governor *governor)
{
    governor->engine->begin();
    governor->rng = governor->asked_ns = governor->engine->now();
}

/* Until a launcher waits. */
static void idle(struct governor *governor)
{
    uint64_t since = governor->engine->now();
    slice_owe(&governor->slice, 0);
    slice_waits(&governor->slice, false);
    for (bool long_since = false; atomic_load(&governor->waiting) == 0 && !atomic_load(&governors_retired);
         long_since = true) {
        if (long_since) /* nobody need keep little in flight for us */
            slice_announce(&governor->slice, false);
        gate_sleep(&governor->waiting, 0, UINT64_C(1000) * MS);
    }
    uint64_t now = governor->engine->now();
    governor->asked_ns = now; /* what grew meanwhile was not asked for */
    /* Who runs now is taken to have run since: as true on average as having watched, if it was not for long. */
    if (now - since > UNWATCHED_NS)
        power_unwatched(&governor->power, now);
    else if (slice_held(&governor->slice))
        power_ran(&governor->power, since, now, false);
}

void *governor_work(void *argument)
{
    struct governor *governor = argument;
    pthread_t watcher;
    prctl(PR_SET_TIMERSLACK, 1UL); /* a sleep of 30 us would take 80 */
    governor_begin(governor);
    if (pthread_create(&watcher, NULL, watch_power, governor) == 0) {
        pthread_detach(watcher);
        atomic_store(&governor->watch, WATCHER_RESTS);
    }
    while (!atomic_load(&governors_retired)) {
        if (atomic_load(&governor->waiting) == 0)
            idle(governor);
        governor_round(governor);
    }
    return NULL;
}
