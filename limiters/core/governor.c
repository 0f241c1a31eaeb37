/* The gate, the turn and what is in flight (governor.h). Over 300 lines because the three are one protocol: who may be
 * between enter and leave, and when.
 */
#include "governor.h"

#include "budget.h"
#include "log.h"
#include "tenant.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

enum { GATE_CLOSED = 0, GATE_OPEN = 1 };

/* How often a running turn is looked at: a neighbour with a higher claim waits no longer than this and what is in
 * flight. */
#define TICK_NS       (MS / 2)
#define TICK_BRIEF_NS (MS / 10)

/* With nothing in flight for so long the turn ends. Shorter gaps are charged: a program that launches one small kernel
 * after the other keeps the device from others as surely as a long kernel does. */
#define GAP_NS MS

/* How long a turn is kept for launchers that have been woken and have not come yet. */
#define WAKE_NS (10 * MS)

/* A turn is given up after so long even if its work is not done. A kernel that waits for one of another process (a
 * collective) would otherwise wait for ever when both want the same device. */
#define DRAIN_NS (100 * MS)

/* What is in flight when a turn ends runs into the neighbour's time, and what is not keeps the device waiting: three
 * marks a millisecond of device time apart. Tiny kernels get a mark every 64 at most, because the next ones may be
 * long. */
#define IN_FLIGHT     3u
#define MARK_EVERY_NS MS
#define STRIDE_MOST   64u

/* Beside a grant of high priority, which waits for all of it at any time: two marks a tenth of that apart. What it
 * costs is what launchers lose by waiting more often. */
#define IN_FLIGHT_BRIEF     2u
#define MARK_EVERY_BRIEF_NS (MS / 10)

/* A launcher waits for the device no longer than this: what it waits for may depend on its own next launch. */
#define THIN_NS (50 * MS)

/* How often somebody who waits out its debt looks whether others run: their power is told from ours by that. */
#define WATCH_NS (2 * MS)

/* A launcher at the gate looks at its terms this often: they may have been lifted. */
#define LOOK_NS (50 * MS)

#define ONE_LAUNCH (UINT64_C(1) << 32)
#define INSIDE     UINT64_C(0xffffffff)

static atomic_bool retired; /* the process is exiting: set once, never cleared */

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(ns / (1000 * MS)), .tv_nsec = (long)(ns % (1000 * MS))};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The lock around the engine. False once the process exits: the driver may be gone. */
static bool lock(struct governor *governor)
{
    pthread_mutex_lock(&governor->lock);
    if (!atomic_load(&retired))
        return true;
    pthread_mutex_unlock(&governor->lock);
    return false;
}

static void unlock(struct governor *governor)
{
    pthread_mutex_unlock(&governor->lock);
}

static uint32_t most_in_flight(struct governor *governor)
{
    return atomic_load_explicit(&governor->brief, memory_order_relaxed) ? IN_FLIGHT_BRIEF : IN_FLIGHT;
}

static uint32_t launches(struct governor *governor)
{
    return (uint32_t)(atomic_load_explicit(&governor->traffic, memory_order_relaxed) >> 32);
}

struct governor *governor_new(const struct engine *engine, const struct hetero_grant_device *terms,
                              struct hetero_region_device *account, const char *directory, unsigned device)
{
    struct governor *governor = calloc(1, sizeof *governor);
    if (governor == NULL)
        return NULL;
    governor->engine = governor->lanes.engine = engine;
    governor->terms = terms;
    governor->account = account;
    governor->stride = 1;
    pthread_mutex_init(&governor->lock, NULL);
    turn_open(&governor->turn, directory, device);
    return governor;
}

/* ------------------------------------------------------------------------------------------------ launchers */

static void pop_mark(struct governor *governor)
{
    unsigned at = governor->oldest;
    governor->oldest = (at + 1) % GOVERNOR_MARKS;
    atomic_fetch_sub(&governor->backlog, 1);
    lane_unmark(&governor->lanes, governor->marks[at].lane, governor->marks[at].life, governor->marks[at].mark);
}

static void pop_passed(struct governor *governor)
{
    while (governor->backlog > 0 && governor->engine->passed(governor->marks[governor->oldest].mark))
        pop_mark(governor);
}

