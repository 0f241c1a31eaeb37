/* The gate (gate.h): launchers pass it, set fences to see how far the device has come, and wait for it. */
#include "gate.h"

#include "futex.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/tenant.h"

/* What is in flight when a time slice ends delays the next tenant, and too little in flight leaves the device idle:
 * three fences a millisecond of device time apart. Short kernels get a fence every 64 at most, because the next ones
 * may be long. */
#define IN_FLIGHT      3u
#define FENCE_EVERY_NS MS
#define STRIDE_MOST    64u

/* A launch that takes longer than this is in flight alone, and so is the first, of which that is not known: a time
 * slice is overrun by what is in flight, and the next launch comes in less than a hundredth of this. */
#define LONG_NS (20 * MS)

/* What is lent is to be back after no more than one of these, and the next launch comes in less than a fiftieth. */
#define LONG_LENT_NS (4 * MS)

/* Beside a grant of high priority, which may have to wait for all of it: one fence after a tenth of that, or after one
 * kernel that is longer; two where they pass at least this often. The cost is the time that the device then waits for
 * launchers: a program whose thread is hardly faster than the device never makes good what it waited for. */
#define IN_FLIGHT_ONE              1u
#define IN_FLIGHT_SHORT            2u
#define FENCE_EVERY_LOW_LATENCY_NS (MS / 10)
#define FENCE_SHORT_NS             INT64_C(200000)
#define FENCES_MEAN                16 /* of about so many, which is how often they pass */

/* A launcher waits awake for so long when the gate is about to be open, and one of high priority at first: its governor
 * opens the gate sooner than a sleeping thread wakes up. */
#define AWAKE_NS      (2 * MS)
#define AWAKE_HIGH_NS (200 * US)
#define AWAKE_ENDS_NS (300 * US) /* at the end of a row: who is let through at all comes again at once */

/* A launcher waits for the device no longer than this: what it waits for may depend on its own next launch. Beside
 * others' work, of which the device does as much meanwhile, twice as long. */
#define THROTTLE_NS (50 * MS)

/* How often a small copy at the closed gate looks. */
#define SMALL_LOOK_NS (MS / 2)

/* A thread that says that it looks, and does not for so long, is kept from it: by a debugger of the program's own, or
 * by having no processor. Nothing would be charged meanwhile. Less than what is charged after a stop (pages.h). */
#define SILENT_NS (250 * MS)

/* How often the thread looks at a hold. */
#define HOLD_LOOK_NS (30 * US)

/* A process that exits has this much of the device beyond its share, and waits for no debt of its grant before it has
 * had that: what little most have left to do is charged, and not waited for. */
#define EXIT_NS (5 * MS)

/* The end of a launch is waited for no longer than this, unless another follows. */
#define EXIT_END_NS MS

atomic_bool gates_retired;

void gate_make(struct gate *gate, const struct engine *engine, const struct hetero_grant_device *terms,
               void *(*thread)(void *owner), uint64_t (*charge)(void *owner, uint64_t spent_ns), void *owner)
{
    gate->engine = gate->streams.engine = gate->hold.engine = engine;
    gate->grant_device = terms;
    gate->callbacks.thread = thread;
    gate->callbacks.charge = charge;
    gate->callbacks.owner = owner;
    static atomic_uint made;
    gate->gate_number = atomic_fetch_add(&made, 1) + 1;
    gate->fences.stride_launches = 1;
    gate->fences.mean_interval_ns = FENCE_EVERY_NS;
    atomic_store(&gate->hold.is_releasing, true);
    atomic_store(&gate->hold.is_released, true);
    atomic_store(&gate->sole.kernels_are_long, true);
    pthread_mutex_init(&gate->lock, NULL);
}

static void block_signals(sigset_t *before)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, FAULT_VALUE(signals_inside_the_lock, &all, NULL), before);
}

static void lock_always(struct gate *gate)
{
    sigset_t before;
    block_signals(&before);
    pthread_mutex_lock(&gate->lock);
    gate->blocked_signals = before;
    FAULT_PAUSE(signals_inside_the_lock);
}

