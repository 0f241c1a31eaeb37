/* Prepares the books of what the process holds, and has a child of fork forget its parent's (start.h). */
#include "start.h"

#include "types.h"

#include "array.h"
#include "blocks.h"
#include "borrowed.h"
#include "capturing.h"
#include "charge.h"
#include "context.h"
#include "device.h"
#include "early.h"
#include "local.h"
#include "module.h"
#include "page_tables.h"
#include "pools.h"
#include "reclaim.h"
#include "uncounted.h"
#include "virtual.h"

void books_after_fork(void)
{
    device_after_fork();
    context_after_fork();
    pools_after_fork();
    blocks_after_fork();
    reclaim_after_fork();
    virtual_after_fork();
    tables_after_fork();
    uncounted_after_fork();
    limits_after_fork();
    local_after_fork();
    graphs_after_fork();
}

void prepare_charges(void)
{
    set_refund_function(HELD_POINTER, pointer_freed);
    set_refund_function(HELD_BLOCK, block_context_ended);
    set_refund_function(HELD_CHUNK, pointer_freed);
    set_refund_function(HELD_FREED, pointer_freed);
    set_refund_function(HELD_ARRAY, array_freed);
    set_refund_function(HELD_MODULE, module_unloaded);
    set_refund_function(HELD_RESIDENCE, give_back_bytes);
    set_refund_function(HELD_IMPORTED, imported_freed);
    set_refund_function(HELD_GREEN, give_back_bytes);
    set_refund_function(HELD_LOCAL, give_back_bytes);
    set_refund_function(HELD_SCRATCH, give_back_bytes);
    set_refund_function(HELD_NODES, give_back_bytes);
    tables_prepare();
    for (uint32_t limit = CONTEXT_LIMIT; limit < HELD_CHUNK; limit++)
        set_refund_function(limit, give_back_bytes);
    set_reclaimer(reclaim_freed);
    early_prepare();
}