/* Wait until less is in flight. */
static void thin(struct governor *governor)
{
    uint64_t since = governor->engine->now();
    while (lock(governor)) {
        pop_passed(governor);
        if (governor->backlog >= most_in_flight(governor) && governor->engine->now() - since > THIN_NS)
            pop_mark(governor);
        governor->thinned = true;
        bool enough = governor->backlog < most_in_flight(governor);
        unlock(governor);
        if (enough)
            return;
        governor->engine->pause(20 * US);
    }
}

/* Let a mark stand for MARK_EVERY_NS, or its brief form. The time between two marks is the device's when launchers had
 * to wait for it, and no less than the device's when all earlier marks had passed; in between, while a queue fills, it
 * says nothing. */
static void adapt(struct governor *governor, uint64_t now)
{
    uint64_t since = governor->last_mark_ns;
    governor->last_mark_ns = now;
    if (since == 0 || (!governor->thinned && governor->backlog > 0))
        return;
    governor->thinned = false;
    uint64_t elapsed = now > since ? now - since : 1;
    uint64_t fitting = governor->stride * (governor->brief ? MARK_EVERY_BRIEF_NS : MARK_EVERY_NS) / elapsed;
    if (fitting > governor->stride * UINT64_C(2))
        fitting = governor->stride * UINT64_C(2);
    governor->stride = fitting < 1 ? 1 : fitting > STRIDE_MOST ? STRIDE_MOST : (uint32_t)fitting;
}

static void mark(struct governor *governor, struct lane *lane)
{
    if (!lock(governor))
        return;
    uint32_t count = launches(governor);
    if (count - governor->marked >= governor->stride) {
        pop_passed(governor);
        adapt(governor, governor->engine->now());
        governor->marked = count;
        void *fresh = governor->backlog < GOVERNOR_MARKS ? lane_mark(&governor->lanes, lane) : NULL;
        if (fresh != NULL && governor->engine->set(fresh, lane->key.stream)) {
            unsigned at = (governor->oldest + governor->backlog) % GOVERNOR_MARKS;
            governor->marks[at].mark = fresh;
            governor->marks[at].lane = lane;
            governor->marks[at].life = lane->life;
            atomic_fetch_add(&governor->backlog, 1);
        } else if (fresh != NULL) {
            governor->engine->drop(fresh);
        }
    }
    unlock(governor);
}

static void *work(void *argument);