static void unlock(struct gate *gate)
{
    sigset_t before = gate->blocked_signals;
    pthread_mutex_unlock(&gate->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The lock around the engine. False once the process exits: the driver may be gone. */
static bool lock(struct gate *gate)
{
    lock_always(gate);
    if (!atomic_load(&gates_retired))
        return true;
    unlock(gate);
    return false;
}

/* ----------------------------------------------------------------------------------------------------------- fences */

static inline __attribute__((always_inline)) bool is_long(struct gate *gate)
{
    return atomic_load_explicit(&gate->sole.kernels_are_long, memory_order_relaxed) &&
           atomic_load_explicit(&gate->fences.known_stride_launches, memory_order_relaxed) == 0;
}

static inline __attribute__((always_inline)) uint32_t most_in_flight(struct gate *gate)
{
    if (is_long(gate))
        return IN_FLIGHT_ONE;
    if (!atomic_load_explicit(&gate->wants_low_latency, memory_order_relaxed))
        return IN_FLIGHT;
    return atomic_load_explicit(&gate->fences.are_short, memory_order_relaxed) ? IN_FLIGHT_SHORT : IN_FLIGHT_ONE;
}

/* The same of those that wait to enter: where more may be in flight, the others enter as fast as ever. */
static uint32_t bound(struct gate *gate)
{
    uint32_t most = most_in_flight(gate),
             deep = atomic_load_explicit(&gate->fences.most_pending_count, memory_order_relaxed);
    return most == IN_FLIGHT && deep > most ? deep : most;
}

static void pop_fence(struct gate *gate, unsigned fence_index)
{
    struct gate_fence popped = gate->fences.pending[fence_index];
    gate->fences.timed_count++;
    unsigned left_count = atomic_fetch_sub(&gate->fences.pending_count, 1) - 1;
    for (; fence_index < left_count; fence_index++)
        gate->fences.pending[fence_index] = gate->fences.pending[fence_index + 1];
    /* No call of a context that may be gone: a spare is given up with it, or used again where it lives. */
    bool kept = popped.generation == popped.stream->generation && popped.stream->spare_count < TRACKED_STREAM_FENCES;
    if (popped.ending_count > 0 && !kept)
        gate->engine->forget(popped.fence);
    else
        tracked_stream_return_fence(&gate->streams, popped.stream, popped.generation, popped.fence);
}

/* Whether an older fence is in the same stream. */
static bool is_behind(const struct gate *gate, unsigned fence_index)
{
    for (unsigned older = 0; older < fence_index; older++)
        if (gate->fences.pending[older].stream == gate->fences.pending[fence_index].stream)
            return true;
    return false;
}

/* How many of the fences pass when somebody ends a wait: what is behind it does not keep the device from a launch into
 * another stream. */
static uint32_t waiting_fences(struct gate *gate, const struct stream_key *key)
{
    uint32_t waiting = 0;
    for (unsigned at = 0; at < gate->fences.pending_count && gate->streams.wait_count > 0; at++)
        waiting += !same_stream(&gate->fences.pending[at].stream->key, key) &&
                   tracked_stream_stands_at_wait(&gate->streams, gate->fences.pending[at].stream);
    return waiting;
}

/* Not by age: one stream may wait for what another process does, and the device works on in the rest. */
static void pop_passed(struct gate *gate)
{
    uint64_t asked_at_ns = gate->fences.asked_at_ns, now_ns = gate->engine->now();
    bool elastic = terms_policy(gate->grant_device) == HETERO_POLICY_ELASTIC;
    bool beside = elastic && terms_by_service(gate->grant_device); /* there it waits for what others have in flight */
    /* What waits for turns of others looks long, and nothing is lent while they have work. */
    bool lent = elastic && !atomic_load_explicit(&gate->others_work, memory_order_relaxed);
    uint64_t long_ns = lent ? LONG_LENT_NS : LONG_NS;
    for (unsigned at = 0; at < gate->fences.pending_count;) {
        if (gate->fences.pending[at].ending_count > 0 || is_behind(gate, at) ||
            !gate->engine->passed(gate->fences.pending[at].fence)) {
            at++;
            continue;
        }
        uint64_t set = gate->fences.pending[at].set_at_ns, popped = atomic_load(&gate->fences.popped_at_ns);
        uint64_t since_ns = set > popped ? set : popped; /* until `asked_at_ns` at least it had not passed */
        uint64_t stood_at_ns = gate->fences.pending[at].stream->stood_at_ns;
        since_ns = since_ns > stood_at_ns ? since_ns : stood_at_ns;
        atomic_store_explicit(&gate->sole.kernels_are_long, !beside && asked_at_ns > since_ns + long_ns,
                              memory_order_relaxed);
        atomic_store(&gate->fences.popped_at_ns, now_ns);
        atomic_fetch_add_explicit(&gate->fences.popped_count, 1, memory_order_relaxed);
        pop_fence(gate, at);
    }
    gate->fences.asked_at_ns = now_ns;
}

/* Whether launchers pass at the end of a row, because others are ahead of them. */
static bool allows(struct gate *gate)
{
    return atomic_load(&gate->state) == GATE_ENDS &&
           (int32_t)(atomic_load(&gate->queue.allowed_launch_count) - gate_launches(gate)) > 0;
}

/* Adapt the stride so that a fence stands for FENCE_EVERY_NS, or its low-latency form. Fences pass at the device's
 * speed, or at the speed of launches if the device is faster. While none passes, because a queue fills, time adds up.
 */
static void adapt(struct gate *gate, uint64_t now_ns)
{
    uint64_t since_ns = gate->fences.timed_from_ns, passed_count = gate->fences.timed_count;
    uint32_t known_launches = atomic_load_explicit(&gate->fences.known_stride_launches, memory_order_relaxed);
    if (known_launches > 0) {
        gate->fences.stride_launches = known_launches;
        return;
    }
    if (since_ns != 0 && passed_count == 0)
        return;
    gate->fences.timed_from_ns = now_ns;
    gate->fences.timed_count = 0;
    if (since_ns == 0)
        return;
    uint64_t interval_ns = now_ns > since_ns + passed_count ? (now_ns - since_ns) / passed_count : 1;
    int64_t counted_ns = interval_ns < FENCE_EVERY_NS ? (int64_t)interval_ns
                                                      : (int64_t)FENCE_EVERY_NS; /* a pause is none */
    gate->fences.mean_interval_ns += (counted_ns - gate->fences.mean_interval_ns) / FENCES_MEAN;
    atomic_store_explicit(&gate->fences.are_short, gate->fences.mean_interval_ns <= FENCE_SHORT_NS,
                          memory_order_relaxed);
    uint64_t target_interval_ns = gate->wants_low_latency ? FENCE_EVERY_LOW_LATENCY_NS : FENCE_EVERY_NS;
    uint64_t fitting_launches = (gate->fences.stride_launches * target_interval_ns + interval_ns / 2) / interval_ns;
    if (fitting_launches > gate->fences.stride_launches * UINT64_C(2))
        fitting_launches = gate->fences.stride_launches * UINT64_C(2);
    gate->fences.stride_launches = fitting_launches < 1             ? 1
                                   : fitting_launches > STRIDE_MOST ? STRIDE_MOST
                                                                    : (uint32_t)fitting_launches;
}

/* The gate is open, and nobody looks who would close it. */
static void close_if_silent(struct gate *gate)
{
    uint64_t looked_ns = atomic_load(&gate->looked_at_ns);
    uint32_t open = GATE_OPEN, holds = GATE_HOLDS;
    if (looked_ns != 0 && elapsed(looked_ns, gate->fences.asked_at_ns) > SILENT_NS &&
        !atomic_compare_exchange_strong(&gate->state, &open, GATE_SILENT))
        atomic_compare_exchange_strong(&gate->state, &holds, GATE_SILENT);
}

static void set_fence(struct gate *gate, struct tracked_stream *stream)
{
    if (!lock(gate))
        return;
    uint32_t count = gate_launches(gate),
             stride = gate->fences.stride_launches > 0 ? gate->fences.stride_launches : gate->fences.stride_before_hold;
    if (count - gate->fences.fenced_launch_count >= stride) {
        pop_passed(gate);
        if (!FAULT(gate_open_without_governor))
            close_if_silent(gate);
        if (gate->fences.stride_launches > 0)
            adapt(gate, gate->engine->now());
        gate->fences.fenced_launch_count = count;
        void *fence = gate->fences.pending_count < GATE_FENCES ? tracked_stream_take_fence(&gate->streams, stream)
                                                               : NULL;
        if (fence != NULL && gate->engine->set(fence, stream->key.stream)) {
            gate->fences.pending[gate->fences.pending_count] = (struct gate_fence){
                .fence = fence,
                .set_at_ns = gate->engine->now(),
                .stream = stream,
                .generation = stream->generation,
                .context = stream->context,
            };
            atomic_fetch_add(&gate->fences.pending_count, 1);
        } else if (fence != NULL) {
            gate->engine->drop(fence);
        }
    }
    unlock(gate);
}

/* -------------------------------------------------------------------------------------------------- the closed gate */

static void start(struct gate *gate)
{
    if (!lock(gate))
        return;
    if (!gate->callbacks.is_started) {
        /* Signals are blocked with the lock, and so in the thread: the program's are for the program's threads. */
        pthread_t thread;
        gate->callbacks.is_started = pthread_create(&thread, NULL, gate->callbacks.thread, gate->callbacks.owner) == 0;
        if (gate->callbacks.is_started)
            pthread_detach(thread);
        else if (log_due(&gate->callbacks.logged_at_ns, gate->engine->now()))
            log_line(LOG_ERROR, "governor: no thread could be started, launches wait");
        if (gate->callbacks.is_started && gate->callbacks.logged_at_ns != 0)
            log_line(LOG_INFO, "governor: its thread could be started now, launches go on");
    }
    unlock(gate);
}

/* Whether nothing is in flight in the stream, and something is elsewhere that may spin for what comes there. */
static bool is_apart(struct gate *gate, const struct stream_key *key)
{
    if (!lock(gate))
        return false;
    struct tracked_stream *stream = tracked_streams_find(&gate->streams, key);
    bool apart = (stream == NULL || tracked_stream_settled(&gate->streams, stream)) &&
                 !tracked_streams_settled(&gate->streams);
    unlock(gate);
    return apart;
}

/* The key of the small copy that this thread makes. A handler that interrupts it launches with another. */
static __thread const struct stream_key *small;

/* Whether this is a small copy that passes. */
static bool passes_as_small(struct gate *gate, const struct stream_key *key)
{
    uint32_t left = key == small ? atomic_load(&gate->queue.passing_small_count) : 0;
    return left > 0 && is_apart(gate, key) &&
           atomic_compare_exchange_strong(&gate->queue.passing_small_count, &left, left - 1);
}

/* Whether this launch passes with the token, which is no other's then. */
static bool take_token(struct gate *gate, const struct stream_key *key)
{
    uint32_t token = atomic_load(&gate->queue.token);
    return token != GATE_TOKEN_NONE && (token == GATE_TOKEN_ANY || is_apart(gate, key)) &&
           atomic_compare_exchange_strong(&gate->queue.token, &token, GATE_TOKEN_NONE);
}

/* For how long a launcher waits awake at a gate in that state. */
static uint64_t awake_ns(uint32_t state, bool high)
{
    return state == GATE_READY ? AWAKE_NS : state == GATE_ENDS ? AWAKE_ENDS_NS : high ? AWAKE_HIGH_NS : 0;
}

/* Wait awake for so long until the state changes or launchers are let through. */
static void wait_awake(struct gate *gate, uint32_t state, uint32_t passes, uint64_t for_ns)
{
    uint64_t since_ns = gate->engine->now();
    while (atomic_load(&gate->state) == state && atomic_load(&gate->queue.pass_count) == passes && !allows(gate) &&
           gate->engine->now() - since_ns < for_ns)
        gate->engine->pause(2 * US);
}

/* At the closed gate. Whether it was let through, for one operation: then it counts as waiting until it is inside. */
static bool wait_until_open(struct gate *gate, const struct stream_key *key)
{
    uint32_t passes = atomic_load(&gate->queue.pass_count);
    atomic_fetch_add(&gate->queue.waiting_count, 1);
    atomic_fetch_add(&gate->queue.waiting_small_count, key == small);
    bool let_through = false, limited = true, high = terms_priority(gate->grant_device) == HETERO_PRIORITY_HIGH;
    uint32_t wakes = atomic_load(&gate->queue.wake_count);
    for (uint32_t seen = atomic_load(&gate->state); limited && !let_through && !gate_opens(seen) && !allows(gate);
         seen = atomic_load(&gate->state)) {
        atomic_fetch_add(&gate->queue.look_count, 1);
        futex_wake(&gate->queue.look_count);
        start(gate); /* which may have failed before */
        wait_awake(gate, seen, passes, awake_ns(seen, high));
        high = false;
        if (atomic_load(&gate->queue.pass_count) == passes && !allows(gate))
            futex_sleep(&gate->queue.wake_count, wakes, key == small ? SMALL_LOOK_NS : GATE_LOOK_NS);
        wakes = atomic_load(
            &gate->queue.wake_count); /* before what it is told: else that may change unseen before the next sleep */
        let_through = atomic_load(&gate->queue.pass_count) != passes || take_token(gate, key) ||
                      passes_as_small(gate, key);
        limited = terms_limit_core(gate->grant_device) && !atomic_load(&gates_retired);
    }
    atomic_fetch_sub(&gate->queue.waiting_small_count, key == small);
    if (!let_through)
        atomic_fetch_sub(&gate->queue.waiting_count, 1);
    return let_through;
}

/* ----------------------------------------------------------------------------------------------------------- at exit
 */

/* With the lock: a launch is made. What is in flight from before is charged with it, and is not of the share that a
 * process has at exit. */
static void begin_at_exit(struct gate *gate, uint64_t now_ns)
{
    gate->exits.queued_behind_earlier_work = !tracked_streams_settled(&gate->streams);
    gate->exits.pending_launch_at_ns = now_ns;
}

/* With the lock: whether everything that was launched is done; what it took is charged. */
static bool settle_at_exit(struct gate *gate)
{
    if (gate->exits.pending_launch_at_ns == 0)
        return true;
    bool settled = tracked_streams_settled(&gate->streams);
    if (settled) {
        uint64_t took_ns = gate->engine->now() - gate->exits.pending_launch_at_ns;
        gate->exits.device_ns += gate->exits.queued_behind_earlier_work ? 0 : took_ns;
        gate->exits.pending_launch_at_ns = 0;
        gate->callbacks.charge(gate->callbacks.owner, took_ns);
    }
    return settled;
}

/* With the lock: how long the next launch has to wait for its share. */
static uint64_t owed_at_exit(struct gate *gate)
{
    uint64_t core = terms_core(gate->grant_device), now_ns = gate->engine->now();
    if (gate->exits.first_launch_at_ns == 0)
        gate->exits.first_launch_at_ns = now_ns;
    if (gate->exits.device_ns <= EXIT_NS || FAULT(exit_uncharged))
        return 0;
    uint64_t earned_ns = EXIT_NS + (now_ns - gate->exits.first_launch_at_ns) / HETERO_CORE_FULL * core;
    uint64_t grants_ns = FAULT_VALUE(exits_charged_apart, gate->callbacks.charge(gate->callbacks.owner, 0), 0);
    if (gate->exits.device_ns <= earned_ns)
        return grants_ns;
    uint64_t own_ns = (gate->exits.device_ns - earned_ns) / core * HETERO_CORE_FULL + MS / 10;
    return own_ns > grants_ns ? own_ns : grants_ns;
}

/* Wait until a launch may go ahead without the thread. */
static void wait_at_exit(struct gate *gate)
{
    for (bool goes = false; !goes && terms_limit_core(gate->grant_device);) {
        lock_always(gate);
        uint64_t wait_ns = settle_at_exit(gate) ? owed_at_exit(gate) : 20 * US;
        goes = wait_ns == 0;
        if (goes)
            begin_at_exit(gate, gate->engine->now());
        unlock(gate);
        if (!goes)
            gate->engine->pause(wait_ns < GATE_LOOK_NS ? wait_ns : GATE_LOOK_NS);
    }
}

/* It was made. */
static void leave_at_exit(struct gate *gate, const struct stream_key *key)
{
    uint64_t since_ns = gate->engine->now();
    lock_always(gate);
    if (gate->exits.pending_launch_at_ns == 0) /* another thread's launch, or from before it was retired */
        begin_at_exit(gate, since_ns);
    struct tracked_stream *stream = tracked_streams_get(&gate->streams, key);
    if (stream != NULL)
        tracked_stream_flush(&gate->streams, stream);
    bool settled = settle_at_exit(gate);
    unlock(gate);
    atomic_fetch_add(&gate->queue.look_count, 1);
    futex_wake(&gate->queue.look_count);
    while (!settled && gate->engine->now() - since_ns < EXIT_END_NS) {
        gate->engine->pause(4 * US);
        lock_always(gate);
        settled = settle_at_exit(gate);
        unlock(gate);
    }
}

/* ------------------------------------------------------------------------------------------- between enter and leave
 *
 * A launch may be interrupted anywhere by a signal handler that launches, too. While that one waits at the gate, the
 * launch that it interrupted makes nothing; if it counted as in flight, the time slice could not end, and the wait
 * neither. So a thread takes a cell of the gate, in one instruction of which a handler sees whether it was executed,
 * and a handler that waits writes to the cell that the thread waits. What the interrupted launch has made by then is
 * fenced first.
 */

/* Launches within launches of one thread; deeper ones, and those that find no cell, are only counted: a
 * handler that interrupts one of them waits until the governor gives it a time slice in debt. */
#define ENTRIES 8u

struct entry {
    struct gate *gate;
    _Atomic uintptr_t *cell; /* NULL: it has none. It is the thread's if it says so. */
    uintptr_t before;        /* what the cell said: 0, or the same of a launch that this one interrupted */
    struct stream_key stream;
};

static __thread struct {
    volatile unsigned depth;
    struct entry entries[ENTRIES];
} thread_launches;

/* What a thread's cell says: it is inside; or it waits in a handler. */
#define INSIDE ((uintptr_t)&thread_launches)
#define WAITS  (INSIDE | 1)

/* Multiplicative hashing by the golden ratio: threads' stacks are as far apart as each is large. */
#define SPREAD UINT64_C(0x9e3779b97f4a7c15)

/* Of this thread so many launches are between enter and leave: what was written before is there before. */
static void set_depth(unsigned depth)
{
    atomic_signal_fence(memory_order_seq_cst);
    thread_launches.depth = depth;
    atomic_signal_fence(memory_order_seq_cst);
}

static bool has_cell(const struct entry *entry, const struct gate *gate)
{
    return entry->gate == gate && entry->cell != NULL && (atomic_load(entry->cell) | 1) == WAITS;
}

/* The last launch at the gate that the one from now on interrupts. NULL: it interrupts none that has a cell. */
static const struct entry *interrupted(const struct gate *gate)
{
    for (unsigned at = thread_launches.depth < ENTRIES ? thread_launches.depth : ENTRIES; at-- > 0;)
        if (has_cell(&thread_launches.entries[at], gate))
            return &thread_launches.entries[at];
    return NULL;
}

/* Where a thread looks for a cell first. */
static unsigned first_cell(void)
{
    return (unsigned)(INSIDE * SPREAD / (UINT64_MAX / GATE_CELLS + 1));
}

static bool take_cell(struct gate *gate, struct entry *entry, unsigned at, uintptr_t *whose)
{
    *whose = 0;
    entry->cell = &gate->inside.launcher_cells[at % GATE_CELLS];
    atomic_signal_fence(memory_order_seq_cst);
    return atomic_compare_exchange_strong(entry->cell, whose, INSIDE);
}

/* Any cell that is nobody's, or of a thread that has ended inside and was where this one is. */
static void take_any_cell(struct gate *gate, struct entry *entry)
{
    uintptr_t whose;
    for (unsigned at = 0; at < GATE_CELLS; at++)
        if (take_cell(gate, entry, first_cell() + at, &whose) || whose == INSIDE)
            return;
    entry->cell = NULL;
    atomic_fetch_add(&gate->inside.uncelled_launcher_count, 1);
}

/* First inside, then the gate: the thread closes the gate, then looks who is inside. In a handler, the cell of the
 * launch that it interrupts serves, if that one has taken it. */
static void step_in(struct gate *gate, const struct stream_key *stream)
{
    unsigned depth = thread_launches.depth;
    if (depth >= ENTRIES) {
        set_depth(depth + 1);
        atomic_fetch_add(&gate->inside.uncelled_launcher_count, 1);
        return;
    }
    const struct entry *outer = interrupted(gate);
    struct entry *entry = &thread_launches.entries[depth];
    *entry = (struct entry){.gate = gate, .stream = *stream};
    set_depth(depth + 1);
    if (outer == NULL) {
        take_any_cell(gate, entry);
        return;
    }
    entry->before = atomic_load(outer->cell);
    entry->cell = outer->cell;
    atomic_store(outer->cell, INSIDE);
}

static inline void step_out(struct gate *gate)
{
    unsigned depth = thread_launches.depth - 1;
    const struct entry *entry = &thread_launches.entries[depth];
    if (__builtin_expect(depth < ENTRIES && entry->cell != NULL, 1))
        atomic_store_explicit(entry->cell, entry->before, memory_order_release);
    else
        atomic_fetch_sub(&gate->inside.uncelled_launcher_count, 1);
    set_depth(depth);
}

static bool is_inside(struct gate *gate)
{
    bool inside = atomic_load(&gate->inside.uncelled_launcher_count) != 0;
    for (unsigned at = 0; at < GATE_CELLS && !inside; at++) {
        uintptr_t says = atomic_load(&gate->inside.launcher_cells[at]);
        inside = says != 0 && (says & 1) == 0;
    }
    return inside;
}

/* The stream this thread used last: most threads use one for long. A launch that interrupts another leaves it alone. */
static __thread struct {
    unsigned gate;
    struct stream_key key;
    struct tracked_stream *stream;
    unsigned generation;
} last;

static struct tracked_stream *find_stream(struct gate *gate, const struct stream_key *key)
{
    if (!lock(gate))
        return NULL;
    struct tracked_stream *stream = tracked_streams_get(&gate->streams, key);
    if (stream != NULL && thread_launches.depth <= 1 && atomic_load(&gate->sole.thread_id) != INSIDE) {
        last.gate = gate->gate_number;
        last.key = *key;
        last.stream = stream;
        last.generation = stream->generation;
    }
    unlock(gate);
    return stream;
}

static inline __attribute__((always_inline)) bool is_last(const struct gate *gate, const struct stream_key *key)
{
    return last.gate == gate->gate_number && same_stream(&last.key, key) &&
           last.generation == atomic_load_explicit(&last.stream->generation, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------------------------------- for launchers */

/* Long kernels are launched one at a time, or each thread would have one in flight: the sole launch is made by one
 * thread until its fence is set. With the lock: whether this thread may go ahead. */
static bool may_launch(struct gate *gate, const struct stream_key *key, uint64_t now_ns)
{
    if (gate->fences.pending_count >= bound(gate) &&
        gate->fences.pending_count - waiting_fences(gate, key) >= bound(gate))
        return false;
    if (!is_long(gate) || thread_launches.depth > 0) /* a handler may have interrupted the sole launch */
        return true;
    if (atomic_load(&gate->sole.thread_id) != 0)
        return false;
    atomic_store(&gate->sole.thread_id, INSIDE);
    gate->sole.taken_at_ns = now_ns;
    last.gate = 0; /* it leaves slowly */
    return true;
}

/* Where this thread made the sole launch, another may: not while a handler interrupts it. */
static void end_sole(struct gate *gate)
{
    uintptr_t whose = INSIDE;
    if (thread_launches.depth > 0)
        return;
    atomic_compare_exchange_strong(&gate->sole.thread_id, &whose, 0);
}

static bool is_in_flight(const struct gate *gate, const struct stream_key *key)
{
    for (unsigned at = 0; at < gate->fences.pending_count; at++)
        if (same_stream(&gate->fences.pending[at].stream->key, key))
            return true;
    return false;
}

/* Wait until less is in flight. */
static void throttle(struct gate *gate, const struct stream_key *key)
{
    uint64_t since_ns = gate->engine->now();
    while (lock(gate)) {
        pop_passed(gate);
        uint64_t now_ns = gate->engine->now();
        uint64_t patience_ns = THROTTLE_NS << atomic_load_explicit(&gate->others_work, memory_order_relaxed);
        if (elapsed(since_ns, now_ns) > patience_ns) {
            if (elapsed(gate->sole.taken_at_ns, now_ns) > patience_ns)
                atomic_store(&gate->sole.thread_id, 0);
            if (gate->fences.pending_count >= bound(gate))
                pop_fence(gate, 0);
        }
        /* At the end of a row it waits at the gate, where it can be let through: what is in flight may wait for it. */
        bool waits = gate->streams.wait_count > 0 && !tracked_streams_work(&gate->streams);
        bool enough = (atomic_load(&gate->state) == GATE_ENDS && !allows(gate)) ||
                      (key == small && !is_in_flight(gate, key)) || may_launch(gate, key, now_ns);
        unlock(gate);
        if (enough)
            return;
        /* What is in flight beside a grant of high priority is done before a sleeping thread would wake up, and the
         * device waits for who looks late. */
        bool low_latency = atomic_load_explicit(&gate->wants_low_latency, memory_order_relaxed);
        gate->engine->pause(waits ? 200 * US : low_latency ? 2 * US : 20 * US);
    }
}

/* What may have been launched into the stream by now is waited for. */
static void flush(struct gate *gate, const struct stream_key *key)
{
    if (!lock(gate))
        return;
    struct tracked_stream *stream = tracked_streams_get(&gate->streams, key);
    if (stream != NULL)
        tracked_stream_flush(&gate->streams, stream);
    unlock(gate);
}

/* Wait at the closed gate; outside of it with all launches that this one interrupts. Whether it was let through. */
static bool wait_outside(struct gate *gate, const struct stream_key *key)
{
    const struct entry *outer = interrupted(gate);
    uintptr_t before = outer == NULL ? 0 : atomic_load(outer->cell);
    for (unsigned at = 0; outer != NULL && at < ENTRIES && at < thread_launches.depth; at++)
        if (has_cell(&thread_launches.entries[at], gate))
            flush(gate, &thread_launches.entries[at].stream);
    if (outer != NULL && !FAULT(handler_inside_while_it_waits))
        atomic_store(outer->cell, WAITS);
    bool let_through = wait_until_open(gate, key);
    if (outer != NULL)
        atomic_store(outer->cell, before);
    return let_through;
}

/* Whether no launch but the one that asks is between enter and leave. */
static bool is_alone(struct gate *gate)
{
    unsigned inside = atomic_load(&gate->inside.uncelled_launcher_count);
    for (unsigned at = 0; at < GATE_CELLS; at++)
        inside += atomic_load(&gate->inside.launcher_cells[at]) != 0;
    return inside <= 1 && thread_launches.depth <= 1;
}

/* A launch passes while the thread wants a hold. Another that is between enter and leave may be made before the hold or
 * in it, and would be counted as held. */
static void begin_hold(struct gate *gate, const struct stream_key *key)
{
    if (!hold_may_begin(&gate->hold))
        return;
    struct tracked_stream *stream = is_last(gate, key) ? last.stream : find_stream(gate, key);
    if (stream == NULL || !lock(gate))
        return;
    if (is_alone(gate) && hold_begin(&gate->hold, stream, key)) {
        gate->fences.stride_before_hold = atomic_exchange(&gate->fences.stride_launches, 0);
        if (!is_alone(gate))
            hold_spoil(&gate->hold);
    }
    unlock(gate);
}

/* With the lock: the hold is over, and fences are as far apart as before it. */
static void end_hold(struct gate *gate)
{
    if (gate->fences.stride_launches == 0)
        atomic_store(&gate->fences.stride_launches, gate->fences.stride_before_hold);
}

/* Whether a launch has to wait for what is in flight. */
static bool is_full(struct gate *gate)
{
    return (is_long(gate) && !FAULT(long_kernels_at_once)) ||
           atomic_load_explicit(&gate->fences.pending_count, memory_order_relaxed) >= bound(gate);
}

/* At the closed gate: wait for a turn. Whether it was let through; and whether it is limited, and the process lives. */
static bool wait_for_turn(struct gate *gate, const struct stream_key *stream, bool *limited, bool *retired)
{
    bool let_through = (!atomic_load(&gates_retired) || FAULT(time_slices_at_exit)) && wait_outside(gate, stream);
    *limited = terms_limit_core(gate->grant_device);
    *retired = atomic_load(&gates_retired);
    if (let_through && (!*limited || *retired))
        atomic_fetch_sub(&gate->queue.waiting_count, 1);
    return let_through;
}

/* Nothing of ours is called where nothing has to be waited for: the registers of a call cost as much as the rest. */
static __attribute__((noinline)) bool wait_to_enter(struct gate *gate, const struct stream_key *stream)
{
    for (bool let_through = false;;) {
        if (!let_through && is_full(gate))
            throttle(gate, stream);
        step_in(gate, stream);
        FAULT_PAUSE(handler_inside_while_it_waits);
        if (let_through)
            atomic_fetch_sub(&gate->queue.waiting_count, 1);
        uint32_t state = atomic_load(&gate->state);
        if (state == GATE_HOLDS)
            begin_hold(gate, stream);
        if (let_through || gate_opens(state) || allows(gate))
            break;
        step_out(gate);
        end_sole(gate);
        bool limited, retired;
        let_through = wait_for_turn(gate, stream, &limited, &retired);
        if (!limited)
            return false;
        if (retired) {
            wait_at_exit(gate);
            step_in(gate, stream);
            return true;
        }
    }
    if (atomic_load_explicit(&gate->first_launch_at_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&gate->first_launch_at_ns, gate->engine->now(), memory_order_relaxed);
    return true;
}

void gate_makes_graph(const void *graph)
{
    uint64_t kind = (uintptr_t)graph * SPREAD / (UINT64_MAX / HOLD_GRAPH_KINDS + 1);
    hold_makes_graph = graph == NULL ? 0 : (uint32_t)kind + 1;
}

void gate_makes_small(const struct stream_key *key)
{
    small = key;
}

void gate_made_graph(struct gate *gate)
{
    if (hold_makes_graph > 0)
        atomic_fetch_add_explicit(&gate->made.graph_count_by_kind[hold_makes_graph - 1], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&gate->made.graph_count, 1, memory_order_release);
}

bool gate_enter(struct gate *gate, const struct stream_key *stream)
{
    uint32_t backlog = atomic_load_explicit(&gate->fences.pending_count, memory_order_relaxed);
    if (__builtin_expect(!is_long(gate) && backlog < most_in_flight(gate) && thread_launches.depth == 0, 1)) {
        struct entry *entry = &thread_launches.entries[0];
        uintptr_t whose;
        entry->gate = gate;
        entry->stream = *stream;
        set_depth(1);
        bool inside = take_cell(gate, entry, first_cell(), &whose);
        if (__builtin_expect(inside && atomic_load_explicit(&gate->first_launch_at_ns, memory_order_relaxed) != 0, 1)) {
            uint32_t state = atomic_load(&gate->state);
            if (__builtin_expect(state == GATE_OPEN, 1) || (state == GATE_HOLDS && !hold_may_begin(&gate->hold)))
                return true;
        }
        if (inside)
            atomic_store(entry->cell, 0);
        set_depth(0);
    }
    return wait_to_enter(gate, stream);
}

/* A launch was made while a hold was on a moment ago. Whether it is held, or nothing could be. */
static bool note(struct gate *gate, const struct stream_key *key)
{
    if (!lock(gate))
        return true;
    bool held = hold_is_on(&gate->hold);
    if (held)
        hold_note(&gate->hold, key);
    if (!hold_is_on(&gate->hold))
        end_hold(gate);
    unlock(gate);
    return held;
}

/* Into a stream that is not the last one; or it is time for a fence. */
static __attribute__((noinline)) void leave_slowly(struct gate *gate, const struct stream_key *key, uint32_t count)
{
    struct tracked_stream *stream = NULL;
    if (atomic_load(&gates_retired))
        leave_at_exit(gate, key);
    else
        stream = is_last(gate, key) ? last.stream : find_stream(gate, key);
    if (stream != NULL) {
        if (key->thread != NULL)
            flush(gate, key);
        else
            atomic_store(&stream->is_dirty, true);
        bool held = atomic_load_explicit(&gate->fences.stride_launches, memory_order_relaxed) == 0 && note(gate, key);
        if (!held && atomic_load(&gate->sole.thread_id) == INSIDE) /* a long kernel may be behind short ones */
            atomic_store(&gate->fences.fenced_launch_count, count - STRIDE_MOST);
        if (!held && count - atomic_load_explicit(&gate->fences.fenced_launch_count, memory_order_relaxed) >=
                         atomic_load_explicit(&gate->fences.stride_launches, memory_order_relaxed))
            set_fence(gate, stream);
    }
    step_out(gate);
    end_sole(gate);
}

void gate_leave(struct gate *gate, const struct stream_key *key)
{
    uint32_t count = atomic_fetch_add(&gate->made.launch_count, 1) + 1;
    bool fast = !atomic_load_explicit(&gates_retired, memory_order_relaxed) && key->thread == NULL &&
                count - atomic_load_explicit(&gate->fences.fenced_launch_count, memory_order_relaxed) <
                    atomic_load_explicit(&gate->fences.stride_launches, memory_order_relaxed) &&
                is_last(gate, key);
    if (__builtin_expect(!fast, 0)) {
        leave_slowly(gate, key, count);
        return;
    }
    if (!atomic_load_explicit(&last.stream->is_dirty, memory_order_relaxed))
        atomic_store(&last.stream->is_dirty, true);
    step_out(gate);
}

void gate_leave_failed(struct gate *gate)
{
    step_out(gate);
    end_sole(gate);
}

bool gate_begin_wait(struct gate *gate, const struct stream_key *stream, struct gate_wait *wait)
{
    if (!lock(gate))
        return false;
    hold_spoil(&gate->hold); /* what is held would seem to take as long as the wait */
    wait->stream = tracked_streams_get(&gate->streams, stream);
    bool known = wait->stream != NULL && tracked_stream_begin_wait(&gate->streams, wait->stream, &wait->wait);
    unlock(gate);
    return known;
}

void gate_end_wait(struct gate *gate, struct gate_wait wait, bool made)
{
    if (!lock(gate))
        return;
    tracked_stream_end_wait(&gate->streams, wait.stream, wait.wait, made);
    unlock(gate);
}

void gate_before_capture(struct gate *gate)
{
    if (!lock(gate))
        return;
    hold_spoil(&gate->hold);
    if (!FAULT(unfenced_work_forgotten))
        tracked_streams_settled(&gate->streams);
    unlock(gate);
}

void gate_before_stream_ends(struct gate *gate, const struct stream_key *key)
{
    if (!lock(gate))
        return;
    hold_spoil(&gate->hold);
    struct tracked_stream *stream = tracked_streams_find(&gate->streams, key);
    if (stream != NULL)
        tracked_stream_retire(&gate->streams, stream);
    unlock(gate);
}

void gate_before_context_ends(struct gate *gate, void *context)
{
    if (!lock(gate))
        return;
    for (unsigned at = 0; at < gate->fences.pending_count; at++)
        gate->fences.pending[at].ending_count += gate->fences.pending[at].context == context;
    hold_forget(&gate->hold, context);
    tracked_streams_context_ends(&gate->streams, context);
    unlock(gate);
}

void gate_after_context_ended(struct gate *gate, void *context, bool context_exists)
{
    lock_always(gate); /* the driver is not called */
    for (unsigned at = gate->fences.pending_count; at-- > 0;) {
        struct gate_fence *fence = &gate->fences.pending[at];
        if (fence->context == context && !context_exists) {
            fence->ending_count = 1;
            atomic_fetch_add_explicit(&gate->fences.popped_count, 1, memory_order_relaxed);
            pop_fence(gate, at);
        } else if (fence->context == context && fence->ending_count > 0) {
            fence->ending_count--;
        }
    }
    tracked_streams_context_ended(&gate->streams, context, context_exists);
    unlock(gate);
}

/* --------------------------------------------------------------------------------------------------- for the thread */

/* Launchers at the closed gate look again: also one that has looked, and does not sleep yet. */
static void wake(struct gate *gate)
{
    atomic_fetch_add(&gate->queue.wake_count, 1);
    futex_wake(&gate->queue.wake_count);
}

void gate_set(struct gate *gate, uint32_t state)
{
    if (!gate_opens(state))
        atomic_store(&gate->looked_at_ns, 0);
    atomic_store(&gate->queue.token, GATE_TOKEN_NONE);
    atomic_store(&gate->state, state);
    atomic_fetch_add(&gate->queue.wake_count, 1);
    if (state != GATE_CLOSED)
        futex_wake(&gate->queue.wake_count);
}

void gate_look(struct gate *gate, uint64_t now_ns)
{
    atomic_store(&gate->looked_at_ns, now_ns);
    if (atomic_load(&gate->state) == GATE_SILENT)
        gate_set(gate, GATE_OPEN);
}

void gate_let_through(struct gate *gate)
{
    atomic_fetch_add(&gate->queue.pass_count, 1);
    wake(gate);
}

void gate_give_token(struct gate *gate, uint32_t token)
{
    if (atomic_exchange(&gate->queue.token, token) != token)
        wake(gate);
}

void gate_let_small_through(struct gate *gate, uint32_t copies)
{
    atomic_store(&gate->queue.passing_small_count, copies);
}

void gate_allow(struct gate *gate, uint32_t launches)
{
    atomic_store(&gate->queue.allowed_launch_count, launches);
    if (allows(gate) && atomic_load(&gate->queue.waiting_count) > 0)
        wake(gate);
}

void gate_deepen(struct gate *gate, uint32_t fences)
{
    atomic_store_explicit(&gate->fences.most_pending_count, fences, memory_order_relaxed);
}

uint32_t gate_signaled_fences(struct gate *gate)
{
    return atomic_load_explicit(&gate->fences.popped_count, memory_order_relaxed) +
           atomic_load_explicit(&gate->streams.passed_count, memory_order_relaxed);
}

static bool is_settled(struct gate *gate)
{
    /* A launcher that waits awake for the device takes the lock again and again, and would keep it from a thread that
     * has to be woken; while one has it, the device has not passed everything. */
    if (pthread_mutex_trylock(&gate->lock) != 0)
        return false;
    bool settled = true;
    if (!atomic_load(&gates_retired)) {
        pop_passed(gate);
        settled = !tracked_streams_work(&gate->streams);
    }
    pthread_mutex_unlock(&gate->lock); /* signals are blocked in the thread as they were */
    return settled;
}

bool gate_is_idle(struct gate *gate)
{
    return !is_inside(gate) && is_settled(gate);
}

bool gate_waits(struct gate *gate)
{
    if (atomic_load(&gate->streams.wait_count) == 0)
        return false;
    if (pthread_mutex_trylock(&gate->lock) != 0)
        return true;
    bool waits = !atomic_load(&gates_retired) && !tracked_streams_settled(&gate->streams);
    pthread_mutex_unlock(&gate->lock);
    return waits;
}

bool gate_marks(struct gate *gate, struct gate_moment *moment)
{
    *moment = (struct gate_moment){.launch_count = gate_launches(gate), .launcher_inside = is_inside(gate)};
    if (moment->launcher_inside) /* perhaps with a lock of the driver */
        return true;
    if (pthread_mutex_trylock(&gate->lock) != 0)
        return false;
    bool idle = true;
    if (!atomic_load(&gates_retired)) {
        pop_passed(gate);
        idle = !tracked_streams_work(&gate->streams);
        uint32_t behind = gate_launches(gate) - gate->fences.fenced_launch_count,
                 stride = gate->fences.stride_launches > 0 ? gate->fences.stride_launches
                                                           : gate->fences.stride_before_hold;
        moment->least_in_flight = gate->fences.pending_count == 0 ? 0
                                                                  : (gate->fences.pending_count - 1) * stride + behind;
        moment->most_in_flight = gate->fences.pending_count * stride + behind;
    }
    pthread_mutex_unlock(&gate->lock);
    return !idle;
}

bool gate_stands(struct gate *gate, const struct gate_moment *moment)
{
    if (moment->launcher_inside)
        return is_inside(gate) && gate_launches(gate) == moment->launch_count;
    if (pthread_mutex_trylock(&gate->lock) != 0)
        return true;
    bool stands = !atomic_load(&gates_retired) && tracked_streams_stand(&gate->streams);
    pthread_mutex_unlock(&gate->lock);
    return stands;
}

void gate_know(struct gate *gate, uint64_t launch_ns)
{
    uint64_t stride = launch_ns == 0 ? 0 : FENCE_EVERY_NS / launch_ns;
    stride = stride < STRIDE_MOST ? stride : STRIDE_MOST;
    atomic_store(&gate->fences.known_stride_launches, launch_ns > 0 && stride == 0 ? 1 : (uint32_t)stride);
}

bool gate_hold(struct gate *gate, uint32_t most_launches, uint32_t skip_count, enum hold_of held_kind, bool stalls,
               uint64_t wait_ns)
{
    if (!lock(gate))
        return false;
    hold_ask(&gate->hold, most_launches, skip_count, held_kind, stalls);
    atomic_store(&gate->state, GATE_HOLDS);
    unlock(gate);
    uint64_t now_ns = gate->engine->now(), until_ns = now_ns + wait_ns;
    uint64_t most_ns = now_ns + (wait_ns > HOLD_MOST_NS ? wait_ns : HOLD_MOST_NS);
    uint32_t launches_before = gate_launches(gate);
    for (; !hold_watch(&gate->hold, now_ns, until_ns) && !atomic_load(&gates_retired); now_ns = gate->engine->now()) {
        gate->engine->pause(HOLD_LOOK_NS);
        if (gate_launches(gate) != launches_before)
            until_ns = gate->engine->now() + wait_ns;
        until_ns = until_ns < most_ns ? until_ns : most_ns;
        launches_before = gate_launches(gate);
    }
    atomic_store(&gate->state, GATE_OPEN);
    bool is_locked = lock(gate);
    if (is_locked) {
        end_hold(gate);
        unlock(gate);
    }
    return is_locked;
}

bool gate_held(struct gate *gate, uint32_t *launches, uint64_t *device_ns)
{
    if (!lock(gate))
        return false;
    bool known = hold_read(&gate->hold, launches, device_ns);
    unlock(gate);
    return known;
}

void gate_fence_next(struct gate *gate)
{
    if (atomic_load(&gate->fences.pending_count) == 0)
        atomic_store(&gate->fences.fenced_launch_count, gate_launches(gate) - STRIDE_MOST);
}

void gate_forget_timing(struct gate *gate)
{
    if (!lock(gate))
        return;
    gate->fences.timed_from_ns = 0;
    unlock(gate);
}

void gate_retire(struct gate *gate)
{
    atomic_store(&gates_retired, true);
    hold_spoil(&gate->hold);
    lock_always(gate); /* the last call of the engine has ended */
    hold_spoil(&gate->hold);
    unlock(gate);
    wake(gate);
}

bool gate_exits(struct gate *gate)
{
    lock_always(gate);
    bool exits = gate->exits.pending_launch_at_ns != 0;
    unlock(gate);
    return exits;
}
