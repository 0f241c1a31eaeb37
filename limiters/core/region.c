/* Opens and repairs the usage region (region.h): the one place that decides which slots are alive. */
#include "region.h"

#include "fault.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The bits of the lock word. A counter of thefts keeps two waiters from both taking the lock from one dead holder. */
#define OWNER       UINT32_C(0x0000ffff) /* slot index + 1; 0: the lock is free */
#define THEFT       UINT32_C(0x00010000)
#define THEFTS      UINT32_C(0x7fff0000)
#define HAS_WAITERS UINT32_C(0x80000000)

/* A waiter checks each POLL_NS whether the holder lives, and waits HOLDER_WAIT_NS for one that lives. A holder needs
 * well under a microsecond, so one that was stopped or preempted for so long will not release the lock soon. While
 * holders change, the machine is busy and the lock works: then the waiter waits up to MAX_WAIT_NS. */
#define POLL_NS        INT64_C(2000000)
#define HOLDER_WAIT_NS INT64_C(1000000000)
#define MAX_WAIT_NS    (30 * HOLDER_WAIT_NS)

/* Slots that each process tries first. Then each starts at another slot, so that hundreds that start at once do not try
 * the same ones. */
#define FIRST_SLOTS 8u

static bool lock_byte(int fd, int command, short type, int byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(fd, command, &lock);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

static int open_region_file(const struct region *region)
{
    int fd = open(region->path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        log_line(LOG_ERROR, "usage region %s: %s", region->path, strerror(errno));
    return fd;
}

/* Whether a live process has locked the byte. `fd` is of another open file description than this process's lock,
 * which so counts, too. */
static bool is_byte_locked(int fd, int byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    /* An error counts as locked: memory is never given back on a guess. */
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static struct hetero_region *map_region(const char *path)
{
    /* Another open file description: a mapping keeps its description open, and with it any lock, in children too. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t file_bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    void *mapping = MAP_FAILED;
    if (file_bytes >= (off_t)sizeof(struct hetero_region))
        mapping = mmap(NULL, sizeof(struct hetero_region), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        log_line(LOG_ERROR, "usage region %s: cannot be mapped (%lld bytes of %zu)", path, (long long)file_bytes,
                 sizeof(struct hetero_region));
    if (fd >= 0)
        close(fd);
    return mapping == MAP_FAILED ? NULL : mapping;
}

bool region_open(struct region *region, const char *path)
{
    region_forget(region);
    if (strlen(path) >= sizeof region->path)
        return false;
    strcpy(region->path, path);
    struct hetero_region *shared = map_region(path);
    if (shared == NULL)
        return false;
    uint64_t unset_magic = 0;
    if (atomic_load(&shared->magic) == 0) {
        /* Written by the first process; several write the same. */
        __atomic_store_n(&shared->version, HETERO_REGION_VERSION, __ATOMIC_RELAXED);
        __atomic_store_n(&shared->slot_count, HETERO_REGION_SLOTS, __ATOMIC_RELAXED);
        atomic_compare_exchange_strong(&shared->magic, &unset_magic, HETERO_REGION_MAGIC);
    }
    if (atomic_load(&shared->magic) != HETERO_REGION_MAGIC || shared->version != HETERO_REGION_VERSION ||
        shared->slot_count != HETERO_REGION_SLOTS) {
        log_line(LOG_ERROR, "usage region %s: not of this version", path);
        munmap(shared, sizeof(struct hetero_region));
        return false;
    }
    region->shared = shared;
    return true;
}

void region_forget(struct region *region)
{
    region->slot_index = -1;
    memset(region->own_bytes, 0, sizeof region->own_bytes);
    memset(region->returned_bytes, 0, sizeof region->returned_bytes);
    memset(region->reports, 0, sizeof region->reports);
    memset((void *)region->late_released_bytes, 0, sizeof region->late_released_bytes);
    pthread_mutex_init(&region->process_mutex, NULL); /* a thread of the parent may have held it at the fork */
}

/* --------------------------------------------------------------------------------------------------------- the lock */

static int64_t monotonic_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Whether the process that the lock word names may still hold the lock. This process does not, so a word that names its
 * slot was left by the slot's last process, or is garbage. */
static bool may_be_inside(const struct region *region, uint32_t lock_word)
{
    uint32_t slot_index = (lock_word & OWNER) - 1;
    if (slot_index >= HETERO_REGION_SLOTS || (int)slot_index == region->slot_index)
        return false;
    int fd = open_region_file(region);
    bool is_live = is_byte_locked(fd, (int)slot_index);
    if (fd >= 0)
        close(fd);
    return is_live;
}

/* How many slots may be in use. Most grants are one process, and a sweep should not read a thousand slots. */
static unsigned slots_reached(const struct hetero_region *shared)
{
    unsigned slot_count = shared->reached_slot_count;
    return slot_count < HETERO_REGION_SLOTS ? slot_count : HETERO_REGION_SLOTS;
}

/* Sum up the slots' bytes. A sum that overflows is garbage, and counts as more than any limit. */
static void recount_used(struct hetero_region *shared)
{
    unsigned slot_count = slots_reached(shared);
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        uint64_t sum_bytes = 0;
        for (unsigned slot_index = 0; slot_index < slot_count; slot_index++)
            if (__builtin_add_overflow(sum_bytes, shared->slots[slot_index].used_bytes[device], &sum_bytes))
                sum_bytes = UINT64_MAX;
        shared->devices[device].used_bytes = sum_bytes;
    }
}

static bool lock_shared(struct region *region)
{
    _Atomic uint32_t *lock_word = &region->shared->lock_word;
    uint32_t own_word = (uint32_t)region->slot_index + 1, seen_word = 0;
    if (__builtin_expect(atomic_compare_exchange_strong(lock_word, &seen_word, own_word), 1))
        return true;
    own_word |= HAS_WAITERS; /* once this process had to wait, others may be waiting as well */
    uint32_t owner = seen_word & OWNER;
    int64_t start_ns = monotonic_ns(), owner_since_ns = start_ns;
    for (int64_t now_ns = start_ns; now_ns - owner_since_ns < HOLDER_WAIT_NS && now_ns - start_ns < MAX_WAIT_NS;
         now_ns = monotonic_ns()) {
        seen_word = 0;
        if (atomic_compare_exchange_strong(lock_word, &seen_word, own_word))
            return true;
        if (owner != (seen_word & OWNER)) {
            owner = seen_word & OWNER;
            owner_since_ns = now_ns;
        }
        uint32_t awaited_word = seen_word | HAS_WAITERS;
        if (seen_word != awaited_word && !atomic_compare_exchange_strong(lock_word, &seen_word, awaited_word))
            continue;
        if (may_be_inside(region, awaited_word)) {
            struct timespec poll = {.tv_nsec = POLL_NS};
            syscall(SYS_futex, lock_word, FUTEX_WAIT, awaited_word, &poll, NULL, 0);
        } else if (atomic_compare_exchange_strong(lock_word, &awaited_word,
                                                  own_word | ((awaited_word + THEFT) & THEFTS))) {
            /* Its holder was killed between two writes: the slots are the truth. */
            recount_used(region->shared);
            return true;
        }
    }
    log_line(LOG_ERROR, "usage region %s: locked for too long (by slot %u)", region->path, (seen_word & OWNER) - 1);
    return false;
}

/* Keep the lock of this process's slot when its descriptor is closed, by the limiter or by a program that closes all
 * descriptors. The mapping's offset tells the slot in /proc/PID/maps (hetero/node/ledger). It may lie beyond the file's
 * end. */
static bool map_slot_keeper(struct region *region, int fd, int slot_index)
{
    size_t page_bytes = 1; /* rounded up to a page, which is never accessed */
    region->slot_mapping = mmap(NULL, page_bytes, PROT_NONE, MAP_SHARED, fd,
                                (off_t)slot_index * HETERO_REGION_SLOT_OFFSET);
    return region->slot_mapping != MAP_FAILED && madvise(region->slot_mapping, page_bytes, MADV_DONTFORK) == 0;
}

/* Whether the slot may be of a process that ended while others had its memory open. A sweep decides that. */
static bool may_be_orphaned(const struct hetero_region_slot *slot)
{
    for (unsigned device = 0; slot->pid != 0 && device < HETERO_MAX_DEVICES; device++)
        if (slot->reports[HETERO_REPORT_SHARED][device] > 0)
            return true;
    return false;
}

static int lock_slot(struct region *region, int fd)
{
    unsigned start = 0;
    for (unsigned attempt = 0; attempt < HETERO_REGION_SLOTS + FIRST_SLOTS; attempt++) {
        if (attempt == FIRST_SLOTS)
            start = atomic_fetch_add(&region->shared->search_start_index, 1) % HETERO_REGION_SLOTS;
        unsigned slot_index = attempt < FIRST_SLOTS ? attempt : (start + attempt) % HETERO_REGION_SLOTS;
        if (!may_be_orphaned(&region->shared->slots[slot_index]) &&
            lock_byte(fd, F_OFD_SETLK, F_WRLCK, (int)slot_index))
            return (int)slot_index;
    }
    log_line(LOG_ERROR, "usage region %s: all %u slots are held by live processes", region->path, HETERO_REGION_SLOTS);
    return -1;
}

static bool take_slot(struct region *region)
{
    if (region->slot_index >= 0)
        return true;
    int fd = open_region_file(region);
    if (fd < 0)
        return false;
    int slot_index = lock_slot(region, fd);
    if (slot_index >= 0 && (FAULT(slot_lock_in_a_descriptor) || map_slot_keeper(region, fd, slot_index))) {
        region->slot_index = slot_index;
        region->pid = (uint32_t)getpid();
        region_publish_report(region); /* overwrites that of a dead process */
    }
    if (!FAULT(slot_lock_in_a_descriptor))
        close(fd);
    return region->slot_index >= 0;
}

/* With the lock held: release the bytes that were released while the lock could not be taken. */
static void apply_late_releases(struct region *region)
{
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        uint64_t late_bytes = atomic_load_explicit(&region->late_released_bytes[device], memory_order_relaxed);
        if (__builtin_expect(late_bytes != 0, 0)) {
            atomic_fetch_sub(&region->late_released_bytes[device], late_bytes);
            late_bytes = late_bytes < region->own_bytes[device] ? late_bytes : region->own_bytes[device];
            region->own_bytes[device] -= late_bytes;
            region->returned_bytes[device] += late_bytes;
        }
    }
}

