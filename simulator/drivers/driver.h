/* Inside the fake libcuda.so.1: its objects, and the functions that its files share.
 *
 * One lock guards all of this process's state. LOCKED holds it until the function returns. No thread waits for the card
 * while it holds the lock. Handles are cells of one arena, so that a stale or invalid handle is recognised and answered
 * with the driver's own error code.
 */
#ifndef HETERO_FAKE_DRIVER_H
#define HETERO_FAKE_DRIVER_H

#include "block.h"
#include "cuda/abi.h"
#include "nvidia.h"
#include "object.h"

#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

enum object_kind {
    OBJECT_FREE,
    OBJECT_CONTEXT,
    OBJECT_MODULE,   /* also a library */
    OBJECT_FUNCTION, /* also a kernel */
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_POOL,
    OBJECT_PHYSICAL,
    OBJECT_ARRAY,
    OBJECT_MIPMAP,
    OBJECT_GRAPH,
    OBJECT_NODE,
    OBJECT_EXEC,
    OBJECT_LINK,
    OBJECT_PROCESSORS,
    OBJECT_GREEN,
};

struct pool { /* memory reserved from the card in chunks, and allocated from those */
    struct object object;
    struct device *device;
    CUmemPoolProps props;
    uint64_t reserved_bytes, used_bytes, peak_reserved_bytes, peak_used_bytes, threshold_bytes;
    uint64_t leaving_bytes; /* freed in stream order, and not reached by the stream */
    int reuse_attributes[3];
    bool is_destroyed; /* handles no longer find it; freed with its last memory */
    bool is_shared;    /* may be exported, or was imported: share_number is valid */
    bool is_imported;
    int share_number;
};

#define TABLE_LEVELS 3u

struct device { /* a card as this process sees it; ordinals index driver.devices */
    const struct nvidia_device *slot;
    const struct nvidia_card *card;
    unsigned card_index, context_count;
    struct account *account; /* NULL without a context: then the card does not list the process */
    struct context *primary;
    unsigned primary_retained, primary_flags;
    struct pool *default_pool, *current_pool, *graph_pool;
    uint64_t launch_count,
        *launch_fences;                  /* launch_fences: a ring of the last, since a full queue blocks the launcher */
    uint32_t *table_pages[TABLE_LEVELS]; /* by level: how many pages each table maps */
    uint64_t table_count;
};

/* Page tables of a range (cuda_tables.c), from the lowest that it needs on. False: the card has no room for more. */
enum tables { TABLES_OF_HOST, TABLES_OF_BLOCKS };
bool tables_take(struct device *device, enum tables lowest, uintptr_t start, uint64_t size);
void tables_give(struct device *device, enum tables lowest, uintptr_t start, uint64_t size);
bool tables_take_sparse(struct device *device, uint64_t size);
void tables_give_sparse(struct device *device, uint64_t size);
void tables_leave(struct device *device);

struct context {
    struct object object;
    struct device *device;
    unsigned flags, api_version;
    struct stream *legacy, *per_thread;
    size_t limits[CU_LIMIT_MAX];
    struct block *blocks;                           /* 2 MiB blocks of small allocations */
    uint64_t stack_bytes, printf_bytes, heap_bytes; /* charged to the card for the context's limits */
    uint64_t call_bytes;                            /* charged for the larger stacks of kernels that call malloc */
    uint64_t thread_local_bytes;                    /* per thread, the largest of all kernels loaded */
    uint64_t stream_bytes;                          /* charged for the streams */
    unsigned stream_count;                          /* of the program's, not destroyed */
    uint64_t view_count, view_bytes;                /* of textures and surfaces */
    uint64_t exec_used_bytes,
        exec_charged_bytes; /* nodes of executable graphs: needed, and charged to the card in blocks */
};

struct green { /* a green context and its CUcontext; memory and streams belong to the primary context */
    struct object object;
    struct context *primary; /* NULL: that was reset */
    unsigned multiprocessor_count;
};
#define GREEN (16 * MIB) /* bytes that one is charged; measured on an H100, driver 580.159.04 */

struct position {              /* a point in the order of a device's work */
    uint64_t fence;            /* of the card's work */
    uint64_t condition_number; /* of the last condition it waits for; 0: none */
};

struct stream {
    struct object object;
    struct context *context;
    unsigned flags;
    int priority;
    struct position last_position;
    uint64_t submitted_ns;   /* card time of all work launched into it */
    struct capture *capture; /* NULL: not capturing */
};

