/* Memory: a card's is a range of one sparse file of this process, so that another can map it.
 *
 * A card's blocks start at multiples of 2 MiB, since the HSA runtime cuts such blocks up and asserts that. What is
 * locked of the host's memory has an address of its own on the cards, as it has there; copies translate it.
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
    char *start, *alias; /* alias: what the cards know locked memory by */
    uint64_t size, offset;
    enum kind kind;
    uint32_t node;
    HsaMemFlags flags;
    void *user;
    bool shared;     /* counted by the card as a block of its own */
    uint64_t handle; /* the driver's; 0: none */
    struct engine_share share;
};

struct handle { /* in the bytes of HsaSharedMemoryHandle; the block's id guards against numbers used again */
    int32_t pid, fd;
    uint32_t id;
    uint16_t number;
    uint8_t node, magic;
    uint64_t offset, size;
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
    for (struct range *this_range = ranges; this_range; this_range = this_range->next)
        if (within(address, this_range->start, this_range->size) ||
            within(address, this_range->alias, this_range->size))
            return this_range;
    return NULL;
}

void *memory_at(uint64_t address)
{
    LOCKED;
    const struct range *this_range = find((void *)address);
    bool aliased = this_range && within((char *)address, this_range->alias, this_range->size);
    return aliased ? this_range->start + ((char *)address - this_range->alias) : (char *)address;
}

bool memory_is_host(uint64_t address)
{
    LOCKED;
    const struct range *this_range = find((void *)address);
    return this_range && this_range->node == NODE_CPU;
}

static HSAKMT_STATUS keep(struct range own_range, void **start)
{
    struct range *this_range = malloc(sizeof *this_range);
    if (!this_range)
        return HSAKMT_STATUS_NO_MEMORY;
    *this_range = own_range;
    this_range->next = ranges;
    ranges = this_range;
    *start = this_range->start;
    return OK;
}

/* Scratch asks for gigabytes of addresses; pieces of it are taken of the card when they are mapped. */
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

/* The handle of so many bytes of the card; 0: it does not have them. */
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
    struct range own_range = {.size = size, .node = node, .flags = flags};
    own_range.start = map_of_file(size, &own_range.offset);
    own_range.handle = own_range.start ? take_of_card(node, own_range.start, size) : 0;
    if (own_range.handle && keep(own_range, start) == OK)
        return OK;
    if (own_range.handle)
        engine_release(account_of(node), size);
    if (own_range.start)
        munmap(own_range.start, size);
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
    char *own_range = mmap(fixed ? *start : NULL, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (own_range == MAP_FAILED)
        return HSAKMT_STATUS_NO_MEMORY;
    if (node != NODE_CPU)
        driver_set_scratch(node, own_range);
    return keep((struct range){.start = own_range, .size = size, .node = node, .flags = flags}, start);
}

/* The last to let go of the bytes gives their pages back. */
static void give_back(struct range *this_range)
{
    struct account *account = this_range->node == NODE_CPU ? NULL : account_of(this_range->node);
    bool still = false;
    if (this_range->handle)
        driver_free(this_range->handle);
    if (this_range->kind == OPENED)
        still = engine_share_close(account, this_range->share.number);
    else if (this_range->shared)
        still = engine_unshare(account, this_range->share.number);
    else if (takes_of_card(this_range->node, this_range->flags))
        engine_release(account, this_range->size);
    if (!still && takes_of_card(this_range->node, this_range->flags))
        madvise(this_range->start, this_range->size, MADV_REMOVE);
    if (this_range->kind == LOCKED_HOST)
        munmap((char *)((uintptr_t)this_range->alias / PAGE * PAGE), this_range->size + PAGE);
    else
        munmap(this_range->start, this_range->size);
}

/* What a range of one of these kinds (bits) begins at. */
static struct range *unlinked(const void *start, unsigned kinds)
{
    struct range **link = &ranges;
    while (*link && (!(kinds >> (*link)->kind & 1) || ((*link)->start != start && (*link)->alias != start)))
        link = &(*link)->next;
    struct range *this_range = *link;
    if (this_range)
        *link = this_range->next;
    return this_range;
}

static HSAKMT_STATUS forget(const void *start, unsigned kinds)
{
    LOCKED;
    struct range *this_range = unlinked(start, kinds);
    if (!this_range)
        return HSAKMT_STATUS_MEMORY_NOT_REGISTERED;
    if (this_range->flags.Value & MEMORY_EXECUTABLE)
        kernel_forget();
    give_back(this_range);
    free(this_range);
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
    return keep((struct range){.start = start, .alias = alias, .size = size, .kind = LOCKED_HOST, .flags = flags},
                &start);
}

