#include "local.h"

#include "arguments.h"
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "libraries.h"

#include "../core/fault.h"

#include <limits.h>
#include <pthread.h>

/* The local memory of a thread that is part of the context, as its stack is: 1024 bytes on an NVIDIA H100 (limits.c).
 * More is allocated for all resident threads: on that card 66 MiB for 1280 bytes, 264 MiB for 2048 and 16,632 MiB for
 * 65536, which is 132 x 2048 x (bytes - 1024) (driver 580.159.04, 2026-11-26). */
#define CONTEXT_LOCAL_BYTES 1024

/* Held around charges, so that each context is charged once. Guards the next two. */
static pthread_mutex_t local_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t peak_bytes[HETERO_MAX_DEVICES]; /* by device: the largest local memory of a launched kernel */
static unsigned waiting_kernel_count;           /* how many kernels were not launched on some device yet */

/* A Bloom filter of the waiting kernels' keys. A kernel without its bit does not wait, which is known without the
 * lock. */
static _Atomic uint64_t waiting_filter;

static uint64_t bit_of(uint64_t key)
{
    return UINT64_C(1) << (key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

static bool may_wait(uint64_t key)
{
    return (atomic_load_explicit(&waiting_filter, memory_order_relaxed) & bit_of(key)) != 0;
}

#define ROW_OF(name)    ROW_NAMED(name)
#define ROW_NAMED(name) ROW_##name

static uint64_t local_bytes(int device, uint64_t thread_bytes)
{
    return thread_bytes > CONTEXT_LOCAL_BYTES
               ? block_bytes_of(threads_of(device) * (thread_bytes - CONTEXT_LOCAL_BYTES))
               : 0;
}

/* ----------------------------------------------------------------------------------------------- launches, looked at
 */

static _Atomic(void *) driver_functions[ROWS]; /* by row, of rows that are or were redirected to an observer */

void *local_driver(unsigned row)
{
    return atomic_load(&driver_functions[row]);
}

static bool charge_first_launch(const void *function, stream_t stream);

#define USED(name, ...)
#define OWN(name, ...)
#define OWN_IN(name, ...)
#define GATED_IN(name, ...)
#define LAUNCH_IN(name, default_stream, parameters, arguments, stream)                                                 \
    static result_t observed_##name parameters                                                                         \
    {                                                                                                                  \
        const stream_t null_stream = default_stream;                                                                   \
        (void)null_stream;                                                                                             \
        return charge_first_launch(f, stream) ? ((typeof(&name))driver_functions[ROW_##name])arguments                 \
                                              : ERROR(OUT_OF_MEMORY);                                                  \
    }
#define DEFAULT(stream) ((stream) == NULL ? null_stream : (stream))
#define NO_STREAM       null_stream
#include "api.def"

static result_t observed_on_several(NAMED(LAUNCH_PARAMS) *launches, unsigned launch_count, unsigned flags)
{
    typeof(&FUNCTION(LaunchCooperativeKernelMultiDevice)) driver_function =
        driver_functions[ROW_OF(FUNCTION(LaunchCooperativeKernelMultiDevice))];
    for (unsigned index = 0; launches != NULL && index < launch_count; index++)
        if (!charge_first_launch(launches[index].function,
                                 launches[index].hStream == NULL ? STREAM_LEGACY : launches[index].hStream))
            return ERROR(OUT_OF_MEMORY);
    return driver_function(launches, launch_count, flags);
}

/* With `local_mutex` held: redirect a launch function's row to the observer that checks launches, or back to the
 * driver's function. So launches cost nothing more while no kernel waits. */
static void redirect_row(unsigned row, void *observer, bool is_observed)
{
    void *function = symbol_known(&driver_rows[row]);
    if (function != NULL && function != observer)
        atomic_store(&driver_functions[row], function);
    if (local_driver(row) != NULL)
        atomic_store_explicit(&driver_rows[row].function, is_observed ? observer : local_driver(row),
                              memory_order_release);
}

static void observe_launches(bool is_observed)
{
#define USED(name, ...)
#define OWN(name, ...)
#define OWN_IN(name, ...)
#define GATED_IN(name, ...)
#define LAUNCH_IN(name, ...) redirect_row(ROW_##name, (void *)observed_##name, is_observed);
#include "api.def"
    redirect_row(ROW_OF(FUNCTION(LaunchCooperativeKernelMultiDevice)), (void *)observed_on_several, is_observed);
}

/* ------------------------------------------------------------------------------------------------------ what is
 * charged
 */

/* With `local_mutex` held: raise a context's charge to the device's peak. */
static bool raise_local_in(context_t context, int device, void *unused)
{
    struct entry previous, entry = {.kind = HELD_LOCAL, .key = (uintptr_t)context, .device = device, .owner = context};
    (void)unused;
    table_get(HELD_LOCAL, entry.key, &entry);
    uint64_t growth_bytes = peak_bytes[device] > entry.bytes ? peak_bytes[device] - entry.bytes : 0;
    if (growth_bytes == 0)
        return true;
    if (!FAULT(raised_local_memory_uncharged) && charge(device, growth_bytes) != RESULT_OK)
        return false;
    entry.bytes += growth_bytes;
    table_put(&entry, &previous);
    return true;
}

/* With `local_mutex` held: lower a context's charge to the device's peak, after a larger one did not fit. */
static bool lower_local_in(context_t context, int device, void *unused)
{
    struct entry previous, entry;
    (void)unused;
    if (!table_get(HELD_LOCAL, (uintptr_t)context, &entry) || entry.bytes <= peak_bytes[device])
        return true;
    refund(device, entry.bytes - peak_bytes[device]);
    entry.bytes = peak_bytes[device];
    table_put(&entry, &previous);
    return true;
}

/* With `local_mutex` held: charge all contexts of a device for a kernel's local memory. False: it does not fit. */
static bool raise_local(int device, uint64_t thread_bytes)
{
    uint64_t bytes = local_bytes(device, thread_bytes), old_bytes = peak_bytes[device];
    if (bytes <= old_bytes)
        return true;
    peak_bytes[device] = bytes;
    if (standing_contexts(device, raise_local_in, NULL))
        return true;
    peak_bytes[device] = old_bytes;
    standing_contexts(device, lower_local_in, NULL);
    return false;
}

bool local_enter(context_t context, int device)
{
    if (!counted(device))
        return true;
    pthread_mutex_lock(&local_mutex);
    bool fits = raise_local_in(context, device, NULL);
    pthread_mutex_unlock(&local_mutex);
    return fits;
}

/* ------------------------------------------------------------------------------------------- kernels that were not
 * launched
 */

/* With `local_mutex` held. */
static void add_waiting(const struct entry *kernel)
{
    struct entry previous;
    if (kernel->bytes == 0 || !table_put(kernel, &previous))
        return;
    if (atomic_fetch_or(&waiting_filter, bit_of(kernel->key)) == 0)
        observe_launches(true);
    waiting_kernel_count++;
}

/* With `local_mutex` held. */
static bool take_waiting(uint64_t key, struct entry *kernel)
{
    bool was_waiting = table_take(WAITING_KERNEL, key, kernel);
    waiting_kernel_count -= was_waiting;
    return was_waiting;
}

/* With `local_mutex` held, after a taken kernel was charged or put back. Until then another thread that launches it
 * waits for the lock. */
static void stop_observing(void)
{
    if (waiting_kernel_count > 0 || atomic_load(&waiting_filter) == 0)
        return;
    observe_launches(false);
    atomic_store(&waiting_filter, 0);
}

/* The program looked up a kernel, whose handle may have been another kernel's before. `device_bits`: where it may run.
 */
static void note_kernel(const void *function, int thread_bytes, unsigned device_bits)
{
    struct entry previous, kernel = {.kind = WAITING_KERNEL, .key = (uintptr_t)function, .device = DEVICE_NONE};
    for (int device = 0; device_bits >> device != 0; device++)
        if (FAULT(local_memory_uncharged) || thread_bytes <= CONTEXT_LOCAL_BYTES || !counted(device))
            device_bits &= ~(1u << device);
    if (device_bits == 0 && !may_wait(kernel.key))
        return;
    kernel.bytes = device_bits == 0 ? 0 : (uint64_t)thread_bytes;
    kernel.device_bits = device_bits;
    pthread_mutex_lock(&local_mutex);
    take_waiting(kernel.key, &previous);
    add_waiting(&kernel);
    stop_observing();
    pthread_mutex_unlock(&local_mutex);
}

/* A kernel is about to be launched on these devices. False: its local memory does not fit. */
static bool charge_launch(uint64_t key, unsigned device_bits)
{
    struct entry kernel;
    bool fits = true;
    pthread_mutex_lock(&local_mutex);
    if (take_waiting(key, &kernel)) {
        unsigned remaining_bits = (unsigned)kernel.device_bits;
        for (int device = 0; fits && remaining_bits >> device != 0; device++)
            if ((remaining_bits & device_bits) >> device & 1 && (fits = raise_local(device, kernel.bytes)))
                remaining_bits &= ~(1u << device);
        kernel.device_bits = remaining_bits;
        if (remaining_bits != 0)
            add_waiting(&kernel);
        stop_observing();
    }
    pthread_mutex_unlock(&local_mutex);
    return fits;
}

static bool charge_first_launch(const void *function, stream_t stream)
{
    if (!may_wait((uintptr_t)function))
        return true;
    int device = device_of_stream(stream);
    return device < 0 || charge_launch((uintptr_t)function, 1u << device);
}

bool local_in_graph(const void *function)
{
    return !may_wait((uintptr_t)function) || charge_launch((uintptr_t)function, UINT_MAX);
}

void local_after_fork(void)
{
    local_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        peak_bytes[device] = 0;
    if (atomic_load(&waiting_filter) != 0)
        observe_launches(false);
    waiting_kernel_count = 0;
    atomic_store(&waiting_filter, 0);
}

/* ------------------------------------------------------------------------------------ how a program gets its functions
 */

void local_of_function(TYPE(function) function)
{
    int thread_bytes = 0, device = device_current();
    if (counted(device) &&
        DRIVER(FuncGetAttribute)(&thread_bytes, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), function) == RESULT_OK)
        note_kernel(function, thread_bytes, 1u << device);
}

/* The attribute is read for one device only, as the driver may load the kernel there. */
void local_of_kernel(TYPE(kernel) kernel)
{
    int thread_bytes = 0, device = device_current();
    device = device == DEVICE_NONE ? sole_device() : device;
    if (DRIVER(KernelGetAttribute) != NULL && counted(device) &&
        DRIVER(KernelGetAttribute)(&thread_bytes, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), kernel, ordinal_of(device)) ==
            RESULT_OK)
        note_kernel(kernel, thread_bytes, UINT_MAX >> (32 - HETERO_MAX_DEVICES));
}

result_t function_of_module(result_t (*real)(TYPE(function) *, TYPE(module), const char *), TYPE(function) *function,
                            TYPE(module) module, const char *name)
{
    result_t answer = real(function, module, name);
    if (answer == RESULT_OK)
        local_of_function(*function);
    return answer;
}

result_t functions_of_module(result_t (*real)(TYPE(function) *, unsigned, TYPE(module)), TYPE(function) *functions,
                             unsigned function_count, TYPE(module) module)
{
    result_t answer = real(functions, function_count, module);
    for (unsigned index = 0; answer == RESULT_OK && index < function_count; index++)
        if (functions[index] != NULL)
            local_of_function(functions[index]);
    return answer;
}
