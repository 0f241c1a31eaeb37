/* The entry points: one exported function for every line of api.def. HIP's runtime calls them by their names. */
#include "bodies.h"
#include "driver.h"

#include "../core/tenant.h"

#define EXPORT      __attribute__((visibility("default")))
#define UNWRAP(...) __VA_ARGS__

#define OWN(name, parameters, arguments, body)                                                                         \
    EXPORT hsa_status_t name parameters                                                                                \
    {                                                                                                                  \
        typeof(&name) real = REAL(name);                                                                               \
        if (real == NULL)                                                                                              \
            return HSA_STATUS_ERROR_OUT_OF_RESOURCES;                                                                  \
        if (tenancy() == TENANCY_FREE)                                                                                 \
            return real arguments;                                                                                     \
        return body(real, UNWRAP arguments);                                                                           \
    }
#define USED(name, ...)
#include "api.def"

static void *const answers[ROWS] = {
#define OWN(name, ...) [ROW_##name] = (void *)name,
#define USED(name, ...)
#include "api.def"
};

SYMBOLS(hsa, &hsa_library, answers);
