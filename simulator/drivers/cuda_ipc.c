/* Device memory of another process: its memory file is opened through /proc, and the same piece mapped here. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ipc_handle { /* the block, at offset in the owner's memory file, and the piece in it */
    uint64_t magic, offset, length, start, size;
    int pid, fd;
    unsigned card;
};
#define IPC_MAGIC UINT64_C(0x3143504948544854)
_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "fits");

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    LOCKED;
    struct memory *memory = memory_find(pointer);
    if (!handle || !memory || memory->kind != MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    const struct block *block = memory->piece.block;
    struct ipc_handle it = {
        IPC_MAGIC,    block->offset, block->size,   memory->start - block->start,
        memory->size, getpid(),      memory_file(), memory->device->card_index,
    };
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &it, sizeof it);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct ipc_handle it;
    memcpy(&it, &handle, sizeof it);
    if (!pointer || flags > 1 || it.magic != IPC_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (it.pid == getpid()) /* the driver opens only what others made */
        return CUDA_ERROR_INVALID_CONTEXT;
    struct device *owner = NULL;
    for (unsigned i = 0; i < driver.device_count; i++)
        if (driver.devices[i].card_index == it.card)
            owner = &driver.devices[i];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", it.pid, it.fd);
    int fd = owner ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return CUDA_ERROR_MAP_FAILED;
    char *start = mmap(NULL, it.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)it.offset);
    close(fd);
    if (start == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    memory_insert(&(struct memory){.start = (uintptr_t)start + it.start,
                                   .size = it.size,
                                   .length = it.length - it.start,
                                   .offset = it.start,
                                   .kind = MEMORY_IPC,
                                   .device = owner,
                                   .context = context,
                                   .live = true});
    *pointer = (uintptr_t)start + it.start;
    return CUDA_SUCCESS;
}

void memory_close(struct memory *memory)
{
    munmap((void *)(memory->start - memory->offset), memory->length + memory->offset);
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
