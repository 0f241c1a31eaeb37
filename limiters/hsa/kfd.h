/* Our own declarations of the ioctls by which AMD's libraries allocate memory from the kernel's driver. The public
 * reference is Linux's kfd_ioctl.h; tests/limiters compares them with it. */
#ifndef HETERO_KFD_H
#define HETERO_KFD_H

#include <stdint.h>

struct kfd_ioctl_create_queue_args {
    uint64_t ring_base_address, write_pointer_address, read_pointer_address, doorbell_offset;
    uint32_t ring_size, gpu_id, queue_type, queue_percentage, queue_priority, queue_id;
    uint64_t eop_buffer_address, eop_buffer_size, ctx_save_restore_address;
    uint32_t ctx_save_restore_size, ctl_stack_size;
};

struct kfd_ioctl_set_scratch_backing_va_args {
    uint64_t va_addr; /* in units of 64 KiB */
    uint32_t gpu_id, pad;
};

struct kfd_ioctl_alloc_memory_of_gpu_args {
    uint64_t va_addr, size, handle, mmap_offset;
    uint32_t gpu_id, flags;
};

struct kfd_ioctl_free_memory_of_gpu_args {
    uint64_t handle;
};

#define AMDKFD_IOC_CREATE_QUEUE           UINT32_C(0xC0584B02)
#define AMDKFD_IOC_SET_SCRATCH_BACKING_VA UINT32_C(0xC0104B11)
#define AMDKFD_IOC_ALLOC_MEMORY_OF_GPU    UINT32_C(0xC0284B16)
#define AMDKFD_IOC_FREE_MEMORY_OF_GPU     UINT32_C(0x40084B17)

/* A request without its size, which grows as members are appended: a queue's is 8 bytes more from KFD 1.17 on. */
static inline uint32_t request_kind(unsigned long request)
{
    return (uint32_t)request & ~UINT32_C(0x3FFF0000);
}

#define KFD_IOC_ALLOC_MEM_FLAGS_VRAM          (UINT32_C(1) << 0)
#define KFD_IOC_ALLOC_MEM_FLAGS_NO_SUBSTITUTE (UINT32_C(1) << 28)
#define KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE      (UINT32_C(1) << 31)

#endif
