/* Getting in: the exported functions, one per line of api.def, the driver's own lookup functions, and fork. */
#include "array.h"
#include "blocks.h"
#include "bodies.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "context.h"
#include "device.h"
#include "driver.h"
#include "early.h"
#include "governors.h"
#include "known.h"
#include "launch.h"
#include "local.h"
#include "module.h"
#include "page_tables.h"
#include "pools.h"
#include "recording.h"
#include "room.h"
#include "uncounted.h"
#include "virtual.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/table.h"
#include "../core/tenant.h"
#include "management.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------ one stub for every line */

#include "stubs.h"
#define USED(name, ...)
#include "api.def"

static void *const ours[ROWS] = {
#define OWN(name, ...)      [ROW_##name] = (void *)name,
#define OWN_IN(name, ...)   [ROW_##name] = (void *)name,
#define GATED_IN(name, ...) [ROW_##name] = (void *)name,
#define USED(name, ...)
#include "api.def"
};

SYMBOLS(driver, &driver_library, ours);

/* --------------------------------------------------------------------------------------------------- the first call */

static void forget_parent(void)
{
    calls_after_fork();
    table_after_fork();
    governors_after_fork();
    device_after_fork();
    context_after_fork();
    pools_after_fork();
    blocks_after_fork();
    room_after_fork();
    virtual_after_fork();
    tables_after_fork();
    uncounted_after_fork();
    limits_after_fork();
    local_after_fork();
    graphs_after_fork();
    capture_after_fork();
    recording_after_fork();
    atomic_store(&first_call_made, false);
}

/* What is given back for each kind of what is held, and where room is had (charge.h). */
static void prepare_charges(void)
{
    give_back_by(HELD_POINTER, pointer_freed);
    give_back_by(HELD_BLOCK, block_over);
    give_back_by(HELD_CHUNK, pointer_freed);
    give_back_by(HELD_FREED, pointer_freed);
    give_back_by(HELD_ARRAY, array_gone);
    give_back_by(HELD_MODULE, module_gone);
    give_back_by(HELD_RESIDENCE, give_back_bytes);
    give_back_by(HELD_IMPORTED, imported_over);
    give_back_by(HELD_GREEN, give_back_bytes);
    give_back_by(HELD_LOCAL, give_back_bytes);
    give_back_by(HELD_SCRATCH, give_back_bytes);
    give_back_by(HELD_NODES, give_back_bytes);
    tables_prepare();
    for (uint32_t limit = CONTEXT_LIMIT; limit < HELD_CHUNK; limit++)
        give_back_by(limit, give_back_bytes);
    more_room_by(make_room);
    early_prepare();
}

/* What the program may not be able to open, and the loader not to find, at its first launch is opened and found here:
 * before the driver gets a call, and before there is a thread of ours. */
static result_t prepare(void)
{
    struct region *region = tenancy() == TENANCY_REFUSED ? NULL : tenant_region();
    prepare_charges();
    if (region == NULL || !region_lock(region))
        return ERROR(NOT_PERMITTED);
    region_unlock(region);
    tenancy_in_child(forget_parent);
    management_prepare();
    for (int device = 0; device < (int)tenant_grant->device_count; device++)
        if (terms_limit_core(tenant_terms(device)) && !FAULT(governor_unprepared) && !governor_prepare(device))
            return ERROR(NOT_PERMITTED);
    return RESULT_OK;
}

result_t initialise(result_t (*real)(unsigned), unsigned flags)
{
    result_t refused = prepare();
    return refused != RESULT_OK ? refused : real(flags);
}

/* Where no call is the first of all programs, what cannot be opened is asked for again by the calls that need it, and
 * refused. */
static void first_call(void)
{
    prepare();
    atomic_store_explicit(&first_call_made, true, memory_order_relaxed);
}

AT_FIRST_CALL(first_call);

/* ------------------------------------------------------------------------------------ the driver's lookup functions */

/* Whether `name` is `family`, or that with a version, and this ending. */
static bool is_version(const char *name, const char *family, bool per_thread)
{
    static const char *const variants[] = {FUNCTION_VARIANTS};
    size_t length = strlen(family);
    const char *rest = name + length;
    if (strncmp(name, family, length) != 0)
        return false;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9')
        rest += 3;
    for (size_t i = 0; per_thread && i < sizeof variants / sizeof *variants; i++)
        if (strcmp(rest, variants[i]) == 0)
            return true;
    return !per_thread && *rest == '\0';
}

