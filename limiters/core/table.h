/* The table of what this process holds, by the driver's names: pointers, handles, streams. Many threads use it. */
#ifndef HETERO_TABLE_H
#define HETERO_TABLE_H

#include <stdbool.h>
#include <stdint.h>

struct entry {
    uint64_t key;       /* the driver's name, unique within its kind */
    uint32_t kind;      /* of the caller's choice; 0: no entry */
    int32_t device;     /* its number in the grant */
    union {             /* the kind says which */
        uint64_t bytes; /* charged, or a length */
        uint64_t count;
        uint64_t key_or_address; /* an address, or the key of another entry */
    };
    void *owner; /* the object with which the entry ends (a context), or NULL */
    union {      /* the kind says which */
        void *link;
        uint64_t second_bytes, page_table_count;
        uint64_t device_bits; /* bit i: device i of the grant */
    };
};

/* Put an entry. One of the same kind and key is replaced and copied to `previous`, whose kind is 0 otherwise. False: no
 * memory. */
bool table_put(const struct entry *entry, struct entry *previous);

/* Copy an entry, or take it out. False: there is none. */
bool table_get(uint32_t kind, uint64_t key, struct entry *copy);
bool table_take(uint32_t kind, uint64_t key, struct entry *copy);

/* Add to the bytes or the count of an entry, and copy the result. False: there is none. */
bool table_add(uint32_t kind, uint64_t key, int64_t change, struct entry *copy);

/* Take out any entry for which `matches` holds. Called until it returns false, it takes all. */
bool table_take_match(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *copy);

/* Copy any entry for which `matches` holds. False: there is none. */
bool table_find(bool (*matches)(const struct entry *, const void *), const void *argument, struct entry *copy);

/* In a child after fork: forget the parent's entries. */
void table_after_fork(void);

#endif