bool region_lock(struct region *region)
{
    pthread_mutex_lock(&region->process_mutex);
    if (!take_slot(region) || !lock_shared(region)) {
        pthread_mutex_unlock(&region->process_mutex);
        return false;
    }
    struct hetero_region_slot *slot = region_slot(region);
    slot->pid = region->pid;
    apply_late_releases(region);
    if (__builtin_expect(region->shared->reached_slot_count <= (uint32_t)region->slot_index, 0))
        region->shared->reached_slot_count = (uint32_t)region->slot_index + 1;
    if (__builtin_expect(memcmp(slot->used_bytes, region->own_bytes, sizeof region->own_bytes) != 0, 0)) {
        /* The slot has a dead process's bytes, the tenant wrote to it, or late releases were applied. */
        memcpy(slot->used_bytes, region->own_bytes, sizeof region->own_bytes);
        recount_used(region->shared);
    }
    return true;
}

void region_unlock(struct region *region)
{
    if (atomic_exchange(&region->shared->lock_word, 0) & HAS_WAITERS)
        syscall(SYS_futex, &region->shared->lock_word, FUTEX_WAKE, 1, NULL, NULL, 0);
    pthread_mutex_unlock(&region->process_mutex);
}

struct hetero_region_slot *region_slot(struct region *region)
{
    return &region->shared->slots[region->slot_index];
}

