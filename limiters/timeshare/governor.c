/* The governor's thread (governor.h): waits out debt, takes the time slice, opens the gate, closes it and charges. A
 * program that needs little of the device runs without a time slice (light_run.h).
 */
#include "governor.h"

#include "budget.h"
#include "futex.h"
#include "gang_run.h"
#include "light_run.h"
#include "neighbours.h"
#include "spin.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/tenant.h"

#include <stdlib.h>
#include <sys/prctl.h>

/* How often a running time slice is looked at: a neighbour with a higher claim waits for that and what is in flight. */
#define TICK_NS             (MS / 2)
#define TICK_LOW_LATENCY_NS (MS / 10)

/* With nothing in flight for so long the time slice ends. Shorter gaps are charged: a program that launches one small
 * kernel after the other keeps the device from others as a long kernel does. */
#define GAP_NS      MS
#define GAP_HIGH_NS (MS / 2) /* of high priority, which gets the device back at once */

/* How long a time slice is kept for launchers that have been woken and have not come yet. */
#define WAKE_NS (10 * MS)

/* A time slice is given up after so long even if its work is not done. A kernel that waits for one of another process
 * (a collective) would otherwise wait for ever when both want the same device. */
#define DRAIN_NS (100 * MS)

/* What drains before a gang's row: the most that is kept clear for it, and how fast a long one is forgotten. */
#define DRAINS_MOST_NS (3 * MS)
#define DRAINS_FADE    16

/* A time slice that is held idle while others want it is charged for so long: then they no longer wait for it. */
#define IDLE_NS (100 * MS)

/* What light programs do beside it for so long is no longer taken for its own queue; and a time slice beside them that
 * nobody else wants ends after so long, where it may be a light program itself: what it needs is learnt at the end. */
#define UNLIT_NS (1000 * MS)
#define LEARN_NS (100 * MS)

/* Those without a time slice are away once they have used nothing for so long, which is when they say what they used;
 * and are not waited for any longer than this. */
#define CLEARS_NS      (3 * MS / 2)
#define CLEARS_MOST_NS (6 * MS)

/* How often a governor that waits out its debt looks whether others run: that tells their power from ours. After a
 * rest longer than the second it does not know who ran meanwhile. */
#define WATCH_NS     (2 * MS)
#define UNWATCHED_NS (100 * MS)

/* Where a service runs kernels of several programs at the same time, the processes of a grant are in its time slice
 * together. Whoever leads charges the grant for all of them; each is charged by its own account. */
static bool leads(const struct governor *governor)
{
    return terms_by_service(governor->grant_device) && governor->time_slice.is_ours;
}

static bool follows(const struct governor *governor)
{
    return governor->time_slice.has_joined && time_slice_of_sibling(&governor->time_slice) != PAGE_IDLE;
}

/* How many others the driver goes over to meanwhile. */
static unsigned beside(struct governor *governor)
{
    struct time_slice *time_slice = &governor->time_slice;
    return leads(governor) || follows(governor) ? time_slice_others(time_slice) : time_slice_beside(time_slice);
}

/* Whether we may run in a sibling's time slice: it is not over, and whoever has it charges. The grant's account is
 * written at each look of it. */
static bool joins(struct governor *governor)
{
    if (!terms_by_service(governor->grant_device) || time_slice_of_sibling(&governor->time_slice) != PAGE_RUNS)
        return false;
    uint64_t now_ns = governor->engine->now(), stamp_ns = account_stamp(&governor->account);
    if (stamp_ns != governor->company.account_stamp_at_ns)
        governor->company.stamp_seen_at_ns = now_ns;
    governor->company.account_stamp_at_ns = stamp_ns;
    return elapsed(governor->company.stamp_seen_at_ns, now_ns) < IDLE_NS && account_allows(&governor->account, now_ns);
}

/* The device was ours from `from_ns` to `to_ns`, or a part of it was: not what light programs used of it meanwhile. How
 * many siblings had a part is believed for what the grant is charged, and not for what this process is: the page that
 * says so is the tenant's to write. */
static void charge(struct governor *governor, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t ours_ns = neighbours_leave(governor, elapsed(from_ns, to_ns));
    unsigned other_count = beside(governor);
    uint64_t ran_ns = budget_part(ours_ns, other_count);
    if (terms_policy(governor->grant_device) == HETERO_POLICY_FIXED || time_slice_wanted(&governor->time_slice))
        governor->doubt.charged_ns += ran_ns -
                                      budget_part(ours_ns, other_count + time_slice_doubted(&governor->time_slice));
    uint64_t most_ns = budget_part(ours_ns, time_slice_others(&governor->time_slice));
    power_ran(&governor->power, from_ns, from_ns + ran_ns, true);
    uint64_t waived_ns = governor->warmup.uncharged_ns < ran_ns ? governor->warmup.uncharged_ns : ran_ns;
    governor->warmup.uncharged_ns -= waived_ns;
    uint64_t charged_ns = power_charge(&governor->power, ran_ns - waived_ns);
    uint32_t switching = governor->power.model->switching;
    if (switching > 0 && time_slice_wanted_by_siblings(&governor->time_slice))
        charged_ns += charged_ns / switching;
    uint64_t own_ns = charged_ns + most_ns - ran_ns;
    if (follows(governor))
        account_spend_own(&governor->account, &governor->time_slice, to_ns, own_ns);
    else
        account_spend(&governor->account, &governor->time_slice, to_ns, charged_ns, own_ns);
    account_count(&governor->account, gate_launches(&governor->gate));
}

