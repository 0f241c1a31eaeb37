/* What this process holds, by what the driver calls it: pointers, handles, streams. Many threads, few collisions. */
#ifndef HETERO_TABLE_H
#define HETERO_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct entry {
    uint64_t key;
    uint32_t kind; /* 0 is nothing; the caller's own otherwise: a key is unique within its kind */
    int32_t device;
    uint64_t bytes;
    void *owner; /* what it ends with (a context), or NULL */
    void *link;  /* the caller's */
};

/* Put an entry. If one was there under the same kind and key, it is replaced and copied to `previous` (its kind is 0
 * otherwise). False: no memory. */
bool table_put(const struct entry *entry, struct entry *previous);

/* Read an entry, or take it out. */
bool table_get(uint32_t kind, uint64_t key, struct entry *found);
bool table_take(uint32_t kind, uint64_t key, struct entry *found);

/* Add to the bytes of an entry, and copy it as it is then. False: there is none. */
bool table_add(uint32_t kind, uint64_t key, int64_t change, struct entry *found);

/* Take out one entry for which `matches` holds; call until it says false. */
bool table_take_match(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *found);

/* Copy out one entry for which `matches` holds. */
bool table_find(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *found);

/* In a child after fork: nothing of the parent's is the child's. */
void table_after_fork(void);

#endif
