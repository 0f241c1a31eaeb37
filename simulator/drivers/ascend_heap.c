/* Memory of the simulated libruntime: what it asks the driver for, copies, pools and shared memory. */
#include "ascend_runtime.h"

#include <stdlib.h>
#include <string.h>

#define HUGE_FROM    (UINT64_C(1) << 20) /* less is in normal pages, where huge ones are only preferred */
#define POOL_UNIT    (UINT64_C(1) << 21)
#define MODULE_SHIFT 56

#define POLICY(type) ((type) >> FAKE_POLICY_SHIFT & 0xf)

static unsigned long long flag_of(const struct device *device, unsigned pages, uint16_t module)
{
    return device->logical_id | (unsigned long long)pages << FAKE_PAGES_SHIFT |
           (unsigned long long)(module & 0xff) << MODULE_SHIFT;
}

/* A copy of the current context's device. The driver is asked for memory without the lock. */
static rtError_t current_device(struct device *device)
{
    WITH_CONTEXT(context);
    *device = *context->device;
    return ACL_SUCCESS;
}

static drvError_t allocate(const struct device *device, void **pointer, uint64_t bytes, unsigned pages, uint16_t module)
{
    return halMemAlloc(pointer, bytes, flag_of(device, pages, module));
}

/* Where huge pages are preferred and there is no room for them, the driver is asked for normal ones. */
EXPORT rtError_t rtMalloc(void **pointer, uint64_t bytes, uint32_t type, uint16_t module)
{
    struct device device;
    CHECK(current_device(&device));
    NEEDS(pointer && bytes && bytes < UINT64_C(1) << 48);
    switch (POLICY(type)) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P:
        if (bytes > HUGE_FROM && !allocate(&device, pointer, bytes, MEM_HUGE_PAGE_TYPE, module))
            return ACL_SUCCESS;
        return code_of(allocate(&device, pointer, bytes, MEM_NORMAL_PAGE_TYPE, module));
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P: return code_of(allocate(&device, pointer, bytes, MEM_HUGE_PAGE_TYPE, module));
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P:
        return code_of(allocate(&device, pointer, bytes, MEM_NORMAL_PAGE_TYPE, module));
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: return code_of(allocate(&device, pointer, bytes, MEM_GIANT_PAGE_TYPE, module));
    default: return ACL_ERROR_RT_PARAM_INVALID;
    }
}

EXPORT rtError_t rtMallocCached(void **pointer, uint64_t bytes, uint32_t type, uint16_t module)
{
    return rtMalloc(pointer, bytes, type, module);
}

EXPORT rtError_t rtDvppMallocWithFlag(void **pointer, uint64_t bytes, uint32_t flag UNUSED, uint16_t module)
{
    struct device device;
    CHECK(current_device(&device));
    NEEDS(pointer && bytes);
    return code_of(halMemAlloc(pointer, bytes, flag_of(&device, MEM_HUGE_PAGE_TYPE, module) | HAL_KIND_MEDIA << 10));
}

EXPORT rtError_t rtDvppMalloc(void **pointer, uint64_t bytes, uint16_t module)
{
    return rtDvppMallocWithFlag(pointer, bytes, 0, module);
}

EXPORT rtError_t rtMemAlloc(void **pointer, uint64_t bytes, uint32_t policy, uint32_t advice UNUSED,
                            void *config UNUSED)
{
    return rtMalloc(pointer, bytes, (policy & 0xf) << FAKE_POLICY_SHIFT, 0);
}

EXPORT rtError_t rtMemAllocManaged(void **pointer, uint64_t bytes, uint32_t flag UNUSED, uint16_t module)
{
    return rtMalloc(pointer, bytes, 0, module);
}

/* It does not wait for the card. */
EXPORT rtError_t rtFree(void *pointer)
{
    return code_of(halMemFree(pointer));
}

/* Those of other allocating functions, of which names alone are known. */

EXPORT rtError_t rtsFree(void *pointer)
{
    return rtFree(pointer);
}

EXPORT rtError_t rtDvppFree(void *pointer)
{
    return rtFree(pointer);
}

EXPORT rtError_t rtMemFreeManaged(void *pointer)
{
    return rtFree(pointer);
}