/* Whether it has; said to all. */
static bool in_flight(struct governor *governor)
{
    bool is = !gate_is_idle(&governor->gate);
    time_slice_busy(&governor->time_slice, is);
    return is;
}

/* The same, of a process that may have been stopped since it looked last: a launcher that has the gate's lock, and that
 * goes on only now, keeps the answer from being known at once. */
static bool still_in_flight(struct governor *governor, uint64_t looked_ns)
{
    bool is = in_flight(governor);
    for (unsigned again = 0; is && again < 4 && elapsed(looked_ns, governor->engine->now()) > WAKE_NS; again++) {
        governor->engine->pause(MS / 2);
        is = in_flight(governor);
    }
    return is;
}

/* Charge time at whose end nothing is in flight. Looks are milliseconds apart, unless the process was stopped: then
 * nobody knows when the work was done, and co-tenants believed that it went on no longer than this. */
static void charge_last(struct governor *governor, uint64_t from_ns, uint64_t to_ns)
{
    charge(governor, elapsed(from_ns, to_ns) < PAGES_STOPPED_NS ? from_ns : to_ns - PAGES_STOPPED_NS, to_ns);
}

/* What an ended time slice left in flight is charged up to now. */
static void begin_trail(struct governor *governor, uint64_t now_ns, bool works)
{
    governor->trail.charged_until_at_ns = works || gate_waits(&governor->gate) ? now_ns : 0;
    governor->trail.stands_at_waits = !works;
    governor->trail.signaled_fences = gate_signaled_fences(&governor->gate);
}

/* Charge what an ended time slice left in flight, but not the time between two looks at which the device stood at the
 * same waits. */
static void trail(struct governor *governor)
{
    if (governor->trail.charged_until_at_ns == 0)
        return;
    bool works = still_in_flight(governor, governor->trail.charged_until_at_ns),
         waited_ns = governor->trail.stands_at_waits;
    uint64_t now_ns = governor->engine->now(), since_ns = governor->trail.charged_until_at_ns;
    uint32_t signaled_before = governor->trail.signaled_fences;
    begin_trail(governor, now_ns, works);
    bool stood = waited_ns && !works && signaled_before == governor->trail.signaled_fences;
    if (works)
        charge(governor, since_ns, now_ns);
    else if (!stood)
        charge_last(governor, since_ns, now_ns);
}

/* Without the time slice: charge what is in flight. */
static void trail_and_pass(struct governor *governor, uint64_t now_ns)
{
    const struct spin *spin = &governor->spin;
    bool passed = (spin->pass_count > 0 || spin->has_passed_long) &&
                  gate_launches(&governor->gate) != spin->launch_count;
    if (passed && governor->trail.charged_until_at_ns == 0)
        begin_trail(governor, now_ns, true);
    trail(governor);
    spin_pass(governor, now_ns,
              governor->trail.charged_until_at_ns != 0 ? !governor->trail.stands_at_waits
                                                       : !gate_is_idle(&governor->gate));
}

/* How often that is looked at: what is done behind a wait is charged from look to look. */
static uint64_t trail_look_ns(const struct governor *governor)
{
    return governor->trail.stands_at_waits ? TICK_NS : WATCH_NS;
}

/* We want the device. What a neighbour that is in debt keeps us from is owed in full. */
static void look_at_neighbours(struct governor *governor)
{
    uint64_t now_ns = governor->engine->now(), since_ns = governor->company.asked_at_ns;
    governor->company.asked_at_ns = now_ns;
    if (since_ns != 0 && elapsed(since_ns, now_ns) < IDLE_NS && !terms_by_service(governor->grant_device) &&
        time_slice_overrun(&governor->time_slice))
        account_keep(&governor->account, elapsed(since_ns, now_ns));
}

/* A power-limited program's launch rate depends on its clocks: the regression begins anew when its charge rate has
 * moved by 1/16. An unconstrained program's charge rate depends on that regression, and does not reset it. */
static void begin_line(struct governor *governor)
{
    uint32_t rate = governor->power.charge_rate > POWER_UNITY ? governor->power.charge_rate : POWER_UNITY;
    uint32_t before = governor->warmup.charge_rate;
    if (rate * 16 > before * 17 || rate * 17 < before * 16) {
        governor->pace = (struct pace){0};
        governor->warmup.charge_rate = rate;
    }
}

/* Look now and then at what the card draws: time on a card at its power limit is charged more. */
static void look_at_power(struct governor *governor)
{
    struct power *power = &governor->power;
    uint64_t now_ns = governor->engine->now();
    const struct power_reading *reading = power_due(power, now_ns) ? power_watch_look(&governor->watch) : NULL;
    if (reading == NULL)
        return;
    if (power->idle_mw == 0)
        power_begin(power, power->model, now_ns, reading);
    else
        power_look(power, now_ns, reading, governor->pace.launches_per_ms);
    begin_line(governor);
    log_line(LOG_DEBUG, "governor: %u of %u mW, device time at %u/1024", reading->mean_mw, reading->limit_mw,
             power->charge_rate);
    power_watch_done(&governor->watch);
}