void region_publish_report(struct region *region)
{
    memcpy(region_slot(region)->reports, region->reports, sizeof region->reports);
}

/* Which slots are of live processes, and on which devices any of those has other processes' memory open. */
struct slot_snapshot {
    bool is_live[HETERO_REGION_SLOTS], has_foreign_memory[HETERO_MAX_DEVICES];
};

/* One system call for each slot at most, so that the lock is not held for long whatever the tenant wrote. */
static struct slot_snapshot snapshot_slots(const struct region *region, int fd)
{
    struct slot_snapshot snapshot = {0};
    for (unsigned slot_index = 0, slot_count = slots_reached(region->shared); slot_index < slot_count; slot_index++) {
        const struct hetero_region_slot *slot = &region->shared->slots[slot_index];
        snapshot.is_live[slot_index] = (int)slot_index == region->slot_index ||
                                       (slot->pid != 0 && is_byte_locked(fd, (int)slot_index));
        for (unsigned device = 0; snapshot.is_live[slot_index] && device < HETERO_MAX_DEVICES; device++)
            snapshot.has_foreign_memory[device] |= slot->reports[HETERO_REPORT_OPENED][device] > 0;
    }
    return snapshot;
}

/* Free a dead process's slot, but for the bytes that it shared and that others may have open. */
static void sweep_dead_slot(struct hetero_region_slot *slot, const bool has_foreign_memory[HETERO_MAX_DEVICES])
{
    struct hetero_region_slot orphan = {0};
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        uint64_t shared_bytes = slot->reports[HETERO_REPORT_SHARED][device];
        if (shared_bytes == 0 || !has_foreign_memory[device])
            continue;
        orphan.used_bytes[device] = shared_bytes < slot->used_bytes[device] ? shared_bytes : slot->used_bytes[device];
        orphan.reports[HETERO_REPORT_SHARED][device] = orphan.used_bytes[device];
        orphan.pid = HETERO_REGION_ORPHANED;
    }
    *slot = orphan;
}

