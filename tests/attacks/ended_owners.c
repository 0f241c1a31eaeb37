/* Memory whose owners end, or free it, while another process has it open. */
#include "memory.h"

#define TAKEN  (48 * MIB)
#define OWNERS 5

/* What an owner hands over: a descriptor beside it where there is one. */
struct shared {
    CUipcMemHandle handle;
    CUmemPoolPtrExportData pointer;
    bool there;
};

static int owners[OWNERS]; /* sockets to them */
static int up;             /* an owner's */
static uint64_t inside;    /* how far into an allocation handles are made of it */

/* Before there is a context here, which a child could not use: make the owners. Each waits to be called, hands over
 * what it has, waits until that is open, and ends. */
static void make_owners(void (*own)(void), bool killed)
{
    for (unsigned i = 0; i < OWNERS; i++) {
        int pair[2];
        char go;
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
        if (fork() == 0) {
            close(pair[0]);
            up = pair[1];
            must(read(up, &go, 1) != 1, "read");
            open_card();
            own();
            must(read(up, &go, 1) != 1, "read");
            if (killed)
                raise(SIGKILL);
            _exit(0);
        }
        close(pair[1]);
        owners[i] = pair[0];
    }
}

static void hand_over(const struct shared *shared)
{
    must(write(up, shared, sizeof *shared) != sizeof *shared, "write");
}

/* Open what each of the owners has, and have it end. */
static void take_over(void (*open_it)(int owner, const struct shared *))
{
    for (unsigned i = 0; i < OWNERS; i++) {
        struct shared shared;
        char go = 0;
        must(write(owners[i], &go, 1) != 1, "write");
        if (read(owners[i], &shared, sizeof shared) == sizeof shared && shared.there)
            open_it(owners[i], &shared);
        must(write(owners[i], &go, 1) != 1, "write");
        wait(NULL);
        close(owners[i]);
    }
}

/* -------------------------------------------------------------------------------------------------- IPC handles */

static void own_pointer(void)
{
    struct shared shared = {0};
    CUdeviceptr pointer;
    shared.there = cu.allocate((uint64_t *)&pointer, TAKEN) == 0 &&
                   CU(cuIpcGetMemHandle)(&shared.handle, pointer + inside) == CUDA_SUCCESS;
    hand_over(&shared);
}

static void open_pointer(int owner, const struct shared *shared)
{
    CUdeviceptr pointer;
    (void)owner;
    CU(cuIpcOpenMemHandle_v2)(&pointer, shared->handle, 1);
}

PART(pointers, "pointers whose owners end")
{
    make_owners(own_pointer, false);
    open_card();
    take_over(open_pointer);
}

PART(of_killed_owners, "pointers whose owners are killed")
{
    make_owners(own_pointer, true);
    open_card();
    take_over(open_pointer);
}

/* `whole`: in a context of its own, of which there is one at a time. */
static bool share_one(uint64_t bytes, bool whole, CUcontext *context, CUdeviceptr *pointer, CUipcMemHandle *handle)
{
    if (whole && CU(cuCtxCreate_v2)(context, 0, 0) != CUDA_SUCCESS)
        return false;
    bool shared = cu.allocate((uint64_t *)pointer, bytes) == 0 &&
                  CU(cuIpcGetMemHandle)(handle, *pointer + inside) == CUDA_SUCCESS;
    if (whole && !shared)
        CU(cuCtxDestroy_v2)(*context);
    return shared;
}

/* The owner lives, and lets go of what is open elsewhere: of so much, so often. `whole`: by the end of its context. */
static void let_go(uint64_t bytes, unsigned count, bool whole)
{
    struct shared shared;
    CUdeviceptr pointer;
    CUcontext context = NULL;
    char done = 0;
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t child = fork();
    if (child == 0) {
        close(pair[1]);
        open_card();
        while (read(pair[0], &shared, sizeof shared) == sizeof shared) {
            open_pointer(pair[0], &shared);
            must(write(pair[0], &done, 1) != 1, "write");
        }
        hold();
        _exit(0);
    }
    close(pair[0]);
    up = pair[1];
    open_card();
    if (whole)
        must(CU(cuDevicePrimaryCtxRelease_v2)(0), "cuDevicePrimaryCtxRelease");
    for (unsigned i = 0; bytes < MIB && i < 2; i++) /* the block that the context keeps is full */
        must(!whole && cu.allocate((uint64_t *)&pointer, MIB - 512) != 0, "cuMemAlloc");
    for (unsigned i = 0; i < count && share_one(bytes, whole, &context, &pointer, &shared.handle); i++) {
        hand_over(&shared);
        must(read(up, &done, 1) != 1, "read");
        if (whole)
            CU(cuCtxDestroy_v2)(context);
        else
            cu.release(pointer);
    }
    shutdown(up, SHUT_WR);
    waitpid(child, NULL, 0);
}

