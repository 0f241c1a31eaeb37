/* What the simulated libruntime asks of the simulated libascend_hal besides the driver's own calls (hal/abi.h). These
 * are the simulator's own functions: the driver's have no usable source (docs/decisions/native-limiters.md).
 *
 * A device is named by its logical id: what the process's container has, counted. ASCEND_VISIBLE_DEVICES lists their
 * physical ids, as Ascend's container runtime takes them; without it there are all, and both ids are the same.
 */
#ifndef HETERO_FAKE_ASCEND_HAL_H
#define HETERO_FAKE_ASCEND_HAL_H

#include "hal/abi.h"

#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

struct fake_npu { /* as a driver tells it */
    char model[32];
    unsigned char uuid[16]; /* the first four words of its die */
    uint64_t bytes_per_s;   /* of its memory */
    unsigned physical_id, core_count;
    bool has_hbm;
};
EXPORT unsigned fake_hal_count(void); /* 0: there is no rack, or it has no card for this process */
EXPORT bool fake_hal_device(unsigned device, struct fake_npu *npu);

/* The process is on the card from the first allocation or this on. False: the card takes no more. */
EXPORT bool fake_hal_open(unsigned device);
/* Drops all that the process has on the card. Its memory is not freed one by one: no halMemFree is called. */
EXPORT void fake_hal_close(unsigned device);
EXPORT void fake_hal_memory(unsigned device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Shared memory by a name of up to FAKE_NAME_BYTES, its end included. It is opened by the processes whose PIDs its
 * maker says (NULL: by all), until it ends the name. */
#define FAKE_NAME_BYTES 65u
EXPORT drvError_t fake_hal_share(const void *pointer, char *name);
EXPORT drvError_t fake_hal_share_with(const char *name, const int32_t *pids, size_t count);
EXPORT drvError_t fake_hal_share_end(const char *name);
#define FAKE_NO_PERMISSION ((drvError_t)46) /* the simulator's own number */
EXPORT drvError_t fake_hal_share_open(const char *name, void **pointer);
EXPORT drvError_t fake_hal_share_close(const void *pointer);

/* Physical memory and addresses. */
EXPORT drvError_t fake_hal_retain(const void *address, drv_mem_handle_t **handle);
EXPORT drvError_t halMemAddressReserve(void **pointer, size_t bytes, size_t alignment, void *address, uint64_t flag);
EXPORT drvError_t halMemAddressFree(void *pointer);
EXPORT drvError_t halMemSetAccess(void *address, size_t bytes, const void *access, size_t count);
EXPORT drvError_t halMemGetAllocationGranularity(const struct drv_mem_prop *property, uint32_t option, size_t *bytes);

/* Time. A task is done when the card has served its fence; tasks are sent by halSqTaskSend. */
struct fake_task { /* one entry of a send queue */
    uint64_t length_ns;
    unsigned char rest[56];
};
struct fake_task_send { /* F has the layout */
    uint32_t type, engine, queue;
    int32_t timeout_ms;
    struct fake_task *entries;
    uint32_t entry_count, position; /* position: output */
    uint32_t reserved[8];
};
EXPORT uint64_t fake_hal_kernel_ns(const char *name, const void *arguments);
EXPORT uint64_t fake_hal_fence(unsigned device); /* of all that was sent so far */
EXPORT bool fake_hal_done(unsigned device, uint64_t fence);
EXPORT void fake_hal_wait(unsigned device, uint64_t fence);
EXPORT uint64_t fake_hal_when(unsigned device, uint64_t fence); /* of CLOCK_MONOTONIC, in ns; of a fence that is done */

/* Of halMemAlloc's flag, which of the three page sizes is meant: the simulator's own bits, as no source tells. */
#define FAKE_PAGES_SHIFT 20
#define FAKE_PAGES(flag) ((unsigned)((flag) >> FAKE_PAGES_SHIFT & 3))
#define FAKE_PAGE_BYTES(pages)                                                                                         \
    ((pages) == MEM_GIANT_PAGE_TYPE  ? UINT64_C(1) << 30                                                               \
     : (pages) == MEM_HUGE_PAGE_TYPE ? UINT64_C(1) << 21                                                               \
                                     : UINT64_C(1) << 12)

#endif
