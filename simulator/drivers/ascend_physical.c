/* Physical memory of the simulated driver, addresses, and the one mapped into the other. The bytes of physical memory
 * are in the engine's file: any of it may be exported. */
#include "ascend_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NO_DEVICE UINT32_MAX /* of the host's memory */

struct drv_mem_handle {
    unsigned device;
    bool is_host, is_imported;
    uint64_t size_bytes, page_bytes, file_offset;
    struct engine_share share;        /* unless it is the host's, which is in this process's file */
    unsigned handle_count, map_count; /* it is freed with the last of both */
    struct drv_mem_handle *next;
};
static struct drv_mem_handle *handles; /* under hal.lock */

/* What a handle is for another process: a number of 64 bits, at the start of what the V2 calls pass. */
#define SHARED_BYTES 128u
#define NUMBER_BITS  11
#define CARD_BITS    6
#define UNIT_BITS    21 /* of UNIT bytes */
#define UNIT         (UINT64_C(1) << 21)

static bool is_handle(const struct drv_mem_handle *asked)
{
    const struct drv_mem_handle *handle = handles;
    while (handle && (handle != asked || !handle->handle_count))
        handle = handle->next;
    return handle;
}

static struct drv_mem_handle *new_handle(struct drv_mem_handle template)
{
    struct drv_mem_handle *handle = malloc(sizeof *handle);
    if (handle) {
        *handle = template;
        handle->handle_count = 1;
        handle->next = handles;
        handles = handle;
    }
    return handle;
}

static void drop_handle(struct drv_mem_handle *handle)
{
    struct drv_mem_handle **link = &handles;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
    free(handle);
}

static void drop_if_unused(struct drv_mem_handle *handle)
{
    if (handle->handle_count || handle->map_count)
        return;
    if (handle->is_imported)
        engine_share_close(hal_account(handle->device), handle->share.number);
    else if (!handle->is_host)
        engine_unshare(hal_account(handle->device), handle->share.number);
    drop_handle(handle);
}

void handles_leave(unsigned device)
{
    for (struct drv_mem_handle *handle = handles, *next; handle; handle = next) {
        next = handle->next;
        if (handle->device != device)
            continue;
        if (handle->is_imported)
            engine_share_close(hal_account(device), handle->share.number);
        drop_handle(handle);
    }
}

void handles_forget(void)
{
    handles = NULL;
}

drvError_t halMemGetAllocationGranularity(const struct drv_mem_prop *property, uint32_t option, size_t *bytes)
{
    if (!property || !bytes || option > 1 || property->page_type > MEM_GIANT_PAGE_TYPE)
        return DRV_ERROR_INVALID_VALUE;
    *bytes = FAKE_PAGE_BYTES(property->page_type);
    return DRV_ERROR_NONE;
}

static bool is_sound(const struct drv_mem_prop *property, size_t bytes, size_t *page_bytes)
{
    return !halMemGetAllocationGranularity(property, 0, page_bytes) && property->side <= MEM_DEV_SIDE && bytes &&
           bytes % *page_bytes == 0;
}

EXPORT drvError_t halMemCreate(drv_mem_handle_t **handle, size_t bytes, const struct drv_mem_prop *property,
                               uint64_t flags)
{
    size_t page_bytes;
    LOCKED;
    FAULTS(property ? hal_card(property->device) : NULL, NULL, 0);
    if (!handle || flags || !is_sound(property, bytes, &page_bytes))
        return DRV_ERROR_INVALID_VALUE;
    bool is_host = property->side == MEM_HOST_SIDE;
    struct drv_mem_handle made = {.device = is_host ? NO_DEVICE : property->device,
                                  .is_host = is_host,
                                  .size_bytes = bytes,
                                  .page_bytes = page_bytes};
    struct account *account = is_host ? NULL : hal_account(property->device);
    if (!is_host && property->device >= hal.device_count)
        return DRV_ERROR_INVALID_DEVICE;
    if (!is_host && (!account || !engine_share(account, bytes, bytes, false, &made.share)))
        return DRV_ERROR_OUT_OF_MEMORY;
    made.file_offset = is_host ? memory_file_take(bytes) : engine_share_offset(made.share.number);
    *handle = new_handle(made);
    return *handle ? DRV_ERROR_NONE : DRV_ERROR_OUT_OF_MEMORY;
}