static void start(struct governor *governor)
{
    if (!lock(governor))
        return;
    if (!governor->started) {
        /* The program's signals are for the program's threads. */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_t thread;
        governor->started = pthread_create(&thread, NULL, work, governor) == 0;
        if (governor->started)
            pthread_detach(thread);
        else
            log_line(LOG_ERROR, "governor: no thread could be started, launches wait");
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    unlock(governor);
}

/* At the closed gate. False: no limit holds any more. */
static bool wait_at_gate(struct governor *governor)
{
    start(governor);
    atomic_fetch_add(&governor->waiting, 1);
    futex_wake(&governor->waiting);
    bool limited = true;
    while (limited && atomic_load(&governor->gate) == GATE_CLOSED) {
        futex_wait(&governor->gate, GATE_CLOSED, LOOK_NS);
        limited = terms_limit_core(governor->terms) && !atomic_load(&retired);
    }
    atomic_fetch_sub(&governor->waiting, 1);
    return limited;
}

bool governor_enter(struct governor *governor)
{
    for (;;) {
        uint32_t backlog = atomic_load_explicit(&governor->backlog, memory_order_relaxed);
        if (__builtin_expect(backlog >= most_in_flight(governor), 0))
            thin(governor);
        /* First inside, then the gate: the thread closes the gate, then looks who is inside. */
        atomic_fetch_add(&governor->traffic, ONE_LAUNCH + 1);
        if (__builtin_expect(atomic_load(&governor->gate) == GATE_OPEN, 1))
            break;
        atomic_fetch_sub(&governor->traffic, ONE_LAUNCH + 1);
        if (!wait_at_gate(governor))
            return false;
    }
    if (__builtin_expect(atomic_load_explicit(&governor->first_ns, memory_order_relaxed) == 0, 0))
        atomic_store_explicit(&governor->first_ns, governor->engine->now(), memory_order_relaxed);
    return true;
}

/* The lane of the stream this thread used last: most threads use one for long. */
static __thread struct {
    struct governor *governor;
    struct stream_key key;
    struct lane *lane;
    unsigned life;
} last;

static struct lane *lane_of(struct governor *governor, const struct stream_key *key)
{
    if (last.governor == governor && same_stream(&last.key, key) &&
        last.life == atomic_load_explicit(&last.lane->life, memory_order_relaxed))
        return last.lane;
    if (!lock(governor))
        return NULL;
    struct lane *lane = lanes_of(&governor->lanes, key);
    if (lane != NULL) {
        last.governor = governor;
        last.key = *key;
        last.lane = lane;
        last.life = lane->life;
    }
    unlock(governor);
    return lane;
}

void governor_leave(struct governor *governor, const struct stream_key *key)
{
    struct lane *lane = lane_of(governor, key);
    if (lane != NULL) {
        if (key->thread != NULL) {
            if (lock(governor)) {
                lane_flush(&governor->lanes, lane);
                unlock(governor);
            }
        } else if (!atomic_load_explicit(&lane->dirty, memory_order_relaxed)) {
            atomic_store(&lane->dirty, true);
        }
        if (launches(governor) - atomic_load_explicit(&governor->marked, memory_order_relaxed) >=
            atomic_load_explicit(&governor->stride, memory_order_relaxed))
            mark(governor, lane);
    }
    atomic_fetch_sub(&governor->traffic, 1);
}

void governor_before_capture(struct governor *governor, const struct stream_key *key)
{
    if (!lock(governor))
        return;
    struct lane *lane = lanes_known(&governor->lanes, key);
    if (lane != NULL && atomic_load(&lane->dirty))
        lane_flush(&governor->lanes, lane);
    unlock(governor);
}

void governor_before_stream_ends(struct governor *governor, const struct stream_key *key)
{
    if (!lock(governor))
        return;
    struct lane *lane = lanes_known(&governor->lanes, key);
    if (lane != NULL)
        lane_retire(&governor->lanes, lane);
    unlock(governor);
}

void governor_before_context_ends(struct governor *governor, void *context)
{
    if (!lock(governor))
        return;
    /* Marks are passed oldest first; with a context gone the order no longer matters, so all are let go. */
    while (governor->backlog > 0)
        pop_mark(governor);
    lanes_forget_context(&governor->lanes, context);
    unlock(governor);
}

void governor_retire(struct governor *governor)
{
    atomic_store(&retired, true);
    pthread_mutex_lock(&governor->lock); /* whoever was calling the engine has finished */
    pthread_mutex_unlock(&governor->lock);
    futex_wake(&governor->gate);
}

void governor_after_fork(struct governor *governor)
{
    turn_close(&governor->turn);
}

/* ------------------------------------------------------------------------------------------------ the thread */

static bool settled(struct governor *governor)
{
    bool result = true;
    if (lock(governor)) {
        pop_passed(governor);
        result = lanes_settled(&governor->lanes);
        unlock(governor);
    }
    return result;
}

static void spend(struct governor *governor, struct hetero_region_device *account, uint64_t now, uint64_t spent_ns)
{
    budget_settle(account, governor->asked_ns, now, terms_core(governor->terms), spent_ns);
    /* Time lent by nobody's loss is not paid back: an elastic grant owes one turn at most. */
    if (terms_policy(governor->terms) == HETERO_POLICY_ELASTIC &&
        atomic_load_explicit(&account->balance_ns, memory_order_relaxed) < -BUDGET_TURN_NS)
        atomic_store_explicit(&account->balance_ns, -BUDGET_TURN_NS, memory_order_relaxed);
}

/* The device was ours from `from` to `to`. */
static void charge(struct governor *governor, uint64_t from, uint64_t to)
{
    power_ran(&governor->power, from, to, true);
    uint64_t waived_ns = governor->waived_ns < to - from ? governor->waived_ns : to - from;
    governor->waived_ns -= waived_ns;
    uint64_t priced_ns = power_charge(&governor->power, to - from - waived_ns);
    spend(governor, governor->account, to, priced_ns);
    spend(governor, &governor->own, to, priced_ns);
    uint32_t count = launches(governor);
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

/* Look now and then at what the card draws: time on a card at its power limit is dearer. */
static void look_at_power(struct governor *governor)
{
    struct power_reading reading;
    uint64_t now = governor->engine->now();
    if (power_due(&governor->power, now) && governor->engine->power(governor->terms->uuid, &reading)) {
        power_look(&governor->power, now, &reading);
        log_line(LOG_DEBUG, "governor: %u of %u mW, device time at %u/1024", reading.mean_mw, reading.limit_mw,
                 governor->power.price);
    }
}

/* Wait out of the turn, and see whether others run meanwhile. */
static void rest(struct governor *governor, uint64_t ns)
{
    uint64_t now = governor->engine->now(), until = now + ns;
    while (now < until) {
        uint64_t since = now;
        governor->engine->pause(until - now < WATCH_NS ? until - now : WATCH_NS);
        now = governor->engine->now();
        if (turn_held(&governor->turn))
            power_ran(&governor->power, since, now, false);
    }
}

/* Get the turn with the balance out of debt; or, for an elastic grant, in debt while nobody else wants it.
 * False: the limit was lifted, or a process of the same grant spent what there was. */
static bool obtain(struct governor *governor, bool *borrowed)
{
    const struct hetero_grant_device *terms = governor->terms;
    *borrowed = false;
    for (;;) {
        if (!terms_limit_core(terms) || atomic_load(&retired))
            return false;
        uint64_t wait_ns = budget_wait(balance(governor), terms_core(terms));
        if (wait_ns == 0)
            break;
        uint64_t most = LOOK_NS / 2;
        if (terms_policy(terms) == HETERO_POLICY_ELASTIC) {
            *borrowed = turn_try(&governor->turn);
            if (*borrowed)
                return true;
            most = MS;
        }
        rest(governor, wait_ns < most ? wait_ns : most);
    }
    uint64_t since = governor->engine->now();
    turn_take(&governor->turn, terms_priority(terms) == HETERO_PRIORITY_HIGH);
    power_ran(&governor->power, since, governor->engine->now(), false);
    if (terms_limit_core(terms) && balance(governor) >= 0)
        return true;
    turn_give(&governor->turn);
    return false;
}

static bool must_end(struct governor *governor, uint64_t now, uint64_t own_until)
{
    const struct hetero_grant_device *terms = governor->terms;
    if (!terms_limit_core(terms) || atomic_load(&retired))
        return true;
    if (terms_priority(terms) == HETERO_PRIORITY_LOW && turn_wanted_by_high(&governor->turn))
        return true;
    if (now < own_until)
        return false;
    uint64_t longer = 2 * (uint64_t)budget_share(BUDGET_TURN_NS, terms_core(terms));
    if (terms_policy(terms) == HETERO_POLICY_FIXED && now >= own_until + longer)
        return true;
    /* Neighbours that are all owed something would else drift apart, turn by turn. */
    return turn_wanted(&governor->turn) && (balance(governor) <= 0 || now >= own_until + BUDGET_TURN_NS);
}

/* How long this turn is when others want theirs and nothing more is owed: of no regular length, so that the samples of
 * the card's power, which are taken on a beat, do not always meet the same tenant (power.h). */
static uint64_t turn_length(struct governor *governor)
{
    governor->dice = governor->dice * UINT64_C(6364136223846793005) + 1442695040888963407;
    return BUDGET_TURN_NS / 2 + (governor->dice >> 32) % BUDGET_TURN_NS;
}

/* Open the gate, let launches run, close it, wait for them; charge as it goes, so that a kill costs one tick. */
static void run(struct governor *governor, bool borrowed)
{
    const struct engine *engine = governor->engine;
    uint64_t opened = engine->now(), charged = 0, busy = 0, own_until = 0, now;
    uint32_t before = launches(governor), seen = before;
    bool brief = terms_priority(governor->terms) == HETERO_PRIORITY_LOW && turn_beside_high(&governor->turn);
    uint64_t tick = brief ? TICK_BRIEF_NS : TICK_NS;
    atomic_store(&governor->brief, brief);
    atomic_store(&governor->first_ns, 0);
    atomic_store(&governor->gate, GATE_OPEN);
    futex_wake(&governor->gate);
    for (;;) {
        now = engine->now();
        uint64_t left = own_until > now ? own_until - now : tick;
        engine->pause(left < tick ? left : tick);
        now = engine->now();
        uint64_t first = atomic_load_explicit(&governor->first_ns, memory_order_relaxed);
        if (first == 0) {
            /* Launchers that were waiting may be slow to wake on a busy machine. */
            if (now - opened > (atomic_load(&governor->waiting) > 0 ? WAKE_NS : GAP_NS))
                break;
            continue;
        }
        if (charged == 0) {
            charged = busy = first;
            own_until = first + (borrowed ? 0 : turn_length(governor));
            pace_begin(&governor->pace, first, before);
        }
        uint32_t count = launches(governor);
        pace_look(&governor->pace, now, count);
        bool resting = count == seen && (atomic_load(&governor->traffic) & INSIDE) == 0 && settled(governor);
        seen = count;
        if (!resting)
            busy = now;
        if (busy > charged) {
            charge(governor, charged, busy);
            charged = busy;
        }
        if (now - busy >= GAP_NS || must_end(governor, now, own_until))
            break;
    }
    atomic_store(&governor->gate, GATE_CLOSED);
    bool drained = false;
    uint64_t closed = engine->now();
    if (charged != 0)
        governor->waived_ns = pace_end(&governor->pace, closed, launches(governor));
    while (!drained && engine->now() - closed < DRAIN_NS && !atomic_load(&retired)) {
        drained = (atomic_load(&governor->traffic) & INSIDE) == 0 && settled(governor);
        if (!drained) {
            /* A short wait is told to a few microseconds, which a program of small kernels would be charged for. */
            uint64_t waited = engine->now() - closed;
            engine->pause(waited < 24 * US ? 3 * US : waited > 240 * US ? 30 * US : waited / 8);
        }
    }
    if (!drained)
        log_line(LOG_INFO, "governor: a turn was given up with work in flight");
    now = engine->now();
    if (charged == 0) /* nobody came, or only just */
        charged = atomic_load(&governor->first_ns) != 0 ? atomic_load(&governor->first_ns) : now;
    else if (busy + GAP_NS <= closed && !turn_wanted(&governor->turn))
        charged = now; /* the gap at the end is charged only if it kept somebody waiting */
    charge(governor, charged, now);
    if (lock(governor)) {
        governor->last_mark_ns = 0;
        governor->thinned = false;
        unlock(governor);
    }
}

void governor_round(struct governor *governor)
{
    bool borrowed;
    if (governor->core != terms_core(governor->terms)) {
        governor->core = terms_core(governor->terms);
        power_forget(&governor->power);
    }
    look_at_power(governor);
    turn_announce(&governor->turn, terms_priority(governor->terms) == HETERO_PRIORITY_HIGH);
    if (!obtain(governor, &borrowed))
        return;
    run(governor, borrowed);
    turn_give(&governor->turn);
}

void governor_begin(struct governor *governor)
{
    struct power_reading reading;
    governor->engine->begin();
    if (governor->engine->power(governor->terms->uuid, &reading))
        power_begin(&governor->power, governor->engine->now(), &reading);
    governor->dice = governor->asked_ns = governor->engine->now();
}

static void *work(void *argument)
{
    struct governor *governor = argument;
    prctl(PR_SET_TIMERSLACK, 1UL); /* a sleep of 30 us would take 80 */
    governor_begin(governor);
    while (!atomic_load(&retired)) {
        bool rested = false;
        while (atomic_load(&governor->waiting) == 0 && !atomic_load(&retired)) {
            rested = true;
            futex_wait(&governor->waiting, 0, UINT64_C(1000) * MS);
        }
        if (rested) /* what grew meanwhile was not asked for */
            governor->asked_ns = governor->engine->now();
        governor_round(governor);
    }
    return NULL;
}
