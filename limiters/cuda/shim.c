/* Getting in: the exported functions, one per line of api.def, the driver's own lookup functions, and fork. */
#include "bodies.h"
#include "capturing.h"
#include "context.h"
#include "device.h"
#include "driver.h"
#include "governors.h"
#include "launch.h"
#include "pools.h"

#include "../core/log.h"
#include "../core/table.h"
#include "../core/tenant.h"

#include <pthread.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ one stub for every line */

#define EXPORT          __attribute__((visibility("default")))
#define DEFAULT(stream) ((stream) == NULL ? none : (stream))
#define NO_STREAM       none

/* Not limited: straight through, at the cost of this one branch. A driver without the function says so. */
#define PASS_IF_FREE(real, arguments)                                                                                  \
    do {                                                                                                               \
        if (__builtin_expect(real == NULL, 0))                                                                         \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        if (__builtin_expect(tenancy() == TENANCY_FREE, 1))                                                            \
            return real arguments;                                                                                     \
    } while (0)

#define AFTER(first, arguments) (first, UNWRAP arguments)
#define UNWRAP(...)             __VA_ARGS__

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT CUresult name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        return body AFTER(real, arguments);                                                                            \
    }
#define OWN_IN(name, default_stream, parameters, arguments, body)                                                      \
    EXPORT CUresult name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        PASS_IF_FREE(real, arguments);                                                                                 \
        return body AFTER(real, AFTER(default_stream, arguments));                                                     \
    }
/* While no device is limited in core the stub jumps to the driver's function, arguments and stack as they came. */
#define GATED_IN(name, default_stream, parameters, arguments, stream)                                                  \
    static __attribute__((noinline)) CUresult gated_##name parameters                                                  \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (__builtin_expect(real == NULL, 0))                                                                         \
            return CUDA_ERROR_NOT_FOUND;                                                                               \
        if (__builtin_expect(launch_devices <= 0, 0) && launch_look())                                                 \
            return real arguments;                                                                                     \
        const CUstream none = default_stream;                                                                          \
        struct launch_ticket ticket;                                                                                   \
        CUresult answer = launch_enter(&ticket, stream);                                                               \
        if (answer != CUDA_SUCCESS)                                                                                    \
            return answer;                                                                                             \
        answer = real arguments;                                                                                       \
        launch_leave(&ticket);                                                                                         \
        return answer;                                                                                                 \
    }                                                                                                                  \
    EXPORT CUresult name parameters                                                                                    \
    {                                                                                                                  \
        typeof(&name) real = (typeof(&name))symbol_known(&cuda_rows[ROW_##name]);                                      \
        if (__builtin_expect(real == NULL || !launch_is_free(), 0))                                                    \
            real = gated_##name;                                                                                       \
        return real arguments;                                                                                         \
    }
#define USED(name)
#include "api.def"

static void *const ours[ROWS] = {
#define OWN(name, ...)      [ROW_##name] = (void *)name,
#define OWN_IN(name, ...)   [ROW_##name] = (void *)name,
#define GATED_IN(name, ...) [ROW_##name] = (void *)name,
#define USED(name)
#include "api.def"
};

SYMBOLS(cuda, CUDA_LIBRARY, cuda_rows, ours, ROWS);

/* --------------------------------------------------------------------------------------------------- the first call */

static void after_fork_in_child(void)
{
    table_after_fork();
    launch_after_fork();
    governors_after_fork();
    device_after_fork();
    context_after_fork();
    pools_after_fork();
    capture_after_fork();
}

CUresult initialise(CUresult (*real)(unsigned), unsigned flags)
{
    static atomic_flag watched = ATOMIC_FLAG_INIT;
    if (tenancy() == TENANCY_REFUSED || tenant_region() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    if (!atomic_flag_test_and_set(&watched) && pthread_atfork(NULL, NULL, after_fork_in_child) != 0)
        log_line(LOG_ERROR, "fork cannot be watched: a child would believe in its parent's memory");
    return real(flags);
}

/* ------------------------------------------------------------------------------------ the driver's lookup functions */

/* Whether `name` is `family`, or that with a version, and this ending. */
static bool is_version(const char *name, const char *family, bool per_thread)
{
    size_t length = strlen(family);
    const char *rest = name + length;
    if (strncmp(name, family, length) != 0)
        return false;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9')
        rest += 3;
    return per_thread ? strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0 : *rest == '\0';
}

/* Ours for what the driver found under `name`. The address tells which variant and version the driver chose. Should it
 * hand out other addresses than dlsym does, the name decides, if it leaves no choice between versions. */
static void *ours_for(void *found, const char *name, uint64_t flags)
{
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    unsigned named = 0, versions = 0;
    for (unsigned row = 0; row < ROWS; row++) {
        if (ours[row] == NULL)
            continue;
        if (found == symbol_real(CUDA_LIBRARY, &cuda_rows[row]))
            return ours[row];
        if (is_version(cuda_rows[row].name, name, per_thread)) {
            named = row;
            versions++;
        }
    }
    if (versions == 0)
        return found;
    log_line(versions == 1 ? LOG_INFO : LOG_ERROR, "%s: the driver's address is not dlsym's; %s", name,
             versions == 1 ? cuda_rows[named].name : "its version is unknown: not limited");
    return versions == 1 ? ours[named] : found;
}

CUresult proc_address(CUresult (*real)(const char *, void **, int, uint64_t), const char *name, void **found,
                      int version, uint64_t flags)
{
    CUresult answer = real(name, found, version, flags);
    if (answer == CUDA_SUCCESS && found != NULL && *found != NULL)
        *found = ours_for(*found, name, flags);
    return answer;
}

CUresult proc_address_v2(CUresult (*real)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *),
                         CUstream none, const char *name, void **found, int version, uint64_t flags,
                         CUdriverProcAddressQueryResult *result)
{
    (void)none;
    CUresult answer = real(name, found, version, flags, result);
    if (answer == CUDA_SUCCESS && found != NULL && *found != NULL)
        *found = ours_for(*found, name, flags);
    return answer;
}
