/* The entry points: the exported functions, one per line of api.def, and the driver's own lookup functions. */
#include "bodies.h"
#include "driver.h"
#include "known.h"
#include "local.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/tenant.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ one stub for every line */

#include "stubs.h"
#define USED(name, ...)
/* A stub hides the program's first argument behind a copy of its own, with the same name, from the body. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "api.def"
#pragma GCC diagnostic pop

static void *const answers[ROWS] = {
#define OWN(name, ...)      [ROW_##name] = (void *)name,
#define OWN_IN(name, ...)   [ROW_##name] = (void *)name,
#define GATED_IN(name, ...) [ROW_##name] = (void *)name,
#define USED(name, ...)
#include "api.def"
};

SYMBOLS(driver, &driver_library, answers);

/* ------------------------------------------------------------------------------------ the driver's lookup functions */

/* Whether `name` is `family` with or without a version suffix, and of the variant with or without per-thread streams.
 */
static bool is_version(const char *name, const char *family, bool is_per_thread)
{
    static const char *const variants[] = {FUNCTION_VARIANTS};
    size_t length = strlen(family);
    const char *suffix = name + length;
    if (strncmp(name, family, length) != 0)
        return false;
    if (suffix[0] == '_' && suffix[1] == 'v' && suffix[2] >= '0' && suffix[2] <= '9')
        suffix += 3;
    for (size_t index = 0; is_per_thread && index < sizeof variants / sizeof *variants; index++)
        if (strcmp(suffix, variants[index]) == 0)
            return true;
    return !is_per_thread && *suffix == '\0';
}

/* How many versions of a function the limiter answers in this variant, and the row of the last one. */
static unsigned versions_of(const char *family, bool is_per_thread, unsigned *last_row)
{
    unsigned version_count = 0;
    for (unsigned row = 0; row < ROWS; row++)
        if (answers[row] != NULL && is_version(driver_rows[row].name, family, is_per_thread)) {
            *last_row = row;
            version_count++;
        }
    return version_count;
}

/* The newest version of a function that the driver exports, and whether `function` is one of its exported versions. */
static unsigned exported_versions(const char *family, const void *function, bool *is_exported)
{
    static const char *const endings[] = {"", FUNCTION_VARIANTS};
    unsigned newest = 0;
    *is_exported = false;
    for (unsigned version = 1; version <= 9; version++)
        for (unsigned ending = 0; ending < sizeof endings / sizeof *endings; ending++) {
            char name[96], suffix[4] = {'_', 'v', (char)('0' + version)};
            snprintf(name, sizeof name, "%s%s%s", family, version == 1 ? "" : suffix, endings[ending]);
            void *exported = library_named(&driver_library, name);
            *is_exported = *is_exported || (exported != NULL && exported == function);
            newest = exported != NULL && ending == 0 && version > newest ? version : newest;
        }
    return newest;
}

/* A program built for a CUDA version before this means functions' 32-bit forms, of which there are two forms. */
#define SECOND_FORMS 4000

/* The limiter's function for an address that the driver's lookup returned, which tells the chosen variant and version.
 * For a function that the limiter does not answer it is the same address. NULL: the address is that of no row. */
static void *answer_by_address(void *driver_function)
{
    for (unsigned row = 0; row < ROWS; row++)
        if (driver_function == symbol_known(&driver_rows[row]) || driver_function == local_driver(row) ||
            driver_function == answers[row]) /* the driver's own lookup found the limiter's function */
            return answers[row] != NULL && !FAULT(raw_lookup_unanswered) ? answers[row] : driver_function;
    return NULL;
}

/* The limiter's function for an address that the driver found under `name` and does not export. It is chosen by the
 * name, if that leaves one version only. NULL: the lookup is refused, since versions differ in their arguments. */
static void *answer_by_name(void *driver_function, const char *name, int version, uint64_t flags)
{
    unsigned row = 0, other_row;
    bool is_per_thread = (flags & VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) != 0, is_exported;
    unsigned version_count = versions_of(name, is_per_thread, &row);
    if (version_count == 0 && versions_of(name, !is_per_thread, &other_row) == 0)
        return driver_function;
    unsigned newest = exported_versions(name, driver_function, &is_exported);
    bool is_certain = version_count == 1 && version >= SECOND_FORMS && !is_exported &&
                      newest == (unsigned)(strncmp(driver_rows[row].name + strlen(name), "_v2", 3) == 0 ? 2 : 1);
    log_line(is_certain ? LOG_INFO : LOG_ERROR, "%s: the driver's address is not dlsym's; %s", name,
             is_certain ? driver_rows[row].name : "its version is not one that is limited: refused");
    return is_certain ? answers[row] : NULL;
}

static void *answer_for(void *driver_function, const char *name, int version, uint64_t flags)
{
    void *own_function = answer_by_address(driver_function);
    return own_function != NULL ? own_function : answer_by_name(driver_function, name, version, flags);
}

static result_t answer_lookup(result_t result, const char *name, void **function, int version, uint64_t flags)
{
    if (result == RESULT_OK && function != NULL && *function != NULL) {
        *function = function_hidden(name) ? NULL : answer_for(*function, name, version, flags);
        result = *function != NULL ? RESULT_OK : ERROR(NOT_FOUND);
    }
    return result;
}

result_t proc_address(result_t (*real)(const char *, void **, int, uint64_t), stream_t null_stream, const char *name,
                      void **function, int version, uint64_t flags)
{
    if (null_stream == STREAM_PER_THREAD && flags == 0)
        flags = VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    return answer_lookup(real(name, function, version, flags), name, function, version, flags);
}

result_t proc_address_v2(result_t (*real)(const char *, void **, int, uint64_t, TYPE(driverProcAddressQueryResult) *),
                         stream_t null_stream, const char *name, void **function, int version, uint64_t flags,
                         TYPE(driverProcAddressQueryResult) *result)
{
    if (null_stream == STREAM_PER_THREAD && flags == 0)
        flags = VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    result_t answer_code = answer_lookup(real(name, function, version, flags, result), name, function, version, flags);
    if (answer_code == ERROR(NOT_FOUND) && result != NULL && *result == VALUE(GET_PROC_ADDRESS_SUCCESS))
        *result = VALUE(GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    return answer_code;
}

/* This lookup returns the newest version. */
result_t entry_point(result_t (*real)(const char *, void **, unsigned long long, TYPE(driverProcAddressQueryResult) *),
                     stream_t null_stream, const char *name, void **function, unsigned long long flags,
                     TYPE(driverProcAddressQueryResult) *status)
{
    (void)null_stream;
    return answer_lookup(real(name, function, flags, status), name, function, INT_MAX, flags);
}
