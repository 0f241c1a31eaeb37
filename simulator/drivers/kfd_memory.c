/* Memory: a card's is a range of one sparse file of this process, so that another process can map it.
 *
 * A card's blocks start at multiples of 2 MiB, since the HSA runtime divides such blocks and asserts the alignment.
 * Locked host memory has a separate address on the cards, as with real ones. Copies translate it.
 */
#include "kfd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK (UINT64_C(2) << 20)
#define PAGE  UINT64_C(4096)

enum kind { ALLOCATED, LOCKED_HOST, OPENED, SCRATCH };

struct range {
    struct range *next;
    char *start, *alias; /* alias: address of locked host memory on the cards */
    uint64_t size_bytes, file_offset;
    enum kind kind;
    uint32_t node;
    HsaMemFlags flags;
    void *user_data;
    bool is_shared;  /* charged to the card as a shared block */
    uint64_t handle; /* the driver's; 0: none */
    struct engine_share share;
};

struct handle { /* layout of HsaSharedMemoryHandle; the block's id detects a number that was reused */
    int32_t pid, fd;
    uint32_t id;
    uint16_t number;
    uint8_t node, magic;
    uint64_t file_offset, size_bytes;
};
_Static_assert(sizeof(struct handle) == sizeof(HsaSharedMemoryHandle), "a handle's size");
#define MAGIC 0x51u

static struct range *ranges;
static int file = -1;
static uint64_t file_used;

static bool within(const char *address, const char *start, uint64_t size)
{
    return start && address >= start && address < start + size;
}

static struct range *find(const void *address)
{
    for (struct range *range = ranges; range; range = range->next)
        if (within(address, range->start, range->size_bytes) || within(address, range->alias, range->size_bytes))
            return range;
    return NULL;
}

void *memory_at(uint64_t address)
{
    LOCKED;
    const struct range *range = find((void *)address);
    bool is_aliased = range && within((char *)address, range->alias, range->size_bytes);
    return is_aliased ? range->start + ((char *)address - range->alias) : (char *)address;
}

bool memory_is_host(uint64_t address)
{
    LOCKED;
    const struct range *range = find((void *)address);
    return range && range->node == NODE_CPU;
}

static HSAKMT_STATUS keep(struct range new_range, void **start)
{
    struct range *range = malloc(sizeof *range);
    if (!range)
        return HSAKMT_STATUS_NO_MEMORY;
    *range = new_range;
    range->next = ranges;
    ranges = range;
    *start = range->start;
    return OK;
}

/* The runtime reserves gigabytes of addresses for scratch. Parts of it are charged to the card when they are mapped. */
static bool takes_of_card(uint32_t node, HsaMemFlags flags)
{
    return node != NODE_CPU && !(flags.Value & MEMORY_SCRATCH);
}

static char *aligned_room(uint64_t size)
{
    char *reserved = mmap(NULL, size + BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return NULL;
    char *start = (char *)(((uintptr_t)reserved + BLOCK - 1) / BLOCK * BLOCK);
    if (start > reserved)
        munmap(reserved, (size_t)(start - reserved));
    munmap(start + size, (size_t)(reserved + BLOCK - start));
    return start;
}

static char *map_of_file(uint64_t size, uint64_t *offset)
{
    if (file < 0) {
        file = memfd_create("hetero-device-memory", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, INT64_C(1) << 60))
            return NULL;
    }
    char *reserved = aligned_room(size);
    *offset = file_used;
    if (!reserved || mmap(reserved, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
                          (off_t)*offset) == MAP_FAILED)
        return NULL;
    file_used += size;
    return reserved;
}

/* Charges the bytes to the card. Returns the driver's handle; 0: the card does not have them. */
static uint64_t take_of_card(uint32_t node, const void *address, uint64_t size)
{
    struct account *account = account_of(node);
    uint64_t handle = account ? driver_allocate(node, address, size) : 0;
    if (!handle || engine_charge(account, size))
        return handle;
    driver_free(handle);
    return 0;
}

static HSAKMT_STATUS allocate_of_card(uint32_t node, uint64_t size, HsaMemFlags flags, void **start)
{
    struct range new_range = {.size_bytes = size, .node = node, .flags = flags};
    new_range.start = map_of_file(size, &new_range.file_offset);
    new_range.handle = new_range.start ? take_of_card(node, new_range.start, size) : 0;
    if (new_range.handle && keep(new_range, start) == OK)
        return OK;
    if (new_range.handle)
        engine_release(account_of(node), size);
    if (new_range.start)
        munmap(new_range.start, size);
    return HSAKMT_STATUS_NO_MEMORY;
}

