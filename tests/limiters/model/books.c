/* The reference model (books.h). */
#include "books.h"

#include <string.h>

/* Stands for the block of a context that an allocation's rest lies in. */
#define WITH_CONTEXT UINT64_MAX

static uint64_t rounded(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Memory from 1 MiB on has blocks of its own. */
static uint64_t in_blocks(uint64_t bytes)
{
    return bytes < MIB ? 0 : rounded(bytes, BLOCK_);
}

#define EACH(thing, of)                                                                                                \
    for (struct thing *thing = (struct thing *)(of)->things; thing < (of)->things + CELLS; thing++)                    \
        if (thing->kind != NOTHING)

bool books_has_context(const struct books *books, uint32_t process, uint32_t device)
{
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (books->processes[process].contexts[c].attached > 0 &&
            books->processes[process].contexts[c].device == device)
            return true;
    return false;
}

/* ----------------------------------------------------------------------------------------------------- what is charged
 */

/* Whether an earlier piece of the process lies in the same block. */
static bool counted_before(const struct process *of, const struct thing *piece)
{
    for (const struct thing *thing = of->things; thing < piece; thing++)
        if (thing->kind == PIECE && thing->block == piece->block)
            return true;
    return false;
}

/* The block of pieces at this address, if somebody else may have it. */
static struct share *shared_block(const struct books *books, uint32_t process, uint64_t block)
{
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->maker == process && share->block == block && share->of_maker > 0)
            return (struct share *)share;
    return NULL;
}

bool books_may_stay(const struct books *books, uint32_t process, const struct thing *piece)
{
    const struct process *of = &books->processes[process];
    bool small = false;
    if (piece->kind != PIECE || shared_block(books, process, piece->block) == NULL)
        return false;
    EACH(thing, of)
    {
        if (thing != piece && thing->kind == PIECE && thing->block == piece->block)
            return false;
        bool arrays = thing->kind == AN_ARRAY || thing->kind == A_MODULE || thing->kind == A_LIBRARY;
        small = small ||
                (arrays && thing->bytes <= MIB && (thing->device == piece->device || thing->kind == A_LIBRARY));
    }
    return small;
}

static uint64_t managed(const struct process *of, uint32_t device, uint64_t more)
{
    uint64_t bytes = more;
    EACH(thing, of)
    {
        bytes += thing->kind == BY_MANAGED && thing->device == device ? thing->bytes : 0;
    }
    return rounded(bytes, BATCH);
}

uint64_t books_managed(const struct books *books, uint32_t process, uint32_t device)
{
    return managed(&books->processes[process], device, 0);
}

static unsigned contexts_on(const struct process *of, uint32_t device)
{
    unsigned count = 0;
    for (unsigned c = 0; c < CONTEXTS; c++)
        count += of->contexts[c].attached > 0 && of->contexts[c].device == device;
    return count;
}

uint64_t books_library(const struct books *books, uint32_t process, uint32_t device, uint64_t bytes)
{
    return contexts_on(&books->processes[process], device) * in_blocks(bytes);
}

/* What all libraries of the process count for in one context. */
static uint64_t of_libraries(const struct process *of)
{
    uint64_t bytes = 0;
    EACH(thing, of)
    {
        bytes += thing->kind == A_LIBRARY ? in_blocks(thing->bytes) : 0;
    }
    return bytes;
}

static uint64_t of_things(const struct books *books, uint32_t process, uint32_t device)
{
    const struct process *of = &books->processes[process];
    uint64_t bytes = of->small_charged[device] + managed(of, device, 0) + contexts_on(of, device) * of_libraries(of);
    EACH(thing, of)
    {
        if (thing->device != device)
            continue;
        if (thing->kind != PIECE)
            bytes += thing->charged;
        else if (of->contexts[thing->context].first != thing->block && !counted_before(of, thing) &&
                 shared_block(books, process, thing->block) == NULL)
            bytes += BLOCK_;
    }
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (of->contexts[c].attached > 0 && of->contexts[c].device == device)
            bytes += of->contexts[c].limits;
    return bytes;
}

static uint64_t of_shares(const struct books *books, uint32_t process, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->maker == process && share->device == device && (share->of_maker > 0 || share->stuck))
            bytes += share->bytes;
    return bytes;
}

