/* What Ascend's runtime asks of libascend_hal.so, the library below it: our own declarations, with the keys of their
 * sources (docs/decisions/native-limiters.md). No header of the driver was used.
 *
 * The device is in the call: in the flag, or in the property.
 */
#ifndef HETERO_HAL_ABI_H
#define HETERO_HAL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* S */
typedef enum {
    DRV_ERROR_NONE = 0,
    DRV_ERROR_INVALID_DEVICE = 2,
    DRV_ERROR_INVALID_VALUE = 3,
    DRV_ERROR_OUT_OF_MEMORY = 6,
    DRV_ERROR_NOT_SUPPORT = 0xfffe,
} drvError_t;

typedef struct drv_mem_handle drv_mem_handle_t; /* never looked into */

/* S, F */
struct drv_mem_prop {
    uint32_t side, device, module;
    uint32_t page_type, memory_type;
    uint64_t reserved;
};
/* F */
enum { MEM_HOST_SIDE, MEM_DEV_SIDE };
enum { MEM_NORMAL_PAGE_TYPE, MEM_HUGE_PAGE_TYPE, MEM_GIANT_PAGE_TYPE };

/* S. Of halMemAlloc's flag. */
#define HAL_DEVICE(flag) ((uint32_t)((flag) & 0x3ff))
#define HAL_KIND(flag)   ((uint32_t)((flag) >> 10 & 0xf))
#define HAL_KIND_HOST    2u
#define HAL_KIND_MEDIA   3u
#define HAL_MODULE(flag) ((uint32_t)((flag) >> 56))

/* S */
drvError_t halMemAlloc(void **pointer, unsigned long long bytes, unsigned long long flag);
drvError_t halMemAllocInner(void **pointer, unsigned long long bytes, unsigned long long flag);
drvError_t halMemFree(void *pointer);
drvError_t halMemFreeInner(void *pointer);
drvError_t halMemCreateInner(drv_mem_handle_t **handle, size_t bytes, const struct drv_mem_prop *property,
                             uint64_t flags);
drvError_t halMemReleaseInner(drv_mem_handle_t *handle);
/* S, F */
drvError_t halMemCreate(drv_mem_handle_t **handle, size_t bytes, const struct drv_mem_prop *property, uint64_t flags);
drvError_t halMemRelease(drv_mem_handle_t *handle);
/* F */
drvError_t halMemMap(void *address, size_t bytes, size_t offset, drv_mem_handle_t *handle, uint64_t flags);
drvError_t halMemUnmap(void *address);
drvError_t halMemExportToShareableHandleV2(drv_mem_handle_t *handle, uint32_t type, uint64_t flags, void *shared);
drvError_t halMemImportFromShareableHandleV2(uint32_t type, void *shared, uint32_t device, drv_mem_handle_t **handle);
drvError_t halSqTaskSend(uint32_t device, void *task);

#endif
