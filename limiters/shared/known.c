/* Which driver functions the limiter knows (known.h). */
#include "known.h"

#include "types.h"

#include "../core/log.h"
#include "../core/tenant.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Sorted. If it is empty the table of this driver is not complete, and every function counts as known. */
static const char *const other_functions[] = {
#define HARMLESS(name, why) #name,
#define OPEN(name, what)    #name,
#include "others.def"
    "",
};
enum { OTHERS = sizeof other_functions / sizeof *other_functions - 1 };

static const char *const answered_functions[] = {
#define OWN(name, ...)      #name,
#define OWN_IN(name, ...)   #name,
#define GATED_IN(name, ...) #name,
#define USED(name, ...)
#include "api.def"
};

#define LOOKUP_FLAGS 256u /* a power of two */

/* Whether a name is looked up for the first time. Names are compared by a hash, so a few may be missed. */
static bool is_first_lookup(const char *name)
{
    static _Atomic bool is_seen[LOOKUP_FLAGS];
    uint32_t hash = 2166136261u;
    for (const char *cursor = name; *cursor != '\0'; cursor++)
        hash = (hash ^ (unsigned char)*cursor) * 16777619u;
    return !atomic_exchange(&is_seen[hash % LOOKUP_FLAGS], true);
}

static bool is_strict(void)
{
    for (uint32_t device = 0; tenancy() == TENANCY_HELD && device < tenant_grant->device_count; device++)
        if ((terms_flags(tenant_terms((int)device)) & HETERO_FLAG_STRICT) != 0)
            return true;
    return false;
}

bool refuse_unknown(const char *name)
{
    bool is_hidden = is_strict();
    if (!is_first_lookup(name))
        return is_hidden;
    log_line(LOG_INFO, "%s is not known: %s", name, is_hidden ? "answered as if the driver had none" : "not limited");
    if (tenant_region() != NULL)
        atomic_fetch_add_explicit(&tenant_region()->shared->unknown_lookup_count, 1, memory_order_relaxed);
    return is_hidden;
}

static bool is_listed(const char *name)
{
    size_t length = strlen(name);
    for (size_t row = 0; row < sizeof answered_functions / sizeof *answered_functions; row++) {
        const char *answered = answered_functions[row];
        if (strncmp(answered, name, length) == 0 && (answered[length] == '\0' || answered[length] == '_'))
            return true;
    }
    size_t low_index = 0, high_index = OTHERS;
    while (low_index < high_index) {
        size_t middle = (low_index + high_index) / 2;
        int order = strcmp(other_functions[middle], name);
        if (order == 0)
            return true;
        low_index = order < 0 ? middle + 1 : low_index;
        high_index = order < 0 ? high_index : middle;
    }
    return false;
}

/* Whether a name's ending is that of a variant for per-thread default streams. */
static bool is_variant(const char *ending)
{
    static const char *const endings[] = {FUNCTION_VARIANTS};
    for (size_t index = 0; index < sizeof endings / sizeof *endings; index++)
        if (strcmp(ending, endings[index]) == 0)
            return true;
    return false;
}

bool function_hidden(const char *name)
{
    static const char prefix[] = FUNCTION_PREFIX;
    char plain_name[128];
    size_t name_length = strlen(name);
    char next_character = strncmp(name, prefix, sizeof prefix - 1) == 0 ? name[sizeof prefix - 1] : '\0';
    if (OTHERS == 0 || name_length >= sizeof plain_name || next_character < 'A' || next_character > 'Z' ||
        is_listed(name))
        return false;
    memcpy(plain_name, name, name_length + 1);
    char *ending = strrchr(plain_name, '_');
    if (ending != NULL && is_variant(ending))
        *ending = '\0';
    return !is_listed(plain_name) && refuse_unknown(name);
}