struct range books_charged(const struct books *books, uint32_t process, uint32_t device)
{
    const struct process *of = &books->processes[process];
    uint64_t exact = of_things(books, process, device) + of_shares(books, process, device);
    struct range range = {exact + of->pools[device], exact + of->pools_most[device]};
    for (const struct pending *it = of->pending; it < of->pending + PENDING; it++) {
        if (!it->used || it->device != device)
            continue;
        range.least += it->stream != NONE ? it->charged : 0;
        range.most += it->charged;
    }
    return range;
}

uint64_t books_uncharged(const struct books *books, uint32_t process, uint32_t device)
{
    const struct process *of = &books->processes[process];
    uint64_t bytes = 0;
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (of->contexts[c].attached > 0 && of->contexts[c].device == device)
            bytes += books->context_bytes + BLOCK_;
    return bytes;
}

uint64_t books_stuck(const struct books *books, uint32_t process, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->maker == process && share->device == device && share->stuck)
            bytes += share->bytes;
    return bytes;
}

uint64_t books_streams(const struct books *books, uint32_t process, uint32_t device)
{
    const struct process *of = &books->processes[process];
    uint64_t bytes = 0;
    for (unsigned c = 0; c < CONTEXTS; c++)
        bytes += of->contexts[c].attached > 0 && of->contexts[c].device == device ? BLOCK_ : 0;
    return bytes;
}

uint64_t books_taken_over(const struct books *books, uint32_t process, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->device == device && share->of_maker == 0 && share->open[process] > 0)
            bytes += share->bytes;
    return bytes;
}

uint64_t books_unseen(const struct books *books, uint32_t process, uint32_t device)
{
    const struct process *of = &books->processes[process];
    uint64_t bytes = of->small_charged[device] + of->pools_most[device] - of->pools[device] +
                     contexts_on(of, device) * of_libraries(of);
    EACH(thing, of)
    {
        if (thing->device == device && (thing->prepaid || thing->kind == A_MODULE))
            bytes += thing->charged;
    }
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (of->contexts[c].attached > 0 && of->contexts[c].device == device)
            bytes += of->contexts[c].rounded[0] + of->contexts[c].rounded[1] + of->contexts[c].rounded[2];
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->pool && share->maker == process && share->device == device && share->of_maker > 0)
            bytes += share->bytes - share->reserved;
    for (const struct pending *it = of->pending; it < of->pending + PENDING; it++)
        bytes += it->used && it->device == device ? it->charged : 0;
    return bytes + books_stuck(books, process, device) + books_managed(books, process, device);
}

uint64_t books_wanted(const struct books *books, uint32_t process, const struct call *call)
{
    const struct process *of = &books->processes[process];
    switch (call->kind) {
    case ALLOCATE:
    case PITCHED: return call->bytes < MIB ? BLOCK_ : rounded(call->bytes, BLOCK_);
    case MANAGED: return managed(of, call->device, call->bytes) - managed(of, call->device, 0);
    case BLOCK: return call->bytes;
    case POOLED:
    case GRAPH: return rounded(call->bytes, CHUNK);
    case LAUNCH: return of->things[call->cell].prepaid ? 0 : rounded(of->things[call->cell].bytes, CHUNK);
    case ARRAY: return call->bytes <= MIB ? 2 * BLOCK_ : rounded(call->bytes, BLOCK_);
    case MODULE: return in_blocks(call->bytes) + BLOCK_;
    case LIBRARY: return books_library(books, process, call->device, call->bytes) + BLOCK_;
    case RETAIN: return of->contexts[call->device].attached == 0 ? of_libraries(of) : 0;
    case CREATE: return of_libraries(of);
    case GREEN: return GREEN_;
    case SPARSE: /* refused where the figure is beyond the limit */
    case STREAM: return BLOCK_;
    case SHARE: { /* what is part of its context is charged when others may have it */
        const struct thing *thing = &of->things[call->cell];
        bool first = thing->kind == PIECE && of->contexts[thing->context].first == thing->block;
        return first && shared_block(books, process, thing->block) == NULL ? BLOCK_ : 0;
    }
    case LIMIT: return call->choice == 0 ? call->bytes * books->threads : rounded(call->bytes, BLOCK_) + BLOCK_;
    default: return 0;
    }
}

/* -------------------------------------------------------------------------------------------------- shares, and ends
 */

bool books_opened(const struct books *books, uint32_t grant)
{
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        for (uint32_t p = 0; share->used && p < PROCESSES; p++)
            if (share->open[p] > 0 && books->processes[p].grant == grant)
                return true;
    return false;
}

