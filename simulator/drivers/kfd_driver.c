/* The kernel driver below the library. Requests go through ioctl, so that a library preloaded before ioctl sees them
 * and can refuse them. This file answers them where this library is preloaded. Elsewhere no driver answers, and the
 * library continues as if the request had been granted. */
#include "kfd.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DRIVER -0x4b4644 /* no process has this file descriptor */

EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments_left;
    va_start(arguments_left, request);
    void *arguments = va_arg(arguments_left, void *);
    va_end(arguments_left);
    return fd == DRIVER ? 0 : (int)syscall(SYS_ioctl, fd, request, arguments);
}

static int (*program_ioctl)(int, unsigned long, ...);

/* The program's ioctl, since this library is linked to prefer its own symbols. */
void driver_open(void)
{
    *(void **)&program_ioctl = dlsym(dlopen(NULL, RTLD_LAZY), "ioctl");
}

static bool ask(unsigned long request, void *arguments)
{
    return !program_ioctl(DRIVER, request, arguments) || errno != ENOMEM;
}

/* As the library numbers them in its descriptions of nodes. */
static uint32_t gpu_id(uint32_t node)
{
    return node * 0x1111;
}

uint64_t driver_allocate(uint32_t node, const void *address, uint64_t size)
{
    static uint64_t handles;
    struct kfd_ioctl_alloc_memory_of_gpu_args arguments = {.va_addr = (uintptr_t)address,
                                                           .size = size,
                                                           .handle = ++handles,
                                                           .gpu_id = gpu_id(node),
                                                           .flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM |
                                                                    KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE |
                                                                    KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE};
    return ask(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &arguments) ? arguments.handle : 0;
}

void driver_free(uint64_t handle)
{
    ask(AMDKFD_IOC_FREE_MEMORY_OF_GPU, &(struct kfd_ioctl_free_memory_of_gpu_args){.handle = handle});
}

void driver_set_scratch(uint32_t node, const void *address)
{
    ask(AMDKFD_IOC_SET_SCRATCH_BACKING_VA,
        &(struct kfd_ioctl_set_scratch_backing_va_args){.va_addr = (uintptr_t)address >> 16, .gpu_id = gpu_id(node)});
}

/* As of KFD 1.17; its two more members stay 0. */
void driver_create_queue(uint32_t node)
{
    struct {
        struct kfd_ioctl_create_queue_args known;
        uint32_t engine, pad;
    } arguments = {.known.gpu_id = gpu_id(node)};
    ask(AMDKFD_IOC_CREATE_QUEUE + ((sizeof arguments - sizeof arguments.known) << 16), &arguments);
}
