/* Memory at the upper two layers. What it takes is charged at hal (../hal/book.c). Here the code of a refusal is named:
 * of what the runtime may make of hal's code, programs take one alone for being out of memory. */
#include "../hal/mark.h"
#include "../shared/bodies.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"

#include "../core/fault.h"
#include "../core/log.h"

#include <stdatomic.h>

/* An allocation of so many bytes has pages of its own, and the runtime asks hal for them. */
#define OWN_PAGES_FROM (UINT64_C(2) << 20)

/* Whether hal was ever asked for memory, and the bytes of allocations for which it was not. */
static atomic_bool is_hal_seen;
static _Atomic uint64_t unseen_bytes;

static enum page_choice pages_of(aclrtMemMallocPolicy policy)
{
    switch (policy & 0xff) {
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P: return PAGES_HUGE;
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P: return PAGES_NORMAL;
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: return PAGES_GIANT;
    default: return PAGES_BY_SIZE;
    }
}

/* Whether an allocation for which hal was not asked is past the limiter. Small ones may be parts of what the runtime
 * has, once it has something. */
static bool is_past_limiter(uint64_t bytes)
{
    if (!counted(device_current()) || FAULT(unseen_driver_trusted))
        return false;
    return bytes >= OWN_PAGES_FROM ||
           (!atomic_load(&is_hal_seen) && atomic_fetch_add(&unseen_bytes, bytes) + bytes >= OWN_PAGES_FROM);
}

/* The answer to a call that allocated `bytes`, where `mark` was closed after it. Fails closed: what hal was not seen to
 * give is freed. */
static result_t settle_marked(result_t answer, struct mark mark, void *made, uint64_t bytes, result_t (*free)(void *))
{
    static atomic_flag is_noticed = ATOMIC_FLAG_INIT;
    if (mark.is_seen)
        atomic_store(&is_hal_seen, true);
    if (answer != RESULT_OK)
        return mark.is_refused && !FAULT(refusal_unnamed) ? ERROR(OUT_OF_MEMORY) : answer;
    if (mark.is_seen || !is_past_limiter(bytes))
        return answer;
    log_line(atomic_flag_test_and_set(&is_noticed) ? LOG_INFO : LOG_NOTICE,
             "libascend_hal's functions are not seen, so memory cannot be limited: refused");
    if (free != NULL)
        free(made);
    return ERROR(OUT_OF_MEMORY);
}

#define MARKED(pages, output, bytes, free, call)                                                                       \
    do {                                                                                                               \
        mark_open(pages, device_current());                                                                            \
        result_t answer = call;                                                                                        \
        return settle_marked(answer, mark_close(), (output) == NULL ? NULL : *(output), bytes, free);                  \
    } while (0)

result_t allocate(result_t (*real)(void **, size_t, aclrtMemMallocPolicy), void **pointer, size_t bytes,
                  aclrtMemMallocPolicy policy)
{
    MARKED(pages_of(policy), pointer, bytes, DRIVER(Free), real(pointer, bytes, policy));
}

result_t allocate_with(result_t (*real)(void **, size_t, aclrtMemMallocPolicy, void *), void **pointer, size_t bytes,
                       aclrtMemMallocPolicy policy, void *config)
{
    MARKED(pages_of(policy), pointer, bytes, DRIVER(Free), real(pointer, bytes, policy, config));
}

result_t allocate_physical(result_t (*real)(aclrtDrvMemHandle *, size_t, const aclrtPhysicalMemProp *, uint64_t),
                           aclrtDrvMemHandle *handle, size_t bytes, const aclrtPhysicalMemProp *property,
                           uint64_t flags)
{
    MARKED(PAGES_BY_SIZE, handle, bytes, DRIVER(FreePhysical), real(handle, bytes, property, flags));
}

/* The runtime's own. No source has the bits of `type` and `policy` that tell of pages. */

result_t allocate_of_type(result_t (*real)(void **, uint64_t, uint32_t, uint16_t), void **pointer, uint64_t bytes,
                          uint32_t type, uint16_t module)
{
    MARKED(PAGES_BY_SIZE, pointer, bytes, REAL(rtFree), real(pointer, bytes, type, module));
}

result_t allocate_media(result_t (*real)(void **, uint64_t, uint16_t), void **pointer, uint64_t bytes, uint16_t module)
{
    MARKED(PAGES_BY_SIZE, pointer, bytes, REAL(rtFree), real(pointer, bytes, module));
}

result_t allocate_by_policy(result_t (*real)(void **, uint64_t, uint32_t, uint32_t, void *), void **pointer,
                            uint64_t bytes, uint32_t policy, uint32_t advice, void *config)
{
    MARKED(PAGES_BY_SIZE, pointer, bytes, REAL(rtFree), real(pointer, bytes, policy, advice, config));
}

result_t allocate_physical_of(result_t (*real)(rtDrvMemHandle *, size_t, void *, uint64_t), rtDrvMemHandle *handle,
                              size_t bytes, void *property, uint64_t flags)
{
    MARKED(PAGES_BY_SIZE, handle, bytes, DRIVER(FreePhysical), real(handle, bytes, property, flags));
}

result_t release(result_t (*real)(void *), void *pointer)
{
    mark_open(PAGES_BY_SIZE, device_current());
    result_t answer = real(pointer);
    mark_close();
    return answer;
}
