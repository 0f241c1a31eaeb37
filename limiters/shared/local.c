#include "local.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "libraries.h"

#include <pthread.h>

/* Of each thread it is part of the context, as its stack is: an NVIDIA H100 had 1024 bytes by itself (limits.c). That
 * local memory is taken for all threads that a device can hold is what NVIDIA's programmers say; not measured here. */
#define OF_CONTEXT 1024

/* Held around charges, so that each context is charged once. */
static pthread_mutex_t raising = PTHREAD_MUTEX_INITIALIZER;
static uint64_t most[HETERO_MAX_DEVICES]; /* bytes of a context; under `raising` */

void local_after_fork(void)
{
    raising = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        most[device] = 0;
}

/* With `raising` held: charge a context for as much as kernels have now. */
static bool raise_in(context_t context, int device, void *nothing)
{
    struct entry previous, entry = {.kind = HELD_LOCAL, .key = (uintptr_t)context, .device = device, .owner = context};
    (void)nothing;
    table_get(HELD_LOCAL, entry.key, &entry);
    uint64_t more = most[device] > entry.bytes ? most[device] - entry.bytes : 0;
    if (more == 0)
        return true;
    if (charge(device, more) != RESULT_OK)
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

static bool fits(int device, int of_thread)
{
    uint64_t bytes = 0;
    if (of_thread <= OF_CONTEXT || !counted(device))
        return true;
    bytes = blocks_for(threads_of(device) * (uint64_t)(of_thread - OF_CONTEXT));
    pthread_mutex_lock(&raising);
    uint64_t before = most[device];
    most[device] = bytes > before ? bytes : before;
    bool fit = most[device] == before || standing_contexts(device, raise_in, NULL);
    if (!fit) {
        most[device] = before;
        standing_contexts(device, lower_in, NULL);
    }
    pthread_mutex_unlock(&raising);
    return fit;
}

bool local_of_function(TYPE(function) function)
{
    int of_thread = 0;
    return DRIVER(FuncGetAttribute)(&of_thread, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), function) != RESULT_OK ||
           fits(device_current(), of_thread);
}

bool local_of_kernel(TYPE(kernel) kernel)
{
    int of_thread, count = 0;
    if (DRIVER(KernelGetAttribute) == NULL || DRIVER(DeviceGetCount)(&count) != RESULT_OK)
        return true;
    for (device_t ordinal = 0; ordinal < count; ordinal++)
        if (DRIVER(KernelGetAttribute)(&of_thread, VALUE(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES), kernel, ordinal) ==
                RESULT_OK &&
            !fits(device_of(ordinal), of_thread))
            return false;
    return true;
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

/* ------------------------------------------------------------------------------------ how a program gets its functions
 */

result_t function_of_module(result_t (*real)(TYPE(function) *, TYPE(module), const char *), TYPE(function) *function,
                            TYPE(module) module, const char *name)
{
    result_t answer = real(function, module, name);
    return answer != RESULT_OK || local_of_function(*function) ? answer : ERROR(OUT_OF_MEMORY);
}

result_t functions_of_module(result_t (*real)(TYPE(function) *, unsigned, TYPE(module)), TYPE(function) *functions,
                             unsigned count, TYPE(module) module)
{
    result_t answer = real(functions, count, module);
    for (unsigned i = 0; answer == RESULT_OK && i < count; i++)
        if (functions[i] != NULL && !local_of_function(functions[i]))
            answer = ERROR(OUT_OF_MEMORY);
    return answer;
}
