/* Charges scratch: the private memory of a kernel's threads, which has arrays and spilled registers. The HSA runtime
 * allocates it when a queue gets a kernel that needs more than the queue has. It does so in a thread of its own, and
 * may keep it. No function of HIP or HSA tells of it: the library below, which AMD links into the runtime, allocates it
 * by ioctl. So it is charged there. If it does not fit, the ioctl fails, and the runtime does as on a full card: it
 * frees scratch that no kernel uses, then runs fewer of the kernel's threads at a time.
 *
 * All other memory of a card has other addresses, and is charged by the call that allocates it.
 */
#include "bodies.h"
#include "driver.h"
#include "kfd.h"

#include "../shared/charge.h"

#include "../core/fault.h"
#include "../core/libc.h"
#include "../core/log.h"
#include "../core/tenant.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The bytes of scratch addresses of one die; twice as many from gfx12 on (MaxScratchDevice of new ROCr versions). */
#define SCRATCH_SPAN_OF_DIE (UINT64_C(4) << 30)

/* The device on which this thread is making a queue, and the bytes of its scratch addresses. */
static __thread int queue_device = DEVICE_NONE;
static __thread uint64_t queue_scratch_span;

/* ------------------------------------------------------------------------------------- what is behind us: libc's, or
 * what else was loaded in front of it */

typedef int (*ioctl_function)(int, unsigned long, void *);
static ioctl_function next_ioctl; /* set when this library is loaded; NULL before that: the system call is made */

__attribute__((constructor)) static void find_next_ioctl(void)
{
    next_ioctl = (ioctl_function)libc_dlsym(RTLD_NEXT, "ioctl");
}

static int call_next(int fd, unsigned long request, void *argument)
{
    return next_ioctl != NULL ? next_ioctl(fd, request, argument) : (int)syscall(SYS_ioctl, fd, request, argument);
}

/* ------------------------------------------------------------------------------------------ the driver's own numbers
 */

/* Whether this is the request, whatever its size. No other driver's request has all of these bits. */
static bool is_request(unsigned long request, uint32_t known_request)
{
    return request_kind(request) == request_kind(known_request);
}

/* The entry of a card, by the kernel driver's number of it. */
static struct entry card_of(uint32_t gpu_id)
{
    struct entry card_entry = {.kind = CARD_SCRATCH, .key = gpu_id, .device = DEVICE_NONE};
    table_get(CARD_SCRATCH, gpu_id, &card_entry);
    return card_entry;
}

static void note_scratch(const struct kfd_ioctl_set_scratch_backing_va_args *arguments)
{
    struct entry card_entry = card_of(arguments->gpu_id);
    card_entry.key_or_address = arguments->va_addr << 16;
    keep_entry(&card_entry);
}

static void note_queue(const struct kfd_ioctl_create_queue_args *arguments)
{
    struct entry card_entry = card_of(arguments->gpu_id);
    card_entry.device = queue_device;
    card_entry.second_bytes = queue_scratch_span;
    if (queue_device != DEVICE_NONE)
        keep_entry(&card_entry);
}

static uint64_t scratch_span_of(hsa_agent_t agent)
{
    char name[64] = "";
    uint32_t die_count = 0;
    typeof(&hsa_agent_get_info) get_info = REAL(hsa_agent_get_info);
    if (get_info == NULL || get_info(agent, HSA_AMD_AGENT_INFO_NUM_XCC, &die_count) != HSA_STATUS_SUCCESS ||
        die_count == 0)
        die_count = 1; /* an older runtime, for cards with one die */
    bool is_gfx12 = get_info != NULL && get_info(agent, HSA_AGENT_INFO_NAME, name) == HSA_STATUS_SUCCESS &&
                    strncmp(name, "gfx12", strlen("gfx12")) == 0;
    return die_count * (is_gfx12 ? 2 * SCRATCH_SPAN_OF_DIE : SCRATCH_SPAN_OF_DIE);
}

hsa_status_t create_queue(typeof(&hsa_queue_create) real, hsa_agent_t agent, uint32_t packet_count,
                          hsa_queue_type32_t type, void (*on_error)(hsa_status_t, hsa_queue_t *, void *),
                          void *error_data, uint32_t private_bytes, uint32_t group_bytes, hsa_queue_t **queue)
{
    queue_device = device_of_agent(agent);
    queue_scratch_span = scratch_span_of(agent);
    hsa_status_t answer = real(agent, packet_count, type, on_error, error_data, private_bytes, group_bytes, queue);
    queue_device = DEVICE_NONE;
    return answer;
}

