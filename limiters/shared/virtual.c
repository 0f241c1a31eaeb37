/* Virtual memory management (VMM): the driver's calls for blocks of physical memory (physical.h), their mappings and
 * what other processes have of them. */
#include "virtual.h"

#include "arguments.h"
#include "blocks.h"
#include "bodies.h"
#include "borrowed.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "spill.h"
#include "uncounted.h"

#include "../core/fault.h"

#include <pthread.h>
#include <stdlib.h>

/* Held around calls that map, unmap or look up mappings, so that the table has the same mappings as the driver. */
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

void virtual_after_fork(void)
{
    mapping_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    physical_after_fork();
}

/* Spill a block to host memory, which can be mapped like device memory; managed memory cannot. */
static result_t create_with_host(typeof(&FUNCTION(MemCreate)) real, TYPE(memGenericAllocationHandle) *handle,
                                 size_t bytes, TYPE(memAllocationProp) properties, unsigned long long flags)
{
    properties.location.type = VALUE(MEM_LOCATION_TYPE_HOST_NUMA);
    properties.location.id = 0;
    return real(handle, bytes, &properties, flags);
}

/* The device is in the properties. There may be no current context, as in a framework's worker thread. */
static int device_of_block(const TYPE(memAllocationProp) *properties)
{
    bool is_on_device = properties != NULL && properties->location.type == VALUE(MEM_LOCATION_TYPE_DEVICE);
    return is_on_device ? device_of(properties->location.id) : DEVICE_NONE;
}

result_t create_block(result_t (*real)(TYPE(memGenericAllocationHandle) *, size_t, const TYPE(memAllocationProp) *,
                                       unsigned long long),
                      TYPE(memGenericAllocationHandle) *handle, size_t bytes, const TYPE(memAllocationProp) *properties,
                      unsigned long long flags)
{
    COPY_ARGUMENT(properties);
    int device = device_of_block(properties);
    uint64_t block_bytes = VIRTUAL_TAKES(bytes);
    result_t charge_result = charge(device, block_bytes);
    if (charge_result != RESULT_OK)
        return charge_result;
    struct vmm_block *block = malloc(sizeof *block);
    result_t answer = block == NULL ? ERROR(OUT_OF_MEMORY) : real(handle, bytes, properties, flags);
    if (block != NULL && spills(answer, device))
        answer = create_with_host(real, handle, bytes, *properties, flags);
    if (answer != RESULT_OK) {
        refund(device, counted(device) ? block_bytes : 0);
        free(block);
        return answer;
    }
    *block = (struct vmm_block){.device = device, .bytes = block_bytes, .reference_count = 1};
    add_handle((uintptr_t)*handle, block);
    return answer;
}

result_t release_block(result_t (*real)(TYPE(memGenericAllocationHandle)), TYPE(memGenericAllocationHandle) handle)
{
    struct vmm_block *block = change_handle_count((uintptr_t)handle, -1); /* before the driver can reuse the value */
    struct card_use use_before = use_before_drop(block);
    result_t answer = real(handle);
    if (answer == RESULT_OK)
        drop_after_use(block, use_before);
    else if (block != NULL && change_handle_count((uintptr_t)handle, 1) == NULL)
        add_handle((uintptr_t)handle, block);
    return answer;
}

static bool maps_address(const struct entry *entry, const void *address)
{
    return entry->kind == HELD_MAPPING && (uint64_t)(uintptr_t)address - entry->key < entry->bytes;
}

result_t retain_block(result_t (*real)(TYPE(memGenericAllocationHandle) *, void *),
                      TYPE(memGenericAllocationHandle) *handle, void *address)
{
    if (!FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    result_t answer = real(handle, address);
    FAULT_PAUSE(mappings_unlocked);
    if (FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    struct entry mapping;
    if (answer == RESULT_OK && table_find(maps_address, address, &mapping)) {
        struct vmm_block *block = mapping.link;
        atomic_fetch_add(&block->reference_count, 1);
        if (change_handle_count((uintptr_t)*handle, 1) == NULL)
            add_handle((uintptr_t)*handle, block); /* all handles were released, and the mapping kept the block alive */
    }
    pthread_mutex_unlock(&mapping_lock);
    return answer;
}

result_t map_block(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle), unsigned long long),
                   pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                   unsigned long long flags)
{
    struct vmm_block *block = block_of_handle((uintptr_t)handle);
    struct entry previous = {0},
                 entry = {.key = (uintptr_t)address, .kind = HELD_MAPPING, .bytes = bytes, .link = block};
    pthread_mutex_lock(&mapping_lock);
    result_t answer = real(address, bytes, offset, handle, flags);
    if (answer == RESULT_OK && block != NULL)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&mapping_lock);
    if (previous.kind != 0)
        drop_reference(previous.link); /* without an unmap that ends it, a new mapping replaces the old one */
    if (answer != RESULT_OK)
        drop_reference(block);
    return answer;
}

