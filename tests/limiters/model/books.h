/* The reference model: what a card holds for each process, and what its grant is charged, by docs/charges.md. It knows
 * calls and their answers, and nothing of how the limiter counts.
 *
 * Most is known to the byte, some as a range. Memory that pools keep after a free stays charged until the process asks
 * for its free memory (LOOK), and so does memory whose stream has passed the free.
 */
#ifndef HETERO_MODEL_BOOKS_H
#define HETERO_MODEL_BOOKS_H

#include "call.h"

#include <stdbool.h>

#define MIB         (UINT64_C(1) << 20)
#define BLOCK_BYTES (2 * MIB)
#define CHUNK_BYTES (32 * MIB)
#define BATCH_BYTES (128 * MIB) /* unit in which managed memory is charged */
#define GREEN_BYTES (16 * MIB)  /* of a green context */
#define PROCESSES   4u
#define GRANTS      2u
#define SHARES      64u
#define PENDING     64u
#define TILES       4u

enum thing_kind {
    NOTHING,
    POINTER,
    SUBALLOCATION,
    MANAGED_POINTER,
    POOL_POINTER,
    A_POOL,
    A_STREAM,
    AN_EXEC,
    A_HANDLE,
    A_MAPPING,
    IPC_POINTER,
    AN_ARRAY,
    A_SPARSE_ARRAY,
    A_MODULE,
    A_LIBRARY,
    A_GREEN_CONTEXT,
    IMPORTED_POOL, /* of another process */
    IMPORTED_POOL_POINTER,
};

struct thing { /* an object in a cell of a process */
    enum thing_kind kind;
    uint32_t device, context; /* context: NONE: it ends with no context */
    uint32_t owner_context;   /* of a graph: the context that its memory ends with */
    uint64_t bytes, charged_bytes;
    uint64_t block_number; /* of a sub-allocation: its block */
    uint32_t pool_cell;    /* of POOL_POINTER: the pool's cell, or NONE */
    struct share *share;   /* of handles, mappings, shared pointers; a shared sub-allocation's block has one, too */
    struct share *tiles[TILES];      /* of a sparse array */
    bool is_blocked;                 /* a stream that waits for a word of the host */
    bool is_imported, is_exportable; /* blocks and pools: made by another process; may be exported */
    bool is_prepaid, is_live;        /* of a graph: not launched yet; its memory is allocated */
    bool frees_itself;               /* a graph that frees its memory */
};

struct share { /* a block that several processes may have, or an exported pointer, block of sub-allocations, or pool */
    bool is_used, is_exported;
    uint32_t device, maker_process;      /* maker_process: NONE: it ended */
    uint32_t maker_context;              /* the maker's context that it ends with; NONE: none */
    uint64_t bytes, block_number;        /* block_number: of a block of sub-allocations */
    unsigned maker_references;           /* the maker's handles, mappings and sparse arrays of it */
    unsigned open_counts[PROCESSES];     /* by process that imported or opened it */
    unsigned file_count;                 /* its file descriptors */
    bool is_pool;                        /* a pool, which is charged its largest reservation */
    uint64_t reserved_bytes, used_bytes; /* of a pool: now */
    uint32_t address_cell;               /* of a pool: the maker's cell of the pointer that `handle` names */
    bool is_late;    /* freed in the order of a stream that waits, so that its return is not observed */
    bool is_stuck;   /* its maker freed it while other processes had it, or late */
    char handle[64]; /* of a pointer, or of an address in a pool */
};

struct pending { /* memory freed in the order of a stream */
    bool is_used;
    uint32_t device, context, stream_context, stream_cell; /* stream_cell: that it waits for, or NONE */
    uint64_t charged_bytes;
};

struct context {
    uint32_t device;
    unsigned attach_count;    /* 0: there is none */
    uint64_t own_block;       /* number of the block that is part of it; 0: none yet */
    bool is_own_block_unsure; /* it was a large allocation's or shared: the driver may keep another block */
    uint64_t limit_bytes;     /* charged for all limits */
    uint64_t charged_limits[3], rounding_bytes[3];
};

