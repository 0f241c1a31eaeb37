/* Page tables: a table of 4 KiB for each 512 MiB of addresses in which memory is mapped, for each 2 MiB with host
 * memory, and for each 256 GiB above those. They are charged in blocks of 2 MiB, to no process. Measured on an H100
 * (driver 580.159.04, 2026-11-27): 5,000 mappings 512 MiB apart took 9 blocks, as many host pages 2 MiB apart 9, and
 * 2,000 of them 512 MiB apart 7. All blocks were freed with the mappings. 64 sparse arrays of 4 GiB took 17: a table
 * for each 32 MiB and for each 512. */
#include "driver.h"

#include <stdlib.h>

#define PAGE_BITS         12
#define ADDRESS_BITS      47
#define TABLES_OF_A_BLOCK 512
#define SPARSE_REACH      (UINT64_C(32) << 20)

static const unsigned reaches[TABLE_LEVELS] = {21, 29, 38};

static uint32_t *pages_of(struct device *device, unsigned level, uint64_t stretch)
{
    if (!device->table_pages[level])
        device->table_pages[level] = calloc(UINT64_C(1) << (ADDRESS_BITS - reaches[level]),
                                            sizeof **device->table_pages);
    return &device->table_pages[level][stretch];
}

static void add(struct device *device, unsigned level, uintptr_t start, uint64_t size, int sign)
{
    uint64_t end_page = ((start + size - 1) >> PAGE_BITS) + 1;
    for (uint64_t page = start >> PAGE_BITS, next_page; page < end_page; page = next_page) {
        uint64_t table_number = page >> (reaches[level] - PAGE_BITS);
        next_page = (table_number + 1) << (reaches[level] - PAGE_BITS);
        next_page = next_page < end_page ? next_page : end_page;
        uint32_t *pages = pages_of(device, level, table_number), pages_before = *pages;
        *pages = sign < 0 && pages_before < next_page - page
                     ? 0
                     : pages_before + (uint32_t)(sign * (int64_t)(next_page - page));
        device->table_count += (uint64_t)((*pages > 0) - (pages_before > 0));
    }
}

static bool settle_blocks(struct device *device, uint64_t count_before)
{
    int64_t blocks = (int64_t)(device->table_count / TABLES_OF_A_BLOCK - count_before / TABLES_OF_A_BLOCK);
    return engine_change_tables(device->account, blocks * (int64_t)BLOCK);
}

static bool change(struct device *device, enum tables lowest, uintptr_t start, uint64_t size_bytes, int sign)
{
    uint64_t count_before = device->table_count;
    if (!device->account || !size_bytes || start >> ADDRESS_BITS || (start + size_bytes - 1) >> ADDRESS_BITS)
        return true;
    for (unsigned level = lowest; level < TABLE_LEVELS; level++)
        add(device, level, start, size_bytes, sign);
    return settle_blocks(device, count_before);
}

bool tables_take(struct device *device, enum tables lowest, uintptr_t start, uint64_t size)
{
    if (change(device, lowest, start, size, 1))
        return true;
    for (unsigned level = lowest; level < TABLE_LEVELS; level++)
        add(device, level, start, size, -1);
    return false;
}

void tables_give(struct device *device, enum tables lowest, uintptr_t start, uint64_t size)
{
    change(device, lowest, start, size, -1);
}

static uint64_t of_sparse(uint64_t size)
{
    return round_up(size, SPARSE_REACH) / SPARSE_REACH + round_up(size, 16 * SPARSE_REACH) / (16 * SPARSE_REACH);
}

bool tables_take_sparse(struct device *device, uint64_t size)
{
    uint64_t count_before = device->table_count;
    device->table_count += of_sparse(size);
    if (settle_blocks(device, count_before))
        return true;
    device->table_count = count_before;
    return false;
}

void tables_give_sparse(struct device *device, uint64_t size)
{
    uint64_t count_before = device->table_count;
    device->table_count -= of_sparse(size);
    settle_blocks(device, count_before);
}

void tables_leave(struct device *device)
{
    for (unsigned level = 0; level < TABLE_LEVELS; level++) {
        free(device->table_pages[level]);
        device->table_pages[level] = NULL;
    }
    device->table_count = 0;
}
