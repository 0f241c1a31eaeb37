/* A process under the limiter: makes the calls that the model sends. */
#include "call.h"

#include "../../../limiters/cuda/abi.h"
#include "../../attacks/fat_image.h"
#include "../own_function.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB   (UINT64_C(1) << 20)
#define POOLS 256

/* Unit of a pool's reservations (docs/charges.md). */
#define POOL_CHUNK_BYTES (32 * MIB)

static void *driver_library;

static void *driver_function(const char *name)
{
    void *function = dlsym(driver_library, name);
    if (function == NULL) {
        fprintf(stderr, "%s is not there\n", name);
        _exit(3);
    }
    return function;
}

/* A function of the driver, through the limiter. */
#define CU(name)                                                                                                       \
    ({                                                                                                                 \
        static typeof(&name) found;                                                                                    \
        if (found == NULL)                                                                                             \
            found = (typeof(&name))driver_function(#name);                                                             \
        found;                                                                                                         \
    })

struct cell {
    uint64_t handle, address, bytes;
    volatile uint32_t *word; /* of host memory that the stream waits for */
    bool is_exported;        /* an exported pool that the driver still knows */
};
static struct cell cells[CELLS];
static CUcontext contexts[CONTEXTS];
static struct {
    CUmemoryPool handle;
    uint32_t device;
} pools[POOLS]; /* of this process, until the driver no longer knows them */
static unsigned pool_count;

#define CALL(name)                                                                                                     \
    static CUresult name(const struct call *call __attribute__((unused)), struct cell *cell __attribute__((unused)),   \
                         struct answer *answer __attribute__((unused)))

/* ---------------------------------------------------------------------------------------------- contexts and streams
 */

CALL(call_retain)
{
    return CU(cuDevicePrimaryCtxRetain)(&contexts[call->device], (CUdevice)call->device);
}

CALL(call_release)
{
    return CU(cuDevicePrimaryCtxRelease_v2)((CUdevice)call->device);
}

CALL(call_reset)
{
    return CU(cuDevicePrimaryCtxReset_v2)((CUdevice)call->device);
}

CALL(call_create)
{
    CUcontext popped;
    CUresult code = CU(cuCtxCreate_v2)(&contexts[call->other_cell], 0, (CUdevice)call->device);
    return code != CUDA_SUCCESS ? code : CU(cuCtxPopCurrent_v2)(&popped);
}

CALL(call_destroy)
{
    return CU(cuCtxDestroy_v2)(contexts[call->context]);
}

CALL(call_synchronize)
{
    return CU(cuCtxSynchronize)();
}

CALL(call_stream)
{
    return CU(cuStreamCreate)((CUstream *)&cell->handle, CU_STREAM_NON_BLOCKING);
}

CALL(call_stream_destroy)
{
    return CU(cuStreamDestroy_v2)((CUstream)cell->handle);
}

/* Has the stream wait for a word of host memory, until call_open_stream writes it. */
CALL(call_block_stream)
{
    CUdeviceptr address;
    void *word;
    CUresult code = CU(cuMemHostAlloc)(&word, sizeof *cell->word, CU_MEMHOSTALLOC_DEVICEMAP);
    if (code != CUDA_SUCCESS)
        return code;
    cell->word = word;
    *cell->word = 0;
    code = CU(cuMemHostGetDevicePointer_v2)(&address, word, 0);
    return code != CUDA_SUCCESS ? code : CU(cuStreamWaitValue32_v2)((CUstream)cell->handle, address, 1, 0);
}

CALL(call_open_stream)
{
    *cell->word = 1;
    CUresult code = CU(cuStreamSynchronize)((CUstream)cell->handle);
    return code != CUDA_SUCCESS ? code : CU(cuMemFreeHost)((void *)(uintptr_t)cell->word);
}

/* -------------------------------------------------------------------------------------------------- memory by pointer
 */

static CUresult answer_address(struct cell *cell, struct answer *answer, CUresult code)
{
    answer->value = cell->address;
    return code;
}

CALL(call_allocate)
{
    return answer_address(cell, answer, CU(cuMemAlloc_v2)((CUdeviceptr *)&cell->address, call->bytes));
}

CALL(call_pitched)
{
    size_t pitch;
    CUresult code = CU(cuMemAllocPitch_v2)((CUdeviceptr *)&cell->address, &pitch, 512, (call->bytes + 511) / 512, 4);
    return answer_address(cell, answer, code);
}

CALL(call_managed)
{
    return answer_address(cell, answer,
                          CU(cuMemAllocManaged)((CUdeviceptr *)&cell->address, call->bytes, CU_MEM_ATTACH_GLOBAL));
}

CALL(call_free)
{
    return CU(cuMemFree_v2)(cell->address);
}

static CUstream stream_of(const struct call *call)
{
    return call->other_cell == NONE ? NULL : (CUstream)cells[call->other_cell].handle;
}

CALL(call_free_async)
{
    return CU(cuMemFreeAsync)(cell->address, stream_of(call));
}

/* -------------------------------------------------------------------------------------------------- pools and graphs
 */

static void remember(CUmemoryPool handle, uint32_t device)
{
    unsigned i = 0;
    while (i < pool_count && pools[i].handle != handle)
        i++;
    if (i == POOLS)
        _exit(4);
    pool_count = i < pool_count ? pool_count : i + 1;
    pools[i].handle = handle;
    pools[i].device = device;
}

static void forget_pool(CUmemoryPool handle)
{
    for (unsigned i = 0; i < pool_count; i++)
        if (pools[i].handle == handle)
            pools[i--] = pools[--pool_count];
}

CALL(call_pool)
{
    uint64_t threshold_bytes = call->choice % 2 == 0 ? 0 : UINT64_MAX;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = call->choice < 2 ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)call->device}};
    CUresult code = CU(cuMemPoolCreate)((CUmemoryPool *)&cell->handle, &properties);
    if (code != CUDA_SUCCESS)
        return code;
    remember((CUmemoryPool)cell->handle, call->device);
    return CU(cuMemPoolSetAttribute)((CUmemoryPool)cell->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold_bytes);
}

