/* The launchers' side of the gate (gate.h): they pass it, fence how far the device has come, and wait for it. */
#include "gate.h"

#include "../core/log.h"
#include "../core/tenant.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What is in flight when a time slice ends runs into the neighbour's time, and what is not keeps the device waiting: three
 * fences a millisecond of device time apart. Tiny kernels get a fence every 64 at most, because the next ones may be
 * long. */
#define IN_FLIGHT     3u
#define FENCE_EVERY_NS MS
#define STRIDE_MOST   64u

/* Beside a grant of high priority, which waits for all of it at any time: one fence after a tenth of that, or after one
 * kernel that is longer. What it costs is what the device waits for launchers then. */
#define IN_FLIGHT_LOW_LATENCY     1u
#define FENCE_EVERY_LOW_LATENCY_NS (MS / 10)

/* A launcher waits awake for so long when the gate is about to be open, and one of high priority at first: its governor
 * opens it sooner than it could wake up. */
#define AWAKE_NS      (2 * MS)
#define AWAKE_HIGH_NS (200 * US)

/* A process that exits waits so long for a driver that is being asked for its power, which it would pull away. */
#define EXIT_NS (1000 * MS)

/* A launcher waits for the device no longer than this: what it waits for may depend on its own next launch. */
#define THROTTLE_NS (50 * MS)

#define ONE_LAUNCH (UINT64_C(1) << 32)

atomic_bool governors_retired;

void gate_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(ns / (1000 * MS)), .tv_nsec = (long)(ns % (1000 * MS))};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &timeout, NULL, 0);
}

void gate_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool gate_lock(struct governor *governor)
{
    pthread_mutex_lock(&governor->lock);
    if (!atomic_load(&governors_retired))
        return true;
    pthread_mutex_unlock(&governor->lock);
    return false;
}

void gate_unlock(struct governor *governor)
{
    pthread_mutex_unlock(&governor->lock);
}

static uint32_t most_in_flight(struct governor *governor)
{
    return atomic_load_explicit(&governor->low_latency, memory_order_relaxed) ? IN_FLIGHT_LOW_LATENCY : IN_FLIGHT;
}

static void pop_fence(struct governor *governor)
{
    unsigned at = governor->oldest;
    governor->oldest = (at + 1) % GATE_FENCES;
    governor->passed++;
    atomic_fetch_sub(&governor->backlog, 1);
    tracked_stream_return_fence(&governor->tracked_streams, governor->fences[at].tracked_stream, governor->fences[at].generation, governor->fences[at].fence);
}

static void pop_passed(struct governor *governor)
{
    while (governor->backlog > 0 && governor->engine->passed(governor->fences[governor->oldest].fence))
        pop_fence(governor);
}

/* Wait until less is in flight. */
static void throttle(struct governor *governor)
{
    uint64_t since = governor->engine->now();
    while (gate_lock(governor)) {
        pop_passed(governor);
        if (governor->backlog >= most_in_flight(governor) && governor->engine->now() - since > THROTTLE_NS)
            pop_fence(governor);
        bool enough = governor->backlog < most_in_flight(governor);
        gate_unlock(governor);
        if (enough)
            return;
        /* What is in flight beside a grant of high priority is soon done: before a sleeping thread would be there. */
        bool low_latency = atomic_load_explicit(&governor->low_latency, memory_order_relaxed);
        governor->engine->pause(low_latency ? 4 * US : 20 * US);
    }
}

/* Let a fence stand for FENCE_EVERY_NS, or its brief form: fences pass as fast as the device works, or as fast as they come
 * if it is faster than the program. While none passes, because a queue fills, time adds up. */
static void adapt(struct governor *governor, uint64_t now)
{
    uint64_t since = governor->timed_ns, passed = governor->passed;
    if (since != 0 && passed == 0)
        return;
    governor->timed_ns = now;
    governor->passed = 0;
    if (since == 0)
        return;
    uint64_t elapsed = now > since + passed ? (now - since) / passed : 1;
    uint64_t every = governor->low_latency ? FENCE_EVERY_LOW_LATENCY_NS : FENCE_EVERY_NS;
    uint64_t fitting = (governor->stride * every + elapsed / 2) / elapsed;
    if (fitting > governor->stride * UINT64_C(2))
        fitting = governor->stride * UINT64_C(2);
    governor->stride = fitting < 1 ? 1 : fitting > STRIDE_MOST ? STRIDE_MOST : (uint32_t)fitting;
}

static void fence(struct governor *governor, struct tracked_stream *tracked_stream)
{
    if (!gate_lock(governor))
        return;
    uint32_t count = gate_launches(governor);
    if (count - governor->fenced >= governor->stride) {
        pop_passed(governor);
        adapt(governor, governor->engine->now());
        governor->fenced = count;
        void *fresh = governor->backlog < GATE_FENCES ? tracked_stream_take_fence(&governor->tracked_streams, tracked_stream) : NULL;
        if (fresh != NULL && governor->engine->set(fresh, tracked_stream->key.stream)) {
            unsigned at = (governor->oldest + governor->backlog) % GATE_FENCES;
            governor->fences[at].fence = fresh;
            governor->fences[at].tracked_stream = tracked_stream;
            governor->fences[at].generation = tracked_stream->generation;
            atomic_fetch_add(&governor->backlog, 1);
        } else if (fresh != NULL) {
            governor->engine->drop(fresh);
        }
    }
    gate_unlock(governor);
}

