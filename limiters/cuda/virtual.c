/* Virtual memory management: a block of physical memory lives while a handle, a mapping or a sparse array refers to it,
 * so it is charged when it is created and given back with the last of them.
 *
 * One that was exported may live on in a descriptor or in who imported it, and the driver counts it for no process
 * while only descriptors have it. So it is given back when the card is seen to have it again, and stays charged
 * otherwise.
 */
#include "virtual.h"

#include "bodies.h"
#include "borrowed.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "launch.h"
#include "uncounted.h"

#include <pthread.h>
#include <stdlib.h>

struct block {
    int device;
    uint64_t bytes;
    _Atomic unsigned references; /* one for every reference of a handle, one for every mapping, and sparse array */
    _Atomic bool exported;
    bool imported; /* another process made it, and is charged for it */
};

/* Keeps a handle's count in the table and its block's references in step; never held across a driver call. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* Held around calls that map, unmap or look up mappings, so that those that are known are those that the driver has. */
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

/* What is used of a block's card, before the driver is asked to let go of it; 0 where that tells nothing. */
static uint64_t used_before(const struct block *block)
{
    return block != NULL && atomic_load(&block->exported) ? card_used(block->device) : 0;
}

/* One reference is gone. */
static void drop(struct block *block, uint64_t before)
{
    if (block == NULL || atomic_fetch_sub(&block->references, 1) > 1)
        return;
    if (block->imported)
        say_opened(-1);
    bool exported = atomic_load(&block->exported);
    if (exported && !card_got_back(block->device, before, block->bytes)) {
        stays_charged(block->device, block->bytes);
    } else {
        refund(block->device, block->bytes);
        say_shared(block->device, exported ? -(int64_t)block->bytes : 0);
    }
    free(block);
}

/* Add `change` to the references that the handle stands for; with none left it is forgotten. NULL: not one of ours. */
static struct block *count_handle(CUmemGenericAllocationHandle handle, int change)
{
    struct entry entry = {0}, previous;
    pthread_mutex_lock(&counting);
    if (table_take(HELD_HANDLE, handle, &entry)) {
        entry.bytes += (uint64_t)(int64_t)change;
        if (entry.bytes > 0)
            table_put(&entry, &previous);
    }
    pthread_mutex_unlock(&counting);
    return entry.link;
}

static void remember(CUmemGenericAllocationHandle handle, struct block *block)
{
    struct entry previous, entry = {.key = handle, .kind = HELD_HANDLE, .bytes = 1, .link = block};
    pthread_mutex_lock(&counting);
    table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
}

static struct block *block_of(CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    pthread_mutex_lock(&counting);
    struct block *block = table_get(HELD_HANDLE, handle, &entry) ? entry.link : NULL;
    if (block != NULL)
        atomic_fetch_add(&block->references, 1);
    pthread_mutex_unlock(&counting);
    return block;
}

/* Managed memory cannot be mapped by hand; a block of the host can, and the device reaches it as well. */
static CUresult create_with_host(typeof(&cuMemCreate) real, CUmemGenericAllocationHandle *handle, size_t bytes,
                                 CUmemAllocationProp properties, unsigned long long flags)
{
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    properties.location.id = 0;
    return real(handle, bytes, &properties, flags);
}

CUresult create_block(CUresult (*real)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                                       unsigned long long),
                      CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                      unsigned long long flags)
{
    /* The properties say where: there may be no current context (a framework's worker thread). */
    int device = DEVICE_NONE;
    if (properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        device = device_of(properties->location.id);
    CUresult refused = charge(device, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    struct block *block = malloc(sizeof *block);
    CUresult answer = block == NULL ? CUDA_ERROR_OUT_OF_MEMORY : real(handle, bytes, properties, flags);
    if (block != NULL && spills(answer, device))
        answer = create_with_host(real, handle, bytes, *properties, flags);
    if (answer != CUDA_SUCCESS) {
        refund(device, bytes);
        free(block);
        return answer;
    }
    *block = (struct block){.device = device, .bytes = bytes, .references = 1};
    remember(*handle, block);
    return answer;
}

CUresult release_block(CUresult (*real)(CUmemGenericAllocationHandle), CUmemGenericAllocationHandle handle)
{
    struct block *block = count_handle(handle, -1); /* before the driver can hand the value out again */
    uint64_t before = used_before(block);
    CUresult answer = real(handle);
    if (answer == CUDA_SUCCESS)
        drop(block, before);
    else if (block != NULL && count_handle(handle, 1) == NULL)
        remember(handle, block);
    return answer;
}

static bool maps_address(const struct entry *entry, const void *address)
{
    return entry->kind == HELD_MAPPING && (uint64_t)(uintptr_t)address - entry->key < entry->bytes;
}

CUresult retain_block(CUresult (*real)(CUmemGenericAllocationHandle *, void *), CUmemGenericAllocationHandle *handle,
                      void *address)
{
    pthread_mutex_lock(&mapping_lock);
    CUresult answer = real(handle, address);
    struct entry mapping;
    if (answer == CUDA_SUCCESS && table_find(maps_address, address, &mapping)) {
        struct block *block = mapping.link;
        atomic_fetch_add(&block->references, 1);
        if (count_handle(*handle, 1) == NULL)
            remember(*handle, block); /* all earlier references were released, the mapping kept it alive */
    }
    pthread_mutex_unlock(&mapping_lock);
    return answer;
}

CUresult map_block(CUresult (*real)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long),
                   CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                   unsigned long long flags)
{
    struct block *block = block_of(handle);
    struct entry previous, entry = {.key = address, .kind = HELD_MAPPING, .bytes = bytes, .link = block};
    pthread_mutex_lock(&mapping_lock);
    CUresult answer = real(address, bytes, offset, handle, flags);
    if (answer == CUDA_SUCCESS && block != NULL)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&mapping_lock);
    if (answer != CUDA_SUCCESS)
        drop(block, 0);
    return answer;
}

