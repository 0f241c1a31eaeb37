/* The driver's first function. Around its call the list by which a program says which devices its driver is to show it
 * (CUDA_VISIBLE_DEVICES) has UUIDs for numbers. Numbers in the list mean the grant's devices, from 0 on, as in the
 * management library; the driver would read them as its own. */
#include "bodies.h"
#include "start.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/tenant.h"

#include <stdlib.h>
#include <string.h>

/* The number that an entry of `length` characters is; -1: it is none. */
static int number_of(const char *entry, size_t length)
{
    int number = -1;
    for (size_t position = 0; position < length; position++) {
        if (entry[position] < '0' || entry[position] > '9' || number > 9999)
            return -1;
        number = (number < 0 ? 0 : number * 10) + entry[position] - '0';
    }
    return number;
}

static size_t length_of_entry(const char *list)
{
    const char *comma = strchr(list, ',');
    return comma == NULL ? strlen(list) : (size_t)(comma - list);
}

/* The device that a number in the list means; NULL: none of the grant. */
static const char *uuid_of(int number)
{
    if (number < (int)tenant_grant->device_count)
        return tenant_terms(number)->uuid;
    log_line(LOG_NOTICE, "device %d is not of the grant, whose devices are 0 to %u in " VISIBLE_DEVICES, number,
             tenant_grant->device_count - 1);
    return NULL;
}

/* What the driver is to read for an entry of `length` characters: a UUID for a number, and names as they are. NULL: a
 * number that no device of the grant has. */
static const char *name_of(const char *entry, size_t length, bool *has_number, size_t *name_bytes)
{
    int number = number_of(entry, length);
    *has_number |= number >= 0;
    const char *name = number < 0 ? entry : uuid_of(number);
    *name_bytes = number < 0 || name == NULL ? length : strlen(name);
    return name;
}

/* Write the list with UUIDs for numbers, up to the first number that no device of the grant has: so far a driver reads
 * it, too. False: it has no number, or is too long. */
static bool translate(const char *list, char *output, size_t output_bytes)
{
    bool has_number = false;
    size_t used_bytes = 0, name_bytes;
    for (size_t length; *list != '\0'; list += length + (list[length] == ',')) {
        while (*list == ' ')
            list++;
        length = length_of_entry(list);
        const char *name = name_of(list, length, &has_number, &name_bytes);
        if (name == NULL)
            break;
        if (used_bytes + name_bytes + 2 > output_bytes)
            return false;
        if (used_bytes > 0)
            output[used_bytes++] = ',';
        memcpy(output + used_bytes, name, name_bytes);
        used_bytes += name_bytes;
    }
    output[used_bytes] = '\0';
    return has_number;
}

/* Returns the program's list; NULL: nothing was changed. */
static const char *translate_visible(void)
{
    char output[HETERO_MAX_DEVICES * (sizeof tenant_grant->devices->uuid + 1) + 1];
    const char *list = *VISIBLE_DEVICES == '\0' ? NULL : getenv(VISIBLE_DEVICES);
    if (list == NULL || tenancy() != TENANCY_HELD || FAULT(numbers_untranslated) ||
        !translate(list, output, sizeof output))
        return NULL;
    return setenv(VISIBLE_DEVICES, output, 1) == 0 ? list : NULL;
}

result_t initialise(result_t (*real)(unsigned), unsigned flags)
{
    result_t answer = prepare();
    if (answer != RESULT_OK)
        return answer;
    const char *list = translate_visible();
    answer = real(flags);
    if (list != NULL)
        setenv(VISIBLE_DEVICES, list, 1); /* libc keeps the text of a variable that it replaced */
    return answer;
}
