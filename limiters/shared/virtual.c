/* Virtual memory management: a block of physical memory lives while a handle, a mapping or a sparse array refers to it,
 * so it is charged when it is created and given back with the last of them.
 *
 * One that was exported may live on in a descriptor or in who imported it, and the driver counts it for no process
 * while only descriptors have it. So it is given back when the card is seen to have it again, and stays charged
 * otherwise.
 */
#include "virtual.h"

#include "arguments.h"
#include "blocks.h"
#include "bodies.h"
#include "borrowed.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "uncounted.h"

#include "../core/fault.h"

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

void virtual_after_fork(void)
{
    counting = mapping_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* What is used of a block's card, before the driver is asked to let go of it; nothing where that tells nothing. */
static const struct card_use not_asked = {0};
static struct card_use used_before(const struct block *block)
{
    return block != NULL && atomic_load(&block->exported) ? card_use(block->device) : not_asked;
}

/* One reference is gone. */
static void drop(struct block *block, struct card_use before)
{
    if (block == NULL || atomic_fetch_sub(&block->references, 1) > 1)
        return;
    if (block->imported)
        say_opened(-1);
    bool exported = atomic_load(&block->exported);
    if (exported && !FAULT(exported_blocks_refunded) && !card_got_back(block->device, before, block->bytes)) {
        stays_charged(block->device, block->bytes);
    } else {
        refund(block->device, block->bytes);
        say_shared(block->device, exported ? -(int64_t)block->bytes : 0);
    }
    free(block);
}

void block_dropped(struct block *block)
{
    drop(block, not_asked);
}

void block_unused(struct block *block)
{
    drop(block, used_before(block));
}

/* Add `change` to the references that the handle stands for; with none left it is forgotten. NULL: not one of ours. */
static struct block *count_handle(TYPE(memGenericAllocationHandle) handle, int change)
{
    struct entry entry = {0}, previous;
    pthread_mutex_lock(&counting);
    if (table_take(HELD_HANDLE, (uintptr_t)handle, &entry)) {
        entry.bytes += (uint64_t)(int64_t)change;
        if (entry.bytes > 0)
            table_put(&entry, &previous);
    }
    pthread_mutex_unlock(&counting);
    return entry.link;
}

static void remember(TYPE(memGenericAllocationHandle) handle, struct block *block)
{
    struct entry previous, entry = {.key = (uintptr_t)handle, .kind = HELD_HANDLE, .bytes = 1, .link = block};
    pthread_mutex_lock(&counting);
    table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
}

struct block *block_held(TYPE(memGenericAllocationHandle) handle)
{
    struct entry entry;
    pthread_mutex_lock(&counting);
    struct block *block = table_get(HELD_HANDLE, (uintptr_t)handle, &entry) ? entry.link : NULL;
    if (block != NULL)
        atomic_fetch_add(&block->references, 1);
    pthread_mutex_unlock(&counting);
    return block;
}

/* Managed memory cannot be mapped by hand; a block of the host can, and the device reaches it as well. */
static result_t create_with_host(typeof(&FUNCTION(MemCreate)) real, TYPE(memGenericAllocationHandle) *handle,
                                 size_t bytes, TYPE(memAllocationProp) properties, unsigned long long flags)
{
    properties.location.type = VALUE(MEM_LOCATION_TYPE_HOST_NUMA);
    properties.location.id = 0;
    return real(handle, bytes, &properties, flags);
}

/* The properties say where: there may be no current context (a framework's worker thread). */
static int device_of_block(const TYPE(memAllocationProp) *properties)
{
    bool on_device = properties != NULL && properties->location.type == VALUE(MEM_LOCATION_TYPE_DEVICE);
    return on_device ? device_of(properties->location.id) : DEVICE_NONE;
}

result_t create_block(result_t (*real)(TYPE(memGenericAllocationHandle) *, size_t, const TYPE(memAllocationProp) *,
                                       unsigned long long),
                      TYPE(memGenericAllocationHandle) *handle, size_t bytes, const TYPE(memAllocationProp) *properties,
                      unsigned long long flags)
{
    AS_IT_IS(properties);
    int device = device_of_block(properties);
    uint64_t taken = VIRTUAL_TAKES(bytes);
    result_t refused = charge(device, taken);
    if (refused != RESULT_OK)
        return refused;
    struct block *block = malloc(sizeof *block);
    result_t answer = block == NULL ? ERROR(OUT_OF_MEMORY) : real(handle, bytes, properties, flags);
    if (block != NULL && spills(answer, device))
        answer = create_with_host(real, handle, bytes, *properties, flags);
    if (answer != RESULT_OK) {
        refund(device, counted(device) ? taken : 0);
        free(block);
        return answer;
    }
    *block = (struct block){.device = device, .bytes = taken, .references = 1};
    remember(*handle, block);
    return answer;
}

result_t release_block(result_t (*real)(TYPE(memGenericAllocationHandle)), TYPE(memGenericAllocationHandle) handle)
{
    struct block *block = count_handle(handle, -1); /* before the driver can hand the value out again */
    struct card_use before = used_before(block);
    result_t answer = real(handle);
    if (answer == RESULT_OK)
        drop(block, before);
    else if (block != NULL && count_handle(handle, 1) == NULL)
        remember(handle, block);
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
        struct block *block = mapping.link;
        atomic_fetch_add(&block->references, 1);
        if (count_handle(*handle, 1) == NULL)
            remember(*handle, block); /* all earlier references were released, the mapping kept it alive */
    }
    pthread_mutex_unlock(&mapping_lock);
    return answer;
}