/* A piece of what was allocated as scratch is there from now on. */
static HSAKMT_STATUS map_scratch(const struct range *whole, char *start, uint64_t size)
{
    struct range own_range = {.start = start, .size = size, .kind = SCRATCH, .node = whole->node};
    void *kept;
    own_range.handle = take_of_card(own_range.node, start, size);
    return own_range.handle ? keep(own_range, &kept) : HSAKMT_STATUS_INVALID_HANDLE;
}

EXPORT HSAKMT_STATUS hsaKmtMapMemoryToGPU(void *start, uint64_t size, uint64_t *alias)
{
    LOCKED;
    const struct range *whole = find(start);
    *alias = 0;
    if (whole && whole->flags.Value & MEMORY_SCRATCH)
        return map_scratch(whole, start, size);
    for (struct range *this_range = ranges; this_range; this_range = this_range->next)
        if (this_range->kind == LOCKED_HOST && this_range->start == start) {
            *alias = (uintptr_t)this_range->alias;
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
        engine_release(account_of(scratch->node), scratch->size);
        free(scratch);
    }
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtShareMemory(void *start, uint64_t size UNUSED, HsaSharedMemoryHandle *handle)
{
    LOCKED;
    struct range *this_range = find(start);
    if (!this_range || this_range->kind != ALLOCATED || !takes_of_card(this_range->node, this_range->flags))
        return HSAKMT_STATUS_INVALID_PARAMETER;
    if (!this_range->shared &&
        !engine_share(account_of(this_range->node), this_range->size, this_range->size, true, &this_range->share))
        return HSAKMT_STATUS_NO_MEMORY;
    this_range->shared = true;
    struct handle made = {.pid = getpid(),
                          .fd = file,
                          .id = (uint32_t)this_range->share.id,
                          .number = (uint16_t)this_range->share.number,
                          .node = (uint8_t)this_range->node,
                          .magic = MAGIC,
                          .offset = this_range->offset,
                          .size = this_range->size};
    memcpy(handle, &made, sizeof made);
    return OK;
}

static char *map_of_other(const struct handle *handle)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *reserved = aligned_room(handle->size);
    char *start = reserved ? mmap(reserved, handle->size, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, (off_t)handle->offset)
                           : MAP_FAILED;
    close(fd);
    return start == MAP_FAILED ? NULL : start;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterSharedHandle(const HsaSharedMemoryHandle *handle, void **start, uint64_t *size)
{
    LOCKED;
    struct handle this_handle;
    memcpy(&this_handle, handle, sizeof this_handle);
    struct account *account = this_handle.magic == MAGIC && card_of(this_handle.node) ? account_of(this_handle.node)
                                                                                      : NULL;
    struct range own_range = {.size = this_handle.size, .node = this_handle.node, .kind = OPENED};
    own_range.share = (struct engine_share){this_handle.id, this_handle.size, this_handle.number,
                                            this_handle.node - 1u};
    if (!account || !engine_share_open(account, &own_range.share))
        return HSAKMT_STATUS_INVALID_HANDLE;
    own_range.start = map_of_other(&this_handle);
    if (!own_range.start || keep(own_range, start) != OK) {
        engine_share_close(account, own_range.share.number);
        return HSAKMT_STATUS_INVALID_HANDLE;
    }
    *size = this_handle.size;
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterSharedHandleToNodes(const HsaSharedMemoryHandle *handle, void **start,
                                                       uint64_t *size, uint64_t count UNUSED, uint32_t *nodes UNUSED)
{
    return hsaKmtRegisterSharedHandle(handle, start, size);
}

/* The cards that this process uses, for memory of the host: the runtime asserts that it uses those it is told. */
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
    const struct range *this_range = find(address);
    memset(info, 0, sizeof *info);
    if (!this_range)
        return HSAKMT_STATUS_ERROR;
    bool host = this_range->node == NODE_CPU;
    uint32_t count = used_nodes(host_nodes);
    *info = (HsaPointerInfo){.Type = types[this_range->kind],
                             .Node = this_range->node,
                             .MemFlags = this_range->flags,
                             .CPUAddress = this_range->start,
                             .GPUAddress = (uintptr_t)(this_range->alias ? this_range->alias : this_range->start),
                             .SizeInBytes = this_range->size,
                             .NMappedNodes = host ? count : 1,
                             .MappedNodes = host ? host_nodes : &this_range->node,
                             .UserData = this_range->user};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtSetMemoryUserData(const void *address, void *user)
{
    LOCKED;
    struct range *this_range = find(address);
    if (!this_range)
        return HSAKMT_STATUS_ERROR;
    this_range->user = user;
    return OK;
}
