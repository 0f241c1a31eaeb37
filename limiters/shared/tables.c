/* The driver's tables of functions, which programs get by an id (tables.def). */
#include "bodies.h"

#include "known.h"

#include <stdio.h>
#include <string.h>

static const char *const tables[] = {
#define TABLE(id, user) id,
#include "tables.def"
    NULL,
};

static bool is_known_table(const char *id)
{
    for (size_t index = 0; tables[index] != NULL; index++)
        if (strcmp(tables[index], id) == 0)
            return true;
    return tables[0] == NULL;
}

result_t export_table(result_t (*real)(const void **, const TYPE(uuid) *), const void **table, const TYPE(uuid) *id)
{
    static const char prefix[] = "the table of functions ";
    char name[sizeof prefix + 2 * sizeof id->bytes];
    char *end = stpcpy(name, prefix);
    for (unsigned index = 0; id != NULL && index < sizeof id->bytes; index++)
        end += snprintf(end, 3, "%02x", (unsigned char)id->bytes[index]);
    bool is_hidden = id != NULL && !is_known_table(name + sizeof prefix - 1) && refuse_unknown(name);
    return is_hidden ? ERROR(NOT_FOUND) : real(table, id);
}