/* ------------------------------------------------------------------------------------------------------ what is asked
 */

/* The device on which scratch is allocated; DEVICE_NONE: it is other memory, or the card has no queue. Scratch may be
 * allocated while the first queue is being made. */
static int scratch_device(const struct kfd_ioctl_alloc_memory_of_gpu_args *arguments)
{
    struct entry card_entry = card_of(arguments->gpu_id);
    if (queue_device != DEVICE_NONE) {
        card_entry.device = queue_device;
        card_entry.second_bytes = queue_scratch_span;
    }
    bool is_scratch = (arguments->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) != 0 && card_entry.key_or_address != 0 &&
                      arguments->va_addr >= card_entry.key_or_address &&
                      arguments->va_addr - card_entry.key_or_address < card_entry.second_bytes;
    return is_scratch ? card_entry.device : DEVICE_NONE;
}

/* The program becomes slower. If not even one group of threads for each of the card's units fits, it ends. A notice
 * says so once. */
static void log_scratch_refused(int device, uint64_t bytes)
{
    static atomic_flag is_noticed = ATOMIC_FLAG_INIT;
    log_line(atomic_flag_test_and_set(&is_noticed) ? LOG_INFO : LOG_NOTICE,
             "device %d: %llu MiB that a kernel's threads have of their own do not fit: fewer of them run at a time",
             device, (unsigned long long)(bytes + (1 << 20) - 1) >> 20);
}

static int allocate_memory(int fd, unsigned long request, struct kfd_ioctl_alloc_memory_of_gpu_args *arguments)
{
    int device = scratch_device(arguments);
    uint64_t bytes = arguments->size;
    if (device == DEVICE_NONE || (device >= 0 && !counted(device)))
        return call_next(fd, request, arguments);
    if (!FAULT(scratch_uncharged) && !charge_if_free(device, bytes)) {
        log_scratch_refused(device, bytes);
        errno = ENOMEM;
        return -1;
    }
    int answer = call_next(fd, request, arguments), error_number = errno;
    if (answer == 0)
        keep_entry(&(struct entry){.kind = HELD_SCRATCH, .key = arguments->handle, .device = device, .bytes = bytes});
    else
        refund(device, bytes);
    errno = error_number;
    return answer;
}

/* The entry is taken out before the driver is called, because it may reuse the handle at once. */
static int free_memory(int fd, unsigned long request, struct kfd_ioctl_free_memory_of_gpu_args *arguments)
{
    struct entry entry, previous;
    bool is_known = table_take(HELD_SCRATCH, arguments->handle, &entry);
    int answer = call_next(fd, request, arguments), error_number = errno;
    if (is_known && answer == 0)
        refund(entry.device,
               FAULT_VALUE(scratch_stays_charged, entry.bytes, 0)); /* HIP's functions may never have been called */
    else if (is_known)
        table_put(&entry, &previous);
    errno = error_number;
    return answer;
}

/* A request that describes a card is noted after the driver has accepted it. */
static int call_next_and_note(int fd, unsigned long request, void *argument)
{
    int answer = call_next(fd, request, argument), error_number = errno;
    if (answer == 0 && is_request(request, AMDKFD_IOC_CREATE_QUEUE))
        note_queue(argument);
    else if (answer == 0)
        note_scratch(argument);
    errno = error_number;
    return answer;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list variable_arguments;
    va_start(variable_arguments, request);
    void *argument = va_arg(variable_arguments, void *);
    va_end(variable_arguments);
    bool describes_card = is_request(request, AMDKFD_IOC_CREATE_QUEUE) ||
                          is_request(request, AMDKFD_IOC_SET_SCRATCH_BACKING_VA);
    bool allocates = is_request(request, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU),
         frees = is_request(request, AMDKFD_IOC_FREE_MEMORY_OF_GPU);
    if (!(describes_card || allocates || frees) || argument == NULL || tenancy() == TENANCY_FREE)
        return call_next(fd, request, argument);
    if (describes_card)
        return call_next_and_note(fd, request, argument);
    return allocates ? allocate_memory(fd, request, argument) : free_memory(fd, request, argument);
}