/* Wait without the time slice, and see whether others run meanwhile. */
static void rest(struct governor *governor, uint64_t rest_ns)
{
    uint64_t now_ns = governor->engine->now(), until_ns = now_ns + rest_ns;
    while (now_ns < until_ns && !joins(governor)) {
        uint64_t since_ns = now_ns;
        uint64_t look_ns = governor->trail.charged_until_at_ns != 0 ? trail_look_ns(governor) : WATCH_NS;
        governor->engine->pause(until_ns - now_ns < look_ns ? until_ns - now_ns : look_ns);
        now_ns = governor->engine->now();
        trail_and_pass(governor, now_ns);
        if (time_slice_held(&governor->time_slice))
            power_ran(&governor->power, since_ns, now_ns, false);
    }
}

/* Hand-overs lose device time, and where the shares add up to all of the device somebody has to lose it: everybody
 * alike, if the grant that is owed most runs. High priority runs whatever it is owed. */
static bool owed_less(struct governor *governor)
{
    return terms_priority(governor->grant_device) == HETERO_PRIORITY_LOW && time_slice_owed_more(&governor->time_slice);
}

/* While the time slice is waited for. Once it is about to be ours, launchers get ready: one that would have to be woken
 * first is 50 to 200 us late. */
static bool look(void *governor_, bool soon)
{
    struct governor *governor = governor_;
    trail_and_pass(governor, governor->engine->now());
    look_at_neighbours(governor);
    if (soon && atomic_load(&governor->gate.state) != GATE_READY)
        gate_set(&governor->gate, GATE_READY);
    return joins(governor);
}

/* Whether it may run without a time slice of its own: beside others, or in a sibling's. */
static bool enters(struct governor *governor, int64_t balance_ns)
{
    if (governor_runs_beside(governor, balance_ns))
        return true;
    if (!joins(governor))
        return false;
    time_slice_join(&governor->time_slice);
    return true;
}

/* In debt: take the time slice if nobody else wants it. */
static bool borrow(struct governor *governor)
{
    return !governor_beside(governor) &&
           time_slice_try(&governor->time_slice, terms_priority(governor->grant_device) == HETERO_PRIORITY_HIGH);
}

/* Out of debt: wait for the time slice. False: there is no use for it any more. */
static bool take(struct governor *governor)
{
    uint64_t since_ns = governor->engine->now();
    time_slice_take(&governor->time_slice, terms_priority(governor->grant_device) == HETERO_PRIORITY_HIGH,
                    &(struct time_slice_waiter){.look = look, .owner = governor});
    power_ran(&governor->power, since_ns, governor->engine->now(), false);
    if (terms_limit_core(governor->grant_device) &&
        (governor->time_slice.has_joined || governor_balance(governor) >= 0))
        return true;
    gate_set(&governor->gate, GATE_CLOSED);
    time_slice_give(&governor->time_slice);
    return false;
}

/* Get the time slice with the balance out of debt; or, for an elastic grant, in debt while nobody else wants it.
 * False: the limit was lifted, or a process of the same grant spent what there was. */
static bool obtain(struct governor *governor, bool *borrowed)
{
    const struct hetero_grant_device *terms = governor->grant_device;
    uint64_t solvent_ns = 0; /* since when it is out of debt */
    *borrowed = false;
    while (terms_limit_core(terms) && !atomic_load(&gates_retired)) {
        int64_t balance_ns = governor_balance(governor);
        uint64_t wait_ns = budget_wait(balance_ns, terms_core(terms)), most_ns = GATE_LOOK_NS / 2;
        time_slice_owe(&governor->time_slice, balance_ns);
        time_slice_waits(&governor->time_slice, true);
        if (enters(governor, balance_ns))
            return true;
        uint64_t now_ns = governor->engine->now();
        solvent_ns = wait_ns > 0 ? 0 : solvent_ns == 0 ? now_ns : solvent_ns;
        if (wait_ns == 0) {
            look_at_neighbours(governor);
            bool defers = elapsed(solvent_ns, now_ns) < TIME_SLICE_DEFERS_NS && owed_less(governor);
            if (!defers || !time_slice_held(&governor->time_slice))
                return take(governor);
            wait_ns = MS;
        } else {
            governor->company.asked_at_ns = 0;
            bool elastic = terms_policy(terms) == HETERO_POLICY_ELASTIC;
            *borrowed = elastic && borrow(governor);
            if (*borrowed)
                return true;
            most_ns = elastic ? MS / 2 : most_ns;
        }
        rest(governor, wait_ns < most_ns ? wait_ns : most_ns);
    }
    return false;
}

/* How one time slice goes. */
struct course {
    bool borrowed;                /* obtained in debt */
    bool beside;                  /* others had work in flight meanwhile */
    bool doubts;                  /* or said so for longer than they are believed */
    bool together;                /* siblings were in it, too */
    uint64_t light_ns;            /* what light programs had used when it began */
    uint32_t launches_at_open;    /* launches when the gate opened */
    uint32_t launches_at_look;    /* launches at the last look */
    uint32_t signaled_fences;     /* fences that were signaled by then */
    uint64_t opened_at_ns;        /* when the gate opened */
    uint64_t charged_until_at_ns; /* charged up to then; 0: no launch came yet */
    uint64_t busy_at_ns;          /* when the device was last seen to have work */
    uint64_t own_until_at_ns;     /* until then nobody else may have the device */
    uint64_t idle_gap_ns;         /* with nothing in flight for so long it ends */
    uint64_t closed_at_ns;        /* when the gate closed */
    uint64_t looked_at_ns;        /* when it was last looked what is in flight */
};