result_t map_block(result_t (*real)(pointer_t, size_t, size_t, TYPE(memGenericAllocationHandle), unsigned long long),
                   pointer_t address, size_t bytes, size_t offset, TYPE(memGenericAllocationHandle) handle,
                   unsigned long long flags)
{
    struct block *block = block_held(handle);
    struct entry previous = {0},
                 entry = {.key = (uintptr_t)address, .kind = HELD_MAPPING, .bytes = bytes, .link = block};
    pthread_mutex_lock(&mapping_lock);
    result_t answer = real(address, bytes, offset, handle, flags);
    if (answer == RESULT_OK && block != NULL)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&mapping_lock);
    if (previous.kind != 0)
        drop(previous.link, not_asked); /* where unmapping gives nothing back, mapping something else does */
    if (answer != RESULT_OK)
        drop(block, not_asked);
    return answer;
}

struct addresses {
    uint64_t start, bytes;
};

static bool maps_in(const struct entry *entry, const void *addresses_)
{
    const struct addresses *addresses = addresses_;
    return entry->kind == HELD_MAPPING && entry->key - addresses->start < addresses->bytes;
}

/* Take out the mappings of a range, which follow one another, or lie anywhere in what is reserved; what is not taken
 * stays charged. */
static size_t take_mappings(pointer_t address, size_t bytes, struct entry **taken)
{
    const struct addresses addresses = {(uintptr_t)address, bytes};
    struct entry mapping, previous;
    size_t count = 0;
    uint64_t at = addresses.start, left = addresses.bytes;
    for (; left > 0 && (table_take(HELD_MAPPING, at, &mapping) || table_take_match(maps_in, &addresses, &mapping));
         left -= mapping.bytes < left ? mapping.bytes : left, at = mapping.key + mapping.bytes) {
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

/* Answers what ends mappings: unmapping, or where the driver holds their blocks longer, giving up the addresses. */
result_t unmap_blocks(result_t (*real)(pointer_t, size_t), pointer_t address, size_t bytes)
{
    struct entry *taken = NULL, previous;
    struct card_use before = not_asked;
    if (!FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    size_t count = take_mappings(address, bytes, &taken);
    FAULT_PAUSE(mappings_unlocked);
    if (FAULT(mappings_unlocked))
        pthread_mutex_lock(&mapping_lock);
    for (size_t i = 0; i < count && !before.known; i++)
        before = used_before(taken[i].link);
    result_t answer = real(address, bytes);
    for (size_t i = 0; i < count && answer != RESULT_OK; i++)
        table_put(&taken[i], &previous);
    pthread_mutex_unlock(&mapping_lock);
    for (size_t i = 0; i < count && answer == RESULT_OK; i++)
        drop(taken[i].link, before);
    free(taken);
    return answer;
}

static bool maps_array(const struct entry *entry, const void *array)
{
    return entry->kind == HELD_TILES && entry->owner == array;
}

void tiles_gone(const void *array)
{
    struct entry entry;
    while (table_take_match(maps_array, array, &entry))
        block_unused(entry.link);
}

/* ------------------------------------------------------------------------------------------- beyond this process */

/* One that was imported is charged to its maker, who knows that others have it. */
static void note_exported(struct block *block)
{
    if (block != NULL && !block->imported && !atomic_exchange(&block->exported, true))
        say_shared(block->device, (int64_t)block->bytes);
}

result_t export_block(result_t (*real)(void *, TYPE(memGenericAllocationHandle), TYPE(memAllocationHandleType),
                                       unsigned long long),
                      void *shared, TYPE(memGenericAllocationHandle) handle, TYPE(memAllocationHandleType) type,
                      unsigned long long flags)
{
    struct block *block = block_held(handle);
    result_t answer = real(shared, handle, type, flags);
    if (answer == RESULT_OK)
        note_exported(block);
    drop(block, not_asked);
    return answer;
}

/* A descriptor of what lies at an address keeps that like one of a block. */
result_t share_range(result_t (*real)(void *, pointer_t, size_t, TYPE(memRangeHandleType), unsigned long long),
                     void *shared, pointer_t address, size_t bytes, TYPE(memRangeHandleType) type,
                     unsigned long long flags)
{
    const void *at = (const void *)(uintptr_t)address;
    struct entry held;
    pthread_mutex_lock(&mapping_lock); /* before anybody can have it */
    struct block *block = table_find(maps_address, at, &held) ? held.link : NULL;
    note_exported(block);
    pthread_mutex_unlock(&mapping_lock);
    if (block != NULL || !held_at(address, &held))
        return real(shared, address, bytes, type, flags);
    bool news = !is_shared(&held);
    result_t refused = pointer_shared(&held);
    return refused == RESULT_OK ? settle_share(real(shared, address, bytes, type, flags), &held, news) : refused;
}

/* What is imported is charged where it was made. When that lets go of it, the driver counts it for who imported it. */
result_t import_block(result_t (*real)(TYPE(memGenericAllocationHandle) *, void *, TYPE(memAllocationHandleType)),
                      TYPE(memGenericAllocationHandle) *handle, void *shared, TYPE(memAllocationHandleType) type)
{
    result_t answer = real(handle, shared, type);
    struct block *block = answer == RESULT_OK ? malloc(sizeof *block) : NULL;
    if (block != NULL) {
        *block = (struct block){.device = DEVICE_NONE, .references = 1, .imported = true};
        remember(*handle, block);
        say_opened(1);
        uncounted_look(device_current());
    }
    return answer;
}
