/* Host memory that the driver has allocated or registered, and attributes of pointers. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

void memory_free_host(struct memory *memory)
{
    tables_give(memory->device, TABLES_OF_HOST, memory->start, memory->size_bytes);
    if (memory->kind == MEMORY_HOST)
        munmap((void *)memory->start, memory->mapped_bytes);
    memory_remove(memory);
}

static CUresult host_new(void *fixed, void **result, size_t size, unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!size || (!fixed && !result))
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(capture_guard());
    void *start = fixed;
    if (fixed && memory_find((uintptr_t)fixed))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!fixed)
        start = mmap(NULL, round_up(size, PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!tables_take(context->device, TABLES_OF_HOST, (uintptr_t)start, size)) {
        if (!fixed)
            munmap(start, round_up(size, PAGE));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory_insert(&(struct memory){.start = (uintptr_t)start,
                                   .size_bytes = size,
                                   .mapped_bytes = fixed ? size : round_up(size, PAGE),
                                   .kind = fixed ? MEMORY_REGISTERED : MEMORY_HOST,
                                   .context = context,
                                   .device = context->device,
                                   .flags = flags,
                                   .is_live = true});
    if (result)
        *result = start;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    return host_new(NULL, pointer, size, flags);
}

EXPORT CUresult cuMemAllocHost(void **pointer, unsigned size)
{
    return host_new(NULL, pointer, size, 0);
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
    return host_new(NULL, pointer, size, 0);
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    return pointer ? host_new(pointer, NULL, size, flags) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult host_end(void *pointer, enum memory_kind kind, CUresult absent_result)
{
    LOCKED;
    struct memory *memory = memory_find((uintptr_t)pointer);
    if (!memory || memory->kind != kind || memory->start != (uintptr_t)pointer)
        return absent_result;
    CHECK(capture_guard());
    memory_free_host(memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *pointer)
{
    return host_end(pointer, MEMORY_HOST, CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuMemHostUnregister(void *pointer)
{
    return host_end(pointer, MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags)
{
    LOCKED;
    struct memory *memory = memory_find((uintptr_t)host);
    if (!memory || !pointer || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (uintptr_t)host;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *host)
{
    LOCKED;
    struct memory *memory = memory_find((uintptr_t)host);
    if (!memory || memory->kind < MEMORY_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = memory->flags;
    return CUDA_SUCCESS;
}

/* What a pointer is. */

static CUresult attribute_of(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    const struct memory *memory = memory_find(pointer);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_host = memory->kind >= MEMORY_HOST;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = (CUcontext)memory->context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host && memory->kind != MEMORY_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)value = (void *)(uintptr_t)pointer;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)value = 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = memory->number; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = memory->kind == MEMORY_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = (int)(memory->device - driver.devices); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)value = memory->kind == MEMORY_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = memory->start; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = memory->size_bytes; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)value = 1; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)value = 0; break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)value = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)value = (CUmemoryPool)memory->pool; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    LOCKED;
    return value ? attribute_of(value, attribute, pointer) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                       CUdeviceptr pointer)
{
    LOCKED;
    for (unsigned i = 0; i < count; i++)
        if (attribute_of(values[i], attributes[i], pointer) != CUDA_SUCCESS)
            memset(values[i], 0, attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? 4 : 1); /* 0: unknown to CUDA */
    return CUDA_SUCCESS;
}