CALL(call_pool_destroy)
{
    cell->is_exported = false;
    return CU(cuMemPoolDestroy)((CUmemoryPool)cell->handle);
}

CALL(call_pool_trim)
{
    return CU(cuMemPoolTrimTo)((CUmemoryPool)cell->handle, 0);
}

/* From the pool in cell `choice`, or from the device's current pool. */
CALL(call_pooled)
{
    CUdeviceptr *pointer = (CUdeviceptr *)&cell->address;
    CUresult code = call->choice == NONE
                        ? CU(cuMemAllocAsync)(pointer, call->bytes, stream_of(call))
                        : CU(cuMemAllocFromPoolAsync)(pointer, call->bytes, (CUmemoryPool)cells[call->choice].handle,
                                                      stream_of(call));
    return answer_address(cell, answer, code);
}

/* An executable graph that allocates, and that frees the memory if `choice` is 1. */
CALL(call_graph)
{
    CUgraph graph;
    CUgraphNode alloc_node, free_node;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)call->device}},
        .bytesize = call->bytes};
    CUresult code = CU(cuGraphCreate)(&graph, 0);
    if (code == CUDA_SUCCESS)
        code = CU(cuGraphAddMemAllocNode)(&alloc_node, graph, NULL, 0, &parameters);
    if (code == CUDA_SUCCESS && call->choice == 1)
        code = CU(cuGraphAddMemFreeNode)(&free_node, graph, &alloc_node, 1, parameters.dptr);
    if (code == CUDA_SUCCESS)
        code = CU(cuGraphInstantiateWithFlags)((CUgraphExec *)&cell->handle, graph, 0);
    cell->address = parameters.dptr;
    CU(cuGraphDestroy)(graph);
    return code;
}

CALL(call_launch)
{
    return CU(cuGraphLaunch)((CUgraphExec)cell->handle, stream_of(call));
}

CALL(call_graph_destroy)
{
    return CU(cuGraphExecDestroy)((CUgraphExec)cell->handle);
}

/* ---------------------------------------------------------------------------------------------------- blocks, shared
 */

