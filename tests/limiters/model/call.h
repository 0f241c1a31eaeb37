/* Calls that the model's program has its processes make, one call of the driver at a time. */
#ifndef HETERO_MODEL_CALL_H
#define HETERO_MODEL_CALL_H

#include <stdint.h>

#define DEVICES  2u
#define CONTEXTS 4u /* of a process: the primary context of each device, and two others */
#define CELLS    48u
#define NONE     UINT32_MAX

/* clang-format off */
#define CALLS(X) \
    X(RETAIN) X(RELEASE) X(RESET) X(CREATE) X(DESTROY) X(ALLOCATE) X(PITCHED) X(MANAGED) X(FREE) X(FREE_ASYNC) \
    X(POOL) X(POOL_DESTROY) X(POOL_TRIM) X(POOLED) X(SYNCHRONIZE) X(STREAM) X(STREAM_DESTROY) X(BLOCK_STREAM) \
    X(OPEN_STREAM) X(GRAPH) X(LAUNCH) X(GRAPH_DESTROY) X(BLOCK) X(HANDLE_RETAIN) X(HANDLE_RELEASE) X(MAP) \
    X(UNMAP) X(EXPORT) X(IMPORT) X(SHARE) X(OPEN) X(CLOSE) X(ARRAY) X(SPARSE) X(TILE) X(ARRAY_DESTROY) X(MODULE) \
    X(MODULE_UNLOAD) X(LIBRARY) X(LIBRARY_USE) X(LIBRARY_UNLOAD) X(LIMIT) X(GREEN) X(GREEN_DESTROY) X(POOL_EXPORT) \
    X(POOL_IMPORT) X(POOL_SHARE) X(POOL_OPEN) X(LOOK) X(LOSE) X(RUN)
/* clang-format on */

#define ENUM(name) name,
enum { CALLS(ENUM) CALL_KINDS };

/* A call, and the cell of the process that has the object of the call. */
struct call {
    uint32_t kind, device, context, cell, other_cell, choice;
    uint32_t thread_number; /* of the process that makes the call: 0 its first, 1 another */
    uint32_t pad;
    uint64_t bytes;
    char handle[64]; /* of OPEN and POOL_OPEN */
};

struct answer {
    int32_t code;
    uint32_t pad;
    uint64_t value; /* the address, file descriptor, free bytes or bytes of text */
    uint64_t reserved_bytes[DEVICES], used_bytes[DEVICES]; /* of this process's pools, as the driver reports */
    uint64_t exported_reserved_bytes[CELLS],
        exported_used_bytes[CELLS]; /* of its exported pools, which are not in those above: by the pool's cell */
    char handle[64];                /* of SHARE and POOL_SHARE */
};

/* Makes the calls that come through a socket until it ends. */
int work(int socket);

#endif