EXPORT HSAKMT_STATUS hsaKmtAllocMemory(uint32_t node, uint64_t size, HsaMemFlags flags, void **start)
{
    LOCKED;
    if (node != NODE_CPU && !card_of(node))
        return HSAKMT_STATUS_INVALID_NODE_UNIT;
    if (takes_of_card(node, flags))
        return allocate_of_card(node, size, flags, start);
    int fixed = flags.Value & MEMORY_FIXED_ADDRESS ? MAP_FIXED : 0;
    char *new_range = mmap(fixed ? *start : NULL, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (new_range == MAP_FAILED)
        return HSAKMT_STATUS_NO_MEMORY;
    if (node != NODE_CPU)
        driver_set_scratch(node, new_range);
    return keep((struct range){.start = new_range, .size_bytes = size, .node = node, .flags = flags}, start);
}

/* The pages are freed by the last process that has them open. */
static void give_back(struct range *range)
{
    struct account *account = range->node == NODE_CPU ? NULL : account_of(range->node);
    bool has_other_owner = false;
    if (range->handle)
        driver_free(range->handle);
    if (range->kind == OPENED)
        has_other_owner = engine_share_close(account, range->share.number);
    else if (range->is_shared)
        has_other_owner = engine_unshare(account, range->share.number);
    else if (takes_of_card(range->node, range->flags))
        engine_release(account, range->size_bytes);
    if (!has_other_owner && takes_of_card(range->node, range->flags))
        madvise(range->start, range->size_bytes, MADV_REMOVE);
    if (range->kind == LOCKED_HOST)
        munmap((char *)((uintptr_t)range->alias / PAGE * PAGE), range->size_bytes + PAGE);
    else
        munmap(range->start, range->size_bytes);
}

/* Unlinks the range of one of these kinds (bits) that begins at the address. */
static struct range *unlinked(const void *start, unsigned kinds)
{
    struct range **link = &ranges;
    while (*link && (!(kinds >> (*link)->kind & 1) || ((*link)->start != start && (*link)->alias != start)))
        link = &(*link)->next;
    struct range *range = *link;
    if (range)
        *link = range->next;
    return range;
}

static HSAKMT_STATUS forget(const void *start, unsigned kinds)
{
    LOCKED;
    struct range *range = unlinked(start, kinds);
    if (!range)
        return HSAKMT_STATUS_MEMORY_NOT_REGISTERED;
    if (range->flags.Value & MEMORY_EXECUTABLE)
        kernel_forget();
    give_back(range);
    free(range);
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtFreeMemory(void *start, uint64_t size UNUSED)
{
    return forget(start, 1u << ALLOCATED);
}

EXPORT HSAKMT_STATUS hsaKmtDeregisterMemory(void *start)
{
    return forget(start, 1u << LOCKED_HOST | 1u << OPENED);
}

EXPORT HSAKMT_STATUS hsaKmtRegisterMemoryWithFlags(void *start, uint64_t size, HsaMemFlags flags)
{
    LOCKED;
    char *alias = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (alias == MAP_FAILED)
        return HSAKMT_STATUS_NO_MEMORY;
    alias += (uintptr_t)start % PAGE;
    return keep((struct range){.start = start, .alias = alias, .size_bytes = size, .kind = LOCKED_HOST, .flags = flags},
                &start);
}

/* Maps a part of the scratch. */
static HSAKMT_STATUS map_scratch(const struct range *whole, char *start, uint64_t size)
{
    struct range new_range = {.start = start, .size_bytes = size, .kind = SCRATCH, .node = whole->node};
    void *start_of_range;
    new_range.handle = take_of_card(new_range.node, start, size);
    return new_range.handle ? keep(new_range, &start_of_range) : HSAKMT_STATUS_INVALID_HANDLE;
}

EXPORT HSAKMT_STATUS hsaKmtMapMemoryToGPU(void *start, uint64_t size, uint64_t *alias)
{
    LOCKED;
    const struct range *whole = find(start);
    *alias = 0;
    if (whole && whole->flags.Value & MEMORY_SCRATCH)
        return map_scratch(whole, start, size);
    for (struct range *range = ranges; range; range = range->next)
        if (range->kind == LOCKED_HOST && range->start == start) {
            *alias = (uintptr_t)range->alias;
            break;
        }
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtMapMemoryToGPUNodes(void *start, uint64_t size, uint64_t *alias, HsaMemMapFlags flags UNUSED,
                                               uint64_t count UNUSED, uint32_t *nodes UNUSED)
{
    return hsaKmtMapMemoryToGPU(start, size, alias);
}

EXPORT HSAKMT_STATUS hsaKmtUnmapMemoryToGPU(void *start)
{
    LOCKED;
    struct range *scratch = unlinked(start, 1u << SCRATCH);
    if (scratch) {
        driver_free(scratch->handle);
        engine_release(account_of(scratch->node), scratch->size_bytes);
        free(scratch);
    }
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtShareMemory(void *start, uint64_t size UNUSED, HsaSharedMemoryHandle *handle)
{
    LOCKED;
    struct range *range = find(start);
    if (!range || range->kind != ALLOCATED || !takes_of_card(range->node, range->flags))
        return HSAKMT_STATUS_INVALID_PARAMETER;
    if (!range->is_shared &&
        !engine_share(account_of(range->node), range->size_bytes, range->size_bytes, true, &range->share))
        return HSAKMT_STATUS_NO_MEMORY;
    range->is_shared = true;
    struct handle new_handle = {.pid = getpid(),
                                .fd = file,
                                .id = (uint32_t)range->share.id,
                                .number = (uint16_t)range->share.number,
                                .node = (uint8_t)range->node,
                                .magic = MAGIC,
                                .file_offset = range->file_offset,
                                .size_bytes = range->size_bytes};
    memcpy(handle, &new_handle, sizeof new_handle);
    return OK;
}

static char *map_of_other(const struct handle *handle)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *reserved = aligned_room(handle->size_bytes);
    char *start = reserved ? mmap(reserved, handle->size_bytes, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)handle->file_offset)
                           : MAP_FAILED;
    close(fd);
    return start == MAP_FAILED ? NULL : start;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterSharedHandle(const HsaSharedMemoryHandle *handle, void **start, uint64_t *size)
{
    LOCKED;
    struct handle ipc_handle;
    memcpy(&ipc_handle, handle, sizeof ipc_handle);
    struct account *account = ipc_handle.magic == MAGIC && card_of(ipc_handle.node) ? account_of(ipc_handle.node)
                                                                                    : NULL;
    struct range new_range = {.size_bytes = ipc_handle.size_bytes, .node = ipc_handle.node, .kind = OPENED};
    new_range.share = (struct engine_share){ipc_handle.id, ipc_handle.size_bytes, ipc_handle.number,
                                            ipc_handle.node - 1u};
    if (!account || !engine_share_open(account, &new_range.share))
        return HSAKMT_STATUS_INVALID_HANDLE;
    new_range.start = map_of_other(&ipc_handle);
    if (!new_range.start || keep(new_range, start) != OK) {
        engine_share_close(account, new_range.share.number);
        return HSAKMT_STATUS_INVALID_HANDLE;
    }
    *size = ipc_handle.size_bytes;
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterSharedHandleToNodes(const HsaSharedMemoryHandle *handle, void **start,
                                                       uint64_t *size, uint64_t count UNUSED, uint32_t *nodes UNUSED)
{
    return hsaKmtRegisterSharedHandle(handle, start, size);
}

/* The cards that this process uses, for host memory: the runtime asserts that it uses the nodes it is given. */
static uint32_t used_nodes(uint32_t nodes[ENGINE_CARDS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < kfd.rack->device_count; i++)
        if (kfd.accounts[i])
            nodes[count++] = i + 1;
    return count;
}

EXPORT HSAKMT_STATUS hsaKmtQueryPointerInfo(const void *address, HsaPointerInfo *info)
{
    static const HSA_POINTER_TYPE types[] = {HSA_POINTER_ALLOCATED, HSA_POINTER_REGISTERED_USER,
                                             HSA_POINTER_REGISTERED_SHARED};
    static uint32_t host_nodes[ENGINE_CARDS];
    LOCKED;
    const struct range *range = find(address);
    memset(info, 0, sizeof *info);
    if (!range)
        return HSAKMT_STATUS_ERROR;
    bool is_host = range->node == NODE_CPU;
    uint32_t count = used_nodes(host_nodes);
    *info = (HsaPointerInfo){.Type = types[range->kind],
                             .Node = range->node,
                             .MemFlags = range->flags,
                             .CPUAddress = range->start,
                             .GPUAddress = (uintptr_t)(range->alias ? range->alias : range->start),
                             .SizeInBytes = range->size_bytes,
                             .NMappedNodes = is_host ? count : 1,
                             .MappedNodes = is_host ? host_nodes : &range->node,
                             .UserData = range->user_data};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtSetMemoryUserData(const void *address, void *user)
{
    LOCKED;
    struct range *range = find(address);
    if (!range)
        return HSAKMT_STATUS_ERROR;
    range->user_data = user;
    return OK;
}
