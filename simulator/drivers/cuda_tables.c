/* Page tables: 4 KiB of the card for each 512 MiB of addresses with blocks mapped by hand in them, and for each 2 MiB
 * with registered memory of the host, in blocks of 2 MiB, counted for no process. Measured on an H100 (driver
 * 580.159.04, 2026-11-27): 30,000 mappings 512 MiB apart took 58 such blocks, 32 MiB apart 3, 2 MiB apart none; 200
 * times 256 MiB of the host 50. There they come back with what was mapped; here they
 * stay until the process leaves the card. */
#include "driver.h"

#include <stdlib.h>

#define TABLES_OF_A_BLOCK 512
#define ADDRESS_BITS      47

static const unsigned reaches[] = {[TABLES_OF_BLOCKS] = 29, [TABLES_OF_HOST] = 21};

/* A bit for each stretch of addresses that has one. */
static bool enter_stretch(struct device *device, enum tables kind, uintptr_t stretch)
{
    uint64_t **seen = &device->tables[kind];
    if (!*seen)
        *seen = calloc(UINT64_C(1) << (ADDRESS_BITS - reaches[kind] - 6), sizeof **seen);
    uint64_t bit = UINT64_C(1) << stretch % 64, *word = &(*seen)[stretch / 64];
    bool news = !(*word & bit);
    *word |= bit;
    return news;
}

bool tables_take(struct device *device, enum tables kind, uintptr_t start, uint64_t size)
{
    uintptr_t end = start + size - 1;
    if (!device->account || end < start || end >> ADDRESS_BITS)
        return true;
    uint64_t before = device->table_count / TABLES_OF_A_BLOCK;
    for (uintptr_t at = start >> reaches[kind]; at <= end >> reaches[kind]; at++)
        device->table_count += enter_stretch(device, kind, at);
    uint64_t blocks = device->table_count / TABLES_OF_A_BLOCK - before;
    return !blocks || engine_charge_tables(device->account, blocks * BLOCK);
}

void tables_leave(struct device *device)
{
    for (unsigned kind = 0; kind < sizeof reaches / sizeof *reaches; kind++) {
        free(device->tables[kind]);
        device->tables[kind] = NULL;
    }
    device->table_count = 0;
}
