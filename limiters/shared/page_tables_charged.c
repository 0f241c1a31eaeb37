/* Page tables: 4 KiB of the card for each 512 MiB of addresses with mapped memory in them, for each 2 MiB with memory
 * of the host, and for each 256 GiB above. The driver counts them for no process (an NVIDIA H100, driver 580.159.04,
 * 2026-11-27: one block mapped at 30,000 addresses took 116 MiB in two seconds), in blocks of 2 MiB, of which the first
 * is part of the context. Blocks have them from when a device is let at them, and the card has them back with what was
 * mapped. A sparse array has them from the beginning, each lowest one for 32 MiB.
 */
#include "page_tables.h"

#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "linear.h"
#include "uncounted.h"
#include "virtual.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>

#define PAGE_BITS         12
#define TABLES_OF_A_BLOCK 512
#define ADDRESSES         (UINT64_C(1) << 47) /* the host's, from which the driver takes the device's */
#define MOST_OF_A_CALL    (UINT64_C(1) << 41) /* no more is mapped at once: it would be looked at for seconds */

#define SPARSE_REACH 25

/* How many addresses a table reaches, as powers of two; blocks need none of the first. */
static const unsigned reaches[] = {21, 29, 38};
enum level { OF_HOST, OF_BLOCKS, LAST, LEVELS };

/* Guards what follows and the entries of tables; not held across a charge. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t tables, charged; /* bytes are charged, or another thread is about to */
} devices[HETERO_MAX_DEVICES];

void tables_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        devices[device].tables = devices[device].charged = 0;
}

/* ----------------------------------------------------------------------------------------------- how many there are */

/* With `counting` held: add so many pages to those that a table is for. By how many tables there are more. */
static int add_pages(uint64_t key, int device, int64_t pages)
{
    struct entry previous, entry = {.kind = HELD_TABLE, .key = key, .device = device, .bytes = (uint64_t)pages};
    if (table_add(HELD_TABLE, key, pages, &entry))
        return (int64_t)entry.bytes <= 0 && table_take(HELD_TABLE, key, &entry) ? -1 : 0;
    return pages > 0 && table_put(&entry, &previous) ? 1 : 0;
}

/* Add the pages of a range (sign 1), or take them (-1). */
static void add_range(int device, enum level lowest, uint64_t start, uint64_t bytes, int sign)
{
    uint64_t first = start >> PAGE_BITS, end = ((start + bytes - 1) >> PAGE_BITS) + 1;
    pthread_mutex_lock(&counting);
    for (unsigned level = lowest; level < LEVELS; level++)
        for (uint64_t at = first, next; at < end; at = next) {
            uint64_t stretch = at >> (reaches[level] - PAGE_BITS), key = stretch << 8 | level << 6 | (unsigned)device;
            next = (stretch + 1) << (reaches[level] - PAGE_BITS);
            next = next < end ? next : end;
            devices[device].tables += (uint64_t)add_pages(key, device, sign * (int64_t)(next - at));
        }
    pthread_mutex_unlock(&counting);
}

/* What the tables of a device take now and did not: it counts as charged from here on. */
static int64_t not_charged(int device)
{
    pthread_mutex_lock(&counting);
    uint64_t tables = devices[device].tables;
    uint64_t beyond = tables <= TABLES_OF_A_BLOCK ? 0 : tables - TABLES_OF_A_BLOCK;
    uint64_t now = blocks_for(beyond * (BLOCK / TABLES_OF_A_BLOCK));
    int64_t more = (int64_t)(now - devices[device].charged);
    devices[device].charged = now;
    pthread_mutex_unlock(&counting);
    return FAULT_VALUE(page_tables_uncharged, more, 0);
}

/* Charge that, or give back what they no longer take. False: it does not fit, and the next that looks here charges it,
 * if it is still needed. */
static bool settle_tables(int device)
{
    int64_t more = not_charged(device);
    if (more <= 0) {
        refund(device, (uint64_t)-more);
        unseen_add(device, more);
        return true;
    }
    unseen_add(device, more);
    if (charge(device, (uint64_t)more) == RESULT_OK)
        return true;
    unseen_add(device, -more);
    pthread_mutex_lock(&counting);
    devices[device].charged -= (uint64_t)more;
    pthread_mutex_unlock(&counting);
    return false;
}

/* ----------------------------------------------------------------------------------------------------- sparse arrays
 */