/* How long this time slice is when others want theirs and nothing more is owed. It varies, because samples of power at
 * regular moments would always meet the same tenant (power.h), and is longer for a program that a pause costs much. */
static uint64_t time_slice_length(struct governor *governor)
{
    uint64_t longer_ns = 20 * (uint64_t)(governor->pace.lost_ms * 1e6);
    return BUDGET_TIME_SLICE_NS / 2 + governor_random(&governor->random_state, BUDGET_TIME_SLICE_NS) +
           (longer_ns < BUDGET_TIME_SLICE_NS ? longer_ns : BUDGET_TIME_SLICE_NS);
}

/* Whether one that had its time slice, and so much longer, has had enough whatever others want. */
static bool is_used_up(struct governor *governor, uint64_t longer_ns, int64_t balance_ns)
{
    const struct hetero_grant_device *terms = governor->grant_device;
    struct time_slice *time_slice = &governor->time_slice;
    uint64_t most_ns = 2 * (uint64_t)budget_share(BUDGET_TIME_SLICE_NS, terms_core(terms));
    if (terms_policy(terms) == HETERO_POLICY_FIXED && longer_ns >= most_ns && balance_ns <= 0)
        return true;
    bool learnt = longer_ns >= LEARN_NS && light_known(&governor->light) && !light_surely_heavy(&governor->light);
    if (time_slice_lit(time_slice) > 0 && (learnt || light_needs_no_slice(governor)))
        return true;
    /* Processes of a grant in debt do not wait for the time slice, they only take it when it is free. */
    return longer_ns >= 2 * BUDGET_TIME_SLICE_NS && balance_ns <= 0 && time_slice_wanted_by_siblings(time_slice);
}

/* Whether others are to have the time slice. Neighbours that are all owed something would otherwise drift apart, one
 * time slice after the other; and one that waited in vain runs beside us without saying that it wants anything. */
static bool is_others_turn(struct governor *governor, uint64_t longer_ns, int64_t balance_ns)
{
    struct time_slice *time_slice = &governor->time_slice;
    bool enough = balance_ns <= 0 || longer_ns >= BUDGET_TIME_SLICE_NS || owed_less(governor);
    bool lent_no_more = balance_ns < 0 && time_slice_others(time_slice) > 0;
    return enough && (lent_no_more || time_slice_wanted(time_slice) || time_slice_held(time_slice));
}

static bool must_end(struct governor *governor, uint64_t now_ns, uint64_t own_until_at_ns)
{
    struct time_slice *time_slice = &governor->time_slice;
    bool yields = terms_priority(governor->grant_device) == HETERO_PRIORITY_LOW &&
                  (time_slice_claimed(time_slice) || time_slice_row_comes(time_slice));
    if (yields || !terms_limit_core(governor->grant_device) || atomic_load(&gates_retired))
        return true;
    if (time_slice->has_joined)
        return !joins(governor);
    if (now_ns < own_until_at_ns)
        return false;
    int64_t balance_ns = governor_balance(governor);
    time_slice_owe(time_slice, governor_beside(governor) && !light_queues(&governor->light) ? 0 : balance_ns);
    if (governor_beside(governor))
        return !governor_runs_beside(governor, balance_ns);
    return is_used_up(governor, now_ns - own_until_at_ns, balance_ns) ||
           is_others_turn(governor, now_ns - own_until_at_ns, balance_ns);
}

/* Whether little is to be in flight, for one of high priority. Beside a long kernel it meets that one's turns anyway,
 * and who has little in flight gets little of its own turns. */
static bool is_low_latency(struct governor *governor)
{
    struct time_slice *time_slice = &governor->time_slice;
    return terms_priority(governor->grant_device) == HETERO_PRIORITY_LOW && time_slice_beside_high(time_slice) &&
           !time_slice_overrun(time_slice);
}

/* Sleep until the next look. */
static void tick(struct governor *governor, struct course *course)
{
    bool high = terms_priority(governor->grant_device) == HETERO_PRIORITY_HIGH, low_latency = is_low_latency(governor);
    atomic_store_explicit(&governor->gate.wants_low_latency, low_latency, memory_order_relaxed);
    course->idle_gap_ns = high ? GAP_HIGH_NS : GAP_NS;
    bool often = low_latency || high || governor->time_slice.has_joined; /* its lead waits for it at the end */
    uint64_t ns = often ? TICK_LOW_LATENCY_NS : TICK_NS, now_ns = governor->engine->now();
    uint64_t left_ns = course->own_until_at_ns > now_ns ? course->own_until_at_ns - now_ns : ns;
    governor->engine->pause(left_ns < ns ? left_ns : ns);
}