/* Take out the mappings of a range, which follow one another; what is not taken stays charged. */
static size_t take_mappings(CUdeviceptr address, size_t bytes, struct entry **taken)
{
    struct entry mapping, previous;
    size_t count = 0;
    for (CUdeviceptr at = address; at - address < bytes && table_take(HELD_MAPPING, at, &mapping);
         at += mapping.bytes) {
        struct entry *more = realloc(*taken, (count + 1) * sizeof **taken);
        if (more == NULL) {
            table_put(&mapping, &previous);
            break;
        }
        *taken = more;
        more[count++] = mapping;
    }
    return count;
}

CUresult unmap_blocks(CUresult (*real)(CUdeviceptr, size_t), CUdeviceptr address, size_t bytes)
{
    struct entry *taken = NULL, previous;
    uint64_t before = 0;
    pthread_mutex_lock(&mapping_lock);
    size_t count = take_mappings(address, bytes, &taken);
    for (size_t i = 0; i < count && before == 0; i++)
        before = used_before(taken[i].link);
    CUresult answer = real(address, bytes);
    for (size_t i = 0; i < count && answer != CUDA_SUCCESS; i++)
        table_put(&taken[i], &previous);
    pthread_mutex_unlock(&mapping_lock);
    for (size_t i = 0; i < count && answer == CUDA_SUCCESS; i++)
        drop(taken[i].link, before);
    free(taken);
    return answer;
}

/* ------------------------------------------------------------------------------------------- beyond this process */

/* One that was imported is charged to its maker, who knows that others have it. */
static void note_exported(struct block *block)
{
    if (block != NULL && !block->imported && !atomic_exchange(&block->exported, true))
        say_shared(block->device, (int64_t)block->bytes);
}

CUresult export_block(CUresult (*real)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                       unsigned long long),
                      void *shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                      unsigned long long flags)
{
    struct block *block = block_of(handle);
    CUresult answer = real(shared, handle, type, flags);
    if (answer == CUDA_SUCCESS)
        note_exported(block);
    drop(block, 0);
    return answer;
}

static bool holds_address(const struct entry *entry, const void *address)
{
    return entry->kind == HELD_POINTER && (uint64_t)(uintptr_t)address - entry->key < entry->bytes;
}

/* A descriptor of what lies at an address keeps that like one of a block. */
CUresult share_range(CUresult (*real)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long),
                     void *shared, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                     unsigned long long flags)
{
    const void *at = (const void *)(uintptr_t)address;
    struct entry held;
    CUresult answer = real(shared, address, bytes, type, flags);
    if (answer != CUDA_SUCCESS)
        return answer;
    pthread_mutex_lock(&mapping_lock);
    struct block *block = table_find(maps_address, at, &held) ? held.link : NULL;
    note_exported(block);
    pthread_mutex_unlock(&mapping_lock);
    if (block == NULL && table_find(holds_address, at, &held))
        pointer_shared(&held);
    return answer;
}

/* What is imported is charged where it was made. When that lets go of it, the driver counts it for who imported it. */
CUresult import_block(CUresult (*real)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType),
                      CUmemGenericAllocationHandle *handle, void *shared, CUmemAllocationHandleType type)
{
    CUresult answer = real(handle, shared, type);
    struct block *block = answer == CUDA_SUCCESS ? malloc(sizeof *block) : NULL;
    if (block != NULL) {
        *block = (struct block){.device = DEVICE_NONE, .references = 1, .imported = true};
        remember(*handle, block);
        say_opened(1);
        uncounted_look(device_current());
    }
    return answer;
}

/* --------------------------------------------------------------------------------------------------- sparse arrays */

static bool maps_array(const struct entry *entry, const void *array)
{
    return entry->kind == HELD_TILES && entry->owner == array;
}

/* The tiles that an array has of a block count as one reference, which ends with the array: tiles are unmapped in the
 * order of a stream. */
CUresult map_tiles(CUresult (*real)(CUarrayMapInfo *, unsigned, CUstream), CUstream none, CUarrayMapInfo *tiles,
                   unsigned count, CUstream stream)
{
    struct entry previous;
    struct launch_ticket ticket;
    CUresult answer = launch_enter(&ticket, stream == NULL ? none : stream);
    if (answer != CUDA_SUCCESS)
        return answer;
    for (unsigned i = 0; tiles != NULL && i < count; i++) {
        struct block *block = tiles[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP
                                  ? block_of(tiles[i].memHandle.memHandle)
                                  : NULL;
        struct entry entry = {.key = (uintptr_t)tiles[i].resource.array ^ (uintptr_t)block,
                              .kind = HELD_TILES,
                              .owner = tiles[i].resource.array,
                              .link = block};
        if (block != NULL && (!table_put(&entry, &previous) || previous.kind != 0))
            drop(previous.kind != 0 ? previous.link : NULL, 0);
    }
    answer = real(tiles, count, stream);
    launch_leave(&ticket);
    return answer;
}

void tiles_gone(const void *array)
{
    struct entry entry;
    while (table_take_match(maps_array, array, &entry))
        drop(entry.link, used_before(entry.link));
}
