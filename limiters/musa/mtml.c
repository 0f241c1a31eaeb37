/* MTML has neither a power limit nor a process's memory, so time is charged at unity and contexts do not count. */
#include "mtml.h"

void mtml_prepare(void)
{
}

bool mtml_power(const char *uuid, struct power_reading *reading)
{
    (void)uuid, (void)reading;
    return false;
}

bool mtml_process_memory(const char *uuid, uint64_t *bytes)
{
    (void)uuid, (void)bytes;
    return false;
}

bool mtml_card_memory(const char *uuid, uint64_t *bytes)
{
    (void)uuid, (void)bytes;
    return false;
}
