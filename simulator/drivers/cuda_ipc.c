/* Device memory of another process: its memory file is opened through /proc, and the same piece mapped here. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ipc_handle { /* names a block in its owner's memory file, and the piece in it */
    uint64_t magic, file_offset, block_offset, size_bytes;
    struct engine_share block;
    int pid, fd;
};
#define IPC_MAGIC UINT64_C(0x3143504948544854)
_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "fits");

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    LOCKED;
    struct memory *memory = memory_find(pointer);
    if (!handle || !memory || memory->kind != MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct block *block = memory->piece.block;
    if (!block_share(block))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct ipc_handle ipc_handle = {.magic = IPC_MAGIC,
                                    .file_offset = block->file_offset,
                                    .block_offset = memory->start - block->start,
                                    .size_bytes = memory->size_bytes,
                                    .block = block->share_handle,
                                    .pid = getpid(),
                                    .fd = memory_file()};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ipc_handle, sizeof ipc_handle);
    return CUDA_SUCCESS;
}

static char *map_of(int pid, int owner_fd, uint64_t offset, size_t length)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, owner_fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
    close(fd);
    return start == MAP_FAILED ? NULL : start;
}

/* The pages are freed by the last process that has the block open. */
static void unmap_block(struct account *account, int share_number, char *start, uint64_t length)
{
    if (!engine_share_close(account, share_number) && start)
        madvise(start, length, MADV_REMOVE);
    if (start)
        munmap(start, length);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct ipc_handle ipc_handle;
    memcpy(&ipc_handle, &handle, sizeof ipc_handle);
    if (!pointer || flags > 1 || ipc_handle.magic != IPC_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (ipc_handle.pid == getpid()) /* the driver opens only what others made */
        return CUDA_ERROR_INVALID_CONTEXT;
    struct device *owner = device_of_card(ipc_handle.block.card);
    if (!owner || !owner->account || !engine_share_open(owner->account, &ipc_handle.block))
        return CUDA_ERROR_MAP_FAILED;
    char *start = map_of(ipc_handle.pid, ipc_handle.fd, ipc_handle.file_offset, ipc_handle.block.length_bytes);
    if (!start) {
        unmap_block(owner->account, ipc_handle.block.number, NULL, 0);
        return CUDA_ERROR_MAP_FAILED;
    }
    *pointer = (uintptr_t)start + ipc_handle.block_offset;
    memory_insert(&(struct memory){.start = (uintptr_t)*pointer,
                                   .size_bytes = ipc_handle.size_bytes,
                                   .mapped_bytes = ipc_handle.block.length_bytes - ipc_handle.block_offset,
                                   .file_offset = ipc_handle.block_offset,
                                   .kind = MEMORY_IPC,
                                   .device = owner,
                                   .context = context,
                                   .share_number = ipc_handle.block.number,
                                   .is_live = true});
    return CUDA_SUCCESS;
}

void memory_close(struct memory *memory)
{
    unmap_block(memory->device->account, memory->share_number, (char *)(memory->start - memory->file_offset),
                memory->mapped_bytes + memory->file_offset);
    memory_remove(memory);
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    LOCKED;
    struct memory *memory = memory_find(pointer);
    if (!memory || memory->kind != MEMORY_IPC || memory->start != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    memory_close(memory);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------- pools of other processes */

struct pool_pointer { /* in a pool, at offset in the owner's memory file */
    uint64_t magic, share, offset, size;
    int pid, fd;
};
_Static_assert(sizeof(struct pool_pointer) <= sizeof(CUmemPoolPtrExportData), "fits");

EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle, CUmemAllocationHandleType type,
                                                 unsigned long long flags)
{
    LOCKED;
    struct pool *pool = pool_find(handle);
    if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !pool || !pool->is_shared ||
        pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = engine_share_export(pool->share_number);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable,
                                                   CUmemAllocationHandleType type, unsigned long long flags)
{
    LOCKED;
    struct engine_share share;
    int fd = (int)(intptr_t)shareable; /* the descriptor itself travels as the pointer */
    if (!handle || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !engine_share_import(fd, &share))
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of_card(share.card);
    if (!device || !device->account)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!engine_share_open(device->account, &share))
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = pool_new(device, 0);
    pool->is_shared = pool->is_imported = true;
    pool->share_number = share.number;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
    LOCKED;
    const struct memory *memory = memory_find(pointer);
    if (!data || !memory || memory->kind != MEMORY_POOL || !memory->pool->is_shared)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool_pointer pool_pointer = {.magic = IPC_MAGIC,
                                        .share = (uint64_t)memory->pool->share_number,
                                        .offset = memory->file_offset,
                                        .size = memory->size_bytes,
                                        .pid = getpid(),
                                        .fd = memory_file()};
    memset(data, 0, sizeof *data);
    memcpy(data, &pool_pointer, sizeof pool_pointer);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct pool *pool = pool_find(handle);
    struct pool_pointer pool_pointer;
    if (!pointer || !data || !pool || !pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&pool_pointer, data, sizeof pool_pointer);
    size_t length = round_up(pool_pointer.size, PAGE);
    if (pool_pointer.magic != IPC_MAGIC || pool_pointer.share != (uint64_t)pool->share_number)
        return CUDA_ERROR_INVALID_VALUE;
    char *start = map_of(pool_pointer.pid, pool_pointer.fd, pool_pointer.offset, length);
    if (!start)
        return CUDA_ERROR_MAP_FAILED;
    engine_share_again(pool->device->account, pool->share_number);
    *pointer = (uintptr_t)start;
    memory_insert(&(struct memory){.start = (uintptr_t)start,
                                   .size_bytes = pool_pointer.size,
                                   .mapped_bytes = length,
                                   .kind = MEMORY_IMPORTED,
                                   .device = pool->device,
                                   .context = context,
                                   .share_number = pool->share_number,
                                   .is_live = true});
    return CUDA_SUCCESS;
}
