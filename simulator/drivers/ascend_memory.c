/* Memory that the simulated driver allocates: what is charged to the card, and the host's pages behind it. The pages
 * are those of a file of the process, which reserves none: another process maps the same bytes. */
#include "ascend_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* All under hal.lock. */
static struct range *ranges;
static int file = -1;
static uint64_t file_used;

static void permits_forget(void);

int memory_file(void)
{
    if (file < 0) {
        file = memfd_create("hetero-device-memory", MFD_CLOEXEC);
        if (file >= 0 && ftruncate(file, INT64_C(1) << 60)) {
            close(file);
            file = -1;
        }
    }
    return file;
}

uint64_t memory_file_take(uint64_t size)
{
    uint64_t offset = file_used;
    file_used += size;
    return offset;
}

struct range *range_new(struct range template)
{
    struct range *range = malloc(sizeof *range);
    if (range) {
        *range = template;
        range->next = ranges;
        ranges = range;
    }
    return range;
}

struct range *range_at(const void *start, enum range_kind kind)
{
    struct range *range = ranges;
    while (range && (range->kind != kind || range->start != start))
        range = range->next;
    return range;
}

struct range *range_around(const void *start, uint64_t size, enum range_kind kind)
{
    const char *first = start;
    struct range *range = ranges;
    while (range && (range->kind != kind || first + size <= range->start || first >= range->start + range->size_bytes))
        range = range->next;
    return range;
}

void range_remove(struct range *range)
{
    struct range **link = &ranges;
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    free(range);
}

/* A mapping's addresses stay reserved. */
void range_unmap(struct range *range)
{
    if (range->kind == RANGE_MAPPED)
        mmap(range->start, range->size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
    else
        munmap(range->start, range->size_bytes);
}

void ranges_leave(unsigned device)
{
    for (struct range *range = ranges, *next; range; range = next) {
        next = range->next;
        if (range->kind == RANGE_HOST || range->kind == RANGE_RESERVED || range->device != device)
            continue;
        if (range->kind == RANGE_OPENED)
            engine_share_close(hal_account(device), range->share.number);
        range_unmap(range);
        range_remove(range);
    }
}

void ranges_forget(void)
{
    ranges = NULL; /* what they were is the parent's, and stays mapped in both */
    file = -1;
    file_used = 0;
    permits_forget();
}

static drvError_t allocate_host(void **pointer, uint64_t size)
{
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED || !range_new((struct range){.start = start, .size_bytes = size, .kind = RANGE_HOST}))
        return DRV_ERROR_OUT_OF_MEMORY;
    *pointer = start;
    return DRV_ERROR_NONE;
}

static drvError_t allocate_device(void **pointer, uint64_t size, unsigned device)
{
    struct account *account = hal_account(device);
    if (!account)
        return device < hal.device_count ? DRV_ERROR_OUT_OF_MEMORY : DRV_ERROR_INVALID_DEVICE;
    if (memory_file() < 0 || !engine_charge(account, size))
        return DRV_ERROR_OUT_OF_MEMORY;
    struct range range = {.size_bytes = size, .device = device, .kind = RANGE_DEVICE};
    range.file_offset = memory_file_take(size);
    range.start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)range.file_offset);
    if (range.start == MAP_FAILED || !range_new(range)) {
        engine_release(account, size);
        return DRV_ERROR_OUT_OF_MEMORY;
    }
    *pointer = range.start;
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemAlloc(void **pointer, unsigned long long bytes, unsigned long long flag)
{
    LOCKED;
    FAULTS(hal_card(HAL_DEVICE(flag)), NULL, 0);
    if (!pointer || !bytes || bytes > UINT64_C(1) << 50)
        return DRV_ERROR_INVALID_VALUE;
    uint64_t page = FAKE_PAGE_BYTES(FAKE_PAGES(flag)), size = (bytes + page - 1) / page * page;
    return HAL_KIND(flag) == HAL_KIND_HOST ? allocate_host(pointer, size)
                                           : allocate_device(pointer, size, HAL_DEVICE(flag));
}

/* Its pages are freed by the last process that has them open. */
EXPORT drvError_t halMemFree(void *pointer)
{
    LOCKED;
    struct range *range = range_at(pointer, RANGE_DEVICE), *host = range ? NULL : range_at(pointer, RANGE_HOST);
    if (!pointer || (!range && !host))
        return DRV_ERROR_INVALID_VALUE;
    bool is_open_elsewhere = false;
    if (range && range->is_shared)
        is_open_elsewhere = engine_unshare(hal_account(range->device), range->share.number);
    else if (range)
        engine_release(hal_account(range->device), range->size_bytes);
    if (range && !is_open_elsewhere)
        madvise(range->start, range->size_bytes, MADV_REMOVE);
    range_unmap(range ? range : host);
    range_remove(range ? range : host);
    return DRV_ERROR_NONE;
}

EXPORT drvError_t halMemAllocInner(void **pointer, unsigned long long bytes, unsigned long long flag)
{
    return halMemAlloc(pointer, bytes, flag);
}

EXPORT drvError_t halMemFreeInner(void *pointer)
{
    return halMemFree(pointer);
}

/* Shared by name. The name says all that another process needs to map the bytes, and is no longer than the driver's. */

#define NAME_FORMAT    "%x-%x-%x-%llx-%llx-%x-%x-%llx"
#define PROCESSES_MOST 32u

struct name {
    unsigned pid, file, permits_file, card, number;
    unsigned long long offset, size_bytes, id;
};