struct event {
    struct object object;
    struct context *context;
    unsigned flags;
    bool is_recorded;
    struct position position;
    uint64_t record_ns;
    const struct stream *stream; /* that recorded it; submitted_ns is that stream's then */
    uint64_t submitted_ns;
    struct capture *capture; /* recorded in this capture: has no time; NULL: outside */
};

struct global { /* a module's variable */
    char *name;
    uint64_t offset, size_bytes;
};

struct residence { /* a module's memory in one context */
    const struct context *context;
    struct memory *globals; /* NULL: it has none */
    struct residence *next;
};

struct module {
    struct object object;
    char *ptx; /* NULL: a binary, whose functions are not parsed */
    struct global *globals;
    unsigned global_count;
    uint64_t global_bytes;
    bool calls_printf, calls_malloc; /* on the device: vprintf, malloc */
    struct residence *residences;
};

struct function {
    struct object object;
    struct module *module;
    char *name;
    const struct nvidia_kernel *kernel;
    bool is_library_kernel;      /* a CUkernel of all contexts; cuKernelGetFunction returns another handle */
    bool calls_malloc;           /* calls malloc */
    uint64_t thread_local_bytes; /* a thread's local arrays */
    uint64_t parameter_bytes;
};

struct array {
    struct object object;
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    struct piece piece; /* without a block: is charged nothing */
    struct tile *tiles; /* mapped into a sparse array */
    size_t pitch_bytes, size_bytes;
    char *bytes;
    struct mipmap *parent; /* that owns the memory; NULL: the array does */
};

struct side { /* one end of a copy: rows of a box in memory */
    char *start;
    size_t pitch_bytes, slice_bytes;
};

struct copy {
    struct side to, from;
    size_t width, height, depth; /* bytes, rows, slices */
};

struct fill {
    char *start;
    size_t pitch_bytes, width, height; /* width in elements */
    unsigned value, element_bytes;
};

struct work { /* one thing a stream does, or a graph's node */
    CUgraphNodeType type;
    uint64_t duration_ns;
    union {
        CUDA_KERNEL_NODE_PARAMS kernel; /* without its parameters: a fake kernel computes nothing */
        struct copy copy;
        struct fill fill;
        struct {
            CUhostFn call;
            CUstreamCallback callback;
            CUstream stream;
            void *argument;
        } host;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr free;
        struct event *event;
        struct graph *graph;
        struct {
            struct graph **bodies;
            unsigned count, value; /* value: what the condition is when the graph is launched */
            CUgraphConditionalNodeType type;
        } branch;
    };
};

struct node {
    struct object object;
    struct graph *graph;
    struct work work;
    struct node *next_in_graph, **dependencies, *copied_node; /* copied_node: this node in the last copy of its graph */
    size_t dependency_count;
    bool is_branch_continued; /* scratch of cuda_nodes.c: another node goes on with its branch */
    const void *origin;       /* in an executable graph: the node it was instantiated from */
};

struct graph {
    struct object object;
    struct node *first, *last;
    size_t node_count;
    bool is_owned; /* by a node or an executable graph */
    bool is_body;  /* the body of a conditional node */
};

struct capture {
    struct graph *graph;
    struct stream *origin;
    struct node *last;
    uint64_t id;
    pthread_t thread;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    struct capture *next; /* in driver.captures */
};

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_MANAGED,
    MEMORY_POOL,
    MEMORY_GRAPH,
    MEMORY_IMPORTED, /* of another process's pool */
    MEMORY_MAPPED,
    MEMORY_IPC,
    MEMORY_MODULE,
    MEMORY_HOST,
    MEMORY_REGISTERED
};

struct memory { /* an address range */
    uintptr_t start;
    size_t size_bytes;   /* that the program asked for */
    size_t mapped_bytes; /* with the rounding */
    enum memory_kind kind;
    struct device *device;
    struct context *context;
    struct pool *pool;
    struct physical *physical;
    struct piece piece; /* of device memory; other kinds use charged_bytes */
    uint64_t charged_bytes,
        file_offset; /* file_offset: in this process's memory file; of another process's memory: in its block */
    unsigned flags;
    int share_number;     /* the number of another process's block */
    bool is_live;         /* of a graph's allocation: a launch has allocated it */
    uint64_t exec_number; /* of the executable graph whose launch that was */
    uint64_t number;
};

