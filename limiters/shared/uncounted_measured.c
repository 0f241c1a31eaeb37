/* The driver's figure for this process against what is charged (uncounted.h). */
#include "uncounted.h"

#include "blocks.h"
#include "charge.h"
#include "device.h"

#include "../core/fault.h"
#include "../core/ledger.h"
#include "../core/log.h"
#include "../core/tenant.h"
#include "management.h"

#include <pthread.h>
#include <time.h>

/* Code is not charged: as far as images are known to have it, and up to so much in all. Chosen to be what frameworks
 * load of it where it is loaded as it is used, and not measured. What is beyond is charged. */
#define CODE_MOST (UINT64_C(128) << 20)

/* What a context takes for stacks when the first image is loaded whose kernels call malloc (138 MiB on an NVIDIA H100,
 * 132 x 2048 threads), or vprintf (64 MiB there; 2 more after malloc's). Driver 580.159.04, 2026-11-27. */
#define STACK_OF_MALLOC UINT64_C(512)
#define WITH_MALLOC     (UINT64_C(6) << 20)
#define FOR_PRINTF      (UINT64_C(64) << 20)

#define LOOK_MS 10

/* How often the figure is asked for again because other threads changed what is charged meanwhile. */
#define TRIES 8

/* Guards what follows. Held around what is said in the region, never around a charge. */
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER;
static uint64_t code;
static struct {
    uint64_t
        contexts;   /* bytes of all that stand, each with the block that is part of it, but for one that is charged */
    unsigned count; /* of them */
    uint64_t uncounted;     /* bytes that are charged for being beyond */
    _Atomic int64_t unseen; /* read without `measuring`, as pools are counted inside and outside of that */
    uint64_t said;          /* of contexts and code, what the region says */
} devices[HETERO_MAX_DEVICES];

/* Held from before a context is made until after. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

void uncounted_after_fork(void)
{
    measuring = making = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    code = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        devices[device].contexts = devices[device].uncounted = devices[device].said = 0;
        devices[device].count = 0;
        devices[device].unseen = 0;
    }
}

/* The driver's figure has no managed memory. */
int64_t unseen_bytes(int device)
{
    uint64_t of_managed = managed_charged(device);
    return (int64_t)of_managed + atomic_load(&devices[device].unseen);
}

/* What is charged and seen in the driver's figure. */
static int64_t charged_and_seen(int device, uint64_t *returned)
{
    return (int64_t)(ledger_own(tenant_region(), (unsigned)device, returned) - devices[device].uncounted) -
           unseen_bytes(device);
}

/* What the driver says beyond that, at least; negative where more is charged than it holds yet. False: it does not say.
 *
 * Other threads charge before the driver takes memory and give back after it has it again. So what it held for charges
 * when it was asked is at most what was charged afterwards, and what was given back meanwhile. */
static bool beyond_charges(int device, int64_t *bytes)
{
    uint64_t figure, before, after;
    for (unsigned tries = 0;; tries++) {
        int64_t old = charged_and_seen(device, &before);
        if (!management_process_memory(tenant_terms(device)->uuid, &figure))
            return false;
        int64_t now = charged_and_seen(device, &after) + (int64_t)(after - before);
        *bytes = (int64_t)figure - (now > old ? now : old);
        if ((after == before && now == old) || tries == TRIES)
            return true;
    }
}

static uint64_t (*hidden)(int device);

void hidden_by(uint64_t (*bytes)(int device))
{
    hidden = bytes;
}

struct measured context_begins(int device)
{
    struct measured measured = {.device = device};
    uint64_t returned;
    pthread_mutex_lock(&making);
    if (!counted(device) || tenant_region() == NULL)
        return measured;
    pthread_mutex_lock(&measuring);
    measured.before = -charged_and_seen(device, &returned); /* it is not on the card before its first context */
    measured.known = beyond_charges(device, &measured.before) || devices[device].count == 0;
    pthread_mutex_unlock(&measuring);
    return measured;
}

/* With `measuring` held: say in the region what the driver counts here that is nobody's to be charged. */
static void say_uncharged(int device, uint64_t bytes)
{
    int64_t change = (int64_t)(bytes - devices[device].said);
    devices[device].said = bytes;
    if (change != 0)
        ledger_report(tenant_region(), HETERO_REPORT_UNCHARGED, (unsigned)device, change);
}

/* What a context adds to what is not charged: itself, but where the grant charges the first of a process. */
static uint64_t uncharged_context(int device, uint64_t bytes)
{
    bool charged = (terms_flags(tenant_terms(device)) & HETERO_FLAG_CONTEXT) != 0 && devices[device].count == 0;
    return BLOCK + (charged ? 0 : bytes);
}

void context_made(const struct measured *measured, context_t context)
{
    int device = measured->device;
    int64_t after;
    struct entry previous,
        entry = {.key = (uintptr_t)context, .kind = CONTEXT_BYTES, .device = device}; /* context_over() takes it */
    pthread_mutex_lock(&measuring);
    bool news = context != NULL && !table_get(CONTEXT_BYTES, (uintptr_t)context, &previous);
    if (news && measured->known && beyond_charges(device, &after) && after >= measured->before) {
        entry.bytes = uncharged_context(device, (uint64_t)(after - measured->before));
        if (table_put(&entry, &previous)) {
            devices[device].contexts += entry.bytes;
            devices[device].count++;
            say_uncharged(device, devices[device].contexts);
        }
    }
    pthread_mutex_unlock(&measuring);
    pthread_mutex_unlock(&making);
}

