/* Compares the driver's figure for this process with the charges (uncounted.h). */
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

/* Code that images are known to have is not charged, up to so many bytes in all. The number is chosen, not measured:
 * what frameworks load if code is loaded when it is used. More is charged. */
#define MAX_CODE_BYTES (UINT64_C(128) << 20)

/* What a context takes for stacks when the first image is loaded whose kernels call malloc (138 MiB on an NVIDIA H100,
 * for 132 x 2048 threads), or vprintf (64 MiB there; 2 MiB more after malloc's). Driver 580.159.04, 2026-11-27. */
#define MALLOC_STACK_BYTES UINT64_C(512)
#define MALLOC_EXTRA_BYTES (UINT64_C(6) << 20)
#define PRINTF_BYTES       (UINT64_C(64) << 20)

#define CHECK_INTERVAL_MS 10

/* How often the figure is read again if other threads changed the charges in between. */
#define MAX_RETRIES 8

/* Guards what follows. Held around reports in the region, never around a charge. */
static pthread_mutex_t figures_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t code_bytes; /* that loaded images may take, at most MAX_CODE_BYTES each */
static struct {
    uint64_t context_bytes; /* of all contexts, each with the block that is part of it; 0 if they are charged */
    unsigned context_count;
    uint64_t uncounted_bytes;     /* charged for uncounted memory */
    _Atomic int64_t unseen_bytes; /* as in unseen_add(); also changed without `figures_mutex` */
    uint64_t reported_bytes;      /* of contexts and code, as the region has them */
    bool had_figure;              /* the driver had a figure for this process */
} device_figures[HETERO_MAX_DEVICES];

/* Held from context_begins() to context_made() or context_grew(). */
static pthread_mutex_t making_mutex = PTHREAD_MUTEX_INITIALIZER;

void uncounted_after_fork(void)
{
    figures_mutex = making_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    code_bytes = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        device_figures[device].context_bytes = device_figures[device].uncounted_bytes =
            device_figures[device].reported_bytes = 0;
        device_figures[device].context_count = 0;
        device_figures[device].had_figure = false;
        device_figures[device].unseen_bytes = 0;
    }
}

/* The driver's figure does not have managed memory. */
int64_t unseen_bytes(int device)
{
    uint64_t managed_bytes = managed_charged_bytes(device);
    return (int64_t)managed_bytes + atomic_load(&device_figures[device].unseen_bytes);
}

/* The charged bytes that the driver's figure has. */
static int64_t charged_and_seen(int device, uint64_t *returned_bytes)
{
    return (int64_t)(ledger_own(tenant_region(), (unsigned)device, returned_bytes) -
                     device_figures[device].uncounted_bytes) -
           unseen_bytes(device);
}

/* The driver's figure less those bytes, at least; negative if more is charged than the driver holds yet. False: the
 * driver has no figure.
 *
 * Other threads charge before the driver allocates, and give charges back after it has freed. So the charged memory
 * that the driver held when the figure was read is at most what is charged afterwards, and what was returned meanwhile.
 */
static bool beyond_charges(int device, int64_t *bytes)
{
    uint64_t driver_bytes, returned_before, returned_after;
    for (unsigned tries = 0;; tries++) {
        int64_t charged_before = charged_and_seen(device, &returned_before);
        if (!management_process_memory(tenant_terms(device)->uuid, &driver_bytes))
            return false;
        device_figures[device].had_figure = true;
        int64_t charged_after = charged_and_seen(device, &returned_after) + (int64_t)(returned_after - returned_before);
        *bytes = (int64_t)driver_bytes - (charged_after > charged_before ? charged_after : charged_before);
        if ((returned_after == returned_before && charged_after == charged_before) || tries == MAX_RETRIES)
            return true;
    }
}

/* Whether the driver had a figure and has none any more, which a program can bring about. What is charged by it is then
 * refused. A process without a context has none. */
static bool figure_is_lost(int device)
{
    bool is_lost = device_figures[device].had_figure && device_figures[device].context_count > 0;
    if (is_lost)
        log_line(LOG_ERROR, "device %d: the driver does not say any more what this process holds: refused", device);
    return is_lost && !FAULT(lost_figure_ignored) && !FAULT(surplus_ends_passed_on);
}

static uint64_t (*hidden_bytes_on)(int device);

void set_hidden_bytes(uint64_t (*function)(int device))
{
    hidden_bytes_on = function;
}