static bool others_have(const struct share *share)
{
    unsigned count = share->files;
    for (uint32_t p = 0; p < PROCESSES; p++)
        count += share->open[p];
    return count > 0;
}

uint64_t books_orphans(const struct books *books, uint32_t device)
{
    uint64_t bytes = 0;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (share->used && share->device == device && share->maker == NONE && others_have(share))
            bytes += share->bytes;
    return bytes;
}

static void forget(struct share *share)
{
    if (share->of_maker == 0 && !others_have(share) && (share->maker == NONE || !share->stuck))
        share->used = false;
}

/* One reference of this process's is gone. */
static void let_go(struct share *share, uint32_t process, bool imported)
{
    if (imported)
        share->open[process]--;
    else if (--share->of_maker == 0)
        share->stuck = share->late || others_have(share);
    forget(share);
}

void books_close_file(struct books *books, uint32_t share)
{
    books->shares[share].files--;
    forget(&books->shares[share]);
}

static struct share *new_share(struct books *books, uint32_t device, uint32_t maker, uint64_t bytes)
{
    struct share *share = books->shares;
    while (share->used)
        share++;
    *share =
        (struct share){.used = true, .device = device, .maker = maker, .context = NONE, .bytes = bytes, .of_maker = 1};
    return share;
}

static bool lies_in(const struct process *of, uint64_t block)
{
    EACH(thing, of)
    {
        if (thing->kind == PIECE && thing->block == block)
            return true;
    }
    return false;
}

static void drop(struct books *books, uint32_t process, struct thing *thing)
{
    struct process *of = &books->processes[process];
    if (thing->kind == AN_ARRAY && thing->bytes <= MIB && (of->small_live[thing->device] -= thing->bytes) == 0)
        of->small_charged[thing->device] = 0;
    for (unsigned t = 0; t < TILES; t++)
        if (thing->tiles[t] != NULL)
            let_go(thing->tiles[t], process, false);
    if (thing->share != NULL)
        let_go(thing->share, process, thing->imported);
    struct thing was = *thing;
    *thing = (struct thing){0};
    if (was.block == 0 || lies_in(of, was.block))
        return;
    struct share *share = was.kind == PIECE ? shared_block(books, process, was.block) : NULL;
    if (share != NULL && of->contexts[was.context].first == was.block) {
        of->contexts[was.context].lent = true; /* the driver has another for it, which a piece may be in that is next */
        return;                                /* charged until its context ends */
    }
    if (share != NULL)
        let_go(share, process, false);
    for (unsigned c = 0; c < CONTEXTS; c++)
        if (of->contexts[c].first == was.block && (was.block != WITH_CONTEXT || c == was.context))
            of->contexts[c].first = 0;
}

static bool on_device(const struct books *books, uint32_t process, uint32_t device)
{
    EACH(thing, &books->processes[process])
    {
        if (thing->device == device && (thing->kind == A_HANDLE || thing->kind == A_MAPPING))
            return true;
    }
    return books_has_context(books, process, device);
}

/* With the last context or block that a process has on a device its pools there end. */
static void end_pools(struct books *books, uint32_t process, uint32_t device)
{
    if (on_device(books, process, device))
        return;
    EACH(thing, &books->processes[process])
    {
        if (thing->device != device || thing->kind != A_POOL)
            continue;
        if (thing->share != NULL) /* nobody looks whether the card has it again */
            thing->share->late = true;
        drop(books, process, thing);
    }
}

static bool ends_with(const struct share *share, uint32_t process, uint32_t context)
{
    return share->used && share->maker == process && share->context == context && share->of_maker > 0;
}

/* Of what others may have of a context that ends, all stays charged where they have any. */
static void keep_shared(struct books *books, uint32_t process, uint32_t context)
{
    bool open = false;
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        open = open || (ends_with(share, process, context) && others_have(share));
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (ends_with(share, process, context))
            share->late = share->late || open;
}

bool books_may_move(const struct books *books, uint32_t process, uint32_t context)
{
    bool shared = false, moves = false, of_pools = false;
    for (const struct share *share = books->shares; share < books->shares + SHARES; share++)
        shared = shared || ends_with(share, process, context);
    EACH(thing, &books->processes[process])
    {
        struct share others = thing->kind == OPENED && thing->context == context ? *thing->share : (struct share){0};
        others.open[process] = 0;
        moves = moves || (others.used && others.of_maker == 0 && others_have(&others));
        of_pools = of_pools || ((thing->kind == POOL_OPENED || thing->kind == OPENED_IN_POOL) &&
                                thing->device == books->processes[process].contexts[context].device);
    }
    return of_pools || (shared && moves);
}

