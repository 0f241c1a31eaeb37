/* What the attacks on memory share: the driver's functions by their names, and parts in processes of their own.
 *
 * A program writes the name of each part before it runs. The first part is a context and nothing else. What a part got
 * it keeps until it ends, and held.py, which runs these programs, asks the card how much that is.
 */
#ifndef HETERO_ATTACK_MEMORY_H
#define HETERO_ATTACK_MEMORY_H

#include "../../limiters/cuda/abi.h"
#include "attack.h"

#include <sys/socket.h>

#define HOLD_US 250000 /* held.py counts what is held for more than 100 ms */

static CUresult lacking(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* A function of the driver's; one that it lacks answers CUDA_ERROR_NOT_FOUND. */
#define CU(name) ((typeof(&name))driver_function(#name))

static void *driver_function(const char *name)
{
    static void *driver;
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver == NULL, "libcuda.so.1");
    void *found = dlsym(driver, name);
    return found == NULL ? (void *)lacking : found;
}

/* A context on the first card, in which a kernel has run. */
static void __attribute__((unused)) open_card(void)
{
    driver_by(dlsym);
    begin();
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
}

/* How often a piece of so many bytes is asked for: for four times the limit, which is past all doubt. */
static unsigned __attribute__((unused)) times(uint64_t bytes)
{
    return (unsigned)(4 * attack_number("ATTACK_MEMORY") / bytes);
}

static void hold(void)
{
    usleep(HOLD_US);
}

struct part {
    const char *name;
    void (*run)(void);
};

static void run_part(const struct part *part)
{
    printf("%s\n", part->name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        part->run();
        hold();
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) {
        printf("%s ended with status %#x\n", part->name, status);
        fflush(stdout);
        _exit(1);
    }
}

/* Of the first part, which is a context and what comes with one. */
static void (*with_context)(void);

static void only_context(void)
{
    open_card();
    if (with_context != NULL)
        with_context();
}

static void __attribute__((noreturn, unused)) run_parts(const struct part *parts, unsigned count)
{
    run_part(&(struct part){"a context", only_context});
    for (unsigned i = 0; i < count; i++)
        run_part(&parts[i]);
    verdict(true, "%u ways", count);
}

#define RUN_PARTS(parts) run_parts(parts, sizeof(parts) / sizeof *(parts))

/* ------------------------------------------------------------------------------------------------ physical memory */

#define BLOCK (2 * MIB)

static CUmemAllocationProp __attribute__((unused)) on_card(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
}

/* Addresses that read and write a block. */
static CUresult __attribute__((unused)) map(CUmemGenericAllocationHandle handle, size_t bytes, CUdeviceptr *address)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    must(CU(cuMemAddressReserve)(address, bytes, 0, 0, 0), "cuMemAddressReserve");
    CUresult answer = CU(cuMemMap)(*address, bytes, 0, handle, 0);
    return answer != CUDA_SUCCESS ? answer : CU(cuMemSetAccess)(*address, bytes, &access, 1);
}

/* A block, exported; -1: refused. The caller has its handle. */
static int __attribute__((unused)) exported(size_t bytes, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp properties = on_card();
    int file = -1;
    if (CU(cuMemCreate)(handle, bytes, &properties, 0) != CUDA_SUCCESS)
        return -1;
    must(CU(cuMemExportToShareableHandle)(&file, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         "cuMemExportToShareableHandle");
    return file;
}

static CUresult __attribute__((unused)) import(int file, CUmemGenericAllocationHandle *handle)
{
    return CU(cuMemImportFromShareableHandle)(handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* ------------------------------------------------------------------------------------------------ other processes */

/* Send a descriptor with a message, and receive one: the descriptor, or -1 at the end. */
static void __attribute__((unused)) send_file(int socket, int file)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec byte = {"x", 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.head), &file, sizeof file);
    must(sendmsg(socket, &message, 0) != 1, "sendmsg");
}

static int __attribute__((unused)) receive_file(int socket)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    int file = -1;
    struct iovec at = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &at, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    if (recvmsg(socket, &message, 0) == 1)
        memcpy(&file, CMSG_DATA(&control.head), sizeof file);
    return file;
}

/* ------------------------------------------------------------------------------------------------ blocked streams */

/* Work in a stream that waits for a word of the host which nobody writes. */
static void __attribute__((unused)) block(CUstream stream)
{
    static void *word;
    CUdeviceptr address;
    if (word == NULL)
        must(CU(cuMemHostAlloc)(&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    must(CU(cuMemHostGetDevicePointer_v2)(&address, word, 0), "cuMemHostGetDevicePointer");
    must(CU(cuStreamWaitValue32_v2)(stream, address, 1, 0), "cuStreamWaitValue32");
}

static CUstream __attribute__((unused)) blocked_stream(void)
{
    CUstream stream;
    must(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    block(stream);
    return stream;
}

#endif