struct driver_baseline context_begins(int device)
{
    struct driver_baseline baseline = {.device = device};
    uint64_t returned_bytes;
    pthread_mutex_lock(&making_mutex);
    if (!counted(device) || tenant_region() == NULL)
        return baseline;
    baseline.is_counted = true;
    pthread_mutex_lock(&figures_mutex);
    baseline.before_bytes = -charged_and_seen(device, &returned_bytes); /* a process without a context has no figure */
    baseline.is_known = beyond_charges(device, &baseline.before_bytes) || device_figures[device].context_count == 0;
    pthread_mutex_unlock(&figures_mutex);
    return baseline;
}

/* With `figures_mutex` held: report the bytes in the region that the driver counts and that are not charged. */
static void report_uncharged(int device, uint64_t bytes)
{
    int64_t change = (int64_t)(bytes - device_figures[device].reported_bytes);
    device_figures[device].reported_bytes = bytes;
    if (change != 0)
        ledger_report(tenant_region(), HETERO_REPORT_UNCHARGED, (unsigned)device, change);
}

void context_made(const struct driver_baseline *baseline, context_t context)
{
    int device = baseline->device;
    int64_t bytes_after;
    struct entry previous,
        entry = {.key = (uintptr_t)context, .kind = CONTEXT_BYTES, .device = device}; /* context_over() takes it */
    pthread_mutex_lock(&figures_mutex);
    bool is_new = context != NULL && !table_get(CONTEXT_BYTES, entry.key, &previous);
    if (is_new && baseline->is_counted) {
        bool is_measured = baseline->is_known && beyond_charges(device, &bytes_after) &&
                           bytes_after >= baseline->before_bytes;
        if (is_measured && !contexts_counted(device))
            entry.bytes = BLOCK_BYTES + (uint64_t)(bytes_after - baseline->before_bytes);
        if (table_put(&entry, &previous)) {
            device_figures[device].context_bytes += entry.bytes;
            device_figures[device].context_count++;
            report_uncharged(device, device_figures[device].context_bytes);
        }
    }
    pthread_mutex_unlock(&figures_mutex);
    pthread_mutex_unlock(&making_mutex);
}

void context_grew(const struct driver_baseline *baseline, uint64_t *bytes)
{
    int64_t bytes_after;
    pthread_mutex_lock(&figures_mutex);
    if (baseline->is_known && beyond_charges(baseline->device, &bytes_after) && bytes_after >= baseline->before_bytes)
        *bytes = (uint64_t)(bytes_after - baseline->before_bytes);
    pthread_mutex_unlock(&figures_mutex);
    pthread_mutex_unlock(&making_mutex);
}

void context_over(context_t context)
{
    struct entry entry;
    if (!table_take(CONTEXT_BYTES, (uintptr_t)context, &entry))
        return;
    pthread_mutex_lock(&figures_mutex);
    device_figures[entry.device].context_bytes -= entry.bytes;
    device_figures[entry.device].context_count--;
    report_uncharged(entry.device, device_figures[entry.device].context_bytes);
    pthread_mutex_unlock(&figures_mutex);
    uncounted_settle(entry.device);
}

/* The bytes that the code of one image counts for. */
static uint64_t image_code_bytes(uint64_t bytes)
{
    return bytes > MAX_CODE_BYTES ? MAX_CODE_BYTES : bytes;
}

void code_loaded(uint64_t bytes)
{
    pthread_mutex_lock(&figures_mutex);
    code_bytes += image_code_bytes(bytes);
    pthread_mutex_unlock(&figures_mutex);
}

void code_refused(uint64_t bytes)
{
    pthread_mutex_lock(&figures_mutex);
    code_bytes -= image_code_bytes(bytes);
    pthread_mutex_unlock(&figures_mutex);
}

void unseen_add(int device, int64_t bytes)
{
    atomic_fetch_add(&device_figures[device].unseen_bytes, bytes);
}

uint64_t stack_bytes_of_calls(int device, bool calls_malloc, bool calls_printf)
{
    if (calls_malloc)
        return threads_of(device) * MALLOC_STACK_BYTES + MALLOC_EXTRA_BYTES;
    return calls_printf ? PRINTF_BYTES : 0;
}

/* The bytes that contexts and code may take without a charge. */
static uint64_t expected_bytes(int device)
{
    if (contexts_counted(device))
        return 0;
    return device_figures[device].context_bytes + (code_bytes < MAX_CODE_BYTES ? code_bytes : MAX_CODE_BYTES);
}

/* The uncounted bytes to charge now. They only become fewer by bytes that are not charged memory which the figure
 * lacks. Otherwise an allocation that another thread has begun, or a graph that was not launched, would lower the
 * charge. */