PART(freed_by_owner, "pointers freed by their owner")
{
    let_go(TAKEN, OWNERS, false);
}

PART(inside_ended, "addresses inside, whose owners end")
{
    inside = 4096;
    pointers();
}

PART(inside_freed, "addresses inside, freed by their owner")
{
    inside = 4096;
    freed_by_owner();
}

PART(pieces, "pieces freed by their owner")
{
    let_go(MIB - 512, times(2 * MIB), false);
}

PART(contexts, "pointers whose context ends")
{
    let_go(TAKEN, OWNERS, true);
}

PART(blocks_of_contexts, "pieces whose context ends")
{
    let_go(512, times(2 * MIB), true);
}

/* The owner lets go of what is open elsewhere, and in that moment who has it open frees as much of its own, so that the
 * card's use falls as if it had that back. Letting go waits for a host function, which tells the other to. */
#define MEANWHILE (16 * MIB)

static void free_meanwhile(void *none)
{
    char byte = 0;
    (void)none;
    if (write(up, &byte, 1) == 1 && read(up, &byte, 1) < 0)
        _exit(1);
}

static void __attribute__((noreturn)) open_and_free(void)
{
    struct shared shared;
    CUdeviceptr pointer;
    char byte = 0;
    open_card();
    while (read(up, &shared, sizeof shared) == sizeof shared) {
        open_pointer(up, &shared);
        bool got = cu.allocate((uint64_t *)&pointer, MEANWHILE) == 0;
        must(write(up, &byte, 1) != 1 || read(up, &byte, 1) != 1, "a socket");
        if (got)
            cu.release(pointer);
        must(write(up, &byte, 1) != 1, "write");
    }
    hold();
    _exit(0);
}

PART(freed_meanwhile, "pointers freed while who has them frees as much")
{
    struct shared shared;
    CUdeviceptr pointer;
    char byte;
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    pid_t child = fork();
    up = pair[child == 0];
    close(pair[child != 0]);
    if (child == 0)
        open_and_free();
    open_card();
    for (unsigned i = 0; i < times(MEANWHILE) && cu.allocate((uint64_t *)&pointer, MEANWHILE) == 0 &&
                         CU(cuIpcGetMemHandle)(&shared.handle, pointer) == CUDA_SUCCESS;
         i++) {
        hand_over(&shared);
        must(read(up, &byte, 1) != 1, "read");
        must(CU(cuLaunchHostFunc)(NULL, free_meanwhile, NULL), "cuLaunchHostFunc");
        cu.release(pointer);
    }
    shutdown(up, SHUT_WR);
    waitpid(child, NULL, 0);
}

/* ------------------------------------------------------------------------------------------------- descriptors */

static void own_block(void)
{
    struct shared shared = {0};
    CUmemGenericAllocationHandle handle;
    int file = exported(TAKEN, &handle);
    shared.there = file >= 0;
    hand_over(&shared);
    if (shared.there)
        send_file(up, file);
}

static void import_block(int owner, const struct shared *shared)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    (void)shared;
    int file = receive_file(owner);
    if (import(file, &handle) == CUDA_SUCCESS)
        map(handle, TAKEN, &address);
    close(file);
}

PART(blocks, "blocks whose owners end")
{
    make_owners(own_block, false);
    open_card();
    take_over(import_block);
}

/* ------------------------------------------------------------------------------------------------------- pools */

static void own_pool(void)
{
    struct shared shared = {0};
    CUmemoryPool pool;
    CUdeviceptr pointer;
    int file = -1;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    shared.there = CU(cuMemPoolCreate)(&pool, &properties) == CUDA_SUCCESS &&
                   CU(cuMemAllocFromPoolAsync)(&pointer, TAKEN, pool, NULL) == CUDA_SUCCESS && cu.synchronize() == 0 &&
                   CU(cuMemPoolExportToShareableHandle)(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
                       CUDA_SUCCESS &&
                   CU(cuMemPoolExportPointer)(&shared.pointer, pointer) == CUDA_SUCCESS;
    hand_over(&shared);
    if (shared.there)
        send_file(up, file);
}

static void import_of_pool(int owner, const struct shared *shared)
{
    CUmemoryPool pool;
    CUdeviceptr pointer;
    CUmemPoolPtrExportData data = shared->pointer;
    int file = receive_file(owner);
    if (CU(cuMemPoolImportFromShareableHandle)(&pool, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                               0) == CUDA_SUCCESS)
        CU(cuMemPoolImportPointer)(&pointer, pool, &data);
}

PART(pools, "pools whose owners end")
{
    make_owners(own_pool, false);
    open_card();
    take_over(import_of_pool);
}

int main(void)
{
    run_parts();
}