CALL(call_block)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = call->choice == 1 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)call->device}};
    cell->bytes = call->bytes;
    return CU(cuMemCreate)((CUmemGenericAllocationHandle *)&cell->handle, call->bytes, &properties, 0);
}

/* `other_cell` is a mapping of the block. */
CALL(call_handle_retain)
{
    cell->bytes = cells[call->other_cell].bytes;
    return CU(cuMemRetainAllocationHandle)((CUmemGenericAllocationHandle *)&cell->handle,
                                           (void *)(uintptr_t)cells[call->other_cell].address);
}

CALL(call_handle_release)
{
    return CU(cuMemRelease)(cell->handle);
}

/* Maps the block in cell `other_cell`. */
CALL(call_map)
{
    cell->bytes = cells[call->other_cell].bytes;
    CUresult code = CU(cuMemAddressReserve)((CUdeviceptr *)&cell->address, cell->bytes, 0, 0, 0);
    return code != CUDA_SUCCESS ? code : CU(cuMemMap)(cell->address, cell->bytes, 0, cells[call->other_cell].handle, 0);
}

CALL(call_unmap)
{
    CUresult code = CU(cuMemUnmap)(cell->address, cell->bytes);
    return code != CUDA_SUCCESS ? code : CU(cuMemAddressFree)(cell->address, cell->bytes);
}

