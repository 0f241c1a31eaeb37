/* Virtual memory management: physical memory, address ranges, and the one mapped into the other. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

struct physical {
    struct object object;
    struct device *device;
    CUmemAllocationProp prop;
    uint64_t size_bytes, file_offset, charged_bytes;
    int share_number; /* -1: not exportable, and a range of this process's memory file */
    bool is_imported; /* from a descriptor, of another process or of this one */
    unsigned handle_count, map_count;
};

struct reservation {
    uintptr_t start;
    size_t size_bytes;
    struct reservation *next;
};
static struct reservation *reservations; /* under driver.lock */

static bool with_host(const CUmemAllocationProp *prop)
{
    return prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/* The device of the location. For host memory any device will do, since none is charged. */
static struct device *located(const CUmemAllocationProp *prop)
{
    bool usable = prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                  (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE || with_host(prop)) &&
                  (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
    return usable ? device_at(with_host(prop) ? 0 : prop->location.id) : NULL;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option)
{
    LOCKED;
    if (!granularity || !located(prop) || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = BLOCK;
    return CUDA_SUCCESS;
}

static struct physical *physical_new(struct device *device, uint64_t size)
{
    struct physical *physical = object_new(OBJECT_PHYSICAL);
    physical->device = device;
    physical->size_bytes = size;
    physical->share_number = -1;
    physical->handle_count = 1;
    return physical;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->handle_count || physical->map_count)
        return;
    struct account *account = physical->device->account;
    if (physical->share_number < 0) {
        memory_discard(physical->file_offset, physical->size_bytes);
        engine_release(account, physical->charged_bytes);
    } else if (physical->is_imported) {
        engine_share_close(account, physical->share_number);
    } else {
        engine_unshare(account, physical->share_number);
    }
    device_leave(physical->device);
    object_free(physical);
}

/* The card's memory, and the bytes behind it, made here so that a mapping only has to show them. */
static bool take(struct physical *physical, uint64_t bytes)
{
    void *mapping;
    struct engine_share share_handle;
    struct account *account = physical->device->account;
    if (physical->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        if (!engine_share(account, bytes, physical->size_bytes, false, &share_handle))
            return false;
        physical->share_number = share_handle.number;
        physical->file_offset = engine_share_offset(share_handle.number);
        return true;
    }
    if (!engine_charge(account, bytes))
        return false;
    physical->charged_bytes = bytes;
    if (memory_map(physical->size_bytes, &physical->file_offset, NULL, &mapping) &&
        munmap(mapping, physical->size_bytes) == 0)
        return true;
    engine_release(account, bytes);
    return false;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    LOCKED;
    struct device *device = located(prop);
    if (!handle || !device || !size || size % BLOCK || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(device_join(device)); /* physical memory keeps the process on the card, context or not */
    settle(NULL);
    struct physical *physical = physical_new(device, size);
    physical->prop = *prop;
    if (!take(physical, with_host(prop) ? 0 : size)) {
        object_free(physical);
        device_leave(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

#define WITH_PHYSICAL(name, handle)                                                                                    \
    LOCKED;                                                                                                            \
    struct physical *name = object_find((void *)(uintptr_t)(handle), OBJECT_PHYSICAL);                                 \
    if (!name || !name->handle_count)                                                                                  \
    return CUDA_ERROR_INVALID_VALUE

struct physical *physical_map(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = object_find((void *)(uintptr_t)handle, OBJECT_PHYSICAL);
    if (!physical || !physical->handle_count)
        return NULL;
    physical->map_count++;
    return physical;
}

void physical_unmap(struct physical *physical)
{
    physical->map_count--;
    drop_if_unused(physical);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    WITH_PHYSICAL(physical, handle);
    physical->handle_count--;
    drop_if_unused(physical);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    LOCKED;
    struct memory *memory = memory_find((uintptr_t)address);
    if (!handle || !memory || memory->kind != MEMORY_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    memory->physical->handle_count++;
    *handle = (uintptr_t)memory->physical;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    WITH_PHYSICAL(physical, handle);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    WITH_PHYSICAL(physical, handle);
    if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical->share_number < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = engine_share_export(physical->share_number);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

static struct physical *import(struct device *device, const struct engine_share *share_handle)
{
    if (!engine_share_open(device->account, share_handle))
        return NULL;
    struct physical *physical = physical_new(device, share_handle->length_bytes);
    physical->share_number = share_handle->number;
    physical->is_imported = true;
    physical->file_offset = engine_share_offset(share_handle->number);
    physical->prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)(device - driver.devices)},
    };
    return physical;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    LOCKED;
    struct engine_share share_handle;
    int fd = (int)(intptr_t)shareable; /* the descriptor itself travels as the pointer */
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !engine_share_import(fd, &share_handle))
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of_card(share_handle.card);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CHECK(device_join(device));
    struct physical *physical = import(device, &share_handle);
    if (!physical)
        device_leave(device);
    *handle = (uintptr_t)physical;
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr address_hint,
                                    unsigned long long flags)
{
    LOCKED;
    uint64_t grain = alignment > BLOCK ? alignment : BLOCK;
    if (!pointer || !size || size % BLOCK || (alignment & (alignment - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t start = (uintptr_t)address_room(size, grain, (void *)(uintptr_t)address_hint);
    if (!start)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct reservation *reservation = malloc(sizeof *reservation);
    *reservation = (struct reservation){start, size, reservations};
    reservations = reservation;
    *pointer = start;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    LOCKED;
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *reservation = *link;
        if (reservation->start != pointer || reservation->size_bytes != size)
            continue;
        for (uintptr_t address = reservation->start; address < reservation->start + size; address += BLOCK)
            if (memory_find(address))
                return CUDA_ERROR_INVALID_VALUE; /* still mapped into */
        munmap((void *)reservation->start, size);
        *link = reservation->next;
        free(reservation);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    WITH_PHYSICAL(physical, handle);
    bool is_reserved = false;
    for (const struct reservation *reservation = reservations; reservation; reservation = reservation->next)
        is_reserved |= reservation->start <= pointer && pointer + size <= reservation->start + reservation->size_bytes;
    if (!is_reserved || !size || size % BLOCK || offset || size > physical->size_bytes || flags)
        return CUDA_ERROR_INVALID_VALUE; /* an offset is refused by the real driver too */
    for (uintptr_t address = pointer; address < pointer + size; address += BLOCK)
        if (memory_find(address))
            return CUDA_ERROR_INVALID_VALUE;
    void *mapping = mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                         physical->share_number >= 0 ? engine_file() : memory_file(), (off_t)physical->file_offset);
    if (mapping == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    memory_insert(&(struct memory){.start = (uintptr_t)pointer,
                                   .size_bytes = size,
                                   .mapped_bytes = size,
                                   .kind = MEMORY_MAPPED,
                                   .device = physical->device,
                                   .physical = physical,
                                   .is_live = true});
    physical->map_count++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    LOCKED;
    for (uintptr_t at = pointer; at < pointer + size;) { /* whole mappings only */
        const struct memory *memory = memory_find(at);
        if (!memory || memory->kind != MEMORY_MAPPED || memory->start != at || at + memory->size_bytes > pointer + size)
            return CUDA_ERROR_INVALID_VALUE;
        at += memory->size_bytes;
    }
    for (uintptr_t at = pointer; at < pointer + size;) {
        struct memory *memory = memory_find(at);
        struct physical *physical = memory->physical;
        mmap((void *)at, memory->size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        for (unsigned i = 0; i < driver.device_count; i++)
            if (memory->flags & 1u << i)
                tables_give(&driver.devices[i], TABLES_OF_BLOCKS, at, memory->size_bytes);
        at += memory->size_bytes;
        memory_remove(memory);
        physical_unmap(physical);
    }
    return CUDA_SUCCESS;
}

/* A device with access to a mapping has page tables for it. */
static CUresult let_at(CUdevice ordinal, uintptr_t start, size_t size)
{
    struct device *device = device_at(ordinal);
    struct memory *memory;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    for (uintptr_t address = start; address < start + size && (memory = memory_find(address));
         address = memory->start + memory->size_bytes) {
        if (memory->flags & 1u << ordinal || !device->account)
            continue;
        if (!tables_take(device, TABLES_OF_BLOCKS, memory->start, memory->size_bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        memory->flags |= 1u << ordinal;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count)
{
    LOCKED;
    if (!access || !count || memory_check((void *)(uintptr_t)pointer, size) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    int protection = PROT_NONE;
    for (size_t i = 0; i < count; i++)
        if (access[i].flags && access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            CHECK(let_at(access[i].location.id, pointer, size));
    for (size_t i = 0; i < count; i++)
        protection |= access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                      : access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                            : PROT_NONE;
    return mprotect((void *)(uintptr_t)pointer, size, protection) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