/* Whether the first launch has come, and been reckoned from; `ends` if none is to be waited for any longer. */
static bool has_begun(struct governor *governor, struct course *course, uint64_t now_ns, bool *ends)
{
    uint64_t first_launch_at_ns = atomic_load_explicit(&governor->gate.first_launch_at_ns, memory_order_relaxed);
    if (first_launch_at_ns == 0) {
        /* Launchers that were waiting may be slow to wake on a busy machine. */
        *ends = elapsed(course->opened_at_ns, now_ns) >
                (atomic_load(&governor->gate.queue.waiting_count) > 0 ? WAKE_NS : course->idle_gap_ns);
        return false;
    }
    if (course->charged_until_at_ns != 0)
        return true;
    course->charged_until_at_ns = governor->trail.charged_until_at_ns != 0 ? governor->trail.charged_until_at_ns
                                                                           : first_launch_at_ns;
    if (elapsed(course->charged_until_at_ns, now_ns) > PAGES_STOPPED_NS) /* it was stopped behind its first launch */
        course->charged_until_at_ns = now_ns - PAGES_STOPPED_NS;
    course->busy_at_ns = first_launch_at_ns;
    course->looked_at_ns = now_ns;
    governor->trail.charged_until_at_ns = 0;
    course->own_until_at_ns = course->charged_until_at_ns + (course->borrowed ? 0 : time_slice_length(governor));
    return true;
}

/* The process was stopped with work in flight. If the device has done something since, nobody knows when it had done
 * all: then it counts until now, and a second at most. */
static void charge_stop(struct governor *governor, struct course *course, uint64_t now_ns)
{
    governor->engine->pause(MS / 2); /* a fence that passes at once shows a little later */
    bool works = in_flight(governor);
    if (works && atomic_load(&governor->gate.fences.popped_at_ns) < course->looked_at_ns)
        return;
    course->busy_at_ns = now_ns;
    if (elapsed(course->charged_until_at_ns, now_ns) > PAGES_STOPPED_NS)
        course->charged_until_at_ns = now_ns - PAGES_STOPPED_NS;
}

/* The device had nothing of ours, and nobody else wants it. Half of the time since the look before it had, on average,
 * and half of that until the look after this one it has not: the latter is charged in place of the former. Not of a
 * process that may have been stopped since it looked last. */
static void skip_idle(struct governor *governor, struct course *course, uint64_t now_ns)
{
    neighbours_leave(governor, elapsed(course->charged_until_at_ns, now_ns));
    course->charged_until_at_ns = now_ns;
}

/* Ask those who run without a time slice to keep away for a moment, and wait until they do. */
static void clear_device(struct governor *governor)
{
    struct time_slice *time_slice = &governor->time_slice;
    uint64_t since_ns = governor->engine->now(), now_ns = since_ns, still_since_ns = since_ns,
             light_ns = time_slice_light(time_slice);
    governor->measure.is_on = true;
    time_slice_measure(time_slice, true);
    while (elapsed(since_ns, now_ns) < CLEARS_MOST_NS && elapsed(still_since_ns, now_ns) < CLEARS_NS) {
        governor->engine->pause(MS / 10);
        now_ns = governor->engine->now();
        if (time_slice_light(time_slice) != light_ns || time_slice_others(time_slice) > 0)
            still_since_ns = now_ns;
        light_ns = time_slice_light(time_slice);
    }
}

static void end_measure(struct governor *governor)
{
    if (!governor->measure.is_on)
        return;
    governor->measure.is_on = false;
    time_slice_measure(&governor->time_slice, false);
    light_measured(governor);
}

static bool may_be_held(struct governor *governor)
{
    return (!time_slice_beside_high(&governor->time_slice) || gate_graphs(&governor->gate) > 0) &&
           !governor_beside(governor);
}

/* Learn from what was held, and hold what is launched if it is time. */
static void look_at_holds(struct governor *governor, bool launched)
{
    light_read_hold(governor);
    if (governor->measure.is_on && !governor->light.holds.is_pending && !light_wants_measure(governor))
        end_measure(governor);
    if (launched && may_be_held(governor))
        light_hold_now_and_then(governor, HOLD_MOST_NS, false);
}

/* Whether the device works for us, or is about to. */
static bool is_busy(struct governor *governor, struct course *course, uint32_t count)
{
    uint32_t signaled_fences = gate_signaled_fences(&governor->gate);
    bool launched = count != course->launches_at_look &&
                    (signaled_fences != course->signaled_fences || !gate_waits(&governor->gate));
    course->signaled_fences = signaled_fences;
    return launched || in_flight(governor);
}

/* At a look the device has work of ours, or not. */
static void note_work(struct governor *governor, struct course *course, bool busy, uint64_t now_ns)
{
    bool was_busy = course->busy_at_ns == course->looked_at_ns;
    if (elapsed(course->looked_at_ns, now_ns) > (was_busy ? WAKE_NS : PAGES_STOPPED_NS) && (busy || was_busy))
        charge_stop(governor, course, now_ns);
    if (busy)
        course->busy_at_ns = now_ns;
    else if (elapsed(course->looked_at_ns, now_ns) < WAKE_NS && !time_slice_wanted(&governor->time_slice))
        skip_idle(governor, course, now_ns);
}

/* At a look others have work, or not. */
static void note_others(struct governor *governor, struct course *course, uint64_t now_ns)
{
    bool others = beside(governor) > 0;
    course->beside = course->beside || others;
    atomic_store_explicit(&governor->gate.others_work, others && !time_slice_beside_high(&governor->time_slice),
                          memory_order_relaxed);
    bool lit = time_slice_lit(&governor->time_slice) > 0;
    if (!others || governor_beside(governor))
        light_queue(&governor->light, atomic_load_explicit(&governor->gate.fences.pending_count, memory_order_relaxed));
    if (!lit)
        governor->lights.unlit_at_ns = now_ns;
    else if (elapsed(governor->lights.unlit_at_ns, now_ns) >
             UNLIT_NS) /* its work waits behind that of light programs */
        light_unqueue(&governor->light);
}

