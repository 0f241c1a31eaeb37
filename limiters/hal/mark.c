/* The mark of each thread (mark.h). */
#include "mark.h"

#include "outside.h"

#include "../shared/counted.h"

#include <stdatomic.h>

static __thread struct mark mark;
static atomic_bool has_exported; /* set with the first, never cleared */

void mark_exports(void)
{
    atomic_store(&has_exported, true);
}

struct card_use mark_use(int device)
{
    set_outside_runtime(true);
    struct card_use use = card_use(device);
    set_outside_runtime(false);
    return use;
}

bool mark_got_back(int device, struct card_use use_before, uint64_t bytes)
{
    set_outside_runtime(true);
    bool is_back = card_got_back(device, use_before, bytes);
    set_outside_runtime(false);
    return is_back;
}

void mark_open(enum page_choice pages, int device)
{
    mark = (struct mark){.pages = pages, .is_open = true, .device = device};
    if (counted(device) && atomic_load(&has_exported))
        mark.use_before = mark_use(device);
}

struct mark mark_close(void)
{
    struct mark closed = mark;
    if (closed.left_bytes > 0 && mark_got_back(closed.device, closed.use_before, closed.left_bytes)) {
        refund(closed.device, closed.left_bytes);
        report_shared(closed.device, -(int64_t)closed.left_bytes);
    }
    mark.is_open = false;
    return closed;
}

void mark_seen(void)
{
    mark.is_seen = true;
}

void mark_refused(void)
{
    mark.is_refused = true;
}

void mark_left(int device, uint64_t bytes)
{
    if (mark.is_open && mark.device == device)
        mark.left_bytes += bytes;
}

uint64_t whole_pages(uint64_t bytes, uint64_t page_bytes)
{
    uint64_t end;
    return __builtin_add_overflow(bytes, page_bytes - 1, &end) ? UINT64_MAX : end / page_bytes * page_bytes;
}

uint64_t mark_taken_bytes(uint64_t bytes)
{
    switch (mark.is_open ? mark.pages : PAGES_BY_SIZE) {
    case PAGES_NORMAL: return whole_pages(bytes, PAGE_BYTES_NORMAL);
    case PAGES_HUGE: return whole_pages(bytes, PAGE_BYTES_HUGE);
    case PAGES_GIANT: return whole_pages(bytes, PAGE_BYTES_GIANT);
    default: return whole_pages(bytes, bytes > PAGES_HUGE_FROM ? PAGE_BYTES_HUGE : PAGE_BYTES_NORMAL);
    }
}

void mark_after_fork(void)
{
    mark = (struct mark){0};
}