/* What was in a context ends with it. */
static void end_context(struct books *books, uint32_t process, uint32_t context)
{
    struct process *of = &books->processes[process];
    uint32_t device = of->contexts[context].device;
    keep_shared(books, process, context);
    EACH(thing, of)
    {
        if (thing->kind == AN_EXEC && thing->owner_context == context)
            thing->live = false, thing->owner_context = NONE;
        if (thing->context == context)
            drop(books, process, thing);
    }
    for (struct share *share = books->shares; share < books->shares + SHARES; share++)
        if (ends_with(share, process, context)) /* the block that was part of it */
            let_go(share, process, false);
    for (struct pending *it = of->pending; it < of->pending + PENDING; it++) {
        if (it->used && it->context == context)
            it->used = false;
        if (it->used && it->stream_context == context)
            it->stream = NONE;
    }
    of->contexts[context] = (struct context){0};
    end_pools(books, process, device);
}

void books_end(struct books *books, uint32_t process)
{
    struct process *of = &books->processes[process];
    uint64_t shared[DEVICES] = {0};
    for (struct share *share = books->shares; share < books->shares + SHARES; share++) {
        if (!share->used)
            continue;
        if (share->maker == process) {
            shared[share->device] += share->exported ? share->bytes : 0;
            share->maker = NONE;
            share->of_maker = 0;
        }
        share->open[process] = 0;
        forget(share);
    }
    of->lives = false;
    for (uint32_t d = 0; d < DEVICES; d++) {
        books->left[of->grant][d] += books_opened(books, of->grant) ? shared[d] : 0;
        books->most_left[of->grant][d] += shared[d];
    }
    memset(of->things, 0, sizeof of->things);
    memset(of->contexts, 0, sizeof of->contexts);
    memset(of->pending, 0, sizeof of->pending);
    memset(of->small_live, 0, sizeof of->small_live);
    memset(of->small_charged, 0, sizeof of->small_charged);
    memset(of->pools, 0, sizeof of->pools);
    memset(of->pools_most, 0, sizeof of->pools_most);
    memset(of->beyond, 0, sizeof of->beyond);
    memset(of->unsure, 0, sizeof of->unsure);
    of->code = 0;
}

/* ------------------------------------------------------------------------------------------------------------- calls
 */

static void enter_piece(struct process *of, struct thing *thing, uint64_t block)
{
    struct context *context = &of->contexts[thing->context];
    if (context->first == 0 && !lies_in(of, block))
        context->first = block;
    thing->kind = PIECE;
    thing->block = block;
}

/* So that a grant of 1 MiB can hold 1 MiB: where there is no room for whole blocks, what is beyond the bytes asked for
 * lies in the block that is part of the context. */
static void enter_pointer(struct process *of, const struct call *call, struct thing *thing, uint64_t address,
                          uint64_t room)
{
    struct context *context = &of->contexts[call->context];
    thing->bytes = call->kind == PITCHED ? rounded(call->bytes, 512) : call->bytes;
    if (thing->bytes < MIB) {
        enter_piece(of, thing, address / BLOCK_);
        return;
    }
    thing->kind = POINTER;
    thing->charged = rounded(thing->bytes, BLOCK_);
    if (call->kind == ALLOCATE && context->first == 0 && room < thing->charged && room >= thing->bytes) {
        context->first = thing->block = WITH_CONTEXT;
        context->lent = true;
        thing->charged = thing->bytes;
    }
}

static void enter_array(struct process *of, struct thing *thing)
{
    uint64_t *charged = &of->small_charged[thing->device], *live = &of->small_live[thing->device];
    thing->kind = AN_ARRAY;
    if (thing->bytes > MIB) {
        thing->charged = rounded(thing->bytes, BLOCK_);
        return;
    }
    *live += thing->bytes;
    while (*charged < *live)
        *charged += BLOCK_;
}

