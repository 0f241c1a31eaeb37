/* Device memory: what is charged to the card, and the host pages that stand in for it.
 *
 * Every range of this process's devices is a piece of one memory file, mapped shared and without reserving anything,
 * so that a 140 GiB card costs only the pages a program touches, a freed piece gives its pages back, and another
 * process can map the same bytes (IPC).
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
static size_t range_count, range_room;
static int file = -1;
static uint64_t file_used; /* offsets are never used again: the file is sparse */
static uint64_t numbers;

int memory_file(void)
{
    if (file < 0) {
        file = memfd_create("hetero-device-memory", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, INT64_C(1) << 60)) {
            close(file);
            file = -1;
        }
    }
    return file;
}

static size_t place(uintptr_t address) /* of the first range that starts above it */
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
    size_t at = place((uintptr_t)pointer);
    if (!at || (uintptr_t)pointer - ranges[at - 1]->start >= ranges[at - 1]->length)
        return NULL;
    return ranges[at - 1];
}

CUresult memory_check(const void *pointer, size_t size)
{
    uintptr_t at = (uintptr_t)pointer, end = at + size;
    for (const struct memory *memory; at < end; at = memory->start + memory->length) /* mapped pieces may adjoin */
        if (!(memory = memory_find(at)))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

struct memory *memory_insert(const struct memory *range)
{
    if (range_count == range_room)
        ranges = realloc(ranges, (range_room = range_room ? 2 * range_room : 64) * sizeof *ranges);
    struct memory *memory = malloc(sizeof *memory);
    *memory = *range;
    memory->number = ++numbers;
    size_t at = place(memory->start);
    memmove(&ranges[at + 1], &ranges[at], (range_count - at) * sizeof *ranges);
    ranges[at] = memory;
    range_count++;
    return memory;
}

void memory_remove(struct memory *memory)
{
    size_t at = place(memory->start) - 1;
    memmove(&ranges[at], &ranges[at + 1], (--range_count - at) * sizeof *ranges);
    free(memory);
}

bool memory_map(size_t length, uint64_t *offset, void *fixed, void **start)
{
    if (memory_file() < 0)
        return false;
    *offset = file_used;
    *start = mmap(fixed, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | (fixed ? MAP_FIXED : 0), file,
                  (off_t)*offset);
    if (*start == MAP_FAILED)
        return false;
    file_used += length;
    return true;
}

void memory_discard(uint64_t offset, size_t length)
{
    if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length) && errno != EINTR)
        return; /* the pages stay until the process ends */
}

/* What one more or less allocation of its executable makes: the memory of a launch's allocations is taken together,
 * in chunks. */
static uint64_t graph_share(const struct memory *memory)
{
    uint64_t others = 0;
    for (size_t i = 0; i < range_count; i++)
        if (ranges[i]->exec == memory->exec && ranges[i]->live && ranges[i] != memory)
            others += ranges[i]->size;
    return round_up(others + memory->size, CHUNK) - round_up(others, CHUNK);
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
        return piece_take(memory->context, memory->size, memory->size < MIB, &memory->piece);
    memory->charged = memory->pool ? memory->size : round_up(memory->size, GRAIN);
    if (memory->pool)
        return pool_take(memory->pool, stream, memory->charged);
    if (!engine_charge_managed(memory->device->account, memory->charged))
        memory->charged = 0; /* managed memory may exceed the card: what does not fit stays with the host */
    return true;
}

static void discharge(struct memory *memory, const struct stream *stream)
{
    if (in_blocks(memory))
        depart(stream, &memory->piece);
    else if (memory->kind == MEMORY_GRAPH)
        pool_give(memory->pool, stream, graph_share(memory));
    else if (memory->pool)
        pool_give(memory->pool, stream, memory->charged);
    else
        engine_release_managed(memory->device->account, memory->charged);
    memory->charged = 0;
}

static bool place_in_memory(struct memory *memory)
{
    void *start;
    memory->start = memory->piece.start;
    memory->length = in_blocks(memory) ? memory->piece.length : round_up(memory->size, PAGE);
    if (in_blocks(memory))
        return true;
    if (!memory_map(memory->length, &memory->offset, NULL, &start))
        return false;
    memory->start = (uintptr_t)start;
    return true;
}

CUresult memory_new(const struct memory *wanted, const struct stream *stream, struct memory **result)
{
    struct memory memory = *wanted;
    memory.device = memory.pool ? memory.pool->device : memory.context->device;
    memory.live = memory.kind != MEMORY_GRAPH;
    if (!memory.size)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory.size > memory.device->card->memory && memory.kind != MEMORY_MANAGED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    settle(NULL);
    if (memory.live && !charge(&memory, stream))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!place_in_memory(&memory)) {
        if (memory.live)
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
    if (memory->live)
        discharge(memory, stream);
    if (!in_blocks(memory)) {
        munmap((void *)memory->start, memory->length);
        memory_discard(memory->offset, memory->length);
    }
    memory_remove(memory);
}

CUresult memory_revive(struct memory *memory, const struct stream *stream, uint64_t exec)
{
    if (!memory || memory->kind != MEMORY_GRAPH || memory->live)
        return CUDA_ERROR_INVALID_VALUE;
    settle(NULL);
    memory->exec = exec;
    if (!charge(memory, stream))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->live = true;
    return CUDA_SUCCESS;
}

void memory_retire(struct memory *memory, const struct stream *stream)
{
    if (!memory)
        return;
    if (memory->kind != MEMORY_GRAPH) {
        memory_free(memory, stream);
    } else if (memory->live) {
        discharge(memory, stream);
        memory->live = false;
        memory_discard(memory->offset, memory->length);
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
        *free_bytes = device->card->memory - engine_used(driver.rack->engine, device->card_index);
    if (total)
        *total = device->card->memory;
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
    CHECK(memory_new(&(struct memory){.context = context, .size = size, .kind = kind}, NULL, &memory));
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
    if (!memory || memory->start != pointer || memory->kind >= MEMORY_MAPPED || !memory->live)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = memory->device;
    wait_for(device, memory->context->legacy->last); /* a free waits for the work that may use it */
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
        *size = memory->size;
    return CUDA_SUCCESS;
}