void context_grew(const struct measured *measured, uint64_t *bytes)
{
    int64_t after;
    pthread_mutex_lock(&measuring);
    if (measured->known && beyond_charges(measured->device, &after) && after >= measured->before)
        *bytes = (uint64_t)(after - measured->before);
    pthread_mutex_unlock(&measuring);
    pthread_mutex_unlock(&making);
}

void context_over(context_t context)
{
    struct entry entry;
    if (!table_take(CONTEXT_BYTES, (uintptr_t)context, &entry))
        return;
    pthread_mutex_lock(&measuring);
    devices[entry.device].contexts -= entry.bytes;
    devices[entry.device].count--;
    say_uncharged(entry.device, devices[entry.device].contexts);
    pthread_mutex_unlock(&measuring);
    uncounted_settle(entry.device);
}

/* What the code of one image may take. */
static uint64_t of_image(uint64_t bytes)
{
    return bytes > CODE_MOST ? CODE_MOST : bytes;
}

void code_loaded(uint64_t bytes)
{
    pthread_mutex_lock(&measuring);
    code += of_image(bytes);
    pthread_mutex_unlock(&measuring);
}

void code_refused(uint64_t bytes)
{
    pthread_mutex_lock(&measuring);
    code -= of_image(bytes);
    pthread_mutex_unlock(&measuring);
}

void unseen_add(int device, int64_t bytes)
{
    atomic_fetch_add(&devices[device].unseen, bytes);
}

uint64_t stacks_of_calls(int device, bool mallocs, bool prints)
{
    if (mallocs)
        return threads_of(device) * STACK_OF_MALLOC + WITH_MALLOC;
    return prints ? FOR_PRINTF : 0;
}

/* What contexts and code may take. */
static uint64_t expected(int device)
{
    return devices[device].contexts + (code < CODE_MOST ? code : CODE_MOST);
}

/* What was charged becomes less only as far as that cannot be for what is charged and not in the figure: else an
 * allocation that another thread has begun, or a graph that was not launched, would make room for another. */
static uint64_t uncounted_now(int device, int64_t figure, bool alone)
{
    int64_t most = (int64_t)expected(device);
    uint64_t old = devices[device].uncounted, now = figure > most ? (uint64_t)(figure - most) : 0;
    if (now >= old || FAULT(early_charges_make_room))
        return now;
    int64_t high = figure + FAULT_VALUE(hidden_bytes_make_room, (int64_t)hidden(device), 0) - most;
    return (!alone && !FAULT(charges_of_others_make_room)) || high > (int64_t)old ? old : high > 0 ? (uint64_t)high : 0;
}

/* With `measuring` held: what is beyond what is known now, and how much more that is than was charged for it. False:
 * nothing is known. */
static bool measure(int device, int64_t *more)
{
    int64_t figure;
    unsigned long begun;
    bool alone = calls_are_mine(&begun);
    uint64_t most = expected(device), old = devices[device].uncounted;
    if (devices[device].count == 0) { /* no context, and so none of what this is about */
        devices[device].uncounted = 0;
        *more = -(int64_t)old;
        return true;
    }
    if (!beyond_charges(device, &figure))
        return false;
    uint64_t beyond = figure > 0 ? (uint64_t)figure : 0;
    devices[device].uncounted = uncounted_now(device, figure, alone && atomic_load(&calls_begun) == begun);
    *more = (int64_t)(devices[device].uncounted - old);
    say_uncharged(device, beyond < most ? beyond : most);
    return true;
}

bool uncounted_settle(int device)
{
    int64_t more = 0;
    if (!counted(device) || tenant_region() == NULL)
        return true;
    pthread_mutex_lock(&measuring);
    bool known = measure(device, &more);
    pthread_mutex_unlock(&measuring);
    if (!known || more <= 0) {
        refund(device, (uint64_t)-more);
        return true;
    }
    charge_held(device, (uint64_t)more);
    bool within = charge_within(device);
    if (!within)
        log_line(LOG_INFO, "device %d: the driver holds %llu MiB more than was asked for, which does not fit", device,
                 (unsigned long long)more >> 20);
    return within;
}

bool uncounted_fits(int device, uint64_t bytes)
{
    int64_t beyond;
    if (!counted(device) || tenant_region() == NULL || charge_fits(device, bytes))
        return true;
    pthread_mutex_lock(&measuring);
    bool known = devices[device].count > 0 && beyond_charges(device, &beyond);
    bool fits = !known || beyond + (int64_t)bytes <= (int64_t)expected(device);
    pthread_mutex_unlock(&measuring);
    return fits;
}

bool uncounted_look(int device)
{
    static _Atomic uint64_t last_ms[HETERO_MAX_DEVICES];
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    if (device < 0)
        return true;
    _Atomic uint64_t *looked_ms = &last_ms[device];
    uint64_t now_ms = (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
    if (now_ms - atomic_load_explicit(looked_ms, memory_order_relaxed) < LOOK_MS)
        return true;
    atomic_store_explicit(looked_ms, now_ms, memory_order_relaxed);
    return uncounted_settle(device);
}
