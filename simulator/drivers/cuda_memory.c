/* Device memory: what is charged to the card, and the host pages behind it.
 *
 * Every range of this process's devices is part of one memory file, which is mapped shared and reserves no pages. So a
 * card of 140 GiB needs only the pages that a program touches, a freed range frees its pages, and another process can
 * map the same bytes (IPC).
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* All under driver.lock. */
static struct memory **ranges; /* by address */
static size_t range_count, range_capacity;
static int memory_fd = -1;
static uint64_t file_used_bytes; /* offsets are never used again: the file is sparse */
static uint64_t numbers;

int memory_file(void)
{
    if (memory_fd < 0) {
        memory_fd = memfd_create("hetero-device-memory", MFD_CLOEXEC);
        if (memory_fd >= 0 && ftruncate(memory_fd, INT64_C(1) << 60)) {
            close(memory_fd);
            memory_fd = -1;
        }
    }
    return memory_fd;
}

static size_t position_of(uintptr_t address) /* of the first range that starts above it */
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct memory *memory_find(CUdeviceptr pointer)
{
    size_t position = position_of((uintptr_t)pointer);
    if (!position || (uintptr_t)pointer - ranges[position - 1]->start >= ranges[position - 1]->mapped_bytes)
        return NULL;
    return ranges[position - 1];
}

CUresult memory_check(const void *pointer, size_t size)
{
    uintptr_t address = (uintptr_t)pointer, end_address = address + size;
    for (const struct memory *memory; address < end_address;
         address = memory->start + memory->mapped_bytes) /* mapped pieces may adjoin */
        if (!(memory = memory_find(address)))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

struct memory *memory_insert(const struct memory *range)
{
    if (range_count == range_capacity)
        ranges = realloc(ranges, (range_capacity = range_capacity ? 2 * range_capacity : 64) * sizeof *ranges);
    struct memory *memory = malloc(sizeof *memory);
    *memory = *range;
    memory->number = ++numbers;
    size_t position = position_of(memory->start);
    memmove(&ranges[position + 1], &ranges[position], (range_count - position) * sizeof *ranges);
    ranges[position] = memory;
    range_count++;
    return memory;
}

void memory_remove(struct memory *memory)
{
    size_t position = position_of(memory->start) - 1;
    memmove(&ranges[position], &ranges[position + 1], (--range_count - position) * sizeof *ranges);
    free(memory);
}

bool memory_map(size_t length, uint64_t *offset, void *fixed, void **start)
{
    if (memory_file() < 0)
        return false;
    *offset = file_used_bytes;
    *start = mmap(fixed, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | (fixed ? MAP_FIXED : 0),
                  memory_fd, (off_t)*offset);
    if (*start == MAP_FAILED)
        return false;
    file_used_bytes += length;
    return true;
}

void memory_discard(uint64_t offset, size_t length)
{
    if (fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) &&
        errno != EINTR)
        return; /* the pages stay until the process ends */
}

/* The change by one allocation of an executable graph. The memory of a launch's allocations is charged together, in
 * chunks. */
static uint64_t graph_share(const struct memory *memory)
{
    uint64_t others = 0;
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i]->exec_number == memory->exec_number && ranges[i]->is_live && ranges[i] != memory)
            others += ranges[i]->size_bytes;
    return round_up(others + memory->size_bytes, CHUNK) - round_up(others, CHUNK);
}

static bool in_blocks(const struct memory *memory)
{
    return memory->kind == MEMORY_DEVICE || memory->kind == MEMORY_MODULE;
}

static bool charge(struct memory *memory, const struct stream *stream)
{
    if (memory->kind == MEMORY_GRAPH)
        return pool_take(memory->pool, stream, graph_share(memory));
    if (in_blocks(memory))
        return piece_take(memory->context, memory->size_bytes, memory->size_bytes < MIB, &memory->piece);
    memory->charged_bytes = memory->pool ? memory->size_bytes : round_up(memory->size_bytes, GRAIN);
    if (memory->pool)
        return pool_take(memory->pool, stream, memory->charged_bytes);
    if (!engine_charge_managed(memory->device->account, memory->charged_bytes))
        memory->charged_bytes = 0; /* managed memory may exceed the card: what does not fit stays with the host */
    return true;
}

static void discharge(struct memory *memory, const struct stream *stream)
{
    if (in_blocks(memory))
        depart(stream, &memory->piece);
    else if (memory->kind == MEMORY_GRAPH)
        pool_give(memory->pool, stream, graph_share(memory));
    else if (memory->pool)
        pool_give(memory->pool, stream, memory->charged_bytes);
    else
        engine_release_managed(memory->device->account, memory->charged_bytes);
    memory->charged_bytes = 0;
}

