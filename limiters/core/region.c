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

/* The lock word. The number of thefts in it keeps two waiters from both robbing the same dead holder. */
#define OWNER      UINT32_C(0x0000ffff) /* slot + 1; 0: nobody */
#define THEFT      UINT32_C(0x00010000)
#define THEFTS     UINT32_C(0x7fff0000)
#define WAITED_FOR UINT32_C(0x80000000)

/* How often a waiter looks whether the holder lives, and how long it waits for one that lives: a holder needs well
 * under a microsecond, so one that was stopped or preempted for so long is not coming back soon. While holders change,
 * the lock is in use by processes that a busy machine lets go first, and is waited for longer. */
#define LOOK_NS      INT64_C(2000000)
#define PATIENCE_NS  INT64_C(1000000000)
#define MOST_WAIT_NS (30 * PATIENCE_NS)

/* Tried by every process that comes; of hundreds that come at once, each then looks elsewhere for the rest. */
#define FIRST_SLOTS 8u

static bool lock_byte(int file, int command, short type, int byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(file, command, &lock);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

static int open_file(const struct region *region)
{
    int file = open(region->path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        log_line(LOG_ERROR, "usage region %s: %s", region->path, strerror(errno));
    return file;
}

/* Asked through a description of its own, to which the slot of this process is another's, too. */
static bool held(int file, int byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    /* Not being able to ask counts as held: memory is never given back on a guess. */
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static struct hetero_region *map(const char *path)
{
    /* A description of its own: a mapping keeps its description open, and with it any lock, in children too. */
    int file = open(path, O_RDWR | O_CLOEXEC);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    void *mapped = MAP_FAILED;
    if (size >= (off_t)sizeof(struct hetero_region))
        mapped = mmap(NULL, sizeof(struct hetero_region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        log_line(LOG_ERROR, "usage region %s: cannot be mapped (%lld bytes of %zu)", path, (long long)size,
                 sizeof(struct hetero_region));
    if (file >= 0)
        close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

bool region_open(struct region *region, const char *path)
{
    region_forget(region);
    if (strlen(path) >= sizeof region->path)
        return false;
    strcpy(region->path, path);
    struct hetero_region *shared = map(path);
    if (shared == NULL)
        return false;
    uint64_t magic = 0;
    if (atomic_load(&shared->magic) == 0) {
        /* Written by the first process; several write the same. */
        __atomic_store_n(&shared->version, HETERO_REGION_VERSION, __ATOMIC_RELAXED);
        __atomic_store_n(&shared->slot_count, HETERO_REGION_SLOTS, __ATOMIC_RELAXED);
        atomic_compare_exchange_strong(&shared->magic, &magic, HETERO_REGION_MAGIC);
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
    region->slot = -1;
    memset(region->own, 0, sizeof region->own);
    memset(region->returned, 0, sizeof region->returned);
    memset(region->said, 0, sizeof region->said);
    memset((void *)region->owed, 0, sizeof region->owed);
    pthread_mutex_init(&region->mine, NULL); /* a thread of the parent may have held it at the fork */
}

/* --------------------------------------------------------------------------------------------------------- the lock */

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Whether the process that the lock word names can still be inside. We are not, so a word that names our slot was left
 * by the slot's last process, or is garbage. */
static bool may_be_inside(const struct region *region, uint32_t word)
{
    uint32_t slot = (word & OWNER) - 1;
    if (slot >= HETERO_REGION_SLOTS || (int)slot == region->slot)
        return false;
    int file = open_file(region);
    bool may = held(file, (int)slot);
    if (file >= 0)
        close(file);
    return may;
}

/* How many slots there is something to see in. Most grants are one process, and a sweep should not read a thousand. */
static unsigned reached(const struct hetero_region *shared)
{
    unsigned count = shared->reached;
    return count < HETERO_REGION_SLOTS ? count : HETERO_REGION_SLOTS;
}

/* Sum up the slots. A sum too large for 64 bits is garbage, and more than any limit. */
static void recount(struct hetero_region *shared)
{
    unsigned count = reached(shared);
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++) {
        uint64_t used = 0;
        for (unsigned s = 0; s < count; s++)
            if (__builtin_add_overflow(used, shared->slots[s].used[d], &used))
                used = UINT64_MAX;
        shared->devices[d].used = used;
    }
}

static bool take_shared(struct region *region)
{
    _Atomic uint32_t *word = &region->shared->lock;
    uint32_t mine = (uint32_t)region->slot + 1, seen = 0;
    if (__builtin_expect(atomic_compare_exchange_strong(word, &seen, mine), 1))
        return true;
    mine |= WAITED_FOR; /* once we had to wait, others may be waiting as well */
    uint32_t owner = seen & OWNER;
    int64_t began = now_ns(), since = began;
    for (int64_t now = began; now - since < PATIENCE_NS && now - began < MOST_WAIT_NS; now = now_ns()) {
        seen = 0;
        if (atomic_compare_exchange_strong(word, &seen, mine))
            return true;
        if (owner != (seen & OWNER)) {
            owner = seen & OWNER;
            since = now;
        }
        uint32_t awaited = seen | WAITED_FOR;
        if (seen != awaited && !atomic_compare_exchange_strong(word, &seen, awaited))
            continue;
        if (may_be_inside(region, awaited)) {
            struct timespec look = {.tv_nsec = LOOK_NS};
            syscall(SYS_futex, word, FUTEX_WAIT, awaited, &look, NULL, 0);
        } else if (atomic_compare_exchange_strong(word, &awaited, mine | ((awaited + THEFT) & THEFTS))) {
            /* Its holder was killed between two writes: the slots are the truth. */
            recount(region->shared);
            return true;
        }
    }
    log_line(LOG_ERROR, "usage region %s: locked for too long (by slot %u)", region->path, (seen & OWNER) - 1);
    return false;
}

/* Have the lock of this process stay when its descriptor is closed, by us or by whoever closes what it does not know.
 * Where it is mapped from says the slot in /proc/PID/maps (hetero/node/ledger), beyond the file's end or not. */
static bool keep_open(struct region *region, int file, int slot)
{
    size_t page = 1; /* rounded up to a page, which is never looked at */
    region->keeper = mmap(NULL, page, PROT_NONE, MAP_SHARED, file, (off_t)slot * HETERO_REGION_SLOT_OFFSET);
    return region->keeper != MAP_FAILED && madvise(region->keeper, page, MADV_DONTFORK) == 0;
}

/* Whether the slot may be one whose process ended and whose memory others have open: a sweep will tell. */
static bool is_left(const struct hetero_region_slot *slot)
{
    for (unsigned d = 0; slot->pid != 0 && d < HETERO_MAX_DEVICES; d++)
        if (slot->said[HETERO_SAID_SHARED][d] > 0)
            return true;
    return false;
}

static int lock_slot(struct region *region, int file)
{
    unsigned start = 0;
    for (unsigned tried = 0; tried < HETERO_REGION_SLOTS + FIRST_SLOTS; tried++) {
        if (tried == FIRST_SLOTS)
            start = atomic_fetch_add(&region->shared->next, 1) % HETERO_REGION_SLOTS;
        unsigned s = tried < FIRST_SLOTS ? tried : (start + tried) % HETERO_REGION_SLOTS;
        if (!is_left(&region->shared->slots[s]) && lock_byte(file, F_OFD_SETLK, F_WRLCK, (int)s))
            return (int)s;
    }
    log_line(LOG_ERROR, "usage region %s: all %u slots are held by live processes", region->path, HETERO_REGION_SLOTS);
    return -1;
}

static bool take_slot(struct region *region)
{
    if (region->slot >= 0)
        return true;
    int file = open_file(region);
    if (file < 0)
        return false;
    int slot = lock_slot(region, file);
    if (slot >= 0 && (FAULT(slot_lock_in_a_descriptor) || keep_open(region, file, slot))) {
        region->slot = slot;
        region->pid = (uint32_t)getpid();
        region_say(region); /* over a dead process's */
    }
    if (!FAULT(slot_lock_in_a_descriptor))
        close(file);
    return region->slot >= 0;
}

/* With the lock held. */
static void give_back_what_is_owed(struct region *region)
{
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++) {
        uint64_t owed = atomic_load_explicit(&region->owed[d], memory_order_relaxed);
        if (__builtin_expect(owed != 0, 0)) {
            atomic_fetch_sub(&region->owed[d], owed);
            owed = owed < region->own[d] ? owed : region->own[d];
            region->own[d] -= owed;
            region->returned[d] += owed;
        }
    }
}

bool region_lock(struct region *region)
{
    pthread_mutex_lock(&region->mine);
    if (!take_slot(region) || !take_shared(region)) {
        pthread_mutex_unlock(&region->mine);
        return false;
    }
    struct hetero_region_slot *slot = region_slot(region);
    slot->pid = region->pid;
    give_back_what_is_owed(region);
    if (__builtin_expect(region->shared->reached <= (uint32_t)region->slot, 0))
        region->shared->reached = (uint32_t)region->slot + 1;
    if (__builtin_expect(memcmp(slot->used, region->own, sizeof region->own) != 0, 0)) {
        /* Left by a dead process, scribbled on, or given back since. */
        memcpy(slot->used, region->own, sizeof region->own);
        recount(region->shared);
    }
    return true;
}

void region_unlock(struct region *region)
{
    if (atomic_exchange(&region->shared->lock, 0) & WAITED_FOR)
        syscall(SYS_futex, &region->shared->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
    pthread_mutex_unlock(&region->mine);
}

struct hetero_region_slot *region_slot(struct region *region)
{
    return &region->shared->slots[region->slot];
}

void region_say(struct region *region)
{
    memcpy(region_slot(region)->said, region->said, sizeof region->said);
}

/* Which slots are of live processes, and of which devices any of those has memory of others open. */
struct census {
    bool lives[HETERO_REGION_SLOTS], open[HETERO_MAX_DEVICES];
};

/* One question for each slot: a page that somebody scribbled on must not keep its lock for long. */
static struct census count_slots(const struct region *region, int file)
{
    struct census found = {0};
    for (unsigned s = 0, count = reached(region->shared); s < count; s++) {
        const struct hetero_region_slot *slot = &region->shared->slots[s];
        found.lives[s] = (int)s == region->slot || (slot->pid != 0 && held(file, (int)s));
        for (unsigned d = 0; found.lives[s] && d < HETERO_MAX_DEVICES; d++)
            found.open[d] |= slot->said[HETERO_SAID_OPENED][d] > 0;
    }
    return found;
}

/* Of a dead process's slot: what it shared stays charged while that may be open. */
static void sweep_slot(struct hetero_region_slot *slot, const bool open[HETERO_MAX_DEVICES])
{
    struct hetero_region_slot left = {0};
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++) {
        uint64_t shared = slot->said[HETERO_SAID_SHARED][d];
        if (shared == 0 || !open[d])
            continue;
        left.used[d] = shared < slot->used[d] ? shared : slot->used[d];
        left.said[HETERO_SAID_SHARED][d] = left.used[d];
        left.pid = HETERO_REGION_LEFT;
    }
    *slot = left;
}

/* Whether there is a slot that is not ours and was taken. */
static bool any_other(const struct region *region)
{
    for (unsigned s = 0, count = reached(region->shared); s < count; s++)
        if ((int)s != region->slot && region->shared->slots[s].pid != 0)
            return true;
    return false;
}

void region_sweep(struct region *region)
{
    int file = any_other(region) ? open_file(region) : -1;
    if (file < 0)
        return;
    struct census found = count_slots(region, file);
    close(file);
    bool swept = false;
    for (unsigned s = 0, count = reached(region->shared); s < count; s++) {
        struct hetero_region_slot *slot = &region->shared->slots[s];
        if (slot->pid == 0 || found.lives[s])
            continue;
        sweep_slot(slot, found.open);
        swept = true;
    }
    if (swept)
        recount(region->shared);
}

unsigned region_processes(const struct region *region, struct region_process processes[HETERO_REGION_SLOTS])
{
    unsigned found = 0;
    int file = open_file(region);
    for (unsigned s = 0, count = file < 0 ? 0 : reached(region->shared); s < count; s++) {
        const struct hetero_region_slot *slot = &region->shared->slots[s];
        struct region_process process = {.pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED)};
        if (process.pid == 0 || !held(file, (int)s))
            continue;
        for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++)
            process.used[d] = __atomic_load_n(&slot->used[d], __ATOMIC_RELAXED);
        processes[found++] = process;
    }
    if (file >= 0)
        close(file);
    return found;
}

uint64_t region_sum(const struct region *region, unsigned device)
{
    uint64_t sum = 0;
    int file = open_file(region);
    for (unsigned s = 0, count = reached(region->shared); s < count; s++) {
        uint64_t used = __atomic_load_n(&region->shared->slots[s].used[device], __ATOMIC_RELAXED);
        if (used != 0 && held(file, (int)s) && __builtin_add_overflow(sum, used, &sum))
            sum = UINT64_MAX;
    }
    if (file >= 0)
        close(file);
    return sum;
}
