/* A hash table with open addressing and linear probing, in 32 shards. Each shard has a mutex, held inside calls only.
 */
#include "table.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 32u

struct shard {
    pthread_mutex_t lock;  /* guards the rest */
    struct entry *entries; /* `capacity` of them, a power of two; kind 0 is an empty place */
    size_t capacity, entry_count;
};

static struct shard shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint64_t hash(uint32_t kind, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 32;
}

static struct shard *lock_shard_of(uint32_t kind, uint64_t key)
{
    struct shard *shard = &shards[hash(kind, key) >> 27 & (SHARDS - 1)];
    pthread_mutex_lock(&shard->lock);
    return shard;
}

/* The entry's place, or the empty place for it. */
static struct entry *entry_at(const struct shard *shard, uint32_t kind, uint64_t key)
{
    size_t index = hash(kind, key) & (shard->capacity - 1);
    while (shard->entries[index].kind != 0 && (shard->entries[index].kind != kind || shard->entries[index].key != key))
        index = (index + 1) & (shard->capacity - 1);
    return &shard->entries[index];
}

static bool grow(struct shard *shard)
{
    struct shard larger = {.capacity = shard->capacity == 0 ? 64 : shard->capacity * 2};
    larger.entries = calloc(larger.capacity, sizeof *larger.entries);
    if (larger.entries == NULL)
        return false;
    for (size_t index = 0; index < shard->capacity; index++)
        if (shard->entries[index].kind != 0)
            *entry_at(&larger, shard->entries[index].kind, shard->entries[index].key) = shard->entries[index];
    free(shard->entries);
    shard->entries = larger.entries;
    shard->capacity = larger.capacity;
    return true;
}

static void remove_entry(struct shard *shard, struct entry *entry)
{
    size_t hole = (size_t)(entry - shard->entries), mask = shard->capacity - 1;
    shard->entry_count--;
    /* Move entries back that probing would no longer find behind the hole. */
    for (size_t index = (hole + 1) & mask; shard->entries[index].kind != 0; index = (index + 1) & mask) {
        size_t home = hash(shard->entries[index].kind, shard->entries[index].key) & mask;
        if (((index - home) & mask) >= ((index - hole) & mask)) {
            shard->entries[hole] = shard->entries[index];
            hole = index;
        }
    }
    shard->entries[hole].kind = 0;
}

bool table_put(const struct entry *entry, struct entry *previous)
{
    struct shard *shard = lock_shard_of(entry->kind, entry->key);
    bool has_room = shard->entry_count * 4 < shard->capacity * 3 || grow(shard);
    if (has_room) {
        struct entry *stored_entry = entry_at(shard, entry->kind, entry->key);
        *previous = *stored_entry;
        shard->entry_count += stored_entry->kind == 0;
        *stored_entry = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    return has_room;
}

static inline __attribute__((always_inline)) bool find_and_change(uint32_t kind, uint64_t key, int64_t change,
                                                                  struct entry *copy, bool removes)
{
    struct shard *shard = lock_shard_of(kind, key);
    struct entry *entry = shard->capacity == 0 ? NULL : entry_at(shard, kind, key);
    bool is_present = entry != NULL && entry->kind != 0;
    if (is_present) {
        entry->bytes += (uint64_t)change;
        *copy = *entry;
        if (removes)
            remove_entry(shard, entry);
    }
    pthread_mutex_unlock(&shard->lock);
    return is_present;
}

bool table_get(uint32_t kind, uint64_t key, struct entry *copy)
{
    return find_and_change(kind, key, 0, copy, false);
}

bool table_take(uint32_t kind, uint64_t key, struct entry *copy)
{
    return find_and_change(kind, key, 0, copy, true);
}

bool table_add(uint32_t kind, uint64_t key, int64_t change, struct entry *copy)
{
    return find_and_change(kind, key, change, copy, false);
}

static bool find_match(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *copy,
                       bool removes)
{
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
        pthread_mutex_lock(&shard->lock);
        for (size_t index = 0; index < shard->capacity; index++) {
            if (shard->entries[index].kind == 0 || !matches(&shard->entries[index], argument))
                continue;
            *copy = shard->entries[index];
            if (removes)
                remove_entry(shard, &shard->entries[index]);
            pthread_mutex_unlock(&shard->lock);
            return true;
        }
        pthread_mutex_unlock(&shard->lock);
    }
    return false;
}

bool table_take_match(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *copy)
{
    return find_match(matches, argument, copy, true);
}

bool table_find(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *copy)
{
    return find_match(matches, argument, copy, false);
}

void table_after_fork(void)
{
    /* Another thread may have changed a shard at the fork. It may be half written, so its memory is not freed. */
    for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
        *shard = (struct shard){.lock = PTHREAD_MUTEX_INITIALIZER};
}
