/* What a program may ask the driver for (known.h). */
#include "known.h"

#include "bodies.h"

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
#define USED(name)
#include "api.def"
};

#define SEEN 256u /* a power of two */

/* Whether this is asked for the first time: by a hash, so that one in a long list may go unlogged. */
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

/* Say once that something is not known; whether it is not to be had. */
static bool refuse(const char *what)
{
    bool hide = strict();
    if (first_time(what))
        log_line(LOG_INFO, "%s is not known: %s", what, hide ? "answered as if the driver had none" : "not limited");
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

bool function_hidden(const char *name)
{
    char plain[128];
    size_t length = strlen(name);
    if (OTHERS == 0 || length >= sizeof plain || name[0] != 'c' || name[2] < 'A' || name[2] > 'Z' || is_listed(name))
        return false;
    memcpy(plain, name, length + 1);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        plain[length - 5] = '\0';
    return !is_listed(plain) && refuse(name);
}

/* ------------------------------------------------------------------------------------------------ tables of functions
 */

static const char *const tables[] = {
#define TABLE(id, user) id,
#include "tables.def"
    NULL,
};

static bool table_known(const char *id)
{
    for (size_t at = 0; tables[at] != NULL; at++)
        if (strcmp(tables[at], id) == 0)
            return true;
    return tables[0] == NULL;
}

CUresult export_table(CUresult (*real)(const void **, const CUuuid *), const void **table, const CUuuid *id)
{
    static const char says[] = "the table of functions ";
    char name[sizeof says + 2 * sizeof id->bytes];
    char *text = stpcpy(name, says);
    for (unsigned i = 0; id != NULL && i < sizeof id->bytes; i++)
        text += snprintf(text, 3, "%02x", (unsigned char)id->bytes[i]);
    bool hide = id != NULL && !table_known(name + sizeof says - 1) && refuse(name);
    return hide ? CUDA_ERROR_NOT_FOUND : real(table, id);
}
