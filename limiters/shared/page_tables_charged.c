/* Charges page tables. The card has a table of 4 KiB for each 512 MiB of addresses with device memory in them, for each
 * 2 MiB with host memory, and above these for each 256 GiB. They lie in blocks of 2 MiB, of which the first is part of
 * the context. The driver counts them for no process (an NVIDIA H100, driver 580.159.04, 2026-11-27: one block mapped
 * at 30,000 addresses took 116 MiB in two seconds). A mapped VMM block gets tables when a device gets access to it, and
 * they are freed with the mapping. A sparse array has tables from the beginning; its lowest ones are for 32 MiB each.
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

#define PAGE_BITS        12
#define TABLES_PER_BLOCK 512
#define ADDRESS_LIMIT    (UINT64_C(1) << 47) /* of the host's addresses, which the driver uses for the device, too */
#define MAX_CALL_BYTES   (UINT64_C(1) << 41) /* more in one call is refused: counting its tables would take seconds */

#define SPARSE_REACH_BITS 25

/* The range of a table in bytes, as a power of two, by level. Only host memory has tables of the first level. */
static const unsigned reach_bits[] = {21, 29, 38};
enum level { OF_HOST, OF_BLOCKS, LAST, LEVELS };

/* Guards the counts that follow and the entries of tables. Not held across a charge. */
static pthread_mutex_t tables_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t table_count;   /* that the device has */
    uint64_t charged_bytes; /* for them, or about to be charged by a thread */
} device_tables[HETERO_MAX_DEVICES];

void tables_after_fork(void)
{
    tables_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        device_tables[device].table_count = device_tables[device].charged_bytes = 0;
}

/* ----------------------------------------------------------------------------------------------- how many there are */

/* With `tables_mutex` held: add `page_change` to the pages that a table maps. Returns the change of the number of
 * tables.
 */
static int add_pages(uint64_t key, int device, int64_t page_change)
{
    struct entry previous, entry = {.kind = HELD_TABLE, .key = key, .device = device, .count = (uint64_t)page_change};
    if (table_add(HELD_TABLE, key, page_change, &entry))
        return (int64_t)entry.count <= 0 && table_take(HELD_TABLE, key, &entry) ? -1 : 0;
    return page_change > 0 && table_put(&entry, &previous) ? 1 : 0;
}

/* Add the pages of a range to its tables (sign 1), or remove them (-1). */
static void add_range(int device, enum level lowest, uint64_t start, uint64_t bytes, int sign)
{
    uint64_t first_page = start >> PAGE_BITS, end_page = ((start + bytes - 1) >> PAGE_BITS) + 1;
    pthread_mutex_lock(&tables_mutex);
    for (unsigned level = lowest; level < LEVELS; level++)
        for (uint64_t page = first_page, next_page; page < end_page; page = next_page) {
            uint64_t table_number = page >> (reach_bits[level] - PAGE_BITS),
                     key = table_number << 8 | level << 6 | (unsigned)device;
            next_page = (table_number + 1) << (reach_bits[level] - PAGE_BITS);
            next_page = next_page < end_page ? next_page : end_page;
            device_tables[device].table_count += (uint64_t)add_pages(key, device, sign * (int64_t)(next_page - page));
        }
    pthread_mutex_unlock(&tables_mutex);
}

/* The bytes that a device's tables take beyond those that are charged; negative: fewer. They count as charged from here
 * on. */
static int64_t uncharged_bytes(int device)
{
    pthread_mutex_lock(&tables_mutex);
    uint64_t table_count = device_tables[device].table_count;
    uint64_t extra_tables = table_count <= TABLES_PER_BLOCK ? 0 : table_count - TABLES_PER_BLOCK;
    uint64_t total_bytes = block_bytes_of(extra_tables * (BLOCK_BYTES / TABLES_PER_BLOCK));
    int64_t growth_bytes = (int64_t)(total_bytes - device_tables[device].charged_bytes);
    device_tables[device].charged_bytes = total_bytes;
    pthread_mutex_unlock(&tables_mutex);
    return FAULT_VALUE(page_tables_uncharged, growth_bytes, 0);
}