CALL(call_export)
{
    int fd = -1;
    CUresult code = CU(cuMemExportToShareableHandle)(&fd, cell->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    answer->value = (uint64_t)(int64_t)fd;
    return code;
}

/* `choice` is the descriptor. */
CALL(call_import)
{
    cell->bytes = call->bytes;
    CUresult code = CU(cuMemImportFromShareableHandle)((CUmemGenericAllocationHandle *)&cell->handle,
                                                       (void *)(intptr_t)call->choice,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close((int)call->choice);
    return code;
}

CALL(call_share)
{
    return CU(cuIpcGetMemHandle)((CUipcMemHandle *)answer->handle, cell->address);
}

CALL(call_open)
{
    CUipcMemHandle handle;
    memcpy(&handle, call->handle, sizeof handle);
    return CU(cuIpcOpenMemHandle_v2)((CUdeviceptr *)&cell->address, handle, 1);
}

CALL(call_close)
{
    return CU(cuIpcCloseMemHandle)(cell->address);
}

/* Afterwards the reservation of the pool is reported separately. */
CALL(call_pool_export)
{
    int fd = -1;
    CUresult code = CU(cuMemPoolExportToShareableHandle)(&fd, (CUmemoryPool)cell->handle,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    answer->value = (uint64_t)(int64_t)fd;
    if (code == CUDA_SUCCESS)
        forget_pool((CUmemoryPool)cell->handle);
    cell->is_exported = cell->is_exported || code == CUDA_SUCCESS;
    return code;
}

CALL(call_pool_import)
{
    CUresult code = CU(cuMemPoolImportFromShareableHandle)(
        (CUmemoryPool *)&cell->handle, (void *)(intptr_t)call->choice, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    close((int)call->choice);
    return code;
}

CALL(call_pool_share)
{
    return CU(cuMemPoolExportPointer)((CUmemPoolPtrExportData *)answer->handle, cell->address);
}

/* `choice` is the cell of the imported pool. */
CALL(call_pool_open)
{
    CUmemPoolPtrExportData address;
    memcpy(&address, call->handle, sizeof address);
    return CU(cuMemPoolImportPointer)((CUdeviceptr *)&cell->address, (CUmemoryPool)cells[call->choice].handle,
                                      &address);
}

/* ------------------------------------------------------------------------------- arrays, modules, limits of a context
 */

CALL(call_array)
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = call->bytes / 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return CU(cuArrayCreate_v2)((CUarray *)&cell->handle, &shape);
}

CALL(call_sparse)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
    return CU(cuArray3DCreate_v2)((CUarray *)&cell->handle, &shape);
}

/* Maps the block in cell `other_cell` into the array's tile number `choice`. */
CALL(call_tile)
{
    CUarrayMapInfo tile = {.resource = {.array = (CUarray)cell->handle},
                           .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                           .memHandle = {cells[call->other_cell].handle},
                           .deviceBitMask = 1};
    tile.subresource.word[0] = call->choice;
    return CU(cuMemMapArrayAsync)(&tile, 1, NULL);
}

CALL(call_array_destroy)
{
    return CU(cuArrayDestroy)((CUarray)cell->handle);
}

/* PTX with an array, or a fat binary of that, compressed if `choice` is 2. */
static const void *image_of(const struct call *call, struct answer *answer)
{
    static char text[256];
    snprintf(text, sizeof text,
             ".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 big[%llu];\n",
             (unsigned long long)call->bytes);
    answer->value = strlen(text);
    if (call->choice == 0)
        return text;
    fat.head.entries_bytes = 0;
    fat_add(FATBIN_PTX, 50, call->choice == 1 ? 0 : FATBIN_LZ4, text, sizeof text);
    return &fat;
}

CALL(call_module)
{
    return CU(cuModuleLoadData)((CUmodule *)&cell->handle, image_of(call, answer));
}

CALL(call_library)
{
    return CU(cuLibraryLoadData)((CUlibrary *)&cell->handle, image_of(call, answer), NULL, NULL, 0, NULL, NULL, 0);
}

/* Loads the library in the current context. */
CALL(call_library_use)
{
    size_t bytes;
    return CU(cuLibraryGetGlobal)((CUdeviceptr *)&cell->address, &bytes, (CUlibrary)cell->handle, "big");
}

CALL(call_library_unload)
{
    return CU(cuLibraryUnload)((CUlibrary)cell->handle);
}

CALL(call_module_unload)
{
    return CU(cuModuleUnload)((CUmodule)cell->handle);
}

CALL(call_limit)
{
    return CU(cuCtxSetLimit)((CUlimit)call->choice, call->bytes);
}

struct resource { /* CUdevResource of cuda.h */
    char bytes[144];
};

CALL(call_green)
{
    CUresult (*get_resource)(CUdevice, struct resource *, int) = driver_function("cuDeviceGetDevResource");
    CUresult (*describe)(CUdevResourceDesc *, struct resource *,
                         unsigned) = driver_function("cuDevResourceGenerateDesc");
    struct resource resource;
    CUdevResourceDesc description;
    CUresult code = get_resource((CUdevice)call->device, &resource, 1);
    if (code == CUDA_SUCCESS)
        code = describe(&description, &resource, 1);
    return code != CUDA_SUCCESS
               ? code
               : CU(cuGreenCtxCreate)((CUgreenCtx *)&cell->handle, description, (CUdevice)call->device, 1);
}

CALL(call_green_destroy)
{
    return CU(cuGreenCtxDestroy)((CUgreenCtx)cell->handle);
}

CALL(call_look)
{
    size_t free_bytes = 0, total_bytes;
    CUresult code = CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
    answer->value = free_bytes;
    return code;
}

/* NVML is ended: once more than the program began it, and past the limiter. The limiter begins it anew. */
CALL(call_lose)
{
    enum { UNINITIALIZED = 1, MAX_STARTS = 4 };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*end)(void) = (int (*)(void))dlsym(library, "nvmlShutdown"), answer_of_end = end();
    int (*end_of_all)(void) = (int (*)(void))own_function("libnvidia-ml.so.1", "nvmlShutdown");
    for (int starts = 0; starts < MAX_STARTS && end_of_all() == 0; starts++)
        ;
    return answer_of_end == UNINITIALIZED ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* ------------------------------------------------------------------------------------------------- calls as they come
 */

static CUresult make(const struct call *call, struct answer *answer);

/* Allocates and frees at random until the process is killed. The model does not know these calls. */
static __attribute__((noreturn)) void *run(void *call_)
{
    const struct call *call = call_;
    static const struct {
        uint32_t take_kind, give_kind;
    } ways[] = {{ALLOCATE, FREE},       {ALLOCATE, FREE_ASYNC},  {MANAGED, FREE},        {POOLED, FREE_ASYNC},
                {ARRAY, ARRAY_DESTROY}, {BLOCK, HANDLE_RELEASE}, {GRAPH, GRAPH_DESTROY}, {STREAM, STREAM_DESTROY}};
    static struct call release_calls[CELLS];
    static bool is_taken[CELLS];
    unsigned seed = call->choice + call->thread_number;
    for (;;) {
        uint32_t cell_index = (uint32_t)rand_r(&seed) % (CELLS / 2) * 2 + call->thread_number,
                 way = (uint32_t)rand_r(&seed) % 8;
        struct answer ignored_answer;
        if (is_taken[cell_index])
            make(&release_calls[cell_index], &ignored_answer);
        struct call take = {.kind = ways[way].take_kind,
                            .device = call->device,
                            .context = call->context,
                            .cell = cell_index,
                            .other_cell = NONE,
                            .choice = way == 3 ? NONE : 0,
                            .bytes = way == 5 ? 4 * MIB : (uint64_t)rand_r(&seed) % (6 * MIB) + 4};
        release_calls[cell_index] = take;
        release_calls[cell_index].kind = ways[way].give_kind;
        is_taken[cell_index] = make(&take, &ignored_answer) == CUDA_SUCCESS;
    }
}

/* Two threads run, each with its own cells. */
CALL(__attribute__((noreturn)) call_run)
{
    static struct call other_call;
    pthread_t thread;
    other_call = *call;
    other_call.thread_number = 1;
    pthread_create(&thread, NULL, run, &other_call);
    run((void *)call);
}

static CUresult (*const makers[])(const struct call *, struct cell *, struct answer *) = {
    [RETAIN] = call_retain,
    [RELEASE] = call_release,
    [RESET] = call_reset,
    [CREATE] = call_create,
    [DESTROY] = call_destroy,
    [ALLOCATE] = call_allocate,
    [PITCHED] = call_pitched,
    [MANAGED] = call_managed,
    [FREE] = call_free,
    [FREE_ASYNC] = call_free_async,
    [POOL] = call_pool,
    [POOL_DESTROY] = call_pool_destroy,
    [POOL_TRIM] = call_pool_trim,
    [POOLED] = call_pooled,
    [SYNCHRONIZE] = call_synchronize,
    [STREAM] = call_stream,
    [STREAM_DESTROY] = call_stream_destroy,
    [BLOCK_STREAM] = call_block_stream,
    [OPEN_STREAM] = call_open_stream,
    [GRAPH] = call_graph,
    [LAUNCH] = call_launch,
    [GRAPH_DESTROY] = call_graph_destroy,
    [BLOCK] = call_block,
    [HANDLE_RETAIN] = call_handle_retain,
    [HANDLE_RELEASE] = call_handle_release,
    [MAP] = call_map,
    [UNMAP] = call_unmap,
    [EXPORT] = call_export,
    [IMPORT] = call_import,
    [SHARE] = call_share,
    [OPEN] = call_open,
    [CLOSE] = call_close,
    [ARRAY] = call_array,
    [SPARSE] = call_sparse,
    [TILE] = call_tile,
    [ARRAY_DESTROY] = call_array_destroy,
    [MODULE] = call_module,
    [MODULE_UNLOAD] = call_module_unload,
    [LIBRARY] = call_library,
    [LIBRARY_USE] = call_library_use,
    [LIBRARY_UNLOAD] = call_library_unload,
    [LIMIT] = call_limit,
    [GREEN] = call_green,
    [GREEN_DESTROY] = call_green_destroy,
    [POOL_EXPORT] = call_pool_export,
    [POOL_IMPORT] = call_pool_import,
    [POOL_SHARE] = call_pool_share,
    [POOL_OPEN] = call_pool_open,
    [LOOK] = call_look,
    [LOSE] = call_lose,
    [RUN] = call_run,
};

static CUresult make(const struct call *call, struct answer *answer)
{
    if (call->context != NONE) {
        CUresult code = CU(cuCtxSetCurrent)(contexts[call->context]);
        if (code != CUDA_SUCCESS)
            return code;
    }
    return makers[call->kind](call, call->cell == NONE ? NULL : &cells[call->cell], answer);
}

/* A second thread of the process, which makes a call while the first waits for it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct call *call; /* NULL: none to make */
    struct answer *answer;
} other_thread = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL};