struct driver {
    pthread_mutex_t lock;
    struct nvidia *rack; /* NULL until cuInit worked */
    unsigned device_count;
    struct device devices[ENGINE_CARDS];
    struct capture *captures;
    pthread_cond_t host_change; /* a condition is met, or there is a new one */
};
extern struct driver driver __attribute__((visibility("hidden")));

static inline void unlock_driver(char *guard)
{
    (void)guard;
    pthread_mutex_unlock(&driver.lock);
}

#define LOCKED                                                                                                         \
    if (!driver.rack)                                                                                                  \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                             \
    pthread_mutex_lock(&driver.lock);                                                                                  \
    char guard __attribute__((cleanup(unlock_driver), unused)) = 0

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult checked = (call);                                                                                     \
        if (checked != CUDA_SUCCESS)                                                                                   \
            return checked;                                                                                            \
    } while (0)

#define WITH_CONTEXT(name)                                                                                             \
    struct context *name = current_context();                                                                          \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_CONTEXT

#define PAGE 4096u
static inline uint64_t round_up(uint64_t value, uint64_t grain)
{
    return (value + grain - 1) / grain * grain;
}

#define WITH_DEVICE(name, ordinal)                                                                                     \
    LOCKED;                                                                                                            \
    struct device *name = device_at(ordinal);                                                                          \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_DEVICE

#define NEEDS(pointer)                                                                                                 \
    if (!(pointer))                                                                                                    \
    return CUDA_ERROR_INVALID_VALUE

void *entry_exported(const char *name); /* an exported function of this library; NULL: there is none */
struct context *current_context(void);
CUresult primary_retain(struct device *device);
CUresult primary_release(struct device *device);
void greens_leave(const struct context *primary);
struct device *device_at(CUdevice ordinal);
struct device *device_of_card(unsigned card); /* NULL: the process does not see it */
#define THREADS_PER_MULTIPROCESSOR 2048
unsigned multiprocessors(const struct device *device);
CUresult device_join(struct device *device); /* counts one context more */
void device_leave(struct device *device);
bool device_peers(const struct device *device, const struct device *peer);

/* Streams. */

#define WITH_STREAM(name, handle)                                                                                      \
    LOCKED;                                                                                                            \
    struct stream *name = stream_find(handle);                                                                         \
    if (!name)                                                                                                         \
    return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT

struct stream *stream_find(CUstream handle); /* special streams resolve in the current context; NULL: no such stream */
struct stream *stream_new(struct context *context, unsigned flags, int priority);
CUresult enqueue(struct stream *stream, const struct work *work);  /* performs or captures the work */
CUresult do_now(struct context *context, const struct work *work); /* on the default stream; waits for its end */
CUresult perform(struct stream *stream, const struct work *work);
void submit(struct stream *stream, uint64_t ns);
void legacy_follows(struct stream *stream); /* a blocking stream's work is the legacy stream's too */
void wait_for(struct device *device, struct position position); /* releases the lock while it waits */
bool reached(struct device *device, struct position position);
bool condition_met(uint64_t number);
uint64_t condition_both(uint64_t first_number, uint64_t second_number); /* met when both are */
CUresult host_call(struct stream *stream, const struct work *work);
CUresult launch_work(struct work *work, CUfunction function, const unsigned dimensions[7], void **params, void **extra);

/* Captures and graphs. */
#define WITH_GRAPH(name, handle)                                                                                       \
    LOCKED;                                                                                                            \
    struct graph *name = object_find(handle, OBJECT_GRAPH);                                                            \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_VALUE

CUresult capture_guard(void); /* refuses a call, and spoils captures, if the call is not allowed during a capture */
CUresult capture_spoil(struct capture *capture);
/* A capture that work in this stream would have to wait for: the stream is the legacy one, and not captured itself. */
struct capture *capture_implied(const struct stream *stream);
void capture_abandon(struct capture *capture);
struct graph *graph_new(bool owned);
struct graph *graph_copy(const struct graph *from, bool owned);
void graph_free(struct graph *graph);
struct node *graph_add(struct graph *graph, const struct work *work, const CUgraphNode *dependencies, size_t count);
bool graph_branches(const struct graph *graph); /* the graph or a child graph has a conditional node */
CUresult branch_node(CUDA_CONDITIONAL_NODE_PARAMS *params, struct work *work);
const struct graph *branch_taken(const struct work *work); /* NULL: none */
/* Charges what a graph's nodes need instead of `*held_bytes`. */
CUresult nodes_take(struct context *context, const struct graph *graph, uint64_t *held_bytes);
void execs_leave(const struct context *context);
void streams_leave(const struct context *context); /* and its events */
CUresult kernel_work(struct work *work, const CUDA_KERNEL_NODE_PARAMS *params);
CUresult node_set_kernel(struct work *work, const CUDA_KERNEL_NODE_PARAMS *params);
CUDA_KERNEL_NODE_PARAMS kernel_of_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *params);
#define WITH_NODE(name, handle)                                                                                        \
    LOCKED;                                                                                                            \
    struct node *name = object_find(handle, OBJECT_NODE);                                                              \
    if (!name)                                                                                                         \
    return CUDA_ERROR_INVALID_VALUE
