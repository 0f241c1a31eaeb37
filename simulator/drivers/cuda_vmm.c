/* Virtual memory management: physical memory, address ranges, and the one mapped into the other. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct physical {
    struct object object;
    struct device *device;
    CUmemAllocationProp prop;
    uint64_t size, offset, charged;
    int fd; /* of its own when it can be given to others, else -1: a piece of the memory file */
    unsigned handles, maps;
};

struct reservation {
    uintptr_t start;
    size_t size;
    struct reservation *next;
};
static struct reservation *reservations; /* under driver.lock */

static bool with_host(const CUmemAllocationProp *prop)
{
    return prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/* The device it is asked of; for memory of the host any will do, since it takes nothing of it. */
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
    physical->size = size;
    physical->fd = -1;
    physical->handles = 1;
    return physical;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->handles || physical->maps)
        return;
    if (physical->fd >= 0)
        close(physical->fd);
    else
        memory_discard(physical->offset, physical->size);
    engine_release(physical->device->account, physical->charged);
    device_leave(physical->device);
    object_free(physical);
}

/* The bytes behind it: made here, so that a mapping only has to show them. */
static bool back(struct physical *physical)
{
    void *start;
    if (!(physical->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return memory_map(physical->size, &physical->offset, NULL, &start) && munmap(start, physical->size) == 0;
    char name[32]; /* tells an importer which card it is on */
    snprintf(name, sizeof name, "hetero-card-%u", physical->device->card_index);
    physical->fd = memfd_create(name, MFD_CLOEXEC);
    return physical->fd >= 0 && ftruncate(physical->fd, (off_t)physical->size) == 0;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    LOCKED;
    struct device *device = located(prop);
    if (!handle || !device || !size || size % BLOCK || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(device_join(device)); /* physical memory keeps the process on the card, context or not */
    uint64_t charged = with_host(prop) ? 0 : size;
    if (!engine_charge(device->account, charged)) {
        device_leave(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *physical = physical_new(device, size);
    physical->charged = charged;
    physical->prop = *prop;
    if (!back(physical)) {
        physical->handles = 0;
        drop_if_unused(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

#define WITH_PHYSICAL(name, handle)                                                                                    \
    LOCKED;                                                                                                            \
    struct physical *name = object_find((void *)(uintptr_t)(handle), OBJECT_PHYSICAL);                                 \
    if (!name || !name->handles)                                                                                       \
    return CUDA_ERROR_INVALID_VALUE

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    WITH_PHYSICAL(physical, handle);
    physical->handles--;
    drop_if_unused(physical);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    LOCKED;
    struct memory *memory = memory_find((uintptr_t)address);
    if (!handle || !memory || memory->kind != MEMORY_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    memory->physical->handles++;
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
    if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical->fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    LOCKED;
    int fd = (int)(intptr_t)shareable; /* the descriptor itself travels as the pointer */
    char path[32], name[64] = "";
    struct stat status;
    unsigned card, ordinal = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || readlink(path, name, sizeof name - 1) < 0 ||
        sscanf(name, "/memfd:hetero-card-%u", &card) != 1 || fstat(fd, &status) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    while (ordinal < driver.device_count && driver.devices[ordinal].card_index != card)
        ordinal++;
    struct device *device = device_at((CUdevice)ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CHECK(device_join(device));
    struct physical *physical = physical_new(device, (uint64_t)status.st_size); /* charged where it was made */
    physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    physical->prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)ordinal},
    };
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags)
{
    LOCKED;
    uint64_t grain = alignment > BLOCK ? alignment : BLOCK;
    if (!pointer || !size || size % BLOCK || (alignment & (alignment - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t start = (uintptr_t)address_room(size, grain, (void *)(uintptr_t)wanted);
    if (!start)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct reservation *it = malloc(sizeof *it);
    *it = (struct reservation){start, size, reservations};
    reservations = it;
    *pointer = start;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    LOCKED;
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *it = *link;
        if (it->start != pointer || it->size != size)
            continue;
        for (uintptr_t at = it->start; at < it->start + size; at += BLOCK)
            if (memory_find(at))
                return CUDA_ERROR_INVALID_VALUE; /* still mapped into */
        munmap((void *)it->start, size);
        *link = it->next;
        free(it);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    WITH_PHYSICAL(physical, handle);
    bool reserved = false;
    for (const struct reservation *it = reservations; it; it = it->next)
        reserved |= it->start <= pointer && pointer + size <= it->start + it->size;
    if (!reserved || !size || size % BLOCK || offset || size > physical->size || flags)
        return CUDA_ERROR_INVALID_VALUE; /* an offset is refused by the real driver too */
    for (uintptr_t at = pointer; at < pointer + size; at += BLOCK)
        if (memory_find(at))
            return CUDA_ERROR_INVALID_VALUE;
    void *start = mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                       physical->fd >= 0 ? physical->fd : memory_file(), (off_t)physical->offset);
    if (start == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    memory_insert(&(struct memory){.start = (uintptr_t)pointer,
                                   .size = size,
                                   .length = size,
                                   .kind = MEMORY_MAPPED,
                                   .device = physical->device,
                                   .physical = physical,
                                   .live = true});
    physical->maps++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    LOCKED;
    for (uintptr_t at = pointer; at < pointer + size;) { /* whole mappings only */
        const struct memory *memory = memory_find(at);
        if (!memory || memory->kind != MEMORY_MAPPED || memory->start != at || at + memory->size > pointer + size)
            return CUDA_ERROR_INVALID_VALUE;
        at += memory->size;
    }
    for (uintptr_t at = pointer; at < pointer + size;) {
        struct memory *memory = memory_find(at);
        struct physical *physical = memory->physical;
        mmap((void *)at, memory->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        at += memory->size;
        memory_remove(memory);
        physical->maps--;
        drop_if_unused(physical);
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
        protection |= access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                      : access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                            : PROT_NONE;
    return mprotect((void *)(uintptr_t)pointer, size, protection) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
