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

/* Of each thread it is part of the context, as its stack is: an NVIDIA H100 had 1024 bytes by itself (limits.c). More
 * is taken for all threads that a device can hold: on that card 66 MiB for 1280 bytes, 264 for 2048 and 16,632 for
 * 65536, which is 132 x 2048 x (bytes - 1024) (driver 580.159.04, 2026-11-26). */
#define OF_CONTEXT 1024

/* Held around charges, so that each context is charged once; guards what follows. */
static pthread_mutex_t raising = PTHREAD_MUTEX_INITIALIZER;
static uint64_t most[HETERO_MAX_DEVICES]; /* bytes of a context */
static unsigned waiting;                  /* kernels that were not launched on some device */

static _Atomic uint64_t waiting_bits; /* of all that wait: what has none does not wait, without a lock */

static uint64_t bit_of(uint64_t key)
{
    return UINT64_C(1) << (key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

static bool may_wait(uint64_t key)
{
    return (atomic_load_explicit(&waiting_bits, memory_order_relaxed) & bit_of(key)) != 0;
}

#define ROW_OF(name)    ROW_NAMED(name)
#define ROW_NAMED(name) ROW_##name

static uint64_t taken(int device, uint64_t of_thread)
{
    return of_thread > OF_CONTEXT ? blocks_for(threads_of(device) * (of_thread - OF_CONTEXT)) : 0;
}

/* ----------------------------------------------------------------------------------------------- launches, looked at
 */

static _Atomic(void *) drivers[ROWS]; /* of the rows that lead to a function of ours, or did */

void *local_driver(unsigned row)
{
    return atomic_load(&drivers[row]);
}

static bool first_launch(const void *function, stream_t stream);

#define USED(name, ...)
#define OWN(name, ...)
#define OWN_IN(name, ...)
#define GATED_IN(name, ...)
#define LAUNCH_IN(name, default_stream, parameters, arguments, stream)                                                 \
    static result_t looked_at_##name parameters                                                                        \
    {                                                                                                                  \
        const stream_t none = default_stream;                                                                          \
        (void)none;                                                                                                    \
        return first_launch(f, stream) ? ((typeof(&name))drivers[ROW_##name])arguments : ERROR(OUT_OF_MEMORY);         \
    }
#define DEFAULT(stream) ((stream) == NULL ? none : (stream))
#define NO_STREAM       none
#include "api.def"

static result_t looked_at_on_several(NAMED(LAUNCH_PARAMS) *launches, unsigned count, unsigned flags)
{
    typeof(&FUNCTION(LaunchCooperativeKernelMultiDevice)) real =
        drivers[ROW_OF(FUNCTION(LaunchCooperativeKernelMultiDevice))];
    for (unsigned i = 0; launches != NULL && i < count; i++)
        if (!first_launch(launches[i].function, launches[i].hStream == NULL ? STREAM_LEGACY : launches[i].hStream))
            return ERROR(OUT_OF_MEMORY);
    return real(launches, count, flags);
}

/* With `raising` held: what a row leads to, the driver's function or one of ours before it. So launches cost nothing
 * more while none needs to be looked at. */
static void lead(unsigned row, void *ours, bool looks)
{
    void *real = symbol_known(&driver_rows[row]);
    if (real != NULL && real != ours)
        atomic_store(&drivers[row], real);
    if (local_driver(row) != NULL)
        atomic_store_explicit(&driver_rows[row].function, looks ? ours : local_driver(row), memory_order_release);
}

static void look_at_launches(bool looks)
{
#define USED(name, ...)
#define OWN(name, ...)
#define OWN_IN(name, ...)
#define GATED_IN(name, ...)
#define LAUNCH_IN(name, ...) lead(ROW_##name, (void *)looked_at_##name, looks);
#include "api.def"
    lead(ROW_OF(FUNCTION(LaunchCooperativeKernelMultiDevice)), (void *)looked_at_on_several, looks);
}

/* ------------------------------------------------------------------------------------------------------ what is
 * charged
 */

/* With `raising` held: charge a context for as much as kernels have now. */
static bool raise_in(context_t context, int device, void *nothing)
{
    struct entry previous, entry = {.kind = HELD_LOCAL, .key = (uintptr_t)context, .device = device, .owner = context};
    (void)nothing;
    table_get(HELD_LOCAL, entry.key, &entry);
    uint64_t more = most[device] > entry.bytes ? most[device] - entry.bytes : 0;
    if (more == 0)
        return true;
    if (!FAULT(raised_local_memory_uncharged) && charge(device, more) != RESULT_OK)
        return false;
    entry.bytes += more;
    table_put(&entry, &previous);
    return true;
}

/* With `raising` held: back to what it was before it did not fit. */
static bool lower_in(context_t context, int device, void *nothing)
{
    struct entry previous, entry;
    (void)nothing;
    if (!table_get(HELD_LOCAL, (uintptr_t)context, &entry) || entry.bytes <= most[device])
        return true;
    refund(device, entry.bytes - most[device]);
    entry.bytes = most[device];
    table_put(&entry, &previous);
    return true;
}

/* With `raising` held. */
static bool fits(int device, uint64_t of_thread)
{
    uint64_t bytes = taken(device, of_thread), before = most[device];
    if (bytes <= before)
        return true;
    most[device] = bytes;
    if (standing_contexts(device, raise_in, NULL))
        return true;
    most[device] = before;
    standing_contexts(device, lower_in, NULL);
    return false;
}

bool local_enter(context_t context, int device)
{
    if (!counted(device))
        return true;
    pthread_mutex_lock(&raising);
    bool fit = raise_in(context, device, NULL);
    pthread_mutex_unlock(&raising);
    return fit;
}

/* ------------------------------------------------------------------------------------------- kernels that were not
 * launched
 */

/* With `raising` held. */
static void put(const struct entry *kernel)
{
    struct entry previous;
    if (kernel->bytes == 0 || !table_put(kernel, &previous))
        return;
    if (atomic_fetch_or(&waiting_bits, bit_of(kernel->key)) == 0)
        look_at_launches(true);
    waiting++;
}

/* With `raising` held. */
static bool take(uint64_t key, struct entry *kernel)
{
    bool waited = table_take(WAITING_KERNEL, key, kernel);
    waiting -= waited;
    return waited;
}

/* With `raising` held, once it is decided what the kernel taken does: until then another thread that launches it waits
 * for that. */
static void leave_off(void)
{
    if (waiting > 0 || atomic_load(&waiting_bits) == 0)
        return;
    look_at_launches(false);
    atomic_store(&waiting_bits, 0);
}

/* The program got hold of a kernel whose name may have been another's before. `devices`: where it may run, a bit each.
 */
static void got(const void *function, int of_thread, unsigned devices)
{
    struct entry before, kernel = {.kind = WAITING_KERNEL, .key = (uintptr_t)function, .device = DEVICE_NONE};
    for (int device = 0; devices >> device != 0; device++)
        if (FAULT(local_memory_uncharged) || of_thread <= OF_CONTEXT || !counted(device))
            devices &= ~(1u << device);
    if (devices == 0 && !may_wait(kernel.key))
        return;
    kernel.bytes = devices == 0 ? 0 : (uint64_t)of_thread;
    kernel.link = (void *)(uintptr_t)devices;
    pthread_mutex_lock(&raising);
    take(kernel.key, &before);
    put(&kernel);
    leave_off();
    pthread_mutex_unlock(&raising);
}

/* It is about to be launched on these devices. False: it does not fit. */
static bool launched(uint64_t key, unsigned devices)
{
    struct entry kernel;
    bool fit = true;
    pthread_mutex_lock(&raising);
    if (take(key, &kernel)) {
        unsigned left = (unsigned)(uintptr_t)kernel.link;
        for (int device = 0; fit && left >> device != 0; device++)
            if ((left & devices) >> device & 1 && (fit = fits(device, kernel.bytes)))
                left &= ~(1u << device);
        kernel.link = (void *)(uintptr_t)left;
        if (left != 0)
            put(&kernel);
        leave_off();
    }
    pthread_mutex_unlock(&raising);
    return fit;
}

static bool first_launch(const void *function, stream_t stream)
{
    if (!may_wait((uintptr_t)function))
        return true;
    int device = device_of_stream(stream);
    return device < 0 || launched((uintptr_t)function, 1u << device);
}

bool local_in_graph(const void *function)
{
    return !may_wait((uintptr_t)function) || launched((uintptr_t)function, UINT_MAX);
}

void local_after_fork(void)
{
    raising = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        most[device] = 0;
    if (atomic_load(&waiting_bits) != 0)
        look_at_launches(false);
    waiting = 0;
    atomic_store(&waiting_bits, 0);
}

/* ------------------------------------------------------------------------------------ how a program gets its functions
 */

void local_of_function(TYPE(function) function)
{
    int of_thread = 0, device = device_current();
    if (counted(device) &&
        DRIVER(FuncGetAttribute)(&of_thread, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), function) == RESULT_OK)
        got(function, of_thread, 1u << device);
}

/* It is asked of for one device, as asking may load it there. */
void local_of_kernel(TYPE(kernel) kernel)
{
    int of_thread = 0, device = device_current();
    device = device == DEVICE_NONE ? device_only() : device;
    if (DRIVER(KernelGetAttribute) != NULL && counted(device) &&
        DRIVER(KernelGetAttribute)(&of_thread, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), kernel, ordinal_of(device)) ==
            RESULT_OK)
        got(kernel, of_thread, UINT_MAX >> (32 - HETERO_MAX_DEVICES));
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
                             unsigned count, TYPE(module) module)
{
    result_t answer = real(functions, count, module);
    for (unsigned i = 0; answer == RESULT_OK && i < count; i++)
        if (functions[i] != NULL)
            local_of_function(functions[i]);
    return answer;
}