CUresult captured_alloc(struct stream *stream, struct pool *pool, size_t size, CUdeviceptr *pointer);

/* Memory. */
struct memory *memory_find(CUdeviceptr pointer); /* the range it lies in, or NULL */
CUresult memory_check(const void *pointer, size_t size);
/* Of this context, kind, size and pool; pooled memory for the stream. */
CUresult memory_new(const struct memory *template, const struct stream *stream, struct memory **memory);
void memory_free(struct memory *memory, const struct stream *stream); /* in its order; NULL: at once */
void memory_close(struct memory *memory);                             /* another process's */
void memory_free_host(struct memory *memory);
void memory_free_of(const struct context *context);
/* Allocates the memory of a graph's allocation, for the executable graph of this number. */
CUresult memory_revive(struct memory *memory, const struct stream *stream, uint64_t exec);
void memory_retire(struct memory *memory, const struct stream *stream); /* frees it again */
#define CHUNK (32 * MIB) /* bytes that a pool reserves at a time, and that an executable graph takes of the pool */
struct pool *pool_find(CUmemoryPool handle);
void pool_free(struct pool *pool);
struct pool *pool_new(struct device *device, uint64_t threshold);
bool pool_take(struct pool *pool, const struct stream *stream, uint64_t bytes);
void pool_give(struct pool *pool, const struct stream *stream, uint64_t bytes);
/* What a program has waited for; each includes those before it. */
enum waited { FOR_NOTHING, FOR_A_STREAM, FOR_A_CONTEXT };
void pools_settle(struct device *device, enum waited); /* releases what exceeds the pools' thresholds */
void departures_alone(const struct stream *stream);    /* it is destroyed */
void depart(const struct stream *stream, const struct piece *piece);
void settle(const struct context *ending); /* frees what streams have passed, and all memory of a context that ends */
struct memory *memory_insert(const struct memory *range);
void memory_remove(struct memory *memory);
int memory_file(void);
bool memory_map(size_t length, uint64_t *offset, void *fixed, void **start); /* maps unused bytes of the memory file */
void memory_discard(uint64_t offset, size_t length);                         /* frees their pages */

struct physical *physical_map(CUmemGenericAllocationHandle handle); /* counts a mapping; NULL: no such block */
void physical_unmap(struct physical *physical);
void arrays_free_of(const struct context *context);

/* Limits. */
void limits_start(struct context *context);
void limits_end(struct context *context);
CUresult limits_need_printf(struct context *context);
CUresult limits_need_local(struct context *context, uint64_t bytes);
CUresult limits_need_heap(struct context *context);
CUresult limits_need_calls(struct context *context);

/* Modules. */
bool image_is_fat(const void *image);
CUresult image_of_fat(const void *image, const struct device *device, char **chosen);
void image_read(struct module *module, const char *image, bool binary);
bool image_declares(const struct module *module, const char *name); /* this kernel */
uint64_t image_local(const struct module *module, const char *name);
uint64_t image_parameters(const struct module *module, const char *name);
bool image_mallocs(const struct module *module, const char *name); /* this kernel does */
CUresult module_enter(struct module *module, struct context *context, struct residence **residence);
void modules_leave(const struct context *context);
CUresult kernel_ready(CUfunction handle, struct context *context); /* for its first launch in the context */

/* Copies. */
void copy_box(const struct copy *copy);
void fill_box(const struct fill *fill);
uint64_t copy_time(const struct device *device, uint64_t bytes);
CUresult copy_node(const CUDA_MEMCPY3D *parameters, struct device *device, struct work *work);
CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS *parameters, struct device *device, struct work *work);

#endif
