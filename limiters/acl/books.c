/* Prepares the books of what the process holds, and has a child of fork forget its parent's (../shared/start.h). */
#include "reset.h"

#include "../hal/book.h"
#include "../hal/mark.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/physical.h"
#include "../shared/start.h"

/* Nothing is kept that the limiter could have freed. */
static void reclaim_nothing(int device, uint64_t bytes)
{
    (void)device, (void)bytes;
}

void prepare_charges(void)
{
    set_refund_function(HELD_POINTER, give_back_bytes);
    set_reclaimer(reclaim_nothing);
}

void books_after_fork(void)
{
    device_after_fork();
    hal_devices_after_fork();
    physical_after_fork();
    reset_after_fork();
    mark_after_fork();
}
