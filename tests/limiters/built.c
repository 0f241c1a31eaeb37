/* A program as others build it: threads with stacks of so many KiB create streams and launch, and ask NVML who uses the
 * card. It prints how many streams there are. Exit 0: all calls succeeded.
 */
#include "../../limiters/cuda/abi.h"
#include "../../limiters/nvml/abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, STREAMS = 8, ROWS = 64 };

static CUcontext context; /* written by main before a thread is started, as the next two */
static CUfunction kernel;
static nvmlDevice_t card;
static nvmlReturn_t (*list_processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);
static atomic_int stream_count;

static const char KERNEL[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n    ret;\n}\n";

static void expect(int answer, const char *call)
{
    if (answer == 0)
        return;
    fprintf(stderr, "%s: %d\n", call, answer);
    exit(1);
}

#define CALL(name, ...) expect(name(__VA_ARGS__), #name)

static void *work(void *argument)
{
    CUstream stream;
    nvmlProcessInfo_v2_t processes[ROWS];
    unsigned count = ROWS;
    CALL(cuCtxSetCurrent, context);
    for (int number = 0; number < STREAMS; number++) {
        CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        atomic_fetch_add(&stream_count, 1);
    }
    CALL(cuCtxSynchronize);
    CALL(list_processes, card, &count, processes);
    return argument;
}

static void open_management(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    nvmlReturn_t (*begin)(void) = (nvmlReturn_t (*)(void))dlsym(library, "nvmlInit_v2");
    nvmlReturn_t (*find)(unsigned, nvmlDevice_t *) =
        (nvmlReturn_t (*)(unsigned, nvmlDevice_t *))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&list_processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    CALL(begin);
    CALL(find, 0, &card);
}

int main(int count, char *arguments[])
{
    CUmodule module;
    pthread_t threads[THREADS];
    pthread_attr_t attributes;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, KERNEL);
    CALL(cuModuleGetFunction, &kernel, module, "empty");
    open_management();
    CALL(pthread_attr_init, &attributes);
    CALL(pthread_attr_setstacksize, &attributes, (size_t)atoi(arguments[count - 1]) << 10);
    for (int number = 0; number < THREADS; number++)
        CALL(pthread_create, &threads[number], &attributes, work, NULL);
    for (int number = 0; number < THREADS; number++)
        CALL(pthread_join, threads[number], NULL);
    printf("%d\n", atomic_load(&stream_count));
    return 0;
}
