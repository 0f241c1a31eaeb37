/* What the attacks on memory share: the driver's functions by their names, and parts in processes of their own.
 *
 * A program writes the name of each part before it runs. The first part is a context and nothing else. What a part got
 * it keeps until it ends, and held.py, which runs these programs, asks the card how much that is. A part that fails, or
 * does not end, is named with the call of the driver that it was in; the others run all the same.
 */
#ifndef HETERO_ATTACK_MEMORY_H
#define HETERO_ATTACK_MEMORY_H

#include "../../limiters/cuda/abi.h"
#include "attack.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#define HOLD_US 250000 /* held.py counts what is held for more than 100 ms */
#ifndef PART_S
#define PART_S 12 /* within which a part ends */
#endif

/* Of the part that runs, shared with its processes: the call of the driver that was made last, and one that failed. */
static struct {
    const char *volatile call; /* the same address in all of them: they are forked */
    char failed[96];
} *doing;

static CUresult lacking(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

/* A function of the driver's, to be called; one that it lacks answers CUDA_ERROR_NOT_FOUND. */
#define CU(name) ((typeof(&name))driver_function(#name))

static void *driver_function(const char *name)
{
    static void *driver;
    if (doing != NULL)
        doing->call = name;
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    must(driver == NULL, "libcuda.so.1");
    void *found = dlsym(driver, name);
    return found == NULL ? (void *)lacking : found;
}

/* Those of attack.h, so that it is known in which of them a part is. */
#define NOTED(field, name, parameters, arguments)                                                                      \
    static int note_##field parameters                                                                                 \
    {                                                                                                                  \
        return ((int(*) parameters)driver_function(name))arguments;                                                    \
    }
NOTED(set, "cuCtxSetCurrent", (void *context), (context))
NOTED(load, "cuModuleLoadData", (void **module, const void *image), (module, image))
NOTED(synchronize, "cuCtxSynchronize", (void), ())
NOTED(allocate, "cuMemAlloc_v2", (uint64_t *pointer, size_t bytes), (pointer, bytes))
NOTED(release, "cuMemFree_v2", (uint64_t pointer), (pointer))
NOTED(fill, "cuMemsetD8_v2", (uint64_t pointer, unsigned char value, size_t bytes), (pointer, value, bytes))
NOTED(launch, "cuLaunchKernel",
      (void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared,
       void *stream, void **parameters, void **more),
      (kernel, a, b, c, d, e, f, shared, stream, parameters, more))
NOTED(info, "cuMemGetInfo_v2", (size_t *free, size_t *total), (free, total))

/* A context on the first card, in which a kernel has run. */
static void __attribute__((unused)) open_card(void)
{
    driver_by(dlsym);
    cu.set = note_set, cu.load = note_load, cu.synchronize = note_synchronize, cu.allocate = note_allocate;
    cu.release = note_release, cu.fill = note_fill, cu.launch = note_launch, cu.info = note_info;
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
    struct part *next;
};

static struct part *parts, **last_part __attribute__((unused)) = &parts;

/* Begins a part, which is put on the list before the program starts. */
#define PART(run_, name_)                                                                                              \
    static void run_(void);                                                                                            \
    static void __attribute__((constructor)) list_##run_(void)                                                         \
    {                                                                                                                  \
        static struct part part = {.name = name_, .run = run_};                                                        \
        *last_part = &part, last_part = &part.next;                                                                    \
    }                                                                                                                  \
    static void run_(void)

static void __attribute__((noreturn)) note_failure(const char *what, int code)
{
    snprintf(doing->failed, sizeof doing->failed, "%s answered %d", what, code);
    _exit(1);
}

/* In a group of its own, so that all of a part can be ended; with the program, if that is ended. It begins when a byte
 * comes on standard input, or its end: held.py sends one when the card has back what the part before it had. */
static pid_t start_part(const struct part *part)
{
    char byte;
    printf("%s\n", part->name);
    fflush(stdout);
    if (read(STDIN_FILENO, &byte, 1) < 0)
        perror("standard input");
    doing->call = "no call";
    doing->failed[0] = '\0';
    pid_t child = fork();
    if (child != 0)
        return child;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    attack_failed = note_failure;
    part->run();
    hold();
    _exit(0);
}

/* Whether a child has ended within so many seconds, and how. */
static bool ended(pid_t child, unsigned seconds, int *status)
{
    for (uint64_t since = now_ns(); now_ns() - since < seconds * 1000000000ull; usleep(5000))
        if (waitpid(child, status, WNOHANG) != 0)
            return true;
    return false;
}

/* Run a part; say in `fault` what went wrong, "" for nothing. */
static void run_part(const struct part *part, char fault[256])
{
    int status = 0;
    pid_t child = start_part(part);
    fault[0] = '\0';
    if (!ended(child, PART_S, &status))
        snprintf(fault, 256, "; %s: not at its end after %d s, in %s", part->name, PART_S, doing->call);
    else if (doing->failed[0] != '\0')
        snprintf(fault, 256, "; %s: %s", part->name, doing->failed);
    else if (status != 0)
        snprintf(fault, 256, "; %s: status %#x in %s", part->name, status, doing->call);
    kill(-child, SIGKILL);
    ended(child, 1, &status);
}

static void __attribute__((noreturn, unused)) run_parts(void)
{
    unsigned count = 0;
    char fault[256], all[1536] = "";
    doing = mmap(NULL, sizeof *doing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(doing == MAP_FAILED, "mmap");
    run_part(&(struct part){.name = "a context", .run = open_card}, all);
    for (const struct part *part = parts; part != NULL; part = part->next, count++) {
        run_part(part, fault);
        strncat(all, fault, sizeof all - strlen(all) - 1);
    }
    verdict(all[0] == '\0', "%u ways%s", count, all);
}

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

/* For how long streams are blocked. Some calls of a card's driver wait for a stream that is (cuArrayDestroy,
 * cuStreamDestroy): a part gets to its end all the same, and what it got before that was got while they were blocked.
 */
#ifndef BLOCKED_S
#define BLOCKED_S 4
#endif

static void *unblock(void *word)
{
    sleep(BLOCKED_S);
    *(volatile unsigned *)word = 1;
    return NULL;
}

/* Work in a stream that waits for a word of the host, which is written when BLOCKED_S have passed since the first. */
static void __attribute__((unused)) block(CUstream stream)
{
    static void *word;
    pthread_t thread;
    CUdeviceptr address;
    if (word == NULL) {
        must(CU(cuMemHostAlloc)(&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
        *(volatile unsigned *)word = 0;
        must(pthread_create(&thread, NULL, unblock, word), "pthread_create");
    }
    must(CU(cuMemHostGetDevicePointer_v2)(&address, word, 0), "cuMemHostGetDevicePointer");
    must(CU(cuStreamWaitValue32_v2)(stream, address, 1, 0), "cuStreamWaitValue32");
}

/* NULL: there is no memory for a stream. */
static CUstream __attribute__((unused)) blocked_stream(void)
{
    CUstream stream;
    int answer = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY)
        return NULL;
    must(answer, "cuStreamCreate");
    block(stream);
    return stream;
}

#endif