/* Let launches run until the time slice has to end; charge as it goes, so that a kill costs one tick. */
static void let_run(struct governor *governor, struct course *course)
{
    for (bool ends = false; !ends;) {
        tick(governor, course);
        uint64_t now_ns = governor->engine->now();
        gate_look(&governor->gate, now_ns);
        look_at_neighbours(governor);
        if (!has_begun(governor, course, now_ns, &ends))
            continue;
        uint32_t count = gate_launches(&governor->gate);
        look_at_holds(governor, count != course->launches_at_look);
        bool busy = is_busy(governor, course, count);
        spin_note(governor, now_ns, busy);
        uint64_t looked_at_ns = governor->engine->now();
        now_ns = elapsed(now_ns, looked_at_ns) > WAKE_NS ? looked_at_ns : now_ns; /* it was stopped before it looked */
        time_slice_busy(&governor->time_slice, busy);
        if (leads(governor) && time_slice_siblings(&governor->time_slice) > 0)
            busy = course->together = true; /* the time slice is theirs, too */
        note_work(governor, course, busy, now_ns);
        if (time_slice_doubted(&governor->time_slice) > 0) {
            course->doubts = true;
            doubt_add(&governor->doubt, elapsed(course->looked_at_ns, now_ns), count - course->launches_at_look);
        }
        course->launches_at_look = count;
        course->looked_at_ns = now_ns;
        note_others(governor, course, now_ns);
        if (course->busy_at_ns > course->charged_until_at_ns) {
            charge(governor, course->charged_until_at_ns, course->busy_at_ns);
            course->charged_until_at_ns = course->busy_at_ns;
        }
        ends = elapsed(course->busy_at_ns, now_ns) >= course->idle_gap_ns ||
               must_end(governor, now_ns, course->own_until_at_ns);
    }
}

/* Whether nothing is in flight; of who joined neither, which looks each TICK_NS. */
static bool is_drained(struct governor *governor, const struct course *course)
{
    if (still_in_flight(governor,
                        course->charged_until_at_ns != 0 ? course->charged_until_at_ns : governor->engine->now()))
        return false;
    return !course->together || time_slice_siblings(&governor->time_slice) == 0;
}

/* Until it is looked again whether a time slice is drained that has been closed for so long. The end of a short wait is
 * found to a few microseconds, for programs of small kernels. */
static uint64_t drain_look_ns(uint64_t waited_ns)
{
    return waited_ns < 24 * US ? 3 * US : waited_ns > 240 * US ? 30 * US : waited_ns / 8;
}

/* Wait for what is in flight, and charge it. False: it took too long. */
static bool drain(struct governor *governor, struct course *course)
{
    const struct engine *engine = governor->engine;
    bool drained = false, advertised = false;
    if (course->together)
        time_slice_ends_for_siblings(&governor->time_slice);
    while (!drained && elapsed(course->closed_at_ns, engine->now()) < DRAIN_NS && !atomic_load(&gates_retired)) {
        drained = is_drained(governor, course);
        look_at_neighbours(governor);
        if (!advertised && atomic_load(&governor->gate.fences.pending_count) <= 1) {
            time_slice_ends(&governor->time_slice);
            advertised = true;
        }
        uint64_t now_ns = engine->now(), waited_ns = elapsed(course->closed_at_ns, now_ns);
        spin_pass(governor, now_ns, !drained);
        if (!drained && course->charged_until_at_ns != 0 && elapsed(course->charged_until_at_ns, now_ns) > TICK_NS) {
            charge(governor, course->charged_until_at_ns, now_ns);
            course->charged_until_at_ns = now_ns;
        }
        if (!drained)
            engine->pause(drain_look_ns(waited_ns));
    }
    if (!drained)
        log_line(LOG_INFO, "governor: a time slice was given up with work in flight");
    return drained;
}

/* How long a time slice drains at most, of late: before a gang's row it ends so much sooner. */
static void learn_drain(struct governor *governor, uint64_t took_ns)
{
    struct time_slice *time_slice = &governor->time_slice;
    uint64_t known_ns = time_slice->drain_ns - time_slice->drain_ns / DRAINS_FADE;
    took_ns = took_ns < DRAINS_MOST_NS ? took_ns : DRAINS_MOST_NS;
    time_slice->drain_ns = took_ns > known_ns ? took_ns : known_ns;
}

/* Learn what a pause costs from a time slice that was busy throughout, and had the device to itself. */
static void learn_pause(struct governor *governor, const struct course *course, uint64_t first_launch_at_ns,
                        uint64_t now_ns)
{
    if (course->beside || course->doubts || time_slice_light(&governor->time_slice) != course->light_ns)
        return;
    uint64_t warmup_ns = pace_end(&governor->pace, elapsed(first_launch_at_ns, now_ns),
                                  gate_launches(&governor->gate) - course->launches_at_open);
    /* The charge rate of a power-limited program was fitted to its time slices, pauses and all. */
    governor->warmup.uncharged_ns = governor->power.charge_rate > POWER_UNITY ? 0 : warmup_ns;
    account_give_back(&governor->account, doubt_end(&governor->doubt, &governor->pace));
}

