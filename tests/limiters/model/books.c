/* The reference model (books.h). */
#include "books.h"

#include <string.h>

/* Number of the context's block that the rest of a larger allocation is in. */
#define WITH_CONTEXT UINT64_MAX

static uint64_t rounded(uint64_t bytes, uint64_t unit_bytes)
{
    return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

/* Allocations from 1 MiB on have blocks of their own. */
static uint64_t in_blocks(uint64_t bytes)
{
    return bytes < MIB ? 0 : rounded(bytes, BLOCK_BYTES);
}

#define EACH(thing, process)                                                                                           \
    for (struct thing *thing = (struct thing *)(process)->things; thing < (process)->things + CELLS; thing++)          \
        if (thing->kind != NOTHING)

bool books_has_context(const struct books *books, uint32_t process_index, uint32_t device)
{
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (books->processes[process_index].contexts[c].attach_count > 0 &&
            books->processes[process_index].contexts[c].device == device)
            return true;
    return false;
}

/* ----------------------------------------------------------------------------------------------------- what is charged
 */

/* Whether an earlier sub-allocation of the process is in the same block. */
static bool counted_before(const struct process *process, const struct thing *piece)
{
    for (const struct thing *thing = process->things; thing < piece; thing++)
        if (thing->kind == SUBALLOCATION && thing->block_number == piece->block_number)
            return true;
    return false;
}

/* The block of sub-allocations of this number, if another process may have it. */
static struct share *shared_block(const struct books *books, uint32_t process_index, uint64_t block)
{
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->maker_process == process_index && share->block_number == block &&
            share->maker_references > 0)
            return (struct share *)share;
    return NULL;
}

bool books_may_stay(const struct books *books, uint32_t process_index, const struct thing *piece)
{
    const struct process *process = &books->processes[process_index];
    bool has_small_array = false;
    if (piece->kind != SUBALLOCATION || shared_block(books, process_index, piece->block_number) == NULL)
        return false;
    EACH(thing, process)
    {
        if (thing != piece && thing->kind == SUBALLOCATION && thing->block_number == piece->block_number)
            return false;
        bool is_array = thing->kind == AN_ARRAY || thing->kind == A_MODULE || thing->kind == A_LIBRARY;
        has_small_array = has_small_array || (is_array && thing->bytes <= MIB &&
                                              (thing->device == piece->device || thing->kind == A_LIBRARY));
    }
    return has_small_array;
}

static uint64_t managed(const struct process *process, uint32_t device, uint64_t added_bytes)
{
    uint64_t bytes = added_bytes;
    EACH(thing, process)
    {
        bytes += thing->kind == MANAGED_POINTER && thing->device == device ? thing->bytes : 0;
    }
    return rounded(bytes, BATCH_BYTES);
}

uint64_t books_managed(const struct books *books, uint32_t process_index, uint32_t device)
{
    return managed(&books->processes[process_index], device, 0);
}

static unsigned contexts_on(const struct process *process, uint32_t device)
{
    unsigned count = 0;
    for (unsigned c = 0; c < CONTEXTS; c++)
        count += process->contexts[c].attach_count > 0 && process->contexts[c].device == device;
    return count;
}

/* What the next context of a process adds to its charges. */
static uint64_t next_context(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    bool is_charged = contexts_on(process, device) == 0 && process->keeps_context[device];
    return is_charged ? 0 : books->context_charges[process->grant];
}

static uint64_t of_contexts(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    unsigned count = contexts_on(process, device);
    return (count == 0 && process->keeps_context[device] ? 1 : count) * books->context_charges[process->grant];
}

uint64_t books_idle(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t charge_bytes = books->context_charges[process->grant], bytes = of_contexts(books, process_index, device);
    return charge_bytes == 0 ? 0 : bytes - contexts_on(process, device) * books->context_bytes;
}

uint64_t books_library(const struct books *books, uint32_t process_index, uint32_t device, uint64_t bytes)
{
    return contexts_on(&books->processes[process_index], device) * in_blocks(bytes);
}

/* Bytes of all libraries of the process in one context. */
static uint64_t of_libraries(const struct process *process)
{
    uint64_t bytes = 0;
    EACH(thing, process)
    {
        bytes += thing->kind == A_LIBRARY ? in_blocks(thing->bytes) : 0;
    }
    return bytes;
}

