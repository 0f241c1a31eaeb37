/* The entry points: one exported function for every line of api.def. */
#include "bodies.h"
#include "driver.h"

#include "types.h"

#include "../shared/calls.h"

#include "../core/tenant.h"

#define EXPORT      __attribute__((visibility("default")))
#define UNWRAP(...) __VA_ARGS__

/* How deep in a function of the driver's this thread is. What the driver calls by its own exported names meanwhile is
 * part of that call. */
static __thread unsigned calls_within_driver;

static bool is_part_of_call(const void *caller)
{
    return calls_within_driver > 0 && library_calls(&hal_library, caller);
}

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT drvError_t name parameters                                                                                  \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (real == NULL)                                                                                              \
            return DRV_ERROR_NOT_SUPPORT;                                                                              \
        if (tenancy() == TENANCY_FREE || is_part_of_call(__builtin_return_address(0)))                                 \
            return real arguments;                                                                                     \
        note_first_call();                                                                                             \
        calls_within_driver++;                                                                                         \
        drvError_t answer = body(real, UNWRAP arguments);                                                              \
        calls_within_driver--;                                                                                         \
        return answer;                                                                                                 \
    }
#include "api.def"

static void *const answers[ROWS] = {
#define OWN(name, ...) [ROW_##name] = (void *)name,
#include "api.def"
};

SYMBOLS(hal, &hal_library, answers);