static uint64_t uncounted_now(int device, int64_t beyond_bytes, bool is_alone)
{
    int64_t expected = (int64_t)expected_bytes(device);
    uint64_t old_bytes = device_figures[device].uncounted_bytes,
             new_bytes = beyond_bytes > expected ? (uint64_t)(beyond_bytes - expected) : 0;
    if (new_bytes >= old_bytes || FAULT(early_charges_make_room))
        return new_bytes;
    int64_t upper_bytes = beyond_bytes + FAULT_VALUE(hidden_bytes_make_room, (int64_t)hidden_bytes_on(device), 0) -
                          expected;
    return (!is_alone && !FAULT(charges_of_others_make_room)) || upper_bytes > (int64_t)old_bytes ? old_bytes
           : upper_bytes > 0 ? (uint64_t)upper_bytes
                             : 0;
}

/* With `figures_mutex` held: update the uncounted bytes, and set their growth. False: the driver has no figure. */
static bool measure_growth(int device, int64_t *growth_bytes)
{
    int64_t beyond_bytes;
    unsigned long calls_before;
    bool is_alone = no_other_thread_calls(&calls_before);
    uint64_t expected_total_bytes = expected_bytes(device), old_bytes = device_figures[device].uncounted_bytes;
    if (device_figures[device].context_count == 0) { /* without a context there is no uncounted memory */
        device_figures[device].uncounted_bytes = 0;
        *growth_bytes = -(int64_t)old_bytes;
        return true;
    }
    if (!beyond_charges(device, &beyond_bytes))
        return false;
    uint64_t beyond_or_zero_bytes = beyond_bytes > 0 ? (uint64_t)beyond_bytes : 0;
    device_figures[device].uncounted_bytes = uncounted_now(device, beyond_bytes,
                                                           is_alone && atomic_load(&calls_begun) == calls_before);
    *growth_bytes = (int64_t)(device_figures[device].uncounted_bytes - old_bytes);
    report_uncharged(device, beyond_or_zero_bytes < expected_total_bytes ? beyond_or_zero_bytes : expected_total_bytes);
    return true;
}

bool uncounted_settle(int device)
{
    int64_t growth_bytes = 0;
    if (!counted(device) || tenant_region() == NULL)
        return true;
    pthread_mutex_lock(&figures_mutex);
    bool is_known = measure_growth(device, &growth_bytes), is_lost = !is_known && figure_is_lost(device);
    pthread_mutex_unlock(&figures_mutex);
    if (is_lost)
        return false;
    if (!is_known || growth_bytes <= 0) {
        refund(device, (uint64_t)-growth_bytes);
        return true;
    }
    charge_unconditionally(device, (uint64_t)growth_bytes);
    bool is_within = is_within_limit(device);
    if (!is_within)
        log_line(LOG_INFO, "device %d: the driver holds %llu MiB more than was asked for, which does not fit", device,
                 (unsigned long long)growth_bytes >> 20);
    return is_within;
}

bool largest_sizes_are_charged(int device)
{
    if (device < 0 || !contexts_counted(device) || terms_context(tenant_terms(device)) == 0)
        return false;
    pthread_mutex_lock(&figures_mutex);
    bool is_without_figure = !device_figures[device].had_figure && device_figures[device].context_count > 0;
    pthread_mutex_unlock(&figures_mutex);
    return is_without_figure && !FAULT(unknown_sizes_uncharged);
}

/* Charge what an object may take of which neither a call nor a figure tells the size. False: it does not fit. */
static bool charge_unknown(int device, uint64_t bytes)
{
    bool fits = charge_if_free(device, bytes);
    if (fits) {
        pthread_mutex_lock(&figures_mutex);
        device_figures[device].uncounted_bytes += bytes;
        pthread_mutex_unlock(&figures_mutex);
    }
    return fits;
}

bool uncounted_fits(int device, uint64_t bytes)
{
    int64_t beyond_bytes;
    if (!counted(device) || tenant_region() == NULL)
        return true;
    if (largest_sizes_are_charged(device))
        return charge_unknown(device, bytes);
    if (charge_fits(device, bytes))
        return true;
    pthread_mutex_lock(&figures_mutex);
    bool is_known = device_figures[device].context_count > 0 && beyond_charges(device, &beyond_bytes);
    bool fits = is_known ? beyond_bytes + (int64_t)bytes <= (int64_t)expected_bytes(device) : !figure_is_lost(device);
    pthread_mutex_unlock(&figures_mutex);
    return fits;
}

bool uncounted_check_rarely(int device)
{
    static _Atomic uint64_t last_ms[HETERO_MAX_DEVICES];
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    if (device < 0)
        return true;
    _Atomic uint64_t *looked_ms = &last_ms[device];
    uint64_t now_ms = (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
    if (now_ms - atomic_load_explicit(looked_ms, memory_order_relaxed) < CHECK_INTERVAL_MS)
        return true;
    atomic_store_explicit(looked_ms, now_ms, memory_order_relaxed);
    return uncounted_settle(device);
}
