/* The driver's own tables of functions (tables.def). */
#include "bodies.h"

#include "known.h"

#include <stdio.h>
#include <string.h>

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

result_t export_table(result_t (*real)(const void **, const TYPE(uuid) *), const void **table, const TYPE(uuid) *id)
{
    static const char says[] = "the table of functions ";
    char name[sizeof says + 2 * sizeof id->bytes];
    char *text = stpcpy(name, says);
    for (unsigned i = 0; id != NULL && i < sizeof id->bytes; i++)
        text += snprintf(text, 3, "%02x", (unsigned char)id->bytes[i]);
    bool hide = id != NULL && !table_known(name + sizeof says - 1) && refuse_unknown(name);
    return hide ? ERROR(NOT_FOUND) : real(table, id);
}