static __attribute__((noreturn)) void *make_other_calls(void *nothing)
{
    (void)nothing;
    pthread_mutex_lock(&other_thread.lock);
    for (;;) {
        while (other_thread.call == NULL)
            pthread_cond_wait(&other_thread.changed, &other_thread.lock);
        other_thread.answer->code = (int32_t)make(other_thread.call, other_thread.answer);
        other_thread.call = NULL;
        pthread_cond_signal(&other_thread.changed);
    }
}

static void make_in_another(const struct call *call, struct answer *answer)
{
    static pthread_t thread;
    static bool is_started;
    if (!is_started && pthread_create(&thread, NULL, make_other_calls, NULL) != 0)
        _exit(5);
    is_started = true;
    pthread_mutex_lock(&other_thread.lock);
    other_thread.answer = answer;
    other_thread.call = call;
    pthread_cond_signal(&other_thread.changed);
    while (other_thread.call != NULL)
        pthread_cond_wait(&other_thread.changed, &other_thread.lock);
    pthread_mutex_unlock(&other_thread.lock);
}

static uint64_t in_chunks(uint64_t bytes)
{
    return (bytes + POOL_CHUNK_BYTES - 1) / POOL_CHUNK_BYTES * POOL_CHUNK_BYTES;
}

static bool pool_has(CUmemoryPool pool, uint64_t *reserved_bytes, uint64_t *used_bytes)
{
    return CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, reserved_bytes) == CUDA_SUCCESS &&
           CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, used_bytes) == CUDA_SUCCESS;
}

