/* Opens and repairs the usage region (region.h): the one place that decides which slots are alive. */
#include "region.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(pthread_mutex_t) <= sizeof(((struct hetero_region *)0)->lock), "the mutex fits its place");

static pthread_mutex_t *mutex_of(struct hetero_region *shared)
{
    return (pthread_mutex_t *)shared->lock;
}

static bool lock_byte(int file, int command, short type, int byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do
        result = fcntl(file, command, &lock);
    while (result < 0 && errno == EINTR);
    return result == 0;
}

static bool held_by_another(int file, int byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    /* Not being able to ask counts as held: memory is never given back on a guess. */
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool give_form(struct hetero_region *shared)
{
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0)
        return false;
    bool formed = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) == 0 &&
                  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 &&
                  pthread_mutex_init(mutex_of(shared), &kind) == 0;
    pthread_mutexattr_destroy(&kind);
    if (!formed)
        return false;
    shared->version = HETERO_REGION_VERSION;
    shared->slot_count = HETERO_REGION_SLOTS;
    atomic_store(&shared->magic, HETERO_REGION_MAGIC);
    return true;
}

static bool open_file(struct region *region)
{
    region->file = open(region->path, O_RDWR | O_CLOEXEC);
    if (region->file < 0)
        log_line(LOG_ERROR, "usage region %s: %s", region->path, strerror(errno));
    return region->file >= 0;
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
    region->file = region->slot = -1;
    if (strlen(path) >= sizeof region->path)
        return false;
    strcpy(region->path, path);
    struct hetero_region *shared = map(path);
    if (shared == NULL)
        return false;
    bool usable = open_file(region) && lock_byte(region->file, F_OFD_SETLKW, F_WRLCK, HETERO_REGION_LOCK_FORMAT);
    if (usable && atomic_load(&shared->magic) == 0)
        usable = give_form(shared);
    if (usable)
        lock_byte(region->file, F_OFD_SETLK, F_UNLCK, HETERO_REGION_LOCK_FORMAT);
    if (usable && (atomic_load(&shared->magic) != HETERO_REGION_MAGIC || shared->version != HETERO_REGION_VERSION ||
                   shared->slot_count != HETERO_REGION_SLOTS)) {
        log_line(LOG_ERROR, "usage region %s: not of this version", path);
        usable = false;
    }
    if (!usable) {
        munmap(shared, sizeof(struct hetero_region));
        region_forget(region);
        return false;
    }
    region->shared = shared;
    return true;
}

void region_forget(struct region *region)
{
    if (region->file >= 0)
        close(region->file);
    region->file = region->slot = -1;
}

static void recount(struct hetero_region *shared)
{
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++) {
        uint64_t used = 0;
        for (unsigned s = 0; s < HETERO_REGION_SLOTS; s++)
            used += shared->slots[s].used[d];
        shared->devices[d].used = used;
    }
}

bool region_lock(struct region *region)
{
    int error = pthread_mutex_lock(mutex_of(region->shared));
    if (error == EOWNERDEAD) {
        /* Its holder was killed between two writes. The slots are the truth; the dead one is swept later. */
        recount(region->shared);
        error = pthread_mutex_consistent(mutex_of(region->shared));
    }
    if (error != 0)
        log_line(LOG_ERROR, "usage region %s: lock: %s", region->path, strerror(error));
    return error == 0;
}

void region_unlock(struct region *region)
{
    pthread_mutex_unlock(mutex_of(region->shared));
}

static void clear(struct hetero_region *shared, unsigned slot)
{
    for (unsigned d = 0; d < HETERO_MAX_DEVICES; d++)
        shared->devices[d].used -= shared->slots[slot].used[d];
    memset(&shared->slots[slot], 0, sizeof shared->slots[slot]);
}

struct hetero_region_slot *region_slot(struct region *region)
{
    struct hetero_region *shared = region->shared;
    if (region->slot >= 0)
        return &shared->slots[region->slot];
    if (region->file < 0 && !open_file(region))
        return NULL;
    for (unsigned s = 0; s < HETERO_REGION_SLOTS; s++) {
        if (!lock_byte(region->file, F_OFD_SETLK, F_WRLCK, (int)s))
            continue;
        clear(shared, s);
        shared->slots[s].pid = (uint32_t)getpid();
        region->slot = (int)s;
        return &shared->slots[s];
    }
    log_line(LOG_ERROR, "usage region %s: all %u slots are held by live processes", region->path,
             HETERO_REGION_SLOTS);
    return NULL;
}

void region_sweep(struct region *region)
{
    if (region->file < 0 && !open_file(region))
        return;
    for (unsigned s = 0; s < HETERO_REGION_SLOTS; s++)
        if (region->shared->slots[s].pid != 0 && (int)s != region->slot && !held_by_another(region->file, (int)s))
            clear(region->shared, s);
}