struct process {
    bool is_alive;
    uint32_t grant;
    int pid;
    struct context contexts[CONTEXTS];
    struct thing things[CELLS];
    struct pending pending[PENDING];
    uint64_t small_array_bytes[DEVICES], small_array_charged_bytes[DEVICES]; /* arrays that share blocks */
    uint64_t pool_bytes[DEVICES], pool_peak_bytes[DEVICES], pool_used_bytes[DEVICES];
    uint64_t measured_bytes[DEVICES]; /* charged because the driver's figure was larger */
    bool keeps_context[DEVICES];      /* its last context ended, whose charge stays for the next one */
    bool is_unsure[DEVICES]; /* the figure may have been read while the charges of calls were not known to the byte */
    uint64_t code_bytes;
};

struct books {
    struct process processes[PROCESSES];
    struct share shares[SHARES];
    /* Shared by processes that ended, while other processes have it open. The most of it until the next sweep, since a
     * process may open something before. */
    uint64_t left_bytes[GRANTS][DEVICES], max_left_bytes[GRANTS][DEVICES];
    uint64_t context_bytes, thread_count;
    uint64_t context_charges[GRANTS]; /* for each context, its own block with it; 0: contexts are not charged */
};

struct range {
    uint64_t min_bytes, max_bytes;
};

/* What a process is charged, without what the driver's figure added: the part that is certain, and the most. */
struct range books_charged(const struct books *books, uint32_t process_index, uint32_t device);

/* What the process's figure may lack of the charges for its contexts: their own blocks, and the last one's memory. */
uint64_t books_idle(const struct books *books, uint32_t process_index, uint32_t device);

/* What the process's figure may have beyond its charges: contexts that are not charged. */
uint64_t books_uncharged(const struct books *books, uint32_t process_index, uint32_t device);

/* Memory that the process made and freed, and that other processes have: charged, and not in its figure. */
uint64_t books_stuck(const struct books *books, uint32_t process_index, uint32_t device);

/* Whether it is unknown if the card has the block of a shared sub-allocation back after a free: it is the last one in
 * the block, and small arrays are in such blocks, too. Memory whose return is not observed stays charged. */
bool books_may_stay(const struct books *books, uint32_t process_index, const struct thing *piece);

/* Whether it is unknown if the card has back what a context shared, when the context ends. Memory that its maker
 * freed and other processes have leaves the figure of this process, but not the card. Memory whose return is not
 * observed stays charged. True also if the process has another process's pool or an address in one, which count as
 * open until they are freed by name. */
bool books_may_move(const struct books *books, uint32_t process_index, uint32_t context);

/* What managed memory is charged, which no figure has. */
uint64_t books_managed(const struct books *books, uint32_t process_index, uint32_t device);

/* What streams may have beyond the charges. */
uint64_t books_streams(const struct books *books, uint32_t process_index, uint32_t device);

/* Memory that a process has open and that its maker freed. */
uint64_t books_taken_over(const struct books *books, uint32_t process_index, uint32_t device);

/* A file descriptor of a block is closed. */
void books_close_file(struct books *books, uint32_t share_index);

/* The most that may be charged beyond the figure. */
uint64_t books_unseen(const struct books *books, uint32_t process_index, uint32_t device);

/* What a library with an array of so many bytes adds on a device: it counts in each context. */
uint64_t books_library(const struct books *books, uint32_t process_index, uint32_t device, uint64_t bytes);

/* The most that a call may add to the charges; 0: it is charged nothing. */
uint64_t books_wanted(const struct books *books, uint32_t process_index, const struct call *call);

/* A call succeeded. room_bytes: what was left of the limit before it. */
void books_enter(struct books *books, uint32_t process_index, const struct call *call, const struct answer *answer,
                 uint64_t room_bytes);

/* Updates what the pools of a process reserve. After a LOOK they are charged nothing else. */
void books_pools(struct books *books, uint32_t process_index, const struct call *call, const struct answer *answer);

/* A process ended or was killed. */
void books_end(struct books *books, uint32_t process_index);

/* Whether a process of the grant has memory of others open. */
bool books_opened(const struct books *books, uint32_t grant);

/* Bytes on a device in blocks whose maker ended. */
uint64_t books_orphans(const struct books *books, uint32_t device);

bool books_has_context(const struct books *books, uint32_t process_index, uint32_t device);

/* The tile of a sparse array that a block is in, or will be in. */
unsigned books_tile(const struct thing *array, const struct share *share);

#endif