/* Charge them, or give them back. False: they do not fit. If they are still needed, the next call charges them. */
static bool settle_tables(int device)
{
    int64_t growth_bytes = uncharged_bytes(device);
    if (growth_bytes <= 0) {
        refund(device, (uint64_t)-growth_bytes);
        unseen_add(device, growth_bytes);
        return true;
    }
    unseen_add(device, growth_bytes);
    if (charge(device, (uint64_t)growth_bytes) == RESULT_OK)
        return true;
    unseen_add(device, -growth_bytes);
    pthread_mutex_lock(&tables_mutex);
    device_tables[device].charged_bytes -= (uint64_t)growth_bytes;
    pthread_mutex_unlock(&tables_mutex);
    return false;
}

/* ----------------------------------------------------------------------------------------------------- sparse arrays
 */

static uint64_t tables_of(uint64_t bytes, unsigned table_reach_bits)
{
    return (bytes >> table_reach_bits) + ((bytes & ((UINT64_C(1) << table_reach_bits) - 1)) != 0);
}

uint64_t tables_of_sparse(const NAMED(ARRAY3D_DESCRIPTOR) *shape, unsigned levels)
{
    if (shape == NULL || (shape->Flags & NAMED(ARRAY3D_SPARSE)) == 0)
        return 0;
    NAMED(ARRAY3D_DESCRIPTOR) dense_shape = *shape;
    dense_shape.Flags &= ~(unsigned)NAMED(ARRAY3D_SPARSE);
    uint64_t bytes = array_bytes(&dense_shape, levels);
    return tables_of(bytes, SPARSE_REACH_BITS) + tables_of(bytes, reach_bits[OF_BLOCKS]) +
           tables_of(bytes, reach_bits[LAST]);
}

bool add_tables(int device, uint64_t table_count)
{
    if (table_count == 0 || !counted(device))
        return true;
    pthread_mutex_lock(&tables_mutex);
    device_tables[device].table_count += table_count;
    pthread_mutex_unlock(&tables_mutex);
    bool fits = settle_tables(device);
    if (!fits)
        remove_tables(device, table_count);
    return fits;
}

void remove_tables(int device, uint64_t table_count)
{
    if (table_count == 0 || device < 0)
        return;
    pthread_mutex_lock(&tables_mutex);
    device_tables[device].table_count -= table_count;
    pthread_mutex_unlock(&tables_mutex);
    settle_tables(device);
}

/* ------------------------------------------------------------------------------------------------------------ ranges
 */

/* A mapped range is an entry HELD_HOST or HELD_ACCESS by its address; `device_bits` has the devices with tables of
 * it. A thread that changes an entry takes it out of the table meanwhile; if the mapping ends then, its tables stay
 * charged.
 */
static bool has_tables_on(const struct entry *range, int device)
{
    return (range->device_bits & UINT64_C(1) << device) != 0;
}

static enum level lowest_of(const struct entry *range)
{
    return range->kind == HELD_HOST ? OF_HOST : OF_BLOCKS;
}

/* Charge a range's tables on a device. False: they do not fit, and it has none there. */
static bool add_tables_of(struct entry *range, int device)
{
    uint64_t start = range->key, bytes = range->bytes;
    if (!counted(device) || has_tables_on(range, device) || bytes == 0 || start >= ADDRESS_LIMIT ||
        bytes > ADDRESS_LIMIT - start)
        return true; /* the driver refuses a range beyond ADDRESS_LIMIT */
    if (bytes > MAX_CALL_BYTES)
        return false;
    add_range(device, lowest_of(range), start, bytes, 1);
    range->device_bits |= UINT64_C(1) << device;
    if (settle_tables(device))
        return true;
    add_range(device, lowest_of(range), start, bytes, -1);
    range->device_bits &= ~(UINT64_C(1) << device);
    return false;
}

static void remove_tables_of(const struct entry *range)
{
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (has_tables_on(range, device)) {
            add_range(device, lowest_of(range), range->key, range->bytes, -1);
            settle_tables(device);
        }
}

void tables_prepare(void)
{
    set_refund_function(HELD_HOST, remove_tables_of); /* when the context ends that owns it */
    set_refund_function(HELD_ACCESS, remove_tables_of);
}

/* ----------------------------------------------------------------------------------------------- memory of the host */

static bool is_context_on(const struct entry *entry, const void *device)
{
    return entry->kind == CONTEXT_BYTES && entry->device == *(const int *)device;
}