/* From when on the rest of a time slice is charged. */
static uint64_t rest_from(struct governor *governor, const struct course *course, uint64_t first_launch_at_ns,
                          uint64_t now_ns)
{
    bool wanted = time_slice_wanted(&governor->time_slice);
    if (course->charged_until_at_ns == 0) /* no launch came, or it has just come */
        return first_launch_at_ns != 0 ? first_launch_at_ns : wanted ? course->opened_at_ns : now_ns;
    if (course->busy_at_ns + course->idle_gap_ns <= course->looked_at_ns && !wanted)
        return now_ns - TICK_NS / 2; /* the gap at the end, only if it kept somebody waiting; what was done since the
                                     last look that found work is half of a tick, on average */
    return course->charged_until_at_ns;
}

/* The time slice is over: charge the rest. */
static void settle(struct governor *governor, struct course *course, bool yields, bool drained)
{
    uint64_t now_ns = governor->engine->now(), first_launch_at_ns = atomic_load(&governor->gate.first_launch_at_ns);
    if (drained && course->charged_until_at_ns != 0 &&
        course->closed_at_ns - course->busy_at_ns < course->idle_gap_ns && !yields)
        learn_pause(governor, course, first_launch_at_ns, now_ns);
    if (first_launch_at_ns == 0)
        governor->last.missed_polls = atomic_load(&governor->gate.queue.look_count);
    course->charged_until_at_ns = rest_from(governor, course, first_launch_at_ns, now_ns);
    if (drained)
        charge_last(governor, course->charged_until_at_ns, now_ns);
    else
        charge(governor, course->charged_until_at_ns, now_ns);
    trail(governor);
    begin_trail(governor, now_ns, !drained);
    if (FAULT(trailing_work_forgiven))
        governor->trail.charged_until_at_ns = 0;
    gate_forget_timing(&governor->gate);
}

/* Run a time slice: open the gate, let launches run, close it, wait for them. */
static void run(struct governor *governor, bool borrowed)
{
    struct light_count counted = light_count(governor);
    uint32_t before = counted.launches;
    struct course course = {
        .borrowed = borrowed,
        .launches_at_open = before,
        .launches_at_look = before,
        .opened_at_ns = governor->engine->now(),
    };
    uint64_t asked_ns = governor->account.asked_at_ns;
    atomic_store(&governor->gate.first_launch_at_ns, 0);
    spin_note(governor, course.opened_at_ns, governor->trail.charged_until_at_ns != 0);
    bool measured = governor->time_slice.is_ours && light_wants_measure(governor);
    if (measured && time_slice_lit(&governor->time_slice) > 0)
        clear_device(governor);
    gate_deepen(&governor->gate, governor_beside(governor) ? GOVERNOR_IN_FLIGHT : 0);
    gate_set(&governor->gate, GATE_OPEN);
    gate_look(&governor->gate, course.opened_at_ns);
    account_stopped(&governor->account,
                    course.opened_at_ns -
                        (asked_ns > governor->last.gate_closed_at_ns ? asked_ns : governor->last.gate_closed_at_ns));
    uint64_t spent_ns = governor->account.own_counts.gpu_ns;
    course.light_ns = neighbours_begin(governor);
    if (governor->light.holds.of_bursts && !governor->time_slice.has_joined && may_be_held(governor))
        light_hold_now_and_then(governor, HOLD_MOST_NS, true);
    let_run(governor, &course);
    end_measure(governor);
    gate_set(&governor->gate, GATE_CLOSED);
    bool yields = time_slice_yields(&governor->time_slice);
    course.closed_at_ns = governor->last.gate_closed_at_ns = governor->engine->now();
    bool drained = drain(governor, &course);
    learn_drain(governor, elapsed(course.closed_at_ns, governor->engine->now()));
    settle(governor, &course, yields, drained);
    if (course.charged_until_at_ns != 0)
        light_learn_from(
            governor, light_between(counted, light_count(governor)),
            course.beside ? 0 : course.closed_at_ns - course.opened_at_ns,
            course.together || governor->time_slice.has_joined ? 0 : governor->account.own_counts.gpu_ns - spent_ns);
}

void governor_round(struct governor *governor)
{
    bool borrowed;
    if (!time_slice_renew(&governor->time_slice)) {
        governor->engine->pause(GATE_LOOK_NS); /* until then nothing is launched */
        return;
    }
    if (governor->learnt_core != terms_core(governor->grant_device)) {
        governor->learnt_core = terms_core(governor->grant_device);
        power_forget(&governor->power);
        governor->pace = (struct pace){0}; /* time slices of another length lose something else */
    }
    look_at_power(governor);
    if (gang_is(governor)) {
        time_slice_waits(&governor->time_slice, false);
        gang_run(governor);
        return;
    }
    if (light_is(governor)) {
        time_slice_waits(&governor->time_slice, false);
        light_run(governor);
        return;
    }
    if (terms_priority(governor->grant_device) == HETERO_PRIORITY_HIGH && !light_needs_no_slice(governor))
        time_slice_announce(&governor->time_slice);
    time_slice_want(&governor->time_slice, true);
    bool obtained = obtain(governor, &borrowed);
    time_slice_want(&governor->time_slice, false);
    if (!obtained)
        return;
    time_slice_waits(&governor->time_slice, false);
    run(governor, borrowed);
    time_slice_give(&governor->time_slice);
}