struct address_range {
    uint64_t start, bytes;
};

static bool is_mapped_in(const struct entry *entry, const void *argument)
{
    const struct address_range *range = argument;
    return entry->kind == HELD_MAPPING && entry->key - range->start < range->bytes;
}

/* Take out the mappings in a range, which are adjacent, or lie anywhere in a reserved range. Returns how many there
 * are. Without memory for the list the rest stays charged. */
static size_t take_mappings(pointer_t address, size_t bytes, struct entry **mappings)
{
    const struct address_range range = {(uintptr_t)address, bytes};
    struct entry mapping, previous;
    size_t mapping_count = 0;
    uint64_t address_key = range.start, remaining_bytes = range.bytes;
    for (; remaining_bytes > 0 &&
           (table_take(HELD_MAPPING, address_key, &mapping) || table_take_match(is_mapped_in, &range, &mapping));
         remaining_bytes -= mapping.bytes < remaining_bytes ? mapping.bytes : remaining_bytes,
         address_key = mapping.key + mapping.bytes) {
        struct entry *larger = realloc(*mappings, (mapping_count + 1) * sizeof **mappings);
        if (larger == NULL) {
            table_put(&mapping, &previous);
            break;
        }
        *mappings = larger;
        larger[mapping_count++] = mapping;
    }
    return mapping_count;
}

/* The body of the call that ends mappings: unmapping, or with drivers that hold blocks longer, freeing the addresses.
 */
result_t unmap_blocks(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes)
{
    struct entry *mappings = NULL, previous;
    struct card_use use_before = {0};
    if (!FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    size_t mapping_count = take_mappings(address, bytes, &mappings);
    FAULT_PAUSE(mappings_unlocked);
    if (FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    for (size_t index = 0; index < mapping_count && !use_before.is_known; index++)
        use_before = use_before_drop(mappings[index].link);
    result_t answer = real(address, bytes);
    for (size_t index = 0; index < mapping_count && answer != RESULT_OK; index++)
        table_put(&mappings[index], &previous);
    pthread_mutex_unlock(&mapping_lock);
    for (size_t index = 0; index < mapping_count && answer == RESULT_OK; index++)
        drop_after_use(mappings[index].link, use_before);
    free(mappings);
    return answer;
}

static bool maps_array(const struct entry *entry, const void *array)
{
    return entry->kind == HELD_TILES && entry->owner == array;
}

void tiles_unmapped(const void *array)
{
    struct entry entry;
    while (table_take_match(maps_array, array, &entry))
        drop_reference_asked(entry.link);
}

/* ------------------------------------------------------------------------------------------- beyond this process */

result_t export_block(result_t (*real)(void *, TYPE(memGenericAllocationHandle), TYPE(memAllocationHandleType),
                                       unsigned long long),
                      void *descriptor, TYPE(memGenericAllocationHandle) handle, TYPE(memAllocationHandleType) type,
                      unsigned long long flags)
{
    struct vmm_block *block = block_of_handle((uintptr_t)handle);
    result_t answer = real(descriptor, handle, type, flags);
    if (answer == RESULT_OK)
        note_exported(block);
    drop_reference(block);
    return answer;
}

/* A descriptor of an address range keeps its memory alive, as one of a block does. */
result_t share_range(result_t (*real)(void *, pointer_t, size_t, TYPE(memRangeHandleType), unsigned long long),
                     void *descriptor, pointer_t address, size_t bytes, TYPE(memRangeHandleType) type,
                     unsigned long long flags)
{
    const void *start = (const void *)(uintptr_t)address;
    struct entry entry;
    pthread_mutex_lock(&mapping_lock); /* noted before another process can open it */
    struct vmm_block *block = table_find(maps_address, start, &entry) ? entry.link : NULL;
    note_exported(block);
    pthread_mutex_unlock(&mapping_lock);
    if (block != NULL || !allocation_at(address, &entry))
        return real(descriptor, address, bytes, type, flags);
    bool is_first_share = !is_shared(&entry);
    result_t charge_result = note_shared(&entry);
    return charge_result == RESULT_OK
               ? settle_share(real(descriptor, address, bytes, type, flags), &entry, is_first_share)
               : charge_result;
}

/* An imported block is charged to the process that created it. When that one frees it, the driver counts it for this
 * process. */
result_t import_block(result_t (*real)(TYPE(memGenericAllocationHandle) *, void *, TYPE(memAllocationHandleType)),
                      TYPE(memGenericAllocationHandle) *handle, void *descriptor, TYPE(memAllocationHandleType) type)
{
    result_t answer = real(handle, descriptor, type);
    struct vmm_block *block = answer == RESULT_OK ? malloc(sizeof *block) : NULL;
    if (block != NULL) {
        *block = (struct vmm_block){.device = DEVICE_NONE, .reference_count = 1, .is_imported = true};
        add_handle((uintptr_t)*handle, block);
        report_opened(1);
        uncounted_check_rarely(device_current());
    }
    return answer;
}