static void start(struct governor *governor)
{
    if (!gate_lock(governor))
        return;
    if (!governor->started) {
        /* The program's signals are for the program's threads. */
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_t thread;
        governor->started = pthread_create(&thread, NULL, governor_work, governor) == 0;
        if (governor->started)
            pthread_detach(thread);
        else if (log_due(&governor->logged_ns, governor->engine->now()))
            log_line(LOG_ERROR, "governor: no thread could be started, launches wait");
        if (governor->started && governor->logged_ns != 0)
            log_line(LOG_INFO, "governor: its thread could be started now, launches go on");
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    gate_unlock(governor);
}

/* At the closed gate. False: no limit holds any more. */
static bool wait_at_gate(struct governor *governor)
{
    atomic_fetch_add(&governor->waiting, 1);
    gate_wake(&governor->waiting);
    bool limited = true, high = terms_priority(governor->terms) == HETERO_PRIORITY_HIGH;
    for (uint32_t seen = atomic_load(&governor->gate); limited && seen != GATE_OPEN;
         seen = atomic_load(&governor->gate)) {
        start(governor); /* which may have failed before */
        uint64_t since = governor->engine->now(), awake_ns = seen == GATE_READY ? AWAKE_NS : high ? AWAKE_HIGH_NS : 0;
        while (atomic_load(&governor->gate) == seen && governor->engine->now() - since < awake_ns)
            governor->engine->pause(2 * US);
        high = false;
        gate_sleep(&governor->gate, seen, GATE_LOOK_NS);
        limited = terms_limit_core(governor->terms) && !atomic_load(&governors_retired);
    }
    atomic_fetch_sub(&governor->waiting, 1);
    return limited;
}

bool governor_enter(struct governor *governor)
{
    for (;;) {
        uint32_t backlog = atomic_load_explicit(&governor->backlog, memory_order_relaxed);
        if (__builtin_expect(backlog >= most_in_flight(governor), 0))
            throttle(governor);
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

/* The tracked stream of the stream this thread used last: most threads use one for long. */
static __thread struct {
    struct governor *governor;
    struct stream_key key;
    struct tracked_stream *tracked_stream;
    unsigned generation;
} last;

static struct tracked_stream *stream_of(struct governor *governor, const struct stream_key *key)
{
    if (last.governor == governor && same_stream(&last.key, key) &&
        last.generation == atomic_load_explicit(&last.tracked_stream->generation, memory_order_relaxed))
        return last.tracked_stream;
    if (!gate_lock(governor))
        return NULL;
    struct tracked_stream *tracked_stream = tracked_stream_of(&governor->tracked_streams, key);
    if (tracked_stream != NULL) {
        last.governor = governor;
        last.key = *key;
        last.tracked_stream = tracked_stream;
        last.generation = tracked_stream->generation;
    }
    gate_unlock(governor);
    return tracked_stream;
}

void governor_leave(struct governor *governor, const struct stream_key *key)
{
    struct tracked_stream *tracked_stream = stream_of(governor, key);
    if (tracked_stream != NULL) {
        if (key->thread != NULL) {
            if (gate_lock(governor)) {
                tracked_stream_flush(&governor->tracked_streams, tracked_stream);
                gate_unlock(governor);
            }
        } else if (!atomic_load_explicit(&tracked_stream->dirty, memory_order_relaxed)) {
            atomic_store(&tracked_stream->dirty, true);
        }
        if (gate_launches(governor) - atomic_load_explicit(&governor->fenced, memory_order_relaxed) >=
            atomic_load_explicit(&governor->stride, memory_order_relaxed))
            fence(governor, tracked_stream);
    }
    atomic_fetch_sub(&governor->traffic, 1);
}

void governor_before_capture(struct governor *governor, const struct stream_key *key)
{
    if (!gate_lock(governor))
        return;
    struct tracked_stream *tracked_stream = tracked_stream_known(&governor->tracked_streams, key);
    if (tracked_stream != NULL && atomic_load(&tracked_stream->dirty))
        tracked_stream_flush(&governor->tracked_streams, tracked_stream);
    gate_unlock(governor);
}

void governor_before_stream_ends(struct governor *governor, const struct stream_key *key)
{
    if (!gate_lock(governor))
        return;
    struct tracked_stream *tracked_stream = tracked_stream_known(&governor->tracked_streams, key);
    if (tracked_stream != NULL)
        tracked_stream_retire(&governor->tracked_streams, tracked_stream);
    gate_unlock(governor);
}

void governor_before_context_ends(struct governor *governor, void *context)
{
    if (!gate_lock(governor))
        return;
    /* Marks are passed oldest first; with a context gone the order no longer matters, so all are let go. */
    while (governor->backlog > 0)
        pop_fence(governor);
    tracked_streams_forget_context(&governor->tracked_streams, context);
    gate_unlock(governor);
}

void governor_retire(struct governor *governor)
{
    atomic_store(&governors_retired, true);
    pthread_mutex_lock(&governor->lock); /* whoever was calling the engine has finished */
    pthread_mutex_unlock(&governor->lock);
    gate_wake(&governor->gate);
    uint64_t since = governor->engine->now(), waited_ns = 0;
    for (; atomic_load(&governor->watch) == WATCHER_ASKS && waited_ns < EXIT_NS;
         waited_ns = governor->engine->now() - since)
        gate_sleep(&governor->watch, WATCHER_ASKS, EXIT_NS - waited_ns);
}

bool gate_settled(struct governor *governor)
{
    /* One that has the lock all the time, waiting awake for the device, would keep it from a thread that has to be
     * woken; and then it is not settled. */
    if (pthread_mutex_trylock(&governor->lock) != 0)
        return false;
    bool result = true;
    if (!atomic_load(&governors_retired)) {
        pop_passed(governor);
        result = tracked_streams_settled(&governor->tracked_streams);
    }
    gate_unlock(governor);
    return result;
}