/* Stacks are taken for each thread that the device can hold, at once; the others when they are used. */
static void enter_limit(struct books *books, struct context *context, const struct call *call)
{
    static const uint64_t first[] = {1024, 8650752, 8388608};
    uint64_t bytes = 0, taken = 0;
    if (call->bytes > first[call->choice] && call->choice == 0) {
        taken = (call->bytes - first[0]) * books->threads;
        bytes = in_blocks(taken);
    } else if (call->bytes > first[call->choice]) {
        bytes = in_blocks(call->bytes) + BLOCK_;
    }
    context->limits += bytes - context->limit[call->choice];
    context->limit[call->choice] = bytes;
    context->rounded[call->choice] = bytes > taken ? bytes - taken : 0;
}

static void pend(struct process *of, const struct thing *thing, const struct call *call)
{
    struct pending *it = of->pending;
    while (it->used)
        it++;
    bool waits = call->other != NONE && of->things[call->other].blocked;
    *it = (struct pending){.used = true,
                           .device = thing->device,
                           .context = thing->context,
                           .stream_context = call->other != NONE ? of->things[call->other].context : NONE,
                           .stream = waits ? call->other : NONE,
                           .charged = thing->charged};
}

static void enter_free(struct books *books, uint32_t process, const struct call *call)
{
    struct process *of = &books->processes[process];
    struct thing *thing = &of->things[call->cell];
    if (thing->kind == AN_EXEC) {
        thing->live = false;
        return;
    }
    if (thing->kind == POINTER && thing->share == NULL && call->kind == FREE_ASYNC)
        pend(of, thing, call);
    struct share *pool = thing->kind == OF_POOL && thing->pool != NONE ? of->things[thing->pool].share : NULL;
    if (pool != NULL && pool->address == call->cell)
        pool->handle[0] = 0;
    bool late = call->kind == FREE_ASYNC && call->other != NONE && of->things[call->other].blocked;
    if (late && thing->share != NULL)
        thing->share->late = true;
    drop(books, process, thing);
}

/* A pointer that others may open is a block that is shared. */
static void enter_share(struct books *books, uint32_t process, struct thing *thing, const struct answer *answer)
{
    struct share *share = thing->kind == PIECE ? shared_block(books, process, thing->block) : thing->share;
    if (share == NULL) {
        share = new_share(books, thing->device, process, thing->kind == PIECE ? BLOCK_ : thing->charged);
        share->exported = true;
        share->context = thing->context;
        share->block = thing->block;
        thing->share = thing->kind == PIECE ? NULL : share;
        thing->charged = 0;
    }
    memcpy(share->handle, answer->handle, sizeof answer->handle);
}

static void enter_pool_share(const struct process *of, const struct call *call, const struct answer *answer)
{
    struct share *share = of->things[of->things[call->cell].pool].share;
    share->address = call->cell;
    memcpy(share->handle, answer->handle, sizeof answer->handle);
}

static void enter_block(struct books *books, uint32_t process, const struct call *call, struct thing *thing)
{
    const struct thing *from = &books->processes[process].things[call->other];
    thing->kind = call->kind == MAP ? A_MAPPING : A_HANDLE;
    thing->context = NONE;
    if (call->kind == BLOCK) {
        thing->share = new_share(books, thing->device, process, call->bytes);
        thing->exportable = call->choice == 1;
        return;
    }
    thing->share = from->share;
    thing->imported = from->imported;
    thing->bytes = from->bytes;
    thing->exportable = from->exportable;
    *(thing->imported ? &thing->share->open[process] : &thing->share->of_maker) += 1;
}

static void enter_import(struct books *books, uint32_t process, const struct call *call, struct thing *thing)
{
    static const enum thing_kind made[] = {
        [IMPORT] = A_HANDLE, [OPEN] = OPENED, [POOL_IMPORT] = POOL_OPENED, [POOL_OPEN] = OPENED_IN_POOL};
    thing->kind = made[call->kind];
    thing->context = call->kind == OPEN || call->kind == POOL_OPEN ? call->context : NONE;
    thing->share = &books->shares[call->other];
    thing->share->open[process]++;
    thing->imported = thing->exportable = true;
    thing->bytes = thing->share->bytes;
}

/* From then on it is charged with the most that it reserves, until it is destroyed. */
static void enter_pool_export(struct books *books, uint32_t process, const struct call *call,
                              const struct answer *answer)
{
    struct process *of = &books->processes[process];
    struct thing *thing = &of->things[call->cell];
    if (thing->share == NULL) {
        uint64_t bytes = answer->exported[call->cell];
        thing->share = new_share(books, thing->device, process, bytes);
        thing->share->pool = thing->share->exported = true;
        thing->share->address = NONE;
        of->pools[thing->device] -= bytes;
        of->pools_most[thing->device] -= bytes;
    }
    thing->share->files++;
}