static uint64_t of_things(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t bytes = process->small_array_charged_bytes[device] + managed(process, device, 0) +
                     contexts_on(process, device) * of_libraries(process);
    EACH(thing, process)
    {
        if (thing->device != device)
            continue;
        if (thing->kind != SUBALLOCATION)
            bytes += thing->charged_bytes;
        else if (process->contexts[thing->context].own_block != thing->block_number &&
                 !counted_before(process, thing) && shared_block(books, process_index, thing->block_number) == NULL)
            bytes += BLOCK_BYTES;
    }
    for (unsigned context = 0; context < CONTEXTS; context++)
        if (process->contexts[context].attach_count > 0 && process->contexts[context].device == device)
            bytes += process->contexts[context].limit_bytes;
    return bytes;
}

static uint64_t of_shares(const struct books *books, uint32_t process_index, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->maker_process == process_index && share->device == device &&
            (share->maker_references > 0 || share->is_stuck))
            bytes += share->bytes;
    return bytes;
}

struct range books_charged(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t exact_bytes = of_things(books, process_index, device) + of_shares(books, process_index, device) +
                           of_contexts(books, process_index, device);
    struct range range = {exact_bytes + process->pool_bytes[device], exact_bytes + process->pool_peak_bytes[device]};
    for (const struct pending *pending = process->pending; pending < process->pending + PENDING; pending++) {
        if (!pending->is_used || pending->device != device)
            continue;
        range.min_bytes += pending->stream_cell != NONE ? pending->charged_bytes : 0;
        range.max_bytes += pending->charged_bytes;
    }
    return range;
}

uint64_t books_uncharged(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t bytes = 0;
    for (unsigned c = 0; c < CONTEXTS && books->context_charges[process->grant] == 0; c++)
        if (process->contexts[c].attach_count > 0 && process->contexts[c].device == device)
            bytes += books->context_bytes + BLOCK_BYTES;
    return bytes;
}

uint64_t books_stuck(const struct books *books, uint32_t process_index, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->maker_process == process_index && share->device == device && share->is_stuck)
            bytes += share->bytes;
    return bytes;
}

uint64_t books_streams(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t bytes = 0;
    for (unsigned c = 0; c < CONTEXTS; c++)
        bytes += process->contexts[c].attach_count > 0 && process->contexts[c].device == device ? BLOCK_BYTES : 0;
    return bytes;
}

uint64_t books_taken_over(const struct books *books, uint32_t process_index, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->device == device && share->maker_references == 0 &&
            share->open_counts[process_index] > 0)
            bytes += share->bytes;
    return bytes;
}

uint64_t books_unseen(const struct books *books, uint32_t process_index, uint32_t device)
{
    const struct process *process = &books->processes[process_index];
    uint64_t bytes = process->small_array_charged_bytes[device] + process->pool_peak_bytes[device] -
                     process->pool_bytes[device] + contexts_on(process, device) * of_libraries(process);
    EACH(thing, process)
    {
        if (thing->device == device && (thing->is_prepaid || thing->kind == A_MODULE))
            bytes += thing->charged_bytes;
    }
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (process->contexts[c].attach_count > 0 && process->contexts[c].device == device)
            bytes += process->contexts[c].rounding_bytes[0] + process->contexts[c].rounding_bytes[1] +
                     process->contexts[c].rounding_bytes[2];
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->is_pool && share->maker_process == process_index && share->device == device &&
            share->maker_references > 0)
            bytes += share->bytes - share->reserved_bytes;
    for (const struct pending *pending = process->pending; pending < process->pending + PENDING; pending++)
        bytes += pending->is_used && pending->device == device ? pending->charged_bytes : 0;
    return bytes + books_stuck(books, process_index, device) + books_managed(books, process_index, device);
}

