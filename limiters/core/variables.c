/* The environment of this process as it was loaded, and one with what keeps the limiter (variables.h). */
#include "variables.h"

#include "libc.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define PRELOAD "LD_PRELOAD="
#define GRANT   "HETERO_GRANT="

/* Written by environment_prepare(), and read then. */
static char preload_variable[sizeof PRELOAD + 2 * PATH_MAX]; /* the limiters of this process; empty: none is kept */
static char grant_variable[sizeof GRANT + PATH_MAX];
static char ***environment_of_libc; /* `environ`, which libc and the program have in common */

static bool is_separator(char character)
{
    return character == ':' || character == ' ' || character == '\0';
}

static size_t length_of_entry(const char *entry)
{
    size_t length = 0;
    while (!is_separator(entry[length]))
        length++;
    return length;
}

static bool is_limiter(const char *entry, size_t length)
{
    static const char name[] = "/libhetero-";
    const char *file = entry;
    for (size_t position = 0; position < length; position++)
        if (entry[position] == '/')
            file = entry + position;
    return (size_t)(entry + length - file) > sizeof name - 1 && strncmp(file, name, sizeof name - 1) == 0;
}

/* Append the limiters in a list of libraries to the variable. */
static void keep_limiters(const char *list)
{
    size_t used_bytes = sizeof PRELOAD - 1;
    for (size_t length; *list != '\0'; list += length + (list[length] != '\0')) {
        length = length_of_entry(list);
        if (!is_limiter(list, length) || used_bytes + length + 2 > sizeof preload_variable)
            continue;
        if (used_bytes == sizeof PRELOAD - 1)
            memcpy(preload_variable, PRELOAD, used_bytes);
        else
            preload_variable[used_bytes++] = ':';
        memcpy(preload_variable + used_bytes, list, length);
        used_bytes += length;
    }
}

void environment_prepare(void)
{
    if (environment_of_libc != NULL)
        return;
    const char *preload = getenv("LD_PRELOAD"), *grant = getenv("HETERO_GRANT");
    environment_of_libc = libc_dlsym(RTLD_DEFAULT, "environ");
    if (preload == NULL || grant == NULL || *grant == '\0' || strlen(grant) >= PATH_MAX)
        return;
    stpcpy(stpcpy(grant_variable, GRANT), grant);
    keep_limiters(preload);
}

char *const *environment_now(void)
{
    environment_prepare();
    return *environment_of_libc;
}

struct environment_places environment_places_in(char *const environment[])
{
    struct environment_places places = {-1, -1, 0};
    for (; environment != NULL && environment[places.count] != NULL; places.count++) {
        if (strncmp(environment[places.count], PRELOAD, sizeof PRELOAD - 1) == 0)
            places.preload_index = places.count;
        else if (strncmp(environment[places.count], GRANT, sizeof GRANT - 1) == 0)
            places.grant_index = places.count;
    }
    return places;
}

static bool list_has(const char *list, const char *entry, size_t length)
{
    for (size_t own_length; *list != '\0'; list += own_length + (list[own_length] != '\0')) {
        own_length = length_of_entry(list);
        if (own_length == length && strncmp(list, entry, length) == 0)
            return true;
    }
    return false;
}

/* Whether a list of libraries has all limiters of this process. */
static bool has_limiters(const char *list)
{
    const char *own_list = preload_variable + sizeof PRELOAD - 1;
    for (size_t length; *own_list != '\0'; own_list += length + (own_list[length] != '\0')) {
        length = length_of_entry(own_list);
        if (!list_has(list, own_list, length))
            return false;
    }
    return true;
}

bool environment_lacks_limiter(char *const environment[], const struct environment_places *places)
{
    if (*preload_variable == '\0' ||
        (places->grant_index >= 0 && environment[places->grant_index][sizeof GRANT - 1] == '\0'))
        return false;
    return places->grant_index < 0 || places->preload_index < 0 ||
           !has_limiters(environment[places->preload_index] + sizeof PRELOAD - 1);
}

size_t environment_bytes(char *const environment[], const struct environment_places *places)
{
    size_t text_bytes = places->preload_index < 0 ? 0 : strlen(environment[places->preload_index]);
    return ((size_t)places->count + 3) * sizeof *environment + sizeof preload_variable + text_bytes;
}

char *const *environment_with_limiter(char *const environment[], const struct environment_places *places, void *room)
{
    char **entries = room, *text = (char *)(entries + places->count + 3);
    int count = places->count;
    if (count > 0)
        memcpy(entries, environment, (size_t)count * sizeof *entries);
    if (places->preload_index < 0) {
        entries[count++] = preload_variable;
    } else if (!has_limiters(environment[places->preload_index] + sizeof PRELOAD - 1)) {
        entries[places->preload_index] = text;
        text = stpcpy(text, environment[places->preload_index]);
        stpcpy(stpcpy(text, ":"), preload_variable + sizeof PRELOAD - 1);
    }
    if (places->grant_index < 0)
        entries[count++] = grant_variable;
    entries[count] = NULL;
    return entries;
}