/* One that was exported is given back where nobody has it open and the card has all again that it ever reserved. */
static void enter_pool_end(struct books *books, uint32_t process, struct thing *pool)
{
    struct process *of = &books->processes[process];
    struct share *share = pool->kind == A_POOL ? pool->share : NULL;
    uint32_t cell = (uint32_t)(pool - of->things);
    EACH(thing, of)
    {
        thing->pool = thing->kind == OF_POOL && thing->pool == cell ? NONE : thing->pool;
    }
    for (uint32_t p = 0; share != NULL && p < PROCESSES; p++)
        share->late = share->late || share->open[p] > 0;
    if (share != NULL && share->reserved < share->bytes)
        share->late = true;
    else if (share != NULL && !share->late)
        share->bytes = 0;
    drop(books, process, pool);
}

/* It ends with the context of the stream. */
static void enter_pooled(const struct process *of, const struct call *call, struct thing *thing)
{
    thing->kind = OF_POOL;
    thing->pool = call->choice;
    if (call->other != NONE)
        thing->context = of->things[call->other].context;
}

static void enter_graph(struct thing *thing, const struct call *call)
{
    thing->kind = AN_EXEC;
    thing->owner_context = call->context;
    thing->context = NONE;
    thing->charged = rounded(call->bytes, CHUNK);
    thing->prepaid = true;
    thing->frees = call->choice == 1;
}

/* A green context keeps its card's primary context. */
static void enter_green(struct process *of, struct thing *thing)
{
    thing->kind = A_GREEN;
    thing->context = thing->device;
    thing->charged = GREEN_;
    of->contexts[thing->device].attached++;
}

static void enter_made(struct books *books, uint32_t process, const struct call *call, const struct answer *answer,
                       uint64_t room)
{
    struct process *of = &books->processes[process];
    struct thing *thing = &of->things[call->cell];
    *thing = (struct thing){.device = call->device, .context = call->context, .bytes = call->bytes};
    switch (call->kind) {
    case ALLOCATE:
    case PITCHED: enter_pointer(of, call, thing, answer->value, room); break;
    case MANAGED: thing->kind = BY_MANAGED; break;
    case POOL: thing->kind = A_POOL, thing->context = NONE, thing->exportable = call->choice > 1; break;
    case POOLED: enter_pooled(of, call, thing); break;
    case STREAM: thing->kind = A_STREAM; break;
    case GRAPH: enter_graph(thing, call); break;
    case BLOCK:
    case HANDLE_RETAIN:
    case MAP: enter_block(books, process, call, thing); break;
    case IMPORT:
    case POOL_IMPORT:
    case POOL_OPEN:
    case OPEN: enter_import(books, process, call, thing); break;
    case ARRAY: enter_array(of, thing); break;
    case SPARSE: thing->kind = A_SPARSE; break;
    case GREEN: enter_green(of, thing); break;
    case LIBRARY: thing->kind = A_LIBRARY, thing->context = NONE, of->code += 8 * answer->value; break;
    default: thing->kind = A_MODULE, thing->charged = in_blocks(call->bytes), of->code += 8 * answer->value;
    }
}

unsigned books_tile(const struct thing *array, const struct share *share)
{
    unsigned t = 0;
    while (t < TILES - 1 && array->tiles[t] != NULL && array->tiles[t] != share)
        t++;
    return t;
}

/* Tiles of a block count once for an array, until the array is gone. */
static void enter_tile(struct process *of, struct thing *array, const struct call *call)
{
    struct share *share = of->things[call->other].share;
    unsigned t = books_tile(array, share);
    if (array->tiles[t] == NULL) {
        array->tiles[t] = share;
        share->of_maker++;
    }
}

/* A launch is refused while the memory of the last one is there, and when the context of that memory ended. */
static void enter_launch(struct thing *exec, const struct answer *answer)
{
    if (exec->prepaid)
        exec->charged = 0;
    exec->prepaid = false;
    exec->live = exec->live || (answer->code == 0 && !exec->frees);
}