uint64_t books_wanted(const struct books *books, uint32_t process_index, const struct call *call)
{
    const struct process *process = &books->processes[process_index];
    switch (call->kind) {
    case ALLOCATE:
    case PITCHED: return call->bytes < MIB ? BLOCK_BYTES : rounded(call->bytes, BLOCK_BYTES);
    case MANAGED: return managed(process, call->device, call->bytes) - managed(process, call->device, 0);
    case BLOCK: return call->bytes;
    case POOLED:
    case GRAPH: return rounded(call->bytes, CHUNK_BYTES);
    case LAUNCH:
        return process->things[call->cell].is_prepaid ? 0 : rounded(process->things[call->cell].bytes, CHUNK_BYTES);
    case ARRAY: return call->bytes <= MIB ? 2 * BLOCK_BYTES : rounded(call->bytes, BLOCK_BYTES);
    case MODULE: return in_blocks(call->bytes) + BLOCK_BYTES;
    case LIBRARY: return books_library(books, process_index, call->device, call->bytes) + BLOCK_BYTES;
    case RETAIN:
        if (process->contexts[call->device].attach_count > 0)
            return 0;
        return of_libraries(process) + next_context(books, process_index, call->device);
    case CREATE: return of_libraries(process) + next_context(books, process_index, call->device);
    case GREEN: return GREEN_BYTES;
    case SPARSE: /* refused where the figure is beyond the limit */
    case STREAM: return BLOCK_BYTES;
    case SHARE: { /* a block that is part of its context is charged once other processes may have it */
        const struct thing *thing = &process->things[call->cell];
        bool is_own_block = thing->kind == SUBALLOCATION &&
                            process->contexts[thing->context].own_block == thing->block_number;
        return is_own_block && shared_block(books, process_index, thing->block_number) == NULL ? BLOCK_BYTES : 0;
    }
    case LIMIT:
        return call->choice == 0 ? call->bytes * books->thread_count : rounded(call->bytes, BLOCK_BYTES) + BLOCK_BYTES;
    default: return 0;
    }
}

/* -------------------------------------------------------------------------------------------------- shares, and ends
 */

bool books_opened(const struct books *books, uint32_t grant)
{
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        for (uint32_t p = 0; share->is_used && p < PROCESSES; p++)
            if (share->open_counts[p] > 0 && books->processes[p].grant == grant)
                return true;
    return false;
}

static bool others_have(const struct share *share)
{
    unsigned count = share->file_count;
    for (uint32_t p = 0; p < PROCESSES; p++)
        count += share->open_counts[p];
    return count > 0;
}

uint64_t books_orphans(const struct books *books, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->is_used && share->device == device && share->maker_process == NONE && others_have(share))
            bytes += share->bytes;
    return bytes;
}

static void forget(struct share *share)
{
    if (share->maker_references == 0 && !others_have(share) && (share->maker_process == NONE || !share->is_stuck))
        share->is_used = false;
}

/* Removes one reference of this process. */
static void let_go(struct share *share, uint32_t process_index, bool is_imported)
{
    if (is_imported)
        share->open_counts[process_index]--;
    else if (--share->maker_references == 0)
        share->is_stuck = share->is_late || others_have(share);
    forget(share);
}

void books_close_file(struct books *books, uint32_t share_index)
{
    books->shares[share_index].file_count--;
    forget(&books->shares[share_index]);
}

static struct share *new_share(struct books *books, uint32_t device, uint32_t maker, uint64_t bytes)
{
    struct share *share = books->shares;
    while (share->is_used)
        share++;
    *share = (struct share){.is_used = true,
                            .device = device,
                            .maker_process = maker,
                            .maker_context = NONE,
                            .bytes = bytes,
                            .maker_references = 1};
    return share;
}

static bool lies_in(const struct process *process, uint64_t block)
{
    EACH(thing, process)
    {
        if (thing->kind == SUBALLOCATION && thing->block_number == block)
            return true;
    }
    return false;
}

static void drop(struct books *books, uint32_t process_index, struct thing *thing)
{
    struct process *process = &books->processes[process_index];
    if (thing->kind == AN_ARRAY && thing->bytes <= MIB &&
        (process->small_array_bytes[thing->device] -= thing->bytes) == 0)
        process->small_array_charged_bytes[thing->device] = 0;
    for (unsigned tile = 0; tile < TILES; tile++)
        if (thing->tiles[tile] != NULL)
            let_go(thing->tiles[tile], process_index, false);
    if (thing->share != NULL)
        let_go(thing->share, process_index, thing->is_imported);
    struct thing dropped = *thing;
    *thing = (struct thing){0};
    if (dropped.block_number == 0 || lies_in(process, dropped.block_number))
        return;
    struct share *share = dropped.kind == SUBALLOCATION ? shared_block(books, process_index, dropped.block_number)
                                                        : NULL;
    if (share != NULL && process->contexts[dropped.context].own_block == dropped.block_number) {
        process->contexts[dropped.context].is_own_block_unsure =
            true; /* the driver gives the context another block, which the next sub-allocation may be in */
        return;   /* the block stays charged until its context ends */
    }
    if (share != NULL)
        let_go(share, process_index, false);
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (process->contexts[c].own_block == dropped.block_number &&
            (dropped.block_number != WITH_CONTEXT || c == dropped.context))
            process->contexts[c].own_block = 0;
}