rtError_t fake_rt_host_malloc(void **pointer, uint64_t bytes)
{
    struct device device;
    CHECK(current_device(&device));
    NEEDS(pointer && bytes);
    return code_of(halMemAlloc(pointer, bytes, flag_of(&device, 0, 0) | HAL_KIND_HOST << 10));
}

EXPORT rtError_t rtMallocHost(void **pointer, uint64_t bytes)
{
    return fake_rt_host_malloc(pointer, bytes);
}

rtError_t fake_rt_host_free(void *pointer)
{
    return code_of(halMemFree(pointer));
}

EXPORT rtError_t rtFreeHost(void *pointer)
{
    return fake_rt_host_free(pointer);
}

/* Of a kind that the card has not, nothing; but a card without HBM tells its DDR's for HBM. */
EXPORT rtError_t rtMemGetInfoEx(aclrtMemAttr memory, size_t *free_bytes, size_t *total_bytes)
{
    struct fake_npu npu;
    WITH_CONTEXT(context);
    NEEDS(free_bytes && total_bytes && memory <= ACL_HBM_MEM_P2P_HUGE1G);
    bool is_ddr = memory == ACL_DDR_MEM || memory == ACL_DDR_MEM_HUGE || memory == ACL_DDR_MEM_NORMAL ||
                  memory == ACL_DDR_MEM_P2P_HUGE || memory == ACL_DDR_MEM_P2P_NORMAL;
    uint64_t free_here = 0, total_here = 0;
    if (fake_hal_device(context->device->logical_id, &npu) && !(is_ddr && npu.has_hbm))
        fake_hal_memory(context->device->logical_id, &free_here, &total_here);
    *free_bytes = free_here;
    *total_bytes = total_here;
    return ACL_SUCCESS;
}

/* Copies. */

static uint64_t copy_ns(const struct stream *stream, uint64_t bytes)
{
    struct fake_npu npu;
    fake_hal_device(stream->context->device->logical_id, &npu);
    return (uint64_t)((double)bytes * 1e9 / (double)npu.bytes_per_s);
}

static rtError_t copy(void *to, uint64_t most, const void *from, uint64_t bytes, void *handle, bool is_waited)
{
    WITH_STREAM(stream, handle);
    NEEDS(to && from && bytes && bytes <= most);
    if (is_waited)
        CHECK(capture_guard());
    struct work work = {.kind = WORK_COPY, .task_ns = copy_ns(stream, bytes)};
    work.copy.to = to;
    work.copy.from = from;
    work.copy.bytes = bytes;
    CHECK(stream_push(stream, work));
    return is_waited ? stream_wait(stream, FOREVER) : ACL_SUCCESS;
}

EXPORT rtError_t rtMemcpy(void *to, uint64_t most, const void *from, uint64_t bytes, uint32_t kind UNUSED)
{
    return copy(to, most, from, bytes, NULL, true);
}

EXPORT rtError_t rtMemcpyAsync(void *to, uint64_t most, const void *from, uint64_t bytes, uint32_t kind UNUSED,
                               rtStream_t stream)
{
    return copy(to, most, from, bytes, stream, false);
}

rtError_t fake_rt_set(void *address, size_t most, int value, size_t bytes, bool is_ordered, void *handle)
{
    WITH_STREAM(stream, handle);
    NEEDS(address && bytes && bytes <= most);
    if (!is_ordered)
        CHECK(capture_guard());
    struct work work = {.kind = WORK_FILL, .task_ns = copy_ns(stream, bytes)};
    work.copy.to = address;
    work.copy.value = value;
    work.copy.bytes = bytes;
    CHECK(stream_push(stream, work));
    return is_ordered ? ACL_SUCCESS : stream_wait(stream, FOREVER);
}

/* Physical memory and addresses. */