/* The memory of a graph outlives it. */
static void enter_graph_end(struct thing *exec)
{
    if (!exec->live)
        *exec = (struct thing){0};
    exec->kind = exec->live ? OF_POOL : NOTHING;
    exec->pool = NONE;
    exec->context = exec->owner_context;
    exec->live = false;
}

static void enter_streams_word(struct process *of, const struct call *call)
{
    of->things[call->cell].blocked = call->kind == BLOCK_STREAM;
    for (struct pending *it = of->pending; call->kind == OPEN_STREAM && it < of->pending + PENDING; it++)
        if (it->stream == call->cell)
            it->stream = NONE;
}

static void enter_look(struct process *of, const struct call *call)
{
    for (struct pending *it = of->pending; it < of->pending + PENDING; it++)
        if (it->stream == NONE)
            it->used = false;
    (void)call;
}

static void enter_green_end(struct books *books, uint32_t process, struct thing *thing)
{
    struct context *primary = &books->processes[process].contexts[thing->device];
    uint32_t device = thing->device;
    drop(books, process, thing);
    if (--primary->attached == 0)
        end_context(books, process, device);
}

static void enter_context(struct books *books, uint32_t process, const struct call *call)
{
    struct process *of = &books->processes[process];
    uint32_t at = call->kind == CREATE ? call->other : call->kind == DESTROY ? call->context : call->device;
    struct context *context = &of->contexts[at];
    context->device = call->device;
    if (call->kind == RETAIN || call->kind == CREATE)
        context->attached++;
    else if (call->kind != RELEASE || --context->attached == 0)
        end_context(books, process, at);
}

void books_enter(struct books *books, uint32_t process, const struct call *call, const struct answer *answer,
                 uint64_t room)
{
    struct process *of = &books->processes[process];
    struct thing *thing = &of->things[call->cell == NONE ? 0 : call->cell];
    switch (call->kind) {
    case RETAIN:
    case RELEASE:
    case RESET:
    case CREATE:
    case DESTROY: enter_context(books, process, call); break;
    case FREE:
    case FREE_ASYNC: enter_free(books, process, call); break;
    case POOL_DESTROY: enter_pool_end(books, process, thing); break;
    case POOL_EXPORT: enter_pool_export(books, process, call, answer); break;
    case POOL_SHARE: enter_pool_share(of, call, answer); break;
    case STREAM_DESTROY:
    case HANDLE_RELEASE:
    case UNMAP:
    case CLOSE:
    case ARRAY_DESTROY:
    case MODULE_UNLOAD:
    case LIBRARY_UNLOAD:
        drop(books, process, thing);
        end_pools(books, process, call->device);
        break;
    case BLOCK_STREAM:
    case OPEN_STREAM: enter_streams_word(of, call); break;
    case LAUNCH: enter_launch(thing, answer); break;
    case GRAPH_DESTROY: enter_graph_end(thing); break;
    case EXPORT: thing->share->files++, thing->share->exported = true; break;
    case SHARE: enter_share(books, process, thing, answer); break;
    case TILE: enter_tile(of, thing, call); break;
    case GREEN_DESTROY: enter_green_end(books, process, thing); break;
    case LIMIT: enter_limit(books, &of->contexts[call->context], call); break;
    case LOOK: enter_look(of, call); break;
    case POOL_TRIM:
    case LIBRARY_USE:
    case SYNCHRONIZE: break;
    default: enter_made(books, process, call, answer, room);
    }
}

void books_pools(struct books *books, uint32_t process, const struct call *call, const struct answer *answer)
{
    struct process *of = &books->processes[process];
    for (uint32_t d = 0; d < DEVICES; d++) {
        bool ends = call->kind == RELEASE || call->kind == RESET || call->kind == DESTROY;
        bool looked = call->device == d && (call->kind == LOOK || (ends && !on_device(books, process, d)));
        of->pools_most[d] += answer->reserved[d] > of->pools[d] ? answer->reserved[d] - of->pools[d] : 0;
        of->pools[d] = answer->reserved[d];
        of->pools_least[d] = answer->used[d];
        if (looked)
            of->pools_most[d] = of->pools[d];
    }
    for (uint32_t c = 0; c < CELLS; c++) {
        struct share *share = of->things[c].kind == A_POOL ? of->things[c].share : NULL;
        if (share == NULL)
            continue;
        share->reserved = answer->exported[c];
        share->in_use = answer->in_use[c];
        share->bytes = share->bytes > share->reserved ? share->bytes : share->reserved;
    }
}