void governor_begin(struct governor *governor)
{
    char name[96];
    governor->engine->begin();
    governor->random_state = governor->light.rng = governor->account.asked_at_ns = governor->engine->now();
    governor->measure.away_began_at_ns = governor->account.asked_at_ns;
    governor->company.siblings_used_ns = account_siblings(&governor->account);
    governor->light.holds.unsupported = governor->engine->make_hold == NULL;
    if (governor->engine->device_name(governor->grant_device->uuid, name, sizeof name))
        governor->power.model = power_model_of(name);
    if (governor->power.model != &power_model_neutral)
        power_watch_begin(&governor->watch);
}

/* Whether a launcher waits that comes when the gate opens. A thread can be kept at the gate, in a signal handler or by
 * a debugger: of one that did not come that is not known before it has looked at the gate again. */
static bool is_asked(struct governor *governor)
{
    return atomic_load(&governor->gate.queue.waiting_count) > 0 &&
           (atomic_load(&governor->gate.queue.look_count) != governor->last.missed_polls ||
            FAULT(stuck_launcher_waited_for));
}

/* Sleep until one does. */
static void idle(struct governor *governor)
{
    struct gate *gate = &governor->gate;
    uint64_t since_ns = governor->engine->now();
    governor->company.asked_at_ns = 0;
    time_slice_owe(&governor->time_slice, 0);
    time_slice_waits(&governor->time_slice, false);
    for (uint32_t seen = atomic_load(&gate->queue.look_count); !is_asked(governor) && !atomic_load(&gates_retired);
         seen = atomic_load(&gate->queue.look_count)) {
        futex_sleep(&gate->queue.look_count, seen,
                    governor->trail.charged_until_at_ns != 0 ? trail_look_ns(governor) : UINT64_C(1000) * MS);
        trail(governor);
    }
    uint64_t now_ns = governor->engine->now();
    power_rested(&governor->power, elapsed(since_ns, now_ns));
    governor->account.asked_at_ns = now_ns; /* what grew meanwhile was not asked for */
    /* After a short rest, the tenant that runs now is taken to have run since: on average that is as true as watching.
     */
    if (elapsed(since_ns, now_ns) > UNWATCHED_NS)
        power_unwatched(&governor->power, now_ns);
    else if (time_slice_held(&governor->time_slice))
        power_ran(&governor->power, since_ns, now_ns, false);
}

/* What handlers and destructors launch at exit is in flight without a time slice, which others are told of as before;
 * until the first of it, what they were told last stands. No engine is called. */
static void say_what_exits(struct governor *governor)
{
    struct gate *gate = &governor->gate;
    for (bool advertised = false;;) {
        uint32_t seen = atomic_load(&gate->queue.look_count);
        bool exits = gate_exits(gate);
        advertised = advertised || exits;
        if (advertised)
            time_slice_busy(&governor->time_slice, exits);
        futex_sleep(&gate->queue.look_count, seen, exits ? WATCH_NS : UINT64_C(1000) * MS);
    }
}

static void *work(void *governor_)
{
    struct governor *governor = governor_;
    governor_begin(governor);
    power_watch_start(&governor->watch);
    while (!atomic_load(&gates_retired)) {
        if (!FAULT(timer_slack_left))
            prctl(PR_SET_TIMERSLACK, 1UL); /* a sleep of 30 us would take 80, or what the program wrote into /proc */
        if (!is_asked(governor))
            idle(governor);
        governor_round(governor);
    }
    if (!FAULT(exit_unannounced))
        say_what_exits(governor);
    return NULL;
}

/* Past the time slices, of a process that exits. */
static uint64_t spend_at_exit(void *governor_, uint64_t spent_ns)
{
    struct governor *governor = governor_;
    uint64_t now_ns = governor->engine->now();
    return budget_wait(account_spend_at_exit(&governor->account, now_ns, spent_ns), terms_core(governor->grant_device));
}

struct governor *governor_new(const struct engine *engine, const struct hetero_grant_device *terms,
                              struct hetero_region_device *account, const char *directory, unsigned device)
{
    struct governor *governor = calloc(1, sizeof *governor);
    if (governor == NULL || !time_slice_open(&governor->time_slice, directory, device)) {
        free(governor);
        return NULL;
    }
    governor->engine = engine;
    governor->grant_device = terms;
    governor->account = (struct account){.grant_device = terms, .shared_counts = account};
    gate_make(&governor->gate, engine, terms, work, spend_at_exit, governor);
    power_watch_make(&governor->watch, engine, terms->uuid);
    governor->power.model = &power_model_neutral; /* until governor_begin */
    return governor;
}

void governor_share(struct governor *governor, struct hetero_region_gang *gang, struct hetero_region_device *devices,
                    unsigned device, unsigned count)
{
    governor->gang.device_count = count;
    governor->gang.shared_state = gang;
    governor->gang.device_accounts = devices;
    governor->gang.device_index = device;
}

void governor_retire(struct governor *governor)
{
    gate_retire(&governor->gate);
    power_watch_retire(&governor->watch);
}

void governor_after_fork(struct governor *governor)
{
    time_slice_close(&governor->time_slice);
}