static struct permit { /* who may open a block of this process by its name */
    _Atomic bool is_for_all, is_ended;
    _Atomic unsigned count;
    int pids[PROCESSES_MOST];
} *permits; /* by number of the share: in a file that the others read; NULL: none was shared */
static int permits_file = -1;

#define PERMITS_BYTES (2048u * sizeof *permits) /* the engine has no more shares */

static void permits_forget(void)
{
    permits = NULL;
    permits_file = -1;
}

static bool make_permits(void)
{
    if (permits)
        return true;
    permits_file = memfd_create("hetero-permits", MFD_CLOEXEC);
    if (permits_file < 0 || ftruncate(permits_file, PERMITS_BYTES))
        return false;
    void *made = mmap(NULL, PERMITS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, permits_file, 0);
    permits = made == MAP_FAILED ? NULL : made;
    return permits;
}

static bool read_name(const char *text, struct name *name)
{
    return text && sscanf(text, NAME_FORMAT, &name->pid, &name->file, &name->permits_file, &name->offset,
                          &name->size_bytes, &name->card, &name->number, &name->id) == 8;
}

/* The permit of a name that this process gave. NULL: it is none. */
static struct permit *own_permit(const char *text)
{
    struct name name;
    return read_name(text, &name) && name.pid == (unsigned)getpid() && permits ? &permits[name.number] : NULL;
}

drvError_t fake_hal_share(const void *pointer, char *name)
{
    LOCKED;
    struct range *range = range_at(pointer, RANGE_DEVICE);
    if (!range)
        return DRV_ERROR_INVALID_VALUE;
    if (!make_permits() || (!range->is_shared && !engine_share(hal_account(range->device), range->size_bytes,
                                                               range->size_bytes, true, &range->share)))
        return DRV_ERROR_OUT_OF_MEMORY;
    range->is_shared = true;
    permits[range->share.number] = (struct permit){0};
    snprintf(name, FAKE_NAME_BYTES, NAME_FORMAT, (unsigned)getpid(), (unsigned)file, (unsigned)permits_file,
             (unsigned long long)range->file_offset, (unsigned long long)range->size_bytes, range->share.card,
             (unsigned)range->share.number, (unsigned long long)range->share.id);
    return DRV_ERROR_NONE;
}

drvError_t fake_hal_share_with(const char *name, const int32_t *pids, size_t count)
{
    LOCKED;
    struct permit *permit = own_permit(name);
    if (!permit || permit->count + count > PROCESSES_MOST)
        return DRV_ERROR_INVALID_VALUE;
    if (!pids)
        permit->is_for_all = true;
    for (size_t i = 0; pids && i < count; i++)
        permit->pids[permit->count++] = pids[i];
    return DRV_ERROR_NONE;
}

drvError_t fake_hal_share_end(const char *name)
{
    LOCKED;
    struct permit *permit = own_permit(name);
    if (!permit)
        return DRV_ERROR_INVALID_VALUE;
    permit->is_ended = true;
    return DRV_ERROR_NONE;
}

/* A file of another process, by its descriptor there. */
static int open_other(unsigned pid, unsigned fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%u", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static drvError_t ask_permit(const struct name *name)
{
    struct permit permit;
    int other = open_other(name->pid, name->permits_file);
    bool is_read = other >= 0 && pread(other, &permit, sizeof permit, (off_t)(name->number * sizeof permit)) ==
                                     (ssize_t)sizeof permit;
    if (other >= 0)
        close(other);
    if (!is_read || permit.is_ended)
        return DRV_ERROR_INVALID_VALUE;
    bool is_named = permit.is_for_all;
    for (unsigned i = 0; i < permit.count && i < PROCESSES_MOST; i++)
        is_named = is_named || permit.pids[i] == getpid();
    return is_named ? DRV_ERROR_NONE : FAKE_NO_PERMISSION;
}

static char *map_of_other(const struct name *name)
{
    int other = open_other(name->pid, name->file);
    if (other < 0)
        return NULL;
    char *start = mmap(NULL, name->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, other,
                       (off_t)name->offset);
    close(other);
    return start == MAP_FAILED ? NULL : start;
}

drvError_t fake_hal_share_open(const char *text, void **pointer)
{
    struct name name;
    LOCKED;
    if (!pointer || !read_name(text, &name))
        return DRV_ERROR_INVALID_VALUE;
    drvError_t error = ask_permit(&name);
    if (error)
        return error;
    struct range range = {.size_bytes = name.size_bytes, .kind = RANGE_OPENED, .device = hal_device_of(name.card)};
    range.share = (struct engine_share){name.id, name.size_bytes, (int)name.number, name.card};
    struct account *account = hal_account(range.device);
    if (!account || !engine_share_open(account, &range.share))
        return DRV_ERROR_INVALID_VALUE;
    range.start = map_of_other(&name);
    if (!range.start || !range_new(range)) {
        engine_share_close(account, range.share.number);
        return DRV_ERROR_INVALID_VALUE;
    }
    *pointer = range.start;
    return DRV_ERROR_NONE;
}

drvError_t fake_hal_share_close(const void *pointer)
{
    LOCKED;
    struct range *range = range_at(pointer, RANGE_OPENED);
    if (!range)
        return DRV_ERROR_INVALID_VALUE;
    if (!engine_share_close(hal_account(range->device), range->share.number))
        madvise(range->start, range->size_bytes, MADV_REMOVE);
    range_unmap(range);
    range_remove(range);
    return DRV_ERROR_NONE;
}
