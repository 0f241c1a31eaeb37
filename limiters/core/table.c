/* Open addressing with linear probing in 32 shards, each behind its own mutex; none is held while the caller works. */
#include "table.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 32u

struct shard {
    pthread_mutex_t lock; /* guards the rest */
    struct entry *slots;  /* a power of two of them, kind 0 is empty */
    size_t size, filled;
};

static struct shard shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint64_t hash(uint32_t kind, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 32;
}

static struct shard *shard_of(uint32_t kind, uint64_t key)
{
    struct shard *shard = &shards[hash(kind, key) >> 27 & (SHARDS - 1)];
    pthread_mutex_lock(&shard->lock);
    return shard;
}

/* The entry's slot, or the empty one where it would go. */
static struct entry *slot_of(const struct shard *shard, uint32_t kind, uint64_t key)
{
    size_t at = hash(kind, key) & (shard->size - 1);
    while (shard->slots[at].kind != 0 && (shard->slots[at].kind != kind || shard->slots[at].key != key))
        at = (at + 1) & (shard->size - 1);
    return &shard->slots[at];
}

static bool grow(struct shard *shard)
{
    struct shard larger = {.size = shard->size == 0 ? 64 : shard->size * 2};
    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (larger.slots == NULL)
        return false;
    for (size_t at = 0; at < shard->size; at++)
        if (shard->slots[at].kind != 0)
            *slot_of(&larger, shard->slots[at].kind, shard->slots[at].key) = shard->slots[at];
    free(shard->slots);
    shard->slots = larger.slots;
    shard->size = larger.size;
    return true;
}

static void empty(struct shard *shard, struct entry *slot)
{
    size_t hole = (size_t)(slot - shard->slots), mask = shard->size - 1;
    shard->filled--;
    /* Move back what probing would no longer find past the hole. */
    for (size_t at = (hole + 1) & mask; shard->slots[at].kind != 0; at = (at + 1) & mask) {
        size_t ideal = hash(shard->slots[at].kind, shard->slots[at].key) & mask;
        if (((at - ideal) & mask) >= ((at - hole) & mask)) {
            shard->slots[hole] = shard->slots[at];
            hole = at;
        }
    }
    shard->slots[hole].kind = 0;
}

bool table_put(const struct entry *entry, struct entry *previous)
{
    struct shard *shard = shard_of(entry->kind, entry->key);
    bool room = shard->filled * 4 < shard->size * 3 || grow(shard);
    if (room) {
        struct entry *slot = slot_of(shard, entry->kind, entry->key);
        *previous = *slot;
        shard->filled += slot->kind == 0;
        *slot = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    return room;
}

static inline __attribute__((always_inline)) bool look(uint32_t kind, uint64_t key, int64_t change, struct entry *found,
                                                       bool take)
{
    struct shard *shard = shard_of(kind, key);
    struct entry *slot = shard->size == 0 ? NULL : slot_of(shard, kind, key);
    bool there = slot != NULL && slot->kind != 0;
    if (there) {
        slot->bytes += (uint64_t)change;
        *found = *slot;
        if (take)
            empty(shard, slot);
    }
    pthread_mutex_unlock(&shard->lock);
    return there;
}

bool table_get(uint32_t kind, uint64_t key, struct entry *found)
{
    return look(kind, key, 0, found, false);
}

bool table_take(uint32_t kind, uint64_t key, struct entry *found)
{
    return look(kind, key, 0, found, true);
}

bool table_add(uint32_t kind, uint64_t key, int64_t change, struct entry *found)
{
    return look(kind, key, change, found, false);
}

static bool search(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *found,
                   bool take)
{
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        pthread_mutex_lock(&shard->lock);
        for (size_t at = 0; at < shard->size; at++) {
            if (shard->slots[at].kind == 0 || !matches(&shard->slots[at], argument))
                continue;
            *found = shard->slots[at];
            if (take)
                empty(shard, &shard->slots[at]);
            pthread_mutex_unlock(&shard->lock);
            return true;
        }
        pthread_mutex_unlock(&shard->lock);
    }
    return false;
}

bool table_take_match(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *found)
{
    return search(matches, argument, found, true);
}

bool table_find(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *found)
{
    return search(matches, argument, found, false);
}

void table_after_fork(void)
{
    /* Another thread may have been inside at the fork: its shard may be half written, so nothing of it is touched. */
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
        *shard = (struct shard){.lock = PTHREAD_MUTEX_INITIALIZER};
}