static bool on_device(const struct books *books, uint32_t process_index, uint32_t device)
{
    EACH(thing, &books->processes[process_index])
    {
        if (thing->device == device && (thing->kind == A_HANDLE || thing->kind == A_MAPPING))
            return true;
    }
    return books_has_context(books, process_index, device);
}

/* With the last context or block of a process on a device its pools there end. */
static void end_pools(struct books *books, uint32_t process_index, uint32_t device)
{
    if (on_device(books, process_index, device))
        return;
    EACH(thing, &books->processes[process_index])
    {
        if (thing->device != device || thing->kind != A_POOL)
            continue;
        if (thing->share != NULL) /* its return is not observed */
            thing->share->is_late = true;
        drop(books, process_index, thing);
    }
}

static bool ends_with(const struct share *share, uint32_t process_index, uint32_t context)
{
    return share->is_used && share->maker_process == process_index && share->maker_context == context &&
           share->maker_references > 0;
}

/* If other processes have a shared block of a context that ends, all its shared blocks stay charged. */
static void keep_shared(struct books *books, uint32_t process_index, uint32_t context)
{
    bool is_any_open = false;
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        is_any_open = is_any_open || (ends_with(share, process_index, context) && others_have(share));
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (ends_with(share, process_index, context))
            share->is_late = share->is_late || is_any_open;
}

bool books_may_move(const struct books *books, uint32_t process_index, uint32_t context)
{
    bool is_shared = false, moves_memory = false, has_pool = false;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        is_shared = is_shared || ends_with(share, process_index, context);
    EACH(thing, &books->processes[process_index])
    {
        struct share opened_share = thing->kind == IPC_POINTER && thing->context == context ? *thing->share
                                                                                            : (struct share){0};
        opened_share.open_counts[process_index] = 0;
        moves_memory = moves_memory ||
                       (opened_share.is_used && opened_share.maker_references == 0 && others_have(&opened_share));
        has_pool = has_pool || ((thing->kind == IMPORTED_POOL || thing->kind == IMPORTED_POOL_POINTER) &&
                                thing->device == books->processes[process_index].contexts[context].device);
    }
    return has_pool || (is_shared && moves_memory);
}

/* Ends what was in a context. */
static void end_context(struct books *books, uint32_t process_index, uint32_t context)
{
    struct process *process = &books->processes[process_index];
    uint32_t device = process->contexts[context].device;
    keep_shared(books, process_index, context);
    EACH(thing, process)
    {
        if (thing->kind == AN_EXEC && thing->owner_context == context)
            thing->is_live = false, thing->owner_context = NONE;
        if (thing->context == context)
            drop(books, process_index, thing);
    }
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (ends_with(share, process_index, context)) /* its own block */
            let_go(share, process_index, false);
    for (struct pending *pending = process->pending; pending < process->pending + PENDING; pending++) {
        if (pending->is_used && pending->context == context)
            pending->is_used = false;
        if (pending->is_used && pending->stream_context == context)
            pending->stream_cell = NONE;
    }
    process->contexts[context] = (struct context){0};
    process->keeps_context[device] = true;
    end_pools(books, process_index, device);
}

