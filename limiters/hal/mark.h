/* What a thread's call of the layers above sees of the calls of hal that the runtime makes in it.
 *
 * An upper body opens the mark, calls the runtime, and closes the mark. A thread has one: of calls within each other
 * the inner ones open none.
 */
#ifndef HETERO_HAL_MARK_H
#define HETERO_HAL_MARK_H

#include "../shared/card_use.h"

/* In what pages an allocation lies, as its caller says. By size: those of more than PAGES_HUGE_FROM bytes in huge ones,
 * others in normal ones (Huawei's guide on aclrtMalloc, for ACL_MEM_MALLOC_HUGE_FIRST). */
enum page_choice { PAGES_BY_SIZE, PAGES_NORMAL, PAGES_HUGE, PAGES_GIANT };
#define PAGES_HUGE_FROM   (UINT64_C(1) << 20)
#define PAGE_BYTES_NORMAL (UINT64_C(1) << 12)
#define PAGE_BYTES_HUGE   (UINT64_C(1) << 21)
#define PAGE_BYTES_GIANT  (UINT64_C(1) << 30)

struct mark {
    enum page_choice pages;
    bool is_open;
    bool is_seen;               /* hal was asked for memory */
    bool is_refused;            /* the limit refused some of it */
    int device;                 /* whose use was read before; a negative one: none's */
    struct card_use use_before; /* of that device */
    uint64_t left_bytes;        /* that were freed on it and stay charged, because others may have them */
};

/* Opens this thread's mark. The use of `device` is read if anything of it was exported. */
void mark_open(enum page_choice pages, int device);

/* Closes it, and gives back what the card is seen to have back. */
struct mark mark_close(void);

/* While no mark is open and the runtime is in no call: the card's use, and whether it has so many bytes back since. */
struct card_use mark_use(int device);
bool mark_got_back(int device, struct card_use use_before, uint64_t bytes);

/* What hal's bodies note. */
void mark_seen(void);
void mark_refused(void);
void mark_left(int device, uint64_t bytes);

/* Memory of the process is about to be exported for the first time. */
void mark_exports(void);

/* The bytes that an allocation takes, in whole pages; UINT64_MAX: too many. */
uint64_t mark_taken_bytes(uint64_t bytes);
uint64_t whole_pages(uint64_t bytes, uint64_t page_bytes);

void mark_after_fork(void);

#endif
