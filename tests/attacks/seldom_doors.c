/* Calls that few programs make, each of which might take memory, or keep it, past what was charged. */
#include "memory.h"

#define TAKEN (16 * MIB)

/* A child opens each pointer twice and closes it once; its owner frees it. */
PART(opened_twice, "pointers opened twice and closed once")
{
    CUipcMemHandle handle;
    CUdeviceptr pointer, again;
    char done = 0;
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t child = fork();
    if (child == 0) {
        close(pair[1]);
        open_card();
        while (read(pair[0], &handle, sizeof handle) == sizeof handle) {
            if (CU(cuIpcOpenMemHandle_v2)(&pointer, handle, 1) == CUDA_SUCCESS &&
                CU(cuIpcOpenMemHandle_v2)(&again, handle, 1) == CUDA_SUCCESS)
                CU(cuIpcCloseMemHandle)(again);
            must(write(pair[0], &done, 1) != 1, "write");
        }
        hold();
        _exit(0);
    }
    close(pair[0]);
    open_card();
    for (unsigned i = 0; i < times(TAKEN) && cu.allocate((uint64_t *)&pointer, TAKEN) == 0; i++) {
        must((int)CU(cuIpcGetMemHandle)(&handle, pointer), "cuIpcGetMemHandle");
        must(write(pair[1], &handle, sizeof handle) != sizeof handle || read(pair[1], &done, 1) != 1, "a socket");
        cu.release(pointer);
    }
    shutdown(pair[1], SHUT_WR);
    waitpid(child, NULL, 0);
}

/* Blocks are no context's: they outlive its reset. */
PART(blocks_of_a_reset, "blocks that a reset leaves")
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on_card();
    for (unsigned round = 0; round < 4; round++) {
        open_card();
        for (unsigned i = 0; i < 2; i++)
            CU(cuMemCreate)(&handle, TAKEN, &properties, 0);
        must((int)CU(cuDevicePrimaryCtxReset_v2)(0), "cuDevicePrimaryCtxReset");
    }
    open_card();
}

/* What a program trims by itself is not there yet where a stream has not come past its free. */
PART(trimmed_by_hand, "pools trimmed by the program")
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    open_card();
    CUstream behind = blocked_stream();
    must((int)CU(cuDeviceGetDefaultMemPool)(&pool, 0), "cuDeviceGetDefaultMemPool");
    for (unsigned i = 0; i < times(TAKEN) && CU(cuMemAllocAsync)(&pointer, TAKEN, NULL) == CUDA_SUCCESS; i++) {
        CU(cuMemFreeAsync)(pointer, behind);
        CU(cuMemPoolTrimTo)(pool, 0);
    }
}

/* Managed memory of the host, which is advised to the card, attached and brought there. */
PART(advised, "managed memory that is advised and attached")
{
    CUdeviceptr pointer;
    CUstream stream;
    CUmemLocation card = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (unsigned i = 0; i < times(TAKEN); i++) {
        if (CU(cuMemAllocManaged)(&pointer, TAKEN, 2 /* CU_MEM_ATTACH_HOST */) != CUDA_SUCCESS)
            continue;
        CU(cuMemAdvise_v2)(pointer, TAKEN, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, card);
        CU(cuStreamAttachMemAsync)(stream, pointer, 0, CU_MEM_ATTACH_GLOBAL);
        CU(cuMemPrefetchAsync_v2)(pointer, TAKEN, card, 0, stream);
    }
    CU(cuStreamSynchronize)(stream);
}

/* Memory of the host's own allocator, which some cards and kernels can move, too. */
PART(of_malloc, "memory of malloc")
{
    CUmemLocation card = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++) {
        CUdeviceptr pointer = (uintptr_t)mmap(NULL, TAKEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset((void *)(uintptr_t)pointer, 1, TAKEN);
        CU(cuMemAdvise_v2)(pointer, TAKEN, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, card);
        CU(cuMemPrefetchAsync_v2)(pointer, TAKEN, card, 0, NULL);
    }
    cu.synchronize();
}

/* A block by the door for memory of other APIs; neither its handle nor its descriptor is left. */
PART(as_external, "blocks imported as external memory")
{
    CUmemGenericAllocationHandle handle;
    CUexternalMemory memory;
    int file;
    open_card();
    for (unsigned i = 0; i < times(BLOCK) && (file = exported(BLOCK, &handle)) >= 0; i++) {
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC shared = {
            .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = file, .size = BLOCK};
        if (CU(cuImportExternalMemory)(&memory, &shared) != CUDA_SUCCESS) /* else the driver has the descriptor */
            close(file);
        CU(cuMemRelease)(handle);
    }
}

PART(blocks_of_the_host, "blocks of the host")
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = on_card();
    properties.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    open_card();
    for (unsigned i = 0; i < times(TAKEN); i++)
        CU(cuMemCreate)(&handle, TAKEN, &properties, 0);
}

PART(many_events, "many events")
{
    CUevent event;
    open_card();
    for (unsigned i = 0; i < 50000 && CU(cuEventCreate)(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS; i++)
        CU(cuEventRecord)(event, NULL);
    cu.synchronize();
}

/* A card keeps 42 and 63 bytes for each. */
PART(many_views, "many textures and surfaces")
{
    struct {
        int type;
        CUdeviceptr pointer;
        int format;
        unsigned channels;
        size_t bytes, more[16];
    } linear = {.type = 2, .format = CU_AD_FORMAT_FLOAT, .channels = 1, .bytes = 4096};
    struct {
        int type;
        CUarray array;
        size_t more[20];
    } of_array = {.type = 0};
    CUDA_ARRAY3D_DESCRIPTOR shape = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 2 /* CUDA_ARRAY3D_SURFACE_LDST */};
    const size_t plain[32] = {0};
    CUtexObject texture;
    CUsurfObject surface;
    open_card();
    if (cu.allocate((uint64_t *)&linear.pointer, 4096) != CUDA_SUCCESS ||
        CU(cuArray3DCreate_v2)(&of_array.array, &shape) != CUDA_SUCCESS)
        return;
    take_memory();
    for (unsigned i = 0, refused = 0; i < 300000 && refused < 1000; i++) {
        refused += CU(cuTexObjectCreate)(&texture, (const void *)&linear, (const void *)plain, NULL) != CUDA_SUCCESS;
        refused += CU(cuSurfObjectCreate)(&surface, (const void *)&of_array) != CUDA_SUCCESS;
    }
}

int main(void)
{
    run_parts();
}
