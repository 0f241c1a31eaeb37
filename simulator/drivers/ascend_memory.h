/* Inside the fake libascend_hal: the process's cards, and the ranges of its addresses. One lock guards both. */
#ifndef HETERO_FAKE_ASCEND_MEMORY_H
#define HETERO_FAKE_ASCEND_MEMORY_H

#include "ascend.h"
#undef EXPORT
#include "ascend_hal.h"

#include <pthread.h>

struct hal {
    pthread_mutex_t lock;
    struct engine *engine; /* NULL until opened */
    unsigned device_count;
    struct hal_device {
        const struct fake_card *card;
        struct account *account; /* NULL: the process is not on it */
    } devices[ENGINE_CARDS];     /* by logical id */
};
extern struct hal hal __attribute__((visibility("hidden")));

static inline void unlock_hal(char *guard UNUSED)
{
    pthread_mutex_unlock(&hal.lock);
}

/* Opens the driver with the first call. Holds the lock until the function returns. */
#define LOCKED                                                                                                         \
    pthread_mutex_lock(&hal.lock);                                                                                     \
    char guard UNUSED __attribute__((cleanup(unlock_hal))) = 0;                                                        \
    hal_open()

void hal_open(void);
struct account *hal_account(unsigned device);      /* joins the card; NULL: no such device, or no room on it */
const struct fake_card *hal_card(unsigned device); /* NULL: no such device */
unsigned hal_device_of(unsigned card); /* by the engine's number; device_count: the process does not see it */

enum range_kind { RANGE_DEVICE, RANGE_HOST, RANGE_OPENED, RANGE_RESERVED, RANGE_MAPPED };

struct range {
    char *start;
    uint64_t size_bytes, file_offset;
    enum range_kind kind;
    unsigned device;
    bool is_shared; /* by a name: `share` is valid, as it is of one that was opened */
    struct engine_share share;
    struct drv_mem_handle *handle; /* mapped here */
    struct range *next;
};

struct range *range_new(struct range template); /* NULL: no memory for it */
struct range *range_at(const void *start, enum range_kind kind);
struct range *range_around(const void *start, uint64_t size, enum range_kind kind); /* one that touches it */
void range_remove(struct range *range);
void range_unmap(struct range *range); /* the addresses alone */
int memory_file(void); /* of this process: what it allocates, in the order of the calls; -1: see errno */
uint64_t memory_file_take(uint64_t size); /* the offset of so many bytes that nobody had */
void ranges_leave(unsigned device);
void ranges_forget(void); /* in a forked child */
void handles_leave(unsigned device);
void handles_forget(void);

#endif
