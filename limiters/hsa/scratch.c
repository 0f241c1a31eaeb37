/* Scratch: what a kernel's threads have of their own, arrays and spills. The HSA runtime takes it of a card when a
 * queue meets a kernel that needs more than the queue has, in a thread of the runtime's, and may keep it. No function
 * of HIP or HSA tells of it: the library below, which AMD links into the runtime, asks the kernel's driver by ioctl. So
 * it is charged there. Where it does not fit the driver is not asked, and the runtime does as on a full card: it gives
 * back what no kernel uses, then runs fewer of the kernel's threads at a time.
 *
 * All other memory of a card has other addresses, and is charged by the call that it is for.
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

/* Addresses of one die: 8 GiB from gfx12 on (MaxScratchDevice of late ROCr). */
#define ADDRESSES_OF_DIE (UINT64_C(4) << 30)

/* The device that this thread makes a queue of, and its addresses of scratch. */
static __thread int making = DEVICE_NONE;
static __thread uint64_t making_addresses;

/* ------------------------------------------------------------------------------------- what is behind us: libc's, or
 * what else was loaded in front of it */

typedef int (*ioctl_function)(int, unsigned long, void *);
static ioctl_function next; /* written while this library is loaded; until then the kernel is asked at once */

__attribute__((constructor)) static void find_next(void)
{
    next = (ioctl_function)libc_dlsym(RTLD_NEXT, "ioctl");
}

static int pass(int file, unsigned long request, void *argument)
{
    return next != NULL ? next(file, request, argument) : (int)syscall(SYS_ioctl, file, request, argument);
}

/* ------------------------------------------------------------------------------------------ the driver's own numbers
 */

/* No other driver's request has all of these bits. */
static bool is(unsigned long request, uint32_t one)
{
    return request_kind(request) == request_kind(one);
}

/* What is known of a card by the driver's number of it. */
static struct entry card_of(uint32_t number)
{
    struct entry card = {.kind = CARD_SCRATCH, .key = number, .device = DEVICE_NONE};
    table_get(CARD_SCRATCH, number, &card);
    return card;
}

static void note_scratch(const struct kfd_ioctl_set_scratch_backing_va_args *asked)
{
    struct entry card = card_of(asked->gpu_id);
    card.bytes = asked->va_addr << 16;
    keep_entry(&card);
}

static void note_queue(const struct kfd_ioctl_create_queue_args *asked)
{
    struct entry card = card_of(asked->gpu_id);
    card.device = making;
    card.link = (void *)(uintptr_t)making_addresses;
    if (making != DEVICE_NONE)
        keep_entry(&card);
}

static uint64_t addresses_of(hsa_agent_t agent)
{
    char name[64] = "";
    uint32_t dies = 0;
    typeof(&hsa_agent_get_info) get = REAL(hsa_agent_get_info);
    if (get == NULL || get(agent, HSA_AMD_AGENT_INFO_NUM_XCC, &dies) != HSA_STATUS_SUCCESS || dies == 0)
        dies = 1; /* a runtime of before there were several */
    bool late = get != NULL && get(agent, HSA_AGENT_INFO_NAME, name) == HSA_STATUS_SUCCESS &&
                strncmp(name, "gfx12", strlen("gfx12")) == 0;
    return dies * (late ? 2 * ADDRESSES_OF_DIE : ADDRESSES_OF_DIE);
}

hsa_status_t create_queue(typeof(&hsa_queue_create) real, hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type,
                          void (*on_error)(hsa_status_t, hsa_queue_t *, void *), void *data, uint32_t private_bytes,
                          uint32_t group_bytes, hsa_queue_t **queue)
{
    making = device_of_agent(agent);
    making_addresses = addresses_of(agent);
    hsa_status_t answer = real(agent, size, type, on_error, data, private_bytes, group_bytes, queue);
    making = DEVICE_NONE;
    return answer;
}

/* ------------------------------------------------------------------------------------------------------ what is asked
 */

/* The device that scratch is asked of; DEVICE_NONE: other memory, or a card that no queue was made of. A queue may be
 * made with scratch. */
static int scratch_device(const struct kfd_ioctl_alloc_memory_of_gpu_args *asked)
{
    struct entry card = card_of(asked->gpu_id);
    if (making != DEVICE_NONE) {
        card.device = making;
        card.link = (void *)(uintptr_t)making_addresses;
    }
    bool scratch = (asked->flags & KFD_IOC_ALLOC_MEM_FLAGS_VRAM) != 0 && card.bytes != 0 &&
                   asked->va_addr >= card.bytes && asked->va_addr - card.bytes < (uintptr_t)card.link;
    return scratch ? card.device : DEVICE_NONE;
}

/* The program is refused nothing, it is slower; unless not even one group of threads for each of the card's units fits,
 * which ends it. Its user is told once. */
static void log_little(int device, uint64_t bytes)
{
    static atomic_flag noticed = ATOMIC_FLAG_INIT;
    log_line(atomic_flag_test_and_set(&noticed) ? LOG_INFO : LOG_NOTICE,
             "device %d: %llu MiB that a kernel's threads have of their own do not fit: fewer of them run at a time",
             device, (unsigned long long)(bytes + (1 << 20) - 1) >> 20);
}

static int allocate_memory(int file, unsigned long request, struct kfd_ioctl_alloc_memory_of_gpu_args *asked)
{
    int device = scratch_device(asked);
    uint64_t bytes = asked->size;
    if (device == DEVICE_NONE || (device >= 0 && !counted(device)))
        return pass(file, request, asked);
    if (!FAULT(scratch_uncharged) && !charge_if_free(device, bytes)) {
        log_little(device, bytes);
        errno = ENOMEM;
        return -1;
    }
    int answer = pass(file, request, asked), why = errno;
    if (answer == 0)
        keep_entry(&(struct entry){.kind = HELD_SCRATCH, .key = asked->handle, .device = device, .bytes = bytes});
    else
        refund(device, bytes);
    errno = why;
    return answer;
}

/* Forgotten before the driver is asked, for it may hand the name out again at once. */
static int free_memory(int file, unsigned long request, struct kfd_ioctl_free_memory_of_gpu_args *asked)
{
    struct entry held, previous;
    bool ours = table_take(HELD_SCRATCH, asked->handle, &held);
    int answer = pass(file, request, asked), why = errno;
    if (ours && answer == 0)
        refund(held.device,
               FAULT_VALUE(scratch_stays_charged, held.bytes, 0)); /* HIP's functions may never have been called */
    else if (ours)
        table_put(&held, &previous);
    errno = why;
    return answer;
}

/* What tells of a card is noted when the driver has taken it. */
static int pass_and_note(int file, unsigned long request, void *argument)
{
    int answer = pass(file, request, argument), why = errno;
    if (answer == 0 && is(request, AMDKFD_IOC_CREATE_QUEUE))
        note_queue(argument);
    else if (answer == 0)
        note_scratch(argument);
    errno = why;
    return answer;
}

__attribute__((visibility("default"))) int ioctl(int file, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    bool tells = is(request, AMDKFD_IOC_CREATE_QUEUE) || is(request, AMDKFD_IOC_SET_SCRATCH_BACKING_VA);
    bool takes = is(request, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU), frees = is(request, AMDKFD_IOC_FREE_MEMORY_OF_GPU);
    if (!(tells || takes || frees) || argument == NULL || tenancy() == TENANCY_FREE)
        return pass(file, request, argument);
    if (tells)
        return pass_and_note(file, request, argument);
    return takes ? allocate_memory(file, request, argument) : free_memory(file, request, argument);
}