/* Whether another process ever took a slot. */
static bool has_other_slots(const struct region *region)
{
    for (unsigned slot_index = 0, slot_count = slots_reached(region->shared); slot_index < slot_count; slot_index++)
        if ((int)slot_index != region->slot_index && region->shared->slots[slot_index].pid != 0)
            return true;
    return false;
}

void region_sweep(struct region *region)
{
    int fd = has_other_slots(region) ? open_region_file(region) : -1;
    if (fd < 0)
        return;
    struct slot_snapshot snapshot = snapshot_slots(region, fd);
    close(fd);
    bool has_swept = false;
    for (unsigned slot_index = 0, slot_count = slots_reached(region->shared); slot_index < slot_count; slot_index++) {
        struct hetero_region_slot *slot = &region->shared->slots[slot_index];
        if (slot->pid == 0 || snapshot.is_live[slot_index])
            continue;
        sweep_dead_slot(slot, snapshot.has_foreign_memory);
        has_swept = true;
    }
    if (has_swept)
        recount_used(region->shared);
}

unsigned region_processes(const struct region *region, struct region_process processes[HETERO_REGION_SLOTS])
{
    unsigned process_count = 0;
    int fd = open_region_file(region);
    for (unsigned slot_index = 0, slot_count = fd < 0 ? 0 : slots_reached(region->shared); slot_index < slot_count;
         slot_index++) {
        const struct hetero_region_slot *slot = &region->shared->slots[slot_index];
        struct region_process process = {.pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED)};
        if (process.pid == 0 || !is_byte_locked(fd, (int)slot_index))
            continue;
        for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
            process.used_bytes[device] = __atomic_load_n(&slot->used_bytes[device], __ATOMIC_RELAXED);
        processes[process_count++] = process;
    }
    if (fd >= 0)
        close(fd);
    return process_count;
}

uint64_t region_sum(const struct region *region, unsigned device)
{
    uint64_t sum_bytes = 0;
    int fd = open_region_file(region);
    for (unsigned slot_index = 0, slot_count = slots_reached(region->shared); slot_index < slot_count; slot_index++) {
        uint64_t used_bytes = __atomic_load_n(&region->shared->slots[slot_index].used_bytes[device], __ATOMIC_RELAXED);
        if (used_bytes != 0 && is_byte_locked(fd, (int)slot_index) &&
            __builtin_add_overflow(sum_bytes, used_bytes, &sum_bytes))
            sum_bytes = UINT64_MAX;
    }
    if (fd >= 0)
        close(fd);
    return sum_bytes;
}