static struct drv_mem_prop property_of(const aclrtPhysicalMemProp *property)
{
    unsigned page_type = MEM_HUGE_PAGE_TYPE;
    if (property->memory == ACL_HBM_MEM_NORMAL || property->memory == ACL_DDR_MEM_NORMAL ||
        property->memory == ACL_HBM_MEM_P2P_NORMAL || property->memory == ACL_DDR_MEM_P2P_NORMAL)
        page_type = MEM_NORMAL_PAGE_TYPE;
    if (property->memory == ACL_HBM_MEM_HUGE1G || property->memory == ACL_HBM_MEM_P2P_HUGE1G)
        page_type = MEM_GIANT_PAGE_TYPE;
    const struct device *device = device_at((int32_t)property->device);
    return (struct drv_mem_prop){.side = property->location_type == ACL_MEM_LOCATION_TYPE_DEVICE ? MEM_DEV_SIDE
                                                                                                 : MEM_HOST_SIDE,
                                 .device = device ? device->logical_id : UINT32_MAX,
                                 .page_type = page_type,
                                 .memory_type = property->memory};
}

/* The property names the device, which need not be the current one. */
EXPORT rtError_t rtMallocPhysical(rtDrvMemHandle *handle, size_t bytes, void *property, uint64_t flags)
{
    struct device device;
    CHECK(current_device(&device));
    NEEDS(handle && property);
    struct drv_mem_prop asked = property_of(property);
    return code_of(halMemCreate((drv_mem_handle_t **)handle, bytes, &asked, flags));
}

rtError_t fake_rt_granularity(const aclrtPhysicalMemProp *property, uint32_t option, size_t *bytes)
{
    LOCKED;
    NEEDS(property);
    struct drv_mem_prop asked = property_of(property);
    return code_of(halMemGetAllocationGranularity(&asked, option, bytes));
}

rtError_t fake_rt_physical_free(void *handle)
{
    return code_of(halMemRelease(handle));
}

rtError_t fake_rt_reserve(void **address, size_t bytes, size_t alignment, void *expected, uint64_t flags)
{
    return code_of(halMemAddressReserve(address, bytes, alignment, expected, flags));
}

rtError_t fake_rt_release(void *address)
{
    return code_of(halMemAddressFree(address));
}

rtError_t fake_rt_map(void *address, size_t bytes, size_t offset, void *handle, uint64_t flags)
{
    return code_of(halMemMap(address, bytes, offset, handle, flags));
}

rtError_t fake_rt_unmap(void *address)
{
    return code_of(halMemUnmap(address));
}

rtError_t fake_rt_retain(const void *address, void **handle)
{
    return code_of(fake_hal_retain(address, (drv_mem_handle_t **)handle));
}

/* A handle of 64 bits is the start of what the driver's second version of the call makes. */
rtError_t fake_rt_export(void *handle, uint32_t type, uint64_t flags, uint64_t *shared)
{
    uint64_t share[16];
    NEEDS(shared);
    CHECK(code_of(halMemExportToShareableHandleV2(handle, type, flags, share)));
    *shared = share[0];
    return ACL_SUCCESS;
}

rtError_t fake_rt_import(uint64_t shared, int32_t user_id, void **handle)
{
    uint64_t share[16] = {shared};
    LOCKED;
    const struct device *device = device_at(user_id);
    if (!device)
        return ACL_ERROR_RT_INVALID_DEVICEID;
    return code_of(halMemImportFromShareableHandleV2(0, share, device->logical_id, (drv_mem_handle_t **)handle));
}

/* Shared memory by name. */

EXPORT rtError_t rtIpcSetMemoryName(const void *pointer, uint64_t bytes UNUSED, char *name, uint32_t name_bytes)
{
    NEEDS(name && name_bytes >= FAKE_NAME_BYTES);
    return code_of(fake_hal_share(pointer, name));
}

EXPORT rtError_t rtIpcOpenMemory(void **pointer, const char *name)
{
    return code_of(fake_hal_share_open(name, pointer));
}

EXPORT rtError_t rtIpcCloseMemory(const void *pointer)
{
    return code_of(fake_hal_share_close(pointer));
}

/* Nobody opens it by the name any more; who has it open keeps it. */
EXPORT rtError_t rtIpcDestroyMemoryName(const char *name)
{
    return code_of(fake_hal_share_end(name));
}

rtError_t fake_rt_share_with(const char *name, const int32_t *pids, size_t count)
{
    return code_of(fake_hal_share_with(name, pids, count));
}