static uint64_t tables_for(uint64_t bytes, unsigned reach)
{
    return (bytes >> reach) + ((bytes & ((UINT64_C(1) << reach) - 1)) != 0);
}

uint64_t tables_of_sparse(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels)
{
    if (shape == NULL || (shape->Flags & NAMED(ARRAY3D_SPARSE)) == 0)
        return 0;
    NAMED(ARRAY3D_DESCRIPTOR) whole = *shape;
    whole.Flags &= ~(unsigned)NAMED(ARRAY3D_SPARSE);
    uint64_t bytes = array_bytes(&whole, levels);
    return tables_for(bytes, SPARSE_REACH) + tables_for(bytes, reaches[OF_BLOCKS]) + tables_for(bytes, reaches[LAST]);
}

bool tables_more(int device, uint64_t tables)
{
    if (tables == 0 || !counted(device))
        return true;
    pthread_mutex_lock(&counting);
    devices[device].tables += tables;
    pthread_mutex_unlock(&counting);
    bool fits = settle_tables(device);
    if (!fits)
        tables_fewer(device, tables);
    return fits;
}

void tables_fewer(int device, uint64_t tables)
{
    if (tables == 0 || device < 0)
        return;
    pthread_mutex_lock(&counting);
    devices[device].tables -= tables;
    pthread_mutex_unlock(&counting);
    settle_tables(device);
}

/* ------------------------------------------------------------------------------------------------------------ ranges
 */

/* A range that is mapped is HELD_HOST or HELD_ACCESS by its address; `link` has a bit for each device with tables of
 * it. Who changes one takes it out of the table first: what nobody finds meanwhile stays charged. */
static bool has(const struct entry *range, int device)
{
    return ((uintptr_t)range->link & (uintptr_t)1 << device) != 0;
}

static enum level lowest_of(const struct entry *range)
{
    return range->kind == HELD_HOST ? OF_HOST : OF_BLOCKS;
}

/* False, and it has none on this device: they do not fit. */
static bool give_tables(struct entry *range, int device)
{
    uint64_t start = range->key, bytes = range->bytes;
    if (!counted(device) || has(range, device) || bytes == 0 || start >= ADDRESSES || bytes > ADDRESSES - start)
        return true; /* the driver refuses the last */
    if (bytes > MOST_OF_A_CALL)
        return false;
    add_range(device, lowest_of(range), start, bytes, 1);
    range->link = (void *)((uintptr_t)range->link | (uintptr_t)1 << device);
    if (settle_tables(device))
        return true;
    add_range(device, lowest_of(range), start, bytes, -1);
    range->link = (void *)((uintptr_t)range->link & ~((uintptr_t)1 << device));
    return false;
}

static void take_tables(const struct entry *range)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (has(range, device)) {
            add_range(device, lowest_of(range), range->key, range->bytes, -1);
            settle_tables(device);
        }
}

void tables_prepare(void)
{
    give_back_by(HELD_HOST, take_tables); /* what is left when the context ends that it lives in */
    give_back_by(HELD_ACCESS, take_tables);
}

/* ----------------------------------------------------------------------------------------------- memory of the host */

static bool is_context_on(const struct entry *entry, const void *device)
{
    return entry->kind == CONTEXT_BYTES && entry->device == *(const int *)device;
}

/* It is mapped on each device that the process has a context on. */
static result_t give_host_tables(struct entry *range)
{
    struct entry none;
    int current = device_current(), count = tenant_region() == NULL ? 0 : (int)tenant_grant->device_count;
    for (int device = 0; device < count; device++)
        if (counted(device) && (device == current || table_find(is_context_on, &device, &none)) &&
            !give_tables(range, device)) {
            take_tables(range);
            return ERROR(OUT_OF_MEMORY);
        }
    return RESULT_OK;
}

static struct entry range_of_host(const void *memory, size_t bytes)
{
    return (struct entry){.kind = HELD_HOST, .key = (uintptr_t)memory, .bytes = bytes, .owner = context_of_memory()};
}

result_t register_host(result_t (*real)(void *, size_t, unsigned), void *memory, size_t bytes, unsigned flags)
{
    struct entry range = range_of_host(memory, bytes);
    result_t answer = give_host_tables(&range);
    if (answer != RESULT_OK)
        return answer;
    answer = real(memory, bytes, flags);
    if (answer == RESULT_OK)
        keep(&range);
    else
        take_tables(&range);
    return answer;
}