/* Charge tables of host memory on each device on which the process has a context. */
static result_t add_host_tables(struct entry *range)
{
    struct entry unused;
    int current_device = device_current(), device_count = tenant_region() == NULL ? 0 : (int)tenant_grant->device_count;
    for (int device = 0; device < device_count; device++)
        if (counted(device) && (device == current_device || table_find(is_context_on, &device, &unused)) &&
            !add_tables_of(range, device)) {
            remove_tables_of(range);
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
    result_t answer = add_host_tables(&range);
    if (answer != RESULT_OK)
        return answer;
    answer = real(memory, bytes, flags);
    if (answer == RESULT_OK)
        keep_entry(&range);
    else
        remove_tables_of(&range);
    return answer;
}

/* After the driver's answer, which has the address. */
static result_t settle_host(result_t answer, void *const *memory, size_t bytes)
{
    if (answer != RESULT_OK)
        return answer;
    struct entry range = range_of_host(*memory, bytes);
    answer = add_host_tables(&range);
    if (answer == RESULT_OK)
        keep_entry(&range);
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
    return entry->kind == HELD_HOST && !has_tables_on(entry, *(const int *)device);
}

bool tables_enter(int device)
{
    struct entry range;
    bool fits = true;
    while (counted(device) && fits && table_take_match(lacks_tables, &device, &range)) {
        fits = add_tables_of(&range, device);
        keep_entry(&range);
    }
    return fits;
}

/* ------------------------------------------------------------------------------------------------- blocks, mapped */

/* The range is added before the mapping is made, so that another thread cannot give a device access to an unknown
 * range.
 */
result_t map_in_tables(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle),
                                        unsigned long long),
                       pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                       unsigned long long flags)
{
    struct entry previous, range = {.kind = HELD_ACCESS, .key = (uintptr_t)address, .bytes = bytes};
    if (!table_put(&range, &previous))
        return ERROR(OUT_OF_MEMORY);
    result_t answer = map_block(real, address, bytes, offset, handle, flags);
    if (answer != RESULT_OK && previous.kind != 0)
        table_put(&previous, &range);
    else if (answer != RESULT_OK)
        table_take(HELD_ACCESS, range.key, &range);
    else if (previous.kind != 0)
        give_back(&previous);
    return answer;
}

/* Whether an entry is a mapped range that contains an address. */
static bool contains(const struct entry *entry, const void *address)
{
    return entry->kind == HELD_ACCESS && *(const uint64_t *)address - entry->key < entry->bytes;
}

static bool take_range(uint64_t address, struct entry *range)
{
    return table_take(HELD_ACCESS, address, range) || table_take_match(contains, &address, range);
}

static bool give_access(int device, uint64_t start, uint64_t bytes)
{
    struct entry range;
    bool fits = true;
    for (uint64_t address = start; fits && address - start < bytes && take_range(address, &range);
         address = range.key + range.bytes) {
        fits = add_tables_of(&range, device);
        keep_entry(&range);
    }
    return fits;
}

result_t set_access(result_t (*real)(pointer_t, size_t, const TYPE(memAccessDesc) *, size_t), pointer_t address,
                    size_t bytes, const TYPE(memAccessDesc) *descriptions, size_t description_count)
{
    for (size_t index = 0; descriptions != NULL && index < description_count; index++) {
        bool is_device = descriptions[index].location.type == VALUE(MEM_LOCATION_TYPE_DEVICE) &&
                         descriptions[index].flags != 0;
        if (is_device && !give_access(device_of(descriptions[index].location.id), (uintptr_t)address, bytes))
            return ERROR(OUT_OF_MEMORY);
    }
    return real(address, bytes, descriptions, description_count);
}

/* Take out adjacent ranges that are to be unmapped. Returns how many there are. */
static size_t take_ranges(uint64_t start, uint64_t bytes, struct entry **ranges)
{
    size_t range_count = 0;
    struct entry range;
    for (uint64_t address = start; address - start < bytes && table_take(HELD_ACCESS, address, &range);
         address += range.bytes) {
        struct entry *larger = realloc(*ranges, (range_count + 1) * sizeof **ranges);
        if (larger == NULL) {
            keep_entry(&range);
            break;
        }
        *ranges = larger;
        larger[range_count++] = range;
    }
    return range_count;
}

result_t unmap_in_tables(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes)
{
    struct entry *ranges = NULL;
    size_t range_count = take_ranges((uintptr_t)address, bytes, &ranges);
    result_t answer = unmap_blocks(real, address, bytes);
    for (size_t index = 0; index < range_count; index++)
        if (answer == RESULT_OK)
            give_back(&ranges[index]);
        else
            keep_entry(&ranges[index]);
    free(ranges);
    return answer;
}
