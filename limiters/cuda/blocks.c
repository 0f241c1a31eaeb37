/* Pieces of memory, and the blocks that they lie in (blocks.h). */
#include "blocks.h"

#include "charge.h"
#include "device.h"
#include "driver.h"

#include <pthread.h>

/* Keeps a block's pieces, and the small arrays, in step. Never held across a charge or a call of the driver. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

/* Of the small arrays of each device: the bytes they are, and the bytes that are charged for them. */
static struct {
    uint64_t live, charged;
} arrays[HETERO_MAX_DEVICES];

/* What entries link to: a piece; a block that is charged; an allocation that has its context's block. */
static char piece, charged, with_context;

void blocks_after_fork(void)
{
    counting = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        arrays[device].live = arrays[device].charged = 0;
}

uint64_t blocks_for(uint64_t bytes)
{
    if (bytes < PIECE_BELOW)
        return 0;
    return bytes > UINT64_MAX - BLOCK ? UINT64_MAX : (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

bool is_piece(const struct entry *entry)
{
    return entry->link == &piece;
}

/* Count a piece in a block that is known. */
static bool count_piece(uint64_t block)
{
    struct entry entry, previous;
    pthread_mutex_lock(&counting);
    bool known = table_take(HELD_BLOCK, block, &entry);
    entry.bytes++;
    if (known)
        table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
    return known;
}

/* A block with its first piece; false, and another thread has counted it: it is known by now. */
static bool remember_block(uint64_t block, int device, CUcontext context, bool first)
{
    struct entry previous, found,
        entry = {.key = block,
                 .kind = HELD_BLOCK,
                 .device = device,
                 .bytes = 1,
                 .owner = context,
                 .link = first ? NULL : &charged};
    struct entry of = {.key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .bytes = block, .owner = context};
    pthread_mutex_lock(&counting);
    bool news = !table_get(HELD_BLOCK, block, &found);
    if (news && first)
        news = !table_get(CONTEXT_BLOCK, of.key, &found) && table_put(&of, &previous);
    news = news && table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
    return news;
}

static CUresult charge_piece(uint64_t block, int device, CUcontext context)
{
    struct entry found;
    if (count_piece(block) ||
        (!table_get(CONTEXT_BLOCK, (uintptr_t)context, &found) && remember_block(block, device, context, true)))
        return CUDA_SUCCESS;
    CUresult refused = charge(device, BLOCK);
    if (refused != CUDA_SUCCESS || remember_block(block, device, context, false))
        return refused;
    refund(device, BLOCK);
    return count_piece(block) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult settle_piece(CUresult answer, const CUdeviceptr *pointer, int device)
{
    if (answer != CUDA_SUCCESS || !counted(device))
        return answer;
    answer = charge_piece(*pointer / BLOCK, device, context_current());
    if (answer != CUDA_SUCCESS)
        REAL(cuMemFree_v2)(*pointer);
    else
        settle_pointer(answer, pointer, device, 0, &piece);
    return answer;
}

uint64_t blocks_charged(int device, uint64_t bytes, uint64_t held)
{
    CUcontext context = held > 0 && counted(device) ? context_current() : NULL;
    struct entry previous, found,
        entry = {.key = (uintptr_t)context, .kind = CONTEXT_BLOCK, .bytes = UINT64_MAX, .owner = context};
    if (context == NULL || table_get(CONTEXT_BLOCK, entry.key, &found) || charge_fits(device, held) ||
        !charge_fits(device, bytes))
        return held;
    pthread_mutex_lock(&counting);
    bool ours = !table_get(CONTEXT_BLOCK, entry.key, &found) && table_put(&entry, &previous);
    pthread_mutex_unlock(&counting);
    return ours ? bytes : held;
}

/* The context has its block again, if an allocation's entry has it. */
static void context_block_freed(const struct entry *entry)
{
    struct entry first;
    if (entry->link == &with_context)
        table_take(CONTEXT_BLOCK, (uintptr_t)entry->owner, &first);
}

CUresult settle_blocks(CUresult answer, const CUdeviceptr *pointer, int device, uint64_t held, uint64_t charged_)
{
    struct entry of = {.link = held > charged_ ? &with_context : NULL, .owner = context_current()};
    if (answer != CUDA_SUCCESS)
        context_block_freed(&of);
    return settle_pointer(answer, pointer, device, charged_, of.link);
}

static void piece_freed(const struct entry *entry)
{
    struct entry block, previous, first;
    pthread_mutex_lock(&counting);
    bool known = table_take(HELD_BLOCK, entry->key / BLOCK, &block);
    bool last = known && --block.bytes == 0;
    if (known && !last)
        table_put(&block, &previous);
    else if (last && block.link == NULL)
        table_take(CONTEXT_BLOCK, (uintptr_t)block.owner, &first);
    pthread_mutex_unlock(&counting);
    if (last && block.link != NULL)
        refund(block.device, BLOCK);
}

void pointer_freed(const struct entry *entry)
{
    if (is_piece(entry)) {
        piece_freed(entry);
    } else {
        give_back_bytes(entry);
        context_block_freed(entry);
    }
}

void block_over(const struct entry *entry)
{
    if (entry->link != NULL)
        refund(entry->device, BLOCK);
}

CUresult charge_small_array(int device, uint64_t bytes)
{
    CUresult answer = CUDA_SUCCESS;
    bool fits = false;
    while (!fits && answer == CUDA_SUCCESS) {
        pthread_mutex_lock(&counting);
        fits = arrays[device].live + bytes <= arrays[device].charged;
        arrays[device].live += fits ? bytes : 0;
        pthread_mutex_unlock(&counting);
        if (fits || (answer = charge(device, BLOCK)) != CUDA_SUCCESS)
            break;
        pthread_mutex_lock(&counting);
        arrays[device].charged += BLOCK;
        pthread_mutex_unlock(&counting);
    }
    return answer;
}

void refund_small_array(int device, uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    arrays[device].live -= bytes;
    uint64_t back = arrays[device].live == 0 ? arrays[device].charged : 0;
    arrays[device].charged -= back;
    pthread_mutex_unlock(&counting);
    refund(device, back);
}
