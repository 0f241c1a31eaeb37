/* What a program may ask the driver for (known.h). */
#include "known.h"

#include "types.h"

#include "../core/log.h"
#include "../core/tenant.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* In the order of the alphabet; none: the table of this driver is not complete, and every function counts as known. */
static const char *const others[] = {
#define HARMLESS(name, why) #name,
#define OPEN(name, what)    #name,
#include "others.def"
    "",
};
enum { OTHERS = sizeof others / sizeof *others - 1 };

static const char *const answered[] = {
#define OWN(name, ...)      #name,
#define OWN_IN(name, ...)   #name,
#define GATED_IN(name, ...) #name,
#define USED(name, ...)
#include "api.def"
};

#define SEEN 256u /* a power of two */

/* Whether this is asked for the first time: by a hash, so that one in a long list may be missed. */
static bool first_time(const char *what)
{
    static _Atomic bool seen[SEEN];
    uint32_t hash = 2166136261u;
    for (const char *at = what; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    return !atomic_exchange(&seen[hash % SEEN], true);
}

static bool strict(void)
{
    for (uint32_t device = 0; tenancy() == TENANCY_HELD && device < tenant_grant->device_count; device++)
        if ((terms_flags(tenant_terms((int)device)) & HETERO_FLAG_STRICT) != 0)
            return true;
    return false;
}

bool refuse_unknown(const char *what)
{
    bool hide = strict();
    if (!first_time(what))
        return hide;
    log_line(LOG_INFO, "%s is not known: %s", what, hide ? "answered as if the driver had none" : "not limited");
    if (tenant_region() != NULL)
        atomic_fetch_add_explicit(&tenant_region()->shared->unknown_lookups, 1, memory_order_relaxed);
    return hide;
}

static bool is_listed(const char *name)
{
    size_t length = strlen(name);
    for (size_t row = 0; row < sizeof answered / sizeof *answered; row++) {
        const char *known = answered[row];
        if (strncmp(known, name, length) == 0 && (known[length] == '\0' || known[length] == '_'))
            return true;
    }
    size_t low = 0, high = OTHERS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(others[middle], name);
        if (order == 0)
            return true;
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return false;
}

/* The variants for per-thread default streams go with the plain name. */
static bool is_variant(const char *ending)
{
    static const char *const endings[] = {FUNCTION_VARIANTS};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcmp(ending, endings[i]) == 0)
            return true;
    return false;
}

bool function_hidden(const char *name)
{
    static const char prefix[] = FUNCTION_PREFIX;
    char plain[128];
    size_t length = strlen(name);
    char after = strncmp(name, prefix, sizeof prefix - 1) == 0 ? name[sizeof prefix - 1] : '\0';
    if (OTHERS == 0 || length >= sizeof plain || after < 'A' || after > 'Z' || is_listed(name))
        return false;
    memcpy(plain, name, length + 1);
    char *ending = strrchr(plain, '_');
    if (ending != NULL && is_variant(ending))
        *ending = '\0';
    return !is_listed(plain) && refuse_unknown(name);
}