/* The driver says where it lies. */
static result_t settle_host(result_t answer, void *const *memory, size_t bytes)
{
    if (answer != RESULT_OK)
        return answer;
    struct entry range = range_of_host(*memory, bytes);
    answer = give_host_tables(&range);
    if (answer == RESULT_OK)
        keep(&range);
    else
        DRIVER(MemFreeHost)(*memory);
    return answer;
}

result_t allocate_host(result_t (*real)(void **, size_t, unsigned), void **memory, size_t bytes, unsigned flags)
{
    return settle_host(real(memory, bytes, flags), memory, bytes);
}

result_t allocate_host_plain(result_t (*real)(void **, size_t), void **memory, size_t bytes)
{
    return settle_host(real(memory, bytes), memory, bytes);
}

result_t allocate_host_short(result_t (*real)(void **, unsigned), void **memory, unsigned bytes)
{
    return settle_host(real(memory, bytes), memory, bytes);
}

result_t free_host(result_t (*real)(void *), void *memory)
{
    FREE(HELD_HOST, memory, real(memory));
}

static bool lacks_tables(const struct entry *entry, const void *device)
{
    return entry->kind == HELD_HOST && !has(entry, *(const int *)device);
}

bool tables_enter(int device)
{
    struct entry range;
    bool fits = true;
    while (counted(device) && fits && table_take_match(lacks_tables, &device, &range)) {
        fits = give_tables(&range, device);
        keep(&range);
    }
    return fits;
}

/* ------------------------------------------------------------------------------------------------- blocks, mapped */

/* Known before, so that no other thread lets a device at what nobody knows. */
result_t map_in_tables(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle),
                                        unsigned long long),
                       pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                       unsigned long long flags)
{
    struct entry other, range = {.kind = HELD_ACCESS, .key = (uintptr_t)address, .bytes = bytes};
    if (!table_put(&range, &other))
        return ERROR(OUT_OF_MEMORY);
    result_t answer = map_block(real, address, bytes, offset, handle, flags);
    if (answer != RESULT_OK && other.kind != 0)
        table_put(&other, &range);
    else if (answer != RESULT_OK)
        table_take(HELD_ACCESS, range.key, &range);
    else if (other.kind != 0)
        give_back(&other);
    return answer;
}

/* Take out what is mapped from `at` on, or from before that. */
static bool holds(const struct entry *entry, const void *at)
{
    return entry->kind == HELD_ACCESS && *(const uint64_t *)at - entry->key < entry->bytes;
}

static bool take_range(uint64_t at, struct entry *range)
{
    return table_take(HELD_ACCESS, at, range) || table_take_match(holds, &at, range);
}

static bool let_at(int device, uint64_t start, uint64_t bytes)
{
    struct entry range;
    bool fits = true;
    for (uint64_t at = start; fits && at - start < bytes && take_range(at, &range); at = range.key + range.bytes) {
        fits = give_tables(&range, device);
        keep(&range);
    }
    return fits;
}

result_t set_access(result_t (*real)(pointer_t, size_t, const TYPE(memAccessDesc) *, size_t), pointer_t address,
                    size_t bytes, const TYPE(memAccessDesc) *access, size_t count)
{
    for (size_t i = 0; access != NULL && i < count; i++) {
        bool device = access[i].location.type == VALUE(MEM_LOCATION_TYPE_DEVICE) && access[i].flags != 0;
        if (device && !let_at(device_of(access[i].location.id), (uintptr_t)address, bytes))
            return ERROR(OUT_OF_MEMORY);
    }
    return real(address, bytes, access, count);
}

/* Take out the ranges that end, which follow one another. */
static size_t take_ranges(uint64_t start, uint64_t bytes, struct entry **taken)
{
    size_t count = 0;
    struct entry range;
    for (uint64_t at = start; at - start < bytes && table_take(HELD_ACCESS, at, &range); at += range.bytes) {
        struct entry *more = realloc(*taken, (count + 1) * sizeof **taken);
        if (more == NULL) {
            keep(&range);
            break;
        }
        *taken = more;
        more[count++] = range;
    }
    return count;
}

result_t unmap_in_tables(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes)
{
    struct entry *taken = NULL;
    size_t count = take_ranges((uintptr_t)address, bytes, &taken);
    result_t answer = unmap_blocks(real, address, bytes);
    for (size_t i = 0; i < count; i++)
        if (answer == RESULT_OK)
            give_back(&taken[i]);
        else
            keep(&taken[i]);
    free(taken);
    return answer;
}