/* Of this one the name alone is known; MindSpore links it. */
EXPORT rtError_t rtSetIpcMemPid(const char *name, int32_t *pids, int count)
{
    NEEDS(pids && count > 0);
    return fake_rt_share_with(name, pids, (size_t)count);
}

/* Pools. What is freed into a pool stays with it until a stream is synchronised, and then above its threshold. */

struct pool {
    struct object object;
    struct device *device;
    uint64_t threshold_bytes;
    struct chunk {
        void *pointer;
        uint64_t size_bytes;
        bool is_free;
        struct chunk *next;
    } *chunks;
};

static uint64_t free_bytes_of(const struct pool *pool)
{
    uint64_t bytes = 0;
    for (const struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        bytes += chunk->is_free ? chunk->size_bytes : 0;
    return bytes;
}

static void trim(struct pool *pool, uint64_t kept_bytes, bool is_all)
{
    uint64_t free_bytes = free_bytes_of(pool);
    for (struct chunk **link = &pool->chunks; *link && (is_all || free_bytes > kept_bytes);) {
        struct chunk *chunk = *link;
        if (!chunk->is_free && !is_all) {
            link = &chunk->next;
            continue;
        }
        free_bytes -= chunk->is_free ? chunk->size_bytes : 0;
        halMemFree(chunk->pointer);
        *link = chunk->next;
        free(chunk);
    }
}

void pools_settle(const struct device *device)
{
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));)
        if (pool->device == device)
            trim(pool, pool->threshold_bytes, false);
}

/* The driver drops the memory with the device. */
void pools_leave(const struct device *device)
{
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));) {
        if (pool->device != device)
            continue;
        for (struct chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
            next = chunk->next;
            free(chunk);
        }
        object_free(pool);
    }
}

rtError_t fake_rt_pool_create(void **handle)
{
    WITH_CONTEXT(context);
    NEEDS(handle);
    struct pool *pool = object_new(OBJECT_POOL);
    pool->device = context->device;
    *handle = pool;
    return ACL_SUCCESS;
}

rtError_t fake_rt_pool_destroy(void *handle)
{
    LOCKED;
    WITH_OBJECT(pool, handle, OBJECT_POOL);
    trim(pool, 0, true);
    object_free(pool);
    return ACL_SUCCESS;
}

rtError_t fake_rt_pool_threshold(void *handle, uint64_t bytes)
{
    LOCKED;
    WITH_OBJECT(pool, handle, OBJECT_POOL);
    pool->threshold_bytes = bytes;
    return ACL_SUCCESS;
}

rtError_t fake_rt_pool_trim(void *handle, size_t kept_bytes)
{
    LOCKED;
    WITH_OBJECT(pool, handle, OBJECT_POOL);
    trim(pool, kept_bytes, false);
    return ACL_SUCCESS;
}

rtError_t fake_rt_pool_malloc(void **pointer, size_t bytes, void *handle, void *stream_handle)
{
    WITH_STREAM(stream, stream_handle);
    WITH_OBJECT(pool, handle, OBJECT_POOL);
    NEEDS(pointer && bytes);
    if (stream->capture)
        return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
    uint64_t size = (bytes + POOL_UNIT - 1) / POOL_UNIT * POOL_UNIT;
    struct chunk *chunk = pool->chunks;
    while (chunk && (!chunk->is_free || chunk->size_bytes != size))
        chunk = chunk->next;
    if (!chunk) {
        void *taken;
        CHECK(code_of(allocate(pool->device, &taken, size, MEM_HUGE_PAGE_TYPE, 0)));
        chunk = malloc(sizeof *chunk);
        *chunk = (struct chunk){.pointer = taken, .size_bytes = size, .next = pool->chunks};
        pool->chunks = chunk;
    }
    chunk->is_free = false;
    *pointer = chunk->pointer;
    return ACL_SUCCESS;
}

rtError_t fake_rt_pool_free(void *pointer, void *stream_handle)
{
    WITH_STREAM(stream, stream_handle);
    for (struct pool *pool = NULL; (pool = object_next(pool, OBJECT_POOL));)
        for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
            if (chunk->pointer == pointer && !chunk->is_free) {
                chunk->is_free = true;
                return ACL_SUCCESS;
            }
    return ACL_ERROR_RT_PARAM_INVALID;
}
