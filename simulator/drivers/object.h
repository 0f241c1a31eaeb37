/* Objects of a simulated driver: their handles are cells of one arena, so that a stale or invalid handle is recognised.
 * Each driver has one, `objects`, with kinds of its own. Its lock is held around all of these. */
#ifndef HETERO_FAKE_OBJECT_H
#define HETERO_FAKE_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

struct object {
    int kind;        /* 0: the cell is free */
    uint64_t number; /* unique for the process's life */
    struct object *next_free;
};

struct arena {
    unsigned cell_bytes;
    uint64_t size_bytes;
    bool is_queue; /* a freed cell is used again as late as can be, rather than at once */
    char *start;   /* NULL until made */
    uint64_t used_bytes, last_number;
    struct object *first_free, *last_free;
};
extern struct arena objects __attribute__((visibility("hidden")));

bool objects_make(void); /* address space only; pages are allocated on first access */
void objects_forget(void);

void *object_new(int kind);                      /* NULL: there are too many */
void *object_find(const void *handle, int kind); /* NULL: no such object */
void *object_next(const void *object, int kind); /* walks all of a kind; NULL starts and ends */
void object_free(void *object);

#endif
