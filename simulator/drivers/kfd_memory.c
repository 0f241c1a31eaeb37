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
    for (struct range *it = ranges; it; it = it->next)
        if (within(address, it->start, it->size) || within(address, it->alias, it->size))
            return it;
    return NULL;
}

void *memory_at(uint64_t address)
{
    LOCKED;
    const struct range *it = find((void *)address);
    bool aliased = it && within((char *)address, it->alias, it->size);
    return aliased ? it->start + ((char *)address - it->alias) : (char *)address;
}

bool memory_is_host(uint64_t address)
{
    LOCKED;
    const struct range *it = find((void *)address);
    return it && it->node == NODE_CPU;
}

static HSAKMT_STATUS keep(struct range own, void **start)
{
    struct range *it = malloc(sizeof *it);
    if (!it)
        return HSAKMT_STATUS_NO_MEMORY;
    *it = own;
    it->next = ranges;
    ranges = it;
    *start = it->start;
    return OK;
}

/* Scratch asks for gigabytes of addresses; pieces of it are taken of the card when they are mapped. */
static bool takes_of_card(uint32_t node, HsaMemFlags flags)
{
    return node != NODE_CPU && !(flags.Value & MEMORY_SCRATCH);
}

static char *aligned_room(uint64_t size)
{
    char *room = mmap(NULL, size + BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    char *start = (char *)(((uintptr_t)room + BLOCK - 1) / BLOCK * BLOCK);
    if (start > room)
        munmap(room, (size_t)(start - room));
    munmap(start + size, (size_t)(room + BLOCK - start));
    return start;
}

static char *map_of_file(uint64_t size, uint64_t *offset)
{
    if (file < 0) {
        file = memfd_create("hetero-device-memory", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, INT64_C(1) << 60))
            return NULL;
    }
    char *room = aligned_room(size);
    *offset = file_used;
    if (!room || mmap(room, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file,
                      (off_t)*offset) == MAP_FAILED)
        return NULL;
    file_used += size;
    return room;
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
    struct range own = {.size = size, .node = node, .flags = flags};
    own.start = map_of_file(size, &own.offset);
    own.handle = own.start ? take_of_card(node, own.start, size) : 0;
    if (own.handle && keep(own, start) == OK)
        return OK;
    if (own.handle)
        engine_release(account_of(node), size);
    if (own.start)
        munmap(own.start, size);
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
    char *own = mmap(fixed ? *start : NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (own == MAP_FAILED)
        return HSAKMT_STATUS_NO_MEMORY;
    if (node != NODE_CPU)
        driver_set_scratch(node, own);
    return keep((struct range){.start = own, .size = size, .node = node, .flags = flags}, start);
}

/* The last to let go of the bytes gives their pages back. */
static void give_back(struct range *it)
{
    struct account *account = it->node == NODE_CPU ? NULL : account_of(it->node);
    bool still = false;
    if (it->handle)
        driver_free(it->handle);
    if (it->kind == OPENED)
        still = engine_share_close(account, it->share.number);
    else if (it->shared)
        still = engine_unshare(account, it->share.number);
    else if (takes_of_card(it->node, it->flags))
        engine_release(account, it->size);
    if (!still && takes_of_card(it->node, it->flags))
        madvise(it->start, it->size, MADV_REMOVE);
    if (it->kind == LOCKED_HOST)
        munmap((char *)((uintptr_t)it->alias / PAGE * PAGE), it->size + PAGE);
    else
        munmap(it->start, it->size);
}

/* What a range of one of these kinds (bits) begins at. */
static struct range *unlinked(const void *start, unsigned kinds)
{
    struct range **link = &ranges;
    while (*link && (!(kinds >> (*link)->kind & 1) || ((*link)->start != start && (*link)->alias != start)))
        link = &(*link)->next;
    struct range *it = *link;
    if (it)
        *link = it->next;
    return it;
}

static HSAKMT_STATUS forget(const void *start, unsigned kinds)
{
    LOCKED;
    struct range *it = unlinked(start, kinds);
    if (!it)
        return HSAKMT_STATUS_MEMORY_NOT_REGISTERED;
    if (it->flags.Value & MEMORY_EXECUTABLE)
        kernel_forget();
    give_back(it);
    free(it);
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
    struct range own = {.start = start, .size = size, .kind = SCRATCH, .node = whole->node};
    void *kept;
    own.handle = take_of_card(own.node, start, size);
    return own.handle ? keep(own, &kept) : HSAKMT_STATUS_INVALID_HANDLE;
}

EXPORT HSAKMT_STATUS hsaKmtMapMemoryToGPU(void *start, uint64_t size, uint64_t *alias)
{
    LOCKED;
    const struct range *whole = find(start);
    *alias = 0;
    if (whole && whole->flags.Value & MEMORY_SCRATCH)
        return map_scratch(whole, start, size);
    for (struct range *it = ranges; it; it = it->next)
        if (it->kind == LOCKED_HOST && it->start == start) {
            *alias = (uintptr_t)it->alias;
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
    struct range *it = find(start);
    if (!it || it->kind != ALLOCATED || !takes_of_card(it->node, it->flags))
        return HSAKMT_STATUS_INVALID_PARAMETER;
    if (!it->shared && !engine_share(account_of(it->node), it->size, it->size, true, &it->share))
        return HSAKMT_STATUS_NO_MEMORY;
    it->shared = true;
    struct handle made = {.pid = getpid(),
                          .fd = file,
                          .id = (uint32_t)it->share.id,
                          .number = (uint16_t)it->share.number,
                          .node = (uint8_t)it->node,
                          .magic = MAGIC,
                          .offset = it->offset,
                          .size = it->size};
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
    char *room = aligned_room(handle->size);
    char *start = room ? mmap(room, handle->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
                              (off_t)handle->offset)
                       : MAP_FAILED;
    close(fd);
    return start == MAP_FAILED ? NULL : start;
}

EXPORT HSAKMT_STATUS hsaKmtRegisterSharedHandle(const HsaSharedMemoryHandle *handle, void **start, uint64_t *size)
{
    LOCKED;
    struct handle it;
    memcpy(&it, handle, sizeof it);
    struct account *account = it.magic == MAGIC && card_of(it.node) ? account_of(it.node) : NULL;
    struct range own = {.size = it.size, .node = it.node, .kind = OPENED};
    own.share = (struct engine_share){it.id, it.size, it.number, it.node - 1u};
    if (!account || !engine_share_open(account, &own.share))
        return HSAKMT_STATUS_INVALID_HANDLE;
    own.start = map_of_other(&it);
    if (!own.start || keep(own, start) != OK) {
        engine_share_close(account, own.share.number);
        return HSAKMT_STATUS_INVALID_HANDLE;
    }
    *size = it.size;
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
    const struct range *it = find(address);
    memset(info, 0, sizeof *info);
    if (!it)
        return HSAKMT_STATUS_ERROR;
    bool host = it->node == NODE_CPU;
    uint32_t count = used_nodes(host_nodes);
    *info = (HsaPointerInfo){.Type = types[it->kind],
                             .Node = it->node,
                             .MemFlags = it->flags,
                             .CPUAddress = it->start,
                             .GPUAddress = (uintptr_t)(it->alias ? it->alias : it->start),
                             .SizeInBytes = it->size,
                             .NMappedNodes = host ? count : 1,
                             .MappedNodes = host ? host_nodes : &it->node,
                             .UserData = it->user};
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtSetMemoryUserData(const void *address, void *user)
{
    LOCKED;
    struct range *it = find(address);
    if (!it)
        return HSAKMT_STATUS_ERROR;
    it->user = user;
    return OK;
}