void books_end(struct books *books, uint32_t process_index)
{
    struct process *process = &books->processes[process_index];
    uint64_t shared_bytes[DEVICES] = {0};
    for (struct share *share = books->shares; share < books->shares + SHARES; share++) {
        if (!share->is_used)
            continue;
        if (share->maker_process == process_index) {
            shared_bytes[share->device] += share->is_exported ? share->bytes : 0;
            share->maker_process = NONE;
            share->maker_references = 0;
        }
        share->open_counts[process_index] = 0;
        forget(share);
    }
    process->is_alive = false;
    for (uint32_t device = 0; device < DEVICES; device++) {
        books->left_bytes[process->grant][device] += books_opened(books, process->grant) ? shared_bytes[device] : 0;
        books->max_left_bytes[process->grant][device] += shared_bytes[device];
    }
    memset(process->things, 0, sizeof process->things);
    memset(process->contexts, 0, sizeof process->contexts);
    memset(process->pending, 0, sizeof process->pending);
    memset(process->small_array_bytes, 0, sizeof process->small_array_bytes);
    memset(process->small_array_charged_bytes, 0, sizeof process->small_array_charged_bytes);
    memset(process->pool_bytes, 0, sizeof process->pool_bytes);
    memset(process->pool_peak_bytes, 0, sizeof process->pool_peak_bytes);
    memset(process->measured_bytes, 0, sizeof process->measured_bytes);
    memset(process->is_unsure, 0, sizeof process->is_unsure);
    memset(process->keeps_context, 0, sizeof process->keeps_context);
    process->code_bytes = 0;
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

static void enter_piece(struct process *process, struct thing *thing, uint64_t block)
{
    struct context *context = &process->contexts[thing->context];
    if (context->own_block == 0 && !lies_in(process, block))
        context->own_block = block;
    thing->kind = SUBALLOCATION;
    thing->block_number = block;
}

/* A grant of 1 MiB can hold 1 MiB. If there is no room for whole blocks, the rest of the allocation is in the
 * context's own block. */
static void enter_pointer(struct process *process, const struct call *call, struct thing *thing, uint64_t address,
                          uint64_t room_bytes)
{
    struct context *context = &process->contexts[call->context];
    thing->bytes = call->kind == PITCHED ? rounded(call->bytes, 512) : call->bytes;
    if (thing->bytes < MIB) {
        enter_piece(process, thing, address / BLOCK_BYTES);
        return;
    }
    thing->kind = POINTER;
    thing->charged_bytes = rounded(thing->bytes, BLOCK_BYTES);
    if (call->kind == ALLOCATE && context->own_block == 0 && room_bytes < thing->charged_bytes &&
        room_bytes >= thing->bytes) {
        context->own_block = thing->block_number = WITH_CONTEXT;
        context->is_own_block_unsure = true;
        thing->charged_bytes = thing->bytes;
    }
}

static void enter_array(struct process *process, struct thing *thing)
{
    uint64_t *charged_bytes = &process->small_array_charged_bytes[thing->device],
             *live_bytes = &process->small_array_bytes[thing->device];
    thing->kind = AN_ARRAY;
    if (thing->bytes > MIB) {
        thing->charged_bytes = rounded(thing->bytes, BLOCK_BYTES);
        return;
    }
    *live_bytes += thing->bytes;
    while (*charged_bytes < *live_bytes)
        *charged_bytes += BLOCK_BYTES;
}

/* Stacks are charged at once, for each thread that the device can hold; the other limits when they are used. */
static void enter_limit(struct books *books, struct context *context, const struct call *call)
{
    static const uint64_t default_limits[] = {1024, 8650752, 8388608};
    uint64_t bytes = 0, needed_bytes = 0;
    if (call->bytes > default_limits[call->choice] && call->choice == 0) {
        needed_bytes = (call->bytes - default_limits[0]) * books->thread_count;
        bytes = in_blocks(needed_bytes);
    } else if (call->bytes > default_limits[call->choice]) {
        bytes = in_blocks(call->bytes) + BLOCK_BYTES;
    }
    context->limit_bytes += bytes - context->charged_limits[call->choice];
    context->charged_limits[call->choice] = bytes;
    context->rounding_bytes[call->choice] = bytes > needed_bytes ? bytes - needed_bytes : 0;
}

static void pend(struct process *process, const struct thing *thing, const struct call *call)
{
    struct pending *pending = process->pending;
    while (pending->is_used)
        pending++;
    bool is_waiting = call->other_cell != NONE && process->things[call->other_cell].is_blocked;
    *pending = (struct pending){.is_used = true,
                                .device = thing->device,
                                .context = thing->context,
                                .stream_context = call->other_cell != NONE ? process->things[call->other_cell].context
                                                                           : NONE,
                                .stream_cell = is_waiting ? call->other_cell : NONE,
                                .charged_bytes = thing->charged_bytes};
}

static void enter_free(struct books *books, uint32_t process_index, const struct call *call)
{
    struct process *process = &books->processes[process_index];
    struct thing *thing = &process->things[call->cell];
    if (thing->kind == AN_EXEC) {
        thing->is_live = false;
        return;
    }
    if (thing->kind == POINTER && thing->share == NULL && call->kind == FREE_ASYNC)
        pend(process, thing, call);
    struct share *pool_share = thing->kind == POOL_POINTER && thing->pool_cell != NONE
                                   ? process->things[thing->pool_cell].share
                                   : NULL;
    if (pool_share != NULL && pool_share->address_cell == call->cell)
        pool_share->handle[0] = 0;
    bool is_late = call->kind == FREE_ASYNC && call->other_cell != NONE && process->things[call->other_cell].is_blocked;
    if (is_late && thing->share != NULL)
        thing->share->is_late = true;
    drop(books, process_index, thing);
}

/* A pointer that other processes may open is a shared block. */
static void enter_share(struct books *books, uint32_t process_index, struct thing *thing, const struct answer *answer)
{
    struct share *share = thing->kind == SUBALLOCATION ? shared_block(books, process_index, thing->block_number)
                                                       : thing->share;
    if (share == NULL) {
        share = new_share(books, thing->device, process_index,
                          thing->kind == SUBALLOCATION ? BLOCK_BYTES : thing->charged_bytes);
        share->is_exported = true;
        share->maker_context = thing->context;
        share->block_number = thing->block_number;
        thing->share = thing->kind == SUBALLOCATION ? NULL : share;
        thing->charged_bytes = 0;
    }
    memcpy(share->handle, answer->handle, sizeof answer->handle);
}

static void enter_pool_share(const struct process *process, const struct call *call, const struct answer *answer)
{
    struct share *share = process->things[process->things[call->cell].pool_cell].share;
    share->address_cell = call->cell;
    memcpy(share->handle, answer->handle, sizeof answer->handle);
}

static void enter_block(struct books *books, uint32_t process_index, const struct call *call, struct thing *thing)
{
    const struct thing *source = &books->processes[process_index].things[call->other_cell];
    thing->kind = call->kind == MAP ? A_MAPPING : A_HANDLE;
    thing->context = NONE;
    if (call->kind == BLOCK) {
        thing->share = new_share(books, thing->device, process_index, call->bytes);
        thing->is_exportable = call->choice == 1;
        return;
    }
    thing->share = source->share;
    thing->is_imported = source->is_imported;
    thing->bytes = source->bytes;
    thing->is_exportable = source->is_exportable;
    *(thing->is_imported ? &thing->share->open_counts[process_index] : &thing->share->maker_references) += 1;
}

static void enter_import(struct books *books, uint32_t process_index, const struct call *call, struct thing *thing)
{
    static const enum thing_kind made_kinds[] = {
        [IMPORT] = A_HANDLE, [OPEN] = IPC_POINTER, [POOL_IMPORT] = IMPORTED_POOL, [POOL_OPEN] = IMPORTED_POOL_POINTER};
    thing->kind = made_kinds[call->kind];
    thing->context = call->kind == OPEN || call->kind == POOL_OPEN ? call->context : NONE;
    thing->share = &books->shares[call->other_cell];
    thing->share->open_counts[process_index]++;
    thing->is_imported = thing->is_exportable = true;
    thing->bytes = thing->share->bytes;
}

/* An exported pool is charged its largest reservation until it is destroyed. */
static void enter_pool_export(struct books *books, uint32_t process_index, const struct call *call,
                              const struct answer *answer)
{
    struct process *process = &books->processes[process_index];
    struct thing *thing = &process->things[call->cell];
    if (thing->share == NULL) {
        uint64_t bytes = answer->exported_reserved_bytes[call->cell];
        thing->share = new_share(books, thing->device, process_index, bytes);
        thing->share->is_pool = thing->share->is_exported = true;
        thing->share->address_cell = NONE;
        process->pool_bytes[thing->device] -= bytes;
        process->pool_peak_bytes[thing->device] -= bytes;
    }
    thing->share->file_count++;
}

/* The charge of an exported pool is returned if no process has it open and the card has all of it back. */
static void enter_pool_end(struct books *books, uint32_t process_index, struct thing *pool)
{
    struct process *process = &books->processes[process_index];
    struct share *share = pool->kind == A_POOL ? pool->share : NULL;
    uint32_t pool_cell = (uint32_t)(pool - process->things);
    EACH(thing, process)
    {
        thing->pool_cell = thing->kind == POOL_POINTER && thing->pool_cell == pool_cell ? NONE : thing->pool_cell;
    }
    for (uint32_t p = 0; share != NULL && p < PROCESSES; p++)
        share->is_late = share->is_late || share->open_counts[p] > 0;
    if (share != NULL && share->reserved_bytes < share->bytes)
        share->is_late = true;
    else if (share != NULL && !share->is_late)
        share->bytes = 0;
    drop(books, process_index, pool);
}

/* The memory ends with the context of the stream. */
static void enter_pooled(const struct process *process, const struct call *call, struct thing *thing)
{
    thing->kind = POOL_POINTER;
    thing->pool_cell = call->choice;
    if (call->other_cell != NONE)
        thing->context = process->things[call->other_cell].context;
}

static void enter_graph(struct thing *thing, const struct call *call)
{
    thing->kind = AN_EXEC;
    thing->owner_context = call->context;
    thing->context = NONE;
    thing->charged_bytes = rounded(call->bytes, CHUNK_BYTES);
    thing->is_prepaid = true;
    thing->frees_itself = call->choice == 1;
}

/* A green context retains its card's primary context. */
static void enter_green(struct process *process, struct thing *thing)
{
    thing->kind = A_GREEN_CONTEXT;
    thing->context = thing->device;
    thing->charged_bytes = GREEN_BYTES;
    process->contexts[thing->device].attach_count++;
}

static void enter_made(struct books *books, uint32_t process_index, const struct call *call,
                       const struct answer *answer, uint64_t room_bytes)
{
    struct process *process = &books->processes[process_index];
    struct thing *thing = &process->things[call->cell];
    *thing = (struct thing){.device = call->device, .context = call->context, .bytes = call->bytes};
    switch (call->kind) {
    case ALLOCATE:
    case PITCHED: enter_pointer(process, call, thing, answer->value, room_bytes); break;
    case MANAGED: thing->kind = MANAGED_POINTER; break;
    case POOL: thing->kind = A_POOL, thing->context = NONE, thing->is_exportable = call->choice > 1; break;
    case POOLED: enter_pooled(process, call, thing); break;
    case STREAM: thing->kind = A_STREAM; break;
    case GRAPH: enter_graph(thing, call); break;
    case BLOCK:
    case HANDLE_RETAIN:
    case MAP: enter_block(books, process_index, call, thing); break;
    case IMPORT:
    case POOL_IMPORT:
    case POOL_OPEN:
    case OPEN: enter_import(books, process_index, call, thing); break;
    case ARRAY: enter_array(process, thing); break;
    case SPARSE: thing->kind = A_SPARSE_ARRAY; break;
    case GREEN: enter_green(process, thing); break;
    case LIBRARY: thing->kind = A_LIBRARY, thing->context = NONE, process->code_bytes += 8 * answer->value; break;
    default:
        thing->kind = A_MODULE, thing->charged_bytes = in_blocks(call->bytes), process->code_bytes += 8 * answer->value;
    }
}

unsigned books_tile(const struct thing *array, const struct share *share)
{
    unsigned tile = 0;
    while (tile < TILES - 1 && array->tiles[tile] != NULL && array->tiles[tile] != share)
        tile++;
    return tile;
}

/* An array counts a block once, for all its tiles, until it is destroyed. */
static void enter_tile(struct process *process, struct thing *array, const struct call *call)
{
    struct share *share = process->things[call->other_cell].share;
    unsigned tile = books_tile(array, share);
    if (array->tiles[tile] == NULL) {
        array->tiles[tile] = share;
        share->maker_references++;
    }
}

/* A launch is refused while the memory of the last one is allocated, and when the context of that memory ended. */
static void enter_launch(struct thing *exec, const struct answer *answer)
{
    if (exec->is_prepaid)
        exec->charged_bytes = 0;
    exec->is_prepaid = false;
    exec->is_live = exec->is_live || (answer->code == 0 && !exec->frees_itself);
}

/* The memory of a graph outlives it. */
static void enter_graph_end(struct thing *exec)
{
    if (!exec->is_live)
        *exec = (struct thing){0};
    exec->kind = exec->is_live ? POOL_POINTER : NOTHING;
    exec->pool_cell = NONE;
    exec->context = exec->owner_context;
    exec->is_live = false;
}

static void enter_streams_word(struct process *process, const struct call *call)
{
    process->things[call->cell].is_blocked = call->kind == BLOCK_STREAM;
    for (struct pending *pending = process->pending; call->kind == OPEN_STREAM && pending < process->pending + PENDING;
         pending++)
        if (pending->stream_cell == call->cell)
            pending->stream_cell = NONE;
}

static void enter_look(struct process *process, const struct call *call)
{
    for (struct pending *pending = process->pending; pending < process->pending + PENDING; pending++)
        if (pending->stream_cell == NONE)
            pending->is_used = false;
    (void)call;
}

static void enter_green_end(struct books *books, uint32_t process_index, struct thing *thing)
{
    struct context *primary = &books->processes[process_index].contexts[thing->device];
    uint32_t device = thing->device;
    drop(books, process_index, thing);
    if (--primary->attach_count == 0)
        end_context(books, process_index, device);
}

static void enter_context(struct books *books, uint32_t process_index, const struct call *call)
{
    struct process *process = &books->processes[process_index];
    uint32_t context_index = call->kind == CREATE    ? call->other_cell
                             : call->kind == DESTROY ? call->context
                                                     : call->device;
    struct context *context = &process->contexts[context_index];
    context->device = call->device;
    if (call->kind == RETAIN || call->kind == CREATE)
        context->attach_count++;
    else if (call->kind != RELEASE || --context->attach_count == 0)
        end_context(books, process_index, context_index);
}

void books_enter(struct books *books, uint32_t process_index, const struct call *call, const struct answer *answer,
                 uint64_t room_bytes)
{
    struct process *process = &books->processes[process_index];
    struct thing *thing = &process->things[call->cell == NONE ? 0 : call->cell];
    switch (call->kind) {
    case RETAIN:
    case RELEASE:
    case RESET:
    case CREATE:
    case DESTROY: enter_context(books, process_index, call); break;
    case FREE:
    case FREE_ASYNC: enter_free(books, process_index, call); break;
    case POOL_DESTROY: enter_pool_end(books, process_index, thing); break;
    case POOL_EXPORT: enter_pool_export(books, process_index, call, answer); break;
    case POOL_SHARE: enter_pool_share(process, call, answer); break;
    case STREAM_DESTROY:
    case HANDLE_RELEASE:
    case UNMAP:
    case CLOSE:
    case ARRAY_DESTROY:
    case MODULE_UNLOAD:
    case LIBRARY_UNLOAD:
        drop(books, process_index, thing);
        end_pools(books, process_index, call->device);
        break;
    case BLOCK_STREAM:
    case OPEN_STREAM: enter_streams_word(process, call); break;
    case LAUNCH: enter_launch(thing, answer); break;
    case GRAPH_DESTROY: enter_graph_end(thing); break;
    case EXPORT: thing->share->file_count++, thing->share->is_exported = true; break;
    case SHARE: enter_share(books, process_index, thing, answer); break;
    case TILE: enter_tile(process, thing, call); break;
    case GREEN_DESTROY: enter_green_end(books, process_index, thing); break;
    case LIMIT: enter_limit(books, &process->contexts[call->context], call); break;
    case LOOK: enter_look(process, call); break;
    case POOL_TRIM:
    case LIBRARY_USE:
    case LOSE:
    case SYNCHRONIZE: break;
    default: enter_made(books, process_index, call, answer, room_bytes);
    }
}

void books_pools(struct books *books, uint32_t process_index, const struct call *call, const struct answer *answer)
{
    struct process *process = &books->processes[process_index];
    for (uint32_t device = 0; device < DEVICES; device++) {
        bool is_end = call->kind == RELEASE || call->kind == RESET || call->kind == DESTROY;
        bool is_looked = call->device == device &&
                         (call->kind == LOOK || (is_end && !on_device(books, process_index, device)));
        process->pool_peak_bytes[device] += answer->reserved_bytes[device] > process->pool_bytes[device]
                                                ? answer->reserved_bytes[device] - process->pool_bytes[device]
                                                : 0;
        process->pool_bytes[device] = answer->reserved_bytes[device];
        process->pool_used_bytes[device] = answer->used_bytes[device];
        if (is_looked)
            process->pool_peak_bytes[device] = process->pool_bytes[device];
    }
    for (uint32_t cell = 0; cell < CELLS; cell++) {
        struct share *share = process->things[cell].kind == A_POOL ? process->things[cell].share : NULL;
        if (share == NULL)
            continue;
        share->reserved_bytes = answer->exported_reserved_bytes[cell];
        share->used_bytes = answer->exported_used_bytes[cell];
        share->bytes = share->bytes > share->reserved_bytes ? share->bytes : share->reserved_bytes;
    }
}