EXPORT drvError_t halMemRelease(drv_mem_handle_t *handle)
{
    LOCKED;
    if (!is_handle(handle))
        return DRV_ERROR_INVALID_VALUE;
    handle->handle_count--;
    drop_if_unused(handle);
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemCreateInner(drv_mem_handle_t **handle, size_t bytes, const struct drv_mem_prop *property,
                                    uint64_t flags)
{
    return halMemCreate(handle, bytes, property, flags);
}

EXPORT drvError_t halMemReleaseInner(drv_mem_handle_t *handle)
{
    return halMemRelease(handle);
}

/* The handle that is mapped at an address, once more. */
drvError_t fake_hal_retain(const void *address, drv_mem_handle_t **handle)
{
    LOCKED;
    struct range *range = handle ? range_around(address, 1, RANGE_MAPPED) : NULL;
    if (!range)
        return DRV_ERROR_INVALID_VALUE;
    range->handle->handle_count++;
    *handle = range->handle;
    return DRV_ERROR_NONE;
}

/* Addresses. */

drvError_t halMemAddressReserve(void **pointer, size_t size, size_t alignment, void *address, uint64_t flag)
{
    LOCKED;
    (void)flag;
    if (!pointer || !size || alignment || size > UINT64_C(1) << 46)
        return DRV_ERROR_INVALID_VALUE;
    size = (size + UNIT - 1) / UNIT * UNIT; /* torch_npu tries 512 bytes */
    char *room = mmap(address, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return DRV_ERROR_OUT_OF_MEMORY;
    char *start = (char *)(((uintptr_t)room + UNIT - 1) / UNIT * UNIT);
    if (start > room)
        munmap(room, (size_t)(start - room));
    munmap(start + size, (size_t)(room + UNIT - start));
    if (!range_new((struct range){.start = start, .size_bytes = size, .kind = RANGE_RESERVED}))
        return DRV_ERROR_OUT_OF_MEMORY;
    *pointer = start;
    return DRV_ERROR_NONE;
}

drvError_t halMemAddressFree(void *pointer)
{
    LOCKED;
    struct range *range = range_at(pointer, RANGE_RESERVED);
    if (!range || range_around(pointer, range->size_bytes, RANGE_MAPPED))
        return DRV_ERROR_INVALID_VALUE;
    range_unmap(range);
    range_remove(range);
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemMap(void *address, size_t bytes, size_t offset, drv_mem_handle_t *handle, uint64_t flags)
{
    LOCKED;
    const struct range *room = range_around(address, 1, RANGE_RESERVED);
    if (!is_handle(handle) || flags || !bytes || bytes % handle->page_bytes || offset % handle->page_bytes ||
        offset + bytes > handle->size_bytes || !room || (char *)address + bytes > room->start + room->size_bytes ||
        range_around(address, bytes, RANGE_MAPPED))
        return DRV_ERROR_INVALID_VALUE;
    int file = handle->is_host ? memory_file() : engine_file();
    struct range range = {
        .start = address, .size_bytes = bytes, .device = handle->device, .kind = RANGE_MAPPED, .handle = handle};
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
             (off_t)(handle->file_offset + offset)) == MAP_FAILED ||
        !range_new(range))
        return DRV_ERROR_OUT_OF_MEMORY;
    handle->map_count++;
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemUnmap(void *address)
{
    LOCKED;
    struct range *range = range_at(address, RANGE_MAPPED);
    if (!range)
        return DRV_ERROR_INVALID_VALUE;
    range_unmap(range);
    range->handle->map_count--;
    drop_if_unused(range->handle);
    range_remove(range);
    return DRV_ERROR_NONE;
}

drvError_t halMemSetAccess(void *address, size_t size, const void *access, size_t count)
{
    LOCKED;
    return access && count && range_around(address, size, RANGE_MAPPED) ? DRV_ERROR_NONE : DRV_ERROR_INVALID_VALUE;
}

/* Exports. */

EXPORT drvError_t halMemExportToShareableHandleV2(drv_mem_handle_t *handle, uint32_t type, uint64_t flags, void *shared)
{
    LOCKED;
    (void)type, (void)flags;
    if (!is_handle(handle) || handle->is_host || !shared)
        return DRV_ERROR_INVALID_VALUE;
    uint64_t key = handle->share.id;
    key = key << UNIT_BITS | (handle->size_bytes + UNIT - 1) / UNIT;
    key = key << CARD_BITS | handle->share.card;
    key = key << NUMBER_BITS | (unsigned)handle->share.number;
    memset(shared, 0, SHARED_BYTES);
    memcpy(shared, &key, sizeof key);
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemImportFromShareableHandleV2(uint32_t type, void *shared, uint32_t device,
                                                    drv_mem_handle_t **handle)
{
    uint64_t key;
    LOCKED;
    if (!shared || !handle || device >= hal.device_count)
        return DRV_ERROR_INVALID_VALUE;
    (void)type;
    memcpy(&key, shared, sizeof key);
    struct drv_mem_handle made = {.is_imported = true, .page_bytes = FAKE_PAGE_BYTES(MEM_NORMAL_PAGE_TYPE)};
    made.share.number = (int)(key & ((1u << NUMBER_BITS) - 1));
    made.share.card = (unsigned)(key >> NUMBER_BITS & ((1u << CARD_BITS) - 1));
    made.size_bytes = (key >> (NUMBER_BITS + CARD_BITS) & ((1u << UNIT_BITS) - 1)) * UNIT;
    made.share.id = key >> (NUMBER_BITS + CARD_BITS + UNIT_BITS);
    made.device = hal_device_of(made.share.card);
    struct account *account = hal_account(made.device);
    if (!account || !engine_share_open(account, &made.share))
        return DRV_ERROR_INVALID_VALUE;
    made.file_offset = engine_share_offset(made.share.number);
    *handle = new_handle(made);
    return *handle ? DRV_ERROR_NONE : DRV_ERROR_OUT_OF_MEMORY;
}