/* Reports the driver's figures of the pools that it still knows. */
static void report_pools(struct answer *answer)
{
    CUmemoryPool default_pool;
    uint64_t reserved_bytes, used_bytes;
    for (uint32_t device = 0; device < DEVICES; device++) {
        if (CU(cuDeviceGetDefaultMemPool)(&default_pool, (CUdevice)device) != CUDA_SUCCESS)
            continue;
        remember(default_pool, device);
        CU(cuDeviceGetGraphMemAttribute)((CUdevice)device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                         &answer->reserved_bytes[device]);
        CU(cuDeviceGetGraphMemAttribute)((CUdevice)device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                                         &answer->used_bytes[device]);
        answer->used_bytes[device] = in_chunks(answer->used_bytes[device]);
    }
    for (uint32_t cell = 0; cell < CELLS; cell++)
        cells[cell].is_exported = cells[cell].is_exported &&
                                  pool_has((CUmemoryPool)cells[cell].handle, &answer->exported_reserved_bytes[cell],
                                           &answer->exported_used_bytes[cell]);
    for (unsigned i = 0; i < pool_count; i++) {
        if (!pool_has(pools[i].handle, &reserved_bytes, &used_bytes)) {
            pools[i--] = pools[--pool_count];
            continue;
        }
        answer->reserved_bytes[pools[i].device] += reserved_bytes;
        answer->used_bytes[pools[i].device] += in_chunks(used_bytes);
    }
}

static bool receive(int socket, struct call *call)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    int fd;
    struct iovec vector = {call, sizeof *call};
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    if (recvmsg(socket, &message, 0) != sizeof *call)
        return false;
    if (message.msg_controllen > 0) {
        memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
        call->choice = (uint32_t)fd;
    }
    return true;
}

/* Sends an answer, and the file descriptor in it. */
static bool reply(int socket, const struct answer *answer, bool has_fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    int fd = (int)answer->value;
    struct iovec vector = {(void *)answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (has_fd) {
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
    }
    bool is_sent = sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof *answer;
    if (has_fd)
        close(fd);
    return is_sent;
}

int work(int socket)
{
    struct call call = {0};
    struct answer answer = {0};
    driver_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver_library == NULL || CU(cuInit)(0) != CUDA_SUCCESS)
        return 3;
    bool is_connected = reply(socket, &answer, false);
    while (is_connected && receive(socket, &call)) {
        answer = (struct answer){0};
        if (call.thread_number == 0)
            answer.code = (int32_t)make(&call, &answer);
        else
            make_in_another(&call, &answer);
        report_pools(&answer);
        is_connected = reply(socket, &answer, (call.kind == EXPORT || call.kind == POOL_EXPORT) && answer.code == 0);
    }
    return 0;
}