/* What we answer of a family of functions in this variant: how many versions, and the row of the last. */
static unsigned versions_of(const char *family, bool per_thread, unsigned *last)
{
    unsigned versions = 0;
    for (unsigned row = 0; row < ROWS; row++)
        if (ours[row] != NULL && is_version(driver_rows[row].name, family, per_thread)) {
            *last = row;
            versions++;
        }
    return versions;
}

/* The driver's versions of a family that it shows to dlsym: how many, and whether `function` is one of them. */
static unsigned shown(const char *family, const void *function, bool *is_one)
{
    static const char *const endings[] = {"", FUNCTION_VARIANTS};
    unsigned versions = 0;
    *is_one = false;
    for (unsigned version = 1; version <= 9; version++)
        for (unsigned ending = 0; ending < sizeof endings / sizeof *endings; ending++) {
            char name[96], number[4] = {'_', 'v', (char)('0' + version)};
            snprintf(name, sizeof name, "%s%s%s", family, version == 1 ? "" : number, endings[ending]);
            void *there = library_named(&driver_library, name);
            *is_one = *is_one || (there != NULL && there == function);
            versions = there != NULL && ending == 0 && version > versions ? version : versions;
        }
    return versions;
}

/* A program built for a CUDA before this means the forms of 32 bits, where there were others. */
#define SECOND_FORMS 4000

/* Ours for the driver's address of a function: it tells which variant and version the driver chose. What is not
 * answered stays the driver's. NULL: the driver shows this address under no name of the table. */
static void *ours_by_address(void *found)
{
    for (unsigned row = 0; row < ROWS; row++)
        if (found == symbol_known(&driver_rows[row]) || found == local_driver(row) ||
            found == ours[row]) /* whose names lead to us in itself, too */
            return ours[row] != NULL && !FAULT(raw_lookup_unanswered) ? ours[row] : found;
    return NULL;
}

/* Ours for an address that the driver found under `name` and does not show to dlsym: the name decides, if it leaves no
 * choice. NULL: refused, since ours takes what another version does not. */
static void *ours_by_name(void *found, const char *name, int version, uint64_t flags)
{
    unsigned row = 0, last;
    bool per_thread = (flags & VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) != 0, is_shown;
    unsigned versions = versions_of(name, per_thread, &row);
    if (versions == 0 && versions_of(name, !per_thread, &last) == 0)
        return found;
    unsigned newest = shown(name, found, &is_shown);
    bool certain = versions == 1 && version >= SECOND_FORMS && !is_shown &&
                   newest == (unsigned)(strncmp(driver_rows[row].name + strlen(name), "_v2", 3) == 0 ? 2 : 1);
    log_line(certain ? LOG_INFO : LOG_ERROR, "%s: the driver's address is not dlsym's; %s", name,
             certain ? driver_rows[row].name : "its version is not one that is limited: refused");
    return certain ? ours[row] : NULL;
}

static void *ours_for(void *found, const char *name, int version, uint64_t flags)
{
    void *known = ours_by_address(found);
    return known != NULL ? known : ours_by_name(found, name, version, flags);
}

static result_t answer(result_t found, const char *name, void **function, int version, uint64_t flags)
{
    if (found == RESULT_OK && function != NULL && *function != NULL) {
        *function = function_hidden(name) ? NULL : ours_for(*function, name, version, flags);
        found = *function != NULL ? RESULT_OK : ERROR(NOT_FOUND);
    }
    return found;
}

result_t proc_address(result_t (*real)(const char *, void **, int, uint64_t), stream_t none, const char *name,
                      void **function, int version, uint64_t flags)
{
    if (none == STREAM_PER_THREAD && flags == 0)
        flags = VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    return answer(real(name, function, version, flags), name, function, version, flags);
}

result_t proc_address_v2(result_t (*real)(const char *, void **, int, uint64_t, TYPE(driverProcAddressQueryResult) *),
                         stream_t none, const char *name, void **function, int version, uint64_t flags,
                         TYPE(driverProcAddressQueryResult) *result)
{
    if (none == STREAM_PER_THREAD && flags == 0)
        flags = VALUE(GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    result_t found = answer(real(name, function, version, flags, result), name, function, version, flags);
    if (found == ERROR(NOT_FOUND) && result != NULL && *result == VALUE(GET_PROC_ADDRESS_SUCCESS))
        *result = VALUE(GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    return found;
}

/* The newest version is meant. */
result_t entry_point(result_t (*real)(const char *, void **, unsigned long long, TYPE(driverProcAddressQueryResult) *),
                     stream_t none, const char *name, void **function, unsigned long long flags,
                     TYPE(driverProcAddressQueryResult) *status)
{
    (void)none;
    return answer(real(name, function, flags, status), name, function, INT_MAX, flags);
}