static bool place_in_memory(struct memory *memory)
{
    void *start;
    memory->start = memory->piece.start;
    memory->mapped_bytes = in_blocks(memory) ? memory->piece.length_bytes : round_up(memory->size_bytes, PAGE);
    if (in_blocks(memory))
        return true;
    if (!memory_map(memory->mapped_bytes, &memory->file_offset, NULL, &start))
        return false;
    memory->start = (uintptr_t)start;
    return true;
}

CUresult memory_new(const struct memory *template, const struct stream *stream, struct memory **result)
{
    struct memory memory = *template;
    memory.device = memory.pool ? memory.pool->device : memory.context->device;
    memory.is_live = memory.kind != MEMORY_GRAPH;
    if (!memory.size_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory.size_bytes > memory.device->card->memory_bytes && memory.kind != MEMORY_MANAGED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    settle(NULL);
    if (memory.is_live && !charge(&memory, stream))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!place_in_memory(&memory)) {
        if (memory.is_live)
            discharge(&memory, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *result = memory_insert(&memory);
    return CUDA_SUCCESS;
}

void memory_free(struct memory *memory, const struct stream *stream)
{
    if (memory->kind == MEMORY_IMPORTED) {
        memory_close(memory);
        return;
    }
    if (memory->is_live)
        discharge(memory, stream);
    if (!in_blocks(memory)) {
        munmap((void *)memory->start, memory->mapped_bytes);
        memory_discard(memory->file_offset, memory->mapped_bytes);
    }
    memory_remove(memory);
}

CUresult memory_revive(struct memory *memory, const struct stream *stream, uint64_t exec)
{
    if (!memory || memory->kind != MEMORY_GRAPH || memory->is_live)
        return CUDA_ERROR_INVALID_VALUE;
    settle(NULL);
    memory->exec_number = exec;
    if (!charge(memory, stream))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->is_live = true;
    return CUDA_SUCCESS;
}

void memory_retire(struct memory *memory, const struct stream *stream)
{
    if (!memory)
        return;
    if (memory->kind != MEMORY_GRAPH) {
        memory_free(memory, stream);
    } else if (memory->is_live) {
        discharge(memory, stream);
        memory->is_live = false;
        memory_discard(memory->file_offset, memory->mapped_bytes);
    }
}

void memory_free_of(const struct context *context)
{
    for (size_t i = range_count; i-- > 0;) {
        struct memory *memory = ranges[i];
        if (memory->context != context)
            continue;
        if (memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED) {
            memory_free_host(memory);
        } else if (memory->kind == MEMORY_IPC) {
            memory_close(memory);
        } else if (memory->kind != MEMORY_MAPPED) { /* which stays until it is unmapped */
            memory_free(memory, NULL);
        }
    }
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct device *device = context->device;
    settle(NULL);
    if (free_bytes)
        *free_bytes = device->card->memory_bytes - engine_used(driver.rack->engine, device->card_index);
    if (total)
        *total = device->card->memory_bytes;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, enum memory_kind kind)
{
    LOCKED;
    WITH_CONTEXT(context);
    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    CHECK(capture_guard());
    struct memory *memory;
    CHECK(memory_new(&(struct memory){.context = context, .size_bytes = size, .kind = kind}, NULL, &memory));
    *pointer = memory->start;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    return allocate(pointer, size, MEMORY_DEVICE);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = round_up(width, GRAIN);
    return allocate(pointer, *pitch * height, MEMORY_DEVICE);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    if (flags != 1 && flags != 2) /* attached to all, or to the host */
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, size, MEMORY_MANAGED);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    LOCKED;
    if (!pointer)
        return CUDA_SUCCESS;
    CHECK(capture_guard());
    struct memory *memory = memory_find(pointer);
    if (!memory || memory->start != pointer || memory->kind >= MEMORY_MAPPED || !memory->is_live)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = memory->device;
    wait_for(device, memory->context->legacy->last_position); /* a free waits for the work that may use it */
    memory_retire(memory_find(pointer), NULL);
    pools_settle(device, FOR_A_STREAM);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr pointer)
{
    LOCKED;
    struct memory *memory = memory_find(pointer);
    if (!memory)
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = memory->start;
    if (size)
        *size = memory->size_bytes;
    return CUDA_SUCCESS;
}
