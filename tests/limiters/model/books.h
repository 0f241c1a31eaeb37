/* The reference model: what a card holds for each process, and what its grant is charged, by docs/charges.md. It knows
 * calls and their answers, and nothing of how the limiter counts.
 *
 * Most is known to the byte. Of some it is known within what it lies: what pools keep of freed memory is charged until
 * the process is asked what is left (LOOK), and so is what a stream has come past.
 */
#ifndef HETERO_MODEL_BOOKS_H
#define HETERO_MODEL_BOOKS_H

#include "call.h"

#include <stdbool.h>

#define MIB       (UINT64_C(1) << 20)
#define BLOCK_    (2 * MIB)
#define CHUNK     (32 * MIB)
#define BATCH     (128 * MIB) /* of managed memory */
#define GREEN_    (16 * MIB)  /* a green context */
#define PROCESSES 4u
#define GRANTS    2u
#define SHARES    64u
#define PENDING   64u
#define TILES     4u

enum thing_kind {
    NOTHING,
    POINTER,
    PIECE,
    BY_MANAGED,
    OF_POOL,
    A_POOL,
    A_STREAM,
    AN_EXEC,
    A_HANDLE,
    A_MAPPING,
    OPENED,
    AN_ARRAY,
    A_SPARSE,
    A_MODULE,
    A_LIBRARY,
    A_GREEN,
    POOL_OPENED, /* another process's */
    OPENED_IN_POOL,
};

struct thing { /* what a process has in a cell */
    enum thing_kind kind;
    uint32_t device, context; /* context: NONE where it ends with none */
    uint32_t owner_context;   /* of a graph: the context that its memory ends with */
    uint64_t bytes, charged;
    uint64_t block;             /* of a piece: where it lies */
    uint32_t pool;              /* of OF_POOL: the pool's cell, or NONE */
    struct share *share;        /* of handles, mappings, shared pointers; a shared piece's block has one */
    struct share *tiles[TILES]; /* of a sparse array */
    bool blocked;               /* a stream that waits */
    bool imported, exportable;  /* a block or pool that another process made; one that may be exported */
    bool prepaid, live, frees;  /* of a graph: not launched yet; its memory is there; it frees that itself */
};

struct share { /* a block that more than one may have, or a pointer, a block of pieces, or a pool that was exported */
    bool used, exported;
    uint32_t device, maker;    /* maker: NONE when it ended */
    uint32_t context;          /* of its maker, that it ends with; NONE: with none */
    uint64_t bytes, block;     /* block: of pieces, where it lies */
    unsigned of_maker;         /* handles, mappings, sparse arrays of its maker's */
    unsigned open[PROCESSES];  /* by those who imported or opened it */
    unsigned files;            /* descriptors */
    bool pool;                 /* which is charged with the most that it reserved */
    uint64_t reserved, in_use; /* of a pool: now */
    uint32_t address;          /* of a pool: the maker's cell that `handle` is of */
    bool late;                 /* freed in the order of a stream that waits: nobody sees when it is back */
    bool stuck;                /* its maker let go of it while others had it, or late */
    char handle[64];           /* of a pointer, or of an address in a pool */
};

struct pending { /* freed in the order of a stream */
    bool used;
    uint32_t device, context, stream_context, stream; /* stream: the cell that it waits for, or NONE */
    uint64_t charged;
};

struct context {
    uint32_t device;
    unsigned attached; /* 0: there is none */
    uint64_t first;    /* the block that is part of it; 0: none yet */
    bool lent;         /* that was a large allocation's, or others': nobody knows which block the driver keeps */
    uint64_t limits;   /* charged */
    uint64_t limit[3], rounded[3];
};

struct process {
    bool lives;
    uint32_t grant;
    int pid;
    struct context contexts[CONTEXTS];
    struct thing things[CELLS];
    struct pending pending[PENDING];
    uint64_t small_live[DEVICES], small_charged[DEVICES]; /* arrays that share blocks */
    uint64_t pools[DEVICES], pools_most[DEVICES], pools_least[DEVICES];
    uint64_t beyond[DEVICES]; /* charged by the driver's figure */
    bool unsure[DEVICES];     /* that may have been asked while what is charged by calls was not known to the byte */
    uint64_t code;
};

struct books {
    struct process processes[PROCESSES];
    struct share shares[SHARES];
    uint64_t left[GRANTS][DEVICES];      /* of processes that ended, while others have it open */
    uint64_t most_left[GRANTS][DEVICES]; /* the same before the next sweep, as others may open something until then */
    uint64_t context_bytes, threads;
};

struct range {
    uint64_t least, most;
};

/* What is charged for a process but for what the driver's figure told, and what of it may be told by the figure alone.
 */
struct range books_charged(const struct books *books, uint32_t process, uint32_t device);

/* What the process's figure may have beyond its charges: contexts, and what is opened of others who let go of it. */
uint64_t books_uncharged(const struct books *books, uint32_t process, uint32_t device);

/* What others have of what the process made and let go of: charged, and not in its figure. */
uint64_t books_stuck(const struct books *books, uint32_t process, uint32_t device);

/* Whether nobody knows if the card has the block of a shared piece back when that is freed: it is the last in there,
 * and small arrays lie in such blocks, too. What is not seen to be back stays charged. */
bool books_may_stay(const struct books *books, uint32_t process, const struct thing *piece);

/* Whether nobody knows if the card has back what a context shared, when that ends: memory of who let go of it, which
 * others have, too, leaves the process's figure with it and not the card. What is not seen to be back stays charged. Or
 * whether it has another process's pool, or an address in one, which counts as open until it is freed by name. */
bool books_may_move(const struct books *books, uint32_t process, uint32_t context);

/* What is charged for managed memory, which is in nobody's figure. */
uint64_t books_managed(const struct books *books, uint32_t process, uint32_t device);

/* What streams of contexts may have beyond their charges. */
uint64_t books_streams(const struct books *books, uint32_t process, uint32_t device);

/* What a process has open of others who let go of it. */
uint64_t books_taken_over(const struct books *books, uint32_t process, uint32_t device);

/* A descriptor of a block is closed. */
void books_close_file(struct books *books, uint32_t share);

/* What may be charged beyond the figure. */
uint64_t books_unseen(const struct books *books, uint32_t process, uint32_t device);

/* What a library with such an array adds on a device: it counts in each context. */
uint64_t books_library(const struct books *books, uint32_t process, uint32_t device, uint64_t bytes);

/* What a call may add to what is charged, at most; 0: it takes nothing. */
uint64_t books_wanted(const struct books *books, uint32_t process, const struct call *call);

/* A call succeeded; `room`: what was left of the limit before it. */
void books_enter(struct books *books, uint32_t process, const struct call *call, const struct answer *answer,
                 uint64_t room);

/* What the pools of a process reserve; after a LOOK nothing else is charged for them. */
void books_pools(struct books *books, uint32_t process, const struct call *call, const struct answer *answer);

/* A process ended, in whatever way. */
void books_end(struct books *books, uint32_t process);

/* Whether a process of the grant has memory of others open. */
bool books_opened(const struct books *books, uint32_t grant);

/* Bytes on a device of blocks whose maker ended. */
uint64_t books_orphans(const struct books *books, uint32_t device);

bool books_has_context(const struct books *books, uint32_t process, uint32_t device);

/* Which tile of a sparse array a block is in, or will be. */
unsigned books_tile(const struct thing *array, const struct share *share);

#endif
