/* The time slice's locks (slice.h). A lock that fails is logged and taken to be held: time slices keep tenants from
 * slowing each other down, and a broken lock must not stop a program whose share is still kept by its own budget.
 *
 * Waiting for a lock in the kernel has no time limit, and waking up takes 50 to 200 us in which the device is idle. So
 * waiters poll: seldom, and often once the time slice is about to be free.
 */
#include "slice.h"

#include "../core/log.h"
#include "../core/region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The bytes. */
enum { RUN_LOW = 0, WAIT_LOW = 1, CLAIM = 2, HIGH = 3, RUN_HIGH = 4, OWED = 5, ENDS = 13, WANT = 14, WAITED = 15 };

/* How long one has waited, in steps that each are 1.7 times the one before: up to twenty seconds. */
#define WAIT_STEP_NS INT64_C(10000000)
#define WAIT_STEPS   16u

/* How often a waiter looks: while somebody runs; while one of high priority does, whose time slices are short; and
 * once the time slice is about to be free, for so long. */
#define LOOK_NS      250000
#define LOOK_HIGH_NS 100000
#define LOOK_ENDS_NS 10000
#define ENDS_MOST_NS INT64_C(3000000)

/* A waiter that has not come by then was killed, or gets no processor. */
#define COME_NS INT64_C(2000000)

static bool lock_in(int file, int start, int count, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    int result;
    do
        result = fcntl(file, F_OFD_SETLK, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "slice: lock: %s", strerror(errno));
    return result == 0;
}

static bool lock(const struct slice *slice, int byte, int count, short type)
{
    return lock_in(slice->file, slice->at + byte, count, type);
}

static bool taken_in(int file, int start, int count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    return file >= 0 && fcntl(file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

static bool taken(const struct slice *slice, int byte, int count)
{
    return taken_in(slice->file, slice->at + byte, count);
}

void slice_open(struct slice *slice, const char *directory, unsigned device)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/usage", directory);
    slice->own_file = open(path, O_RDWR | O_CLOEXEC);
    slice->own_at = HETERO_REGION_LOCK_SLICE(device);
    int error = errno;
    snprintf(path, sizeof path, "%s/slice.%u", directory, device);
    slice->file = open(path, O_RDWR | O_CLOEXEC);
    slice->at = 0;
    if (slice->file < 0) {
        slice->file = slice->own_file;
        slice->at = slice->own_at;
    }
    if (slice->file < 0)
        log_line(LOG_ERROR, "slice %s and usage: %s", path, strerror(error));
}

void slice_close(struct slice *slice)
{
    if (slice->own_file >= 0 && slice->own_file != slice->file)
        close(slice->own_file);
    if (slice->file >= 0)
        close(slice->file);
    slice->file = slice->own_file = -1;
}

void slice_want(const struct slice *slice, bool want)
{
    if (slice->own_file >= 0)
        lock_in(slice->own_file, slice->own_at + WANT, 1, want ? F_RDLCK : F_UNLCK);
}

bool slice_wanted_by_siblings(const struct slice *slice)
{
    return taken_in(slice->own_file, slice->own_at + WANT, 1);
}

void slice_announce(struct slice *slice, bool high)
{
    if (slice->file >= 0 && high != slice->announced)
        slice->announced = lock(slice, HIGH, 1, high ? F_RDLCK : F_UNLCK) && high;
}

/* Have so many of `most` bytes from `start` locked; `advertised` is how many are. */
static void advertise(int file, int start, unsigned most, unsigned *advertised, unsigned count)
{
    if (file < 0 || count == *advertised)
        return;
    if (count > *advertised)
        lock_in(file, start, (int)count, F_RDLCK);
    else
        lock_in(file, start + (int)count, (int)(most - count), F_UNLCK);
    *advertised = count;
}

static bool advertised_more(int file, int start, unsigned most, unsigned advertised)
{
    return advertised < most && taken_in(file, start + (int)advertised, (int)(most - advertised));
}

void slice_owe(struct slice *slice, int64_t ns)
{
    int64_t steps = ns < 0 ? 0 : ns / SLICE_STEP_NS;
    advertise(slice->file, slice->at + OWED, SLICE_STEPS, &slice->owed,
              steps < SLICE_STEPS ? (unsigned)steps : SLICE_STEPS);
}

bool slice_owed_more(const struct slice *slice)
{
    return advertised_more(slice->file, slice->at + OWED, SLICE_STEPS, slice->owed);
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void advertise_wait(struct slice *slice)
{
    int64_t waited_ns = slice->waits_ns == 0 ? 0 : now_ns() - slice->waits_ns;
    unsigned steps = 0;
    for (int64_t step_ns = WAIT_STEP_NS; steps < WAIT_STEPS && waited_ns >= step_ns; step_ns += step_ns / 3 * 2)
        steps++;
    advertise(slice->own_file, slice->own_at + WAITED, WAIT_STEPS, &slice->waited, steps);
}

void slice_waits(struct slice *slice, bool waits)
{
    if (!waits)
        slice->waits_ns = slice->deferring_ns = 0;
    else if (slice->waits_ns == 0)
        slice->waits_ns = now_ns();
    advertise_wait(slice);
}

static void sleep_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Whether a sibling that has waited longer is to go first, and comes. */
static bool defers(struct slice *slice)
{
    bool behind = advertised_more(slice->own_file, slice->own_at + WAITED, WAIT_STEPS, slice->waited);
    if (!behind || (slice->high ? taken(slice, RUN_HIGH, 1) : slice_held(slice))) {
        slice->deferring_ns = 0;
        return false;
    }
    if (slice->deferring_ns == 0)
        slice->deferring_ns = now_ns();
    return now_ns() - slice->deferring_ns < COME_NS;
}

/* Unlock what the owner of a time slice has locked, all of it or a part. */
static void unlock_run(const struct slice *slice)
{
    lock(slice, slice->high ? CLAIM : ENDS, 1, F_UNLCK);
    lock(slice, slice->high ? RUN_HIGH : RUN_LOW, 1, F_UNLCK);
}

/* Take the time slice if it can be had at once. */
static bool seize(const struct slice *slice)
{
    if (slice->high)
        return lock(slice, CLAIM, 1, F_RDLCK) && lock(slice, RUN_HIGH, 1, F_WRLCK);
    /* Locking RUN_LOW for a moment only would look like draining to a grant of high priority that runs. */
    if (taken(slice, CLAIM, 1) || !lock(slice, RUN_LOW, 1, F_WRLCK))
        return false;
    if (!taken(slice, CLAIM, 1))
        return true;
    unlock_run(slice);
    return false;
}

static bool wait_for(struct slice *slice, void (*soon)(void *owner), void *owner)
{
    int64_t since = now_ns(), now = since, ends_since = 0;
    for (; now - since < SLICE_PATIENCE_NS; now = now_ns()) {
        advertise_wait(slice);
        if (!defers(slice) && seize(slice))
            return true;
        bool ends = taken(slice, ENDS, 1);
        if (!ends) {
            ends_since = 0;
        } else if (ends_since == 0) {
            ends_since = now;
            if (soon != NULL)
                soon(owner);
        }
        if (ends && now - ends_since < ENDS_MOST_NS)
            sleep_ns(LOOK_ENDS_NS);
        else
            sleep_ns(taken(slice, CLAIM, 1) ? LOOK_HIGH_NS : LOOK_NS);
    }
    log_line(LOG_INFO, "slice: not given up for %d ms: running beside its holder", (int)(SLICE_PATIENCE_NS / 1000000));
    return false;
}

void slice_take(struct slice *slice, bool high, void (*soon)(void *owner), void *owner)
{
    if (slice->file < 0)
        return;
    slice->high = high;
    slice->deferring_ns = 0;
    slice->ours = (slice->late || !defers(slice)) && seize(slice);
    if (!slice->ours && !slice->late) {
        if (!high)
            lock(slice, WAIT_LOW, 1, F_RDLCK);
        slice->ours = wait_for(slice, soon, owner);
        if (!high)
            lock(slice, WAIT_LOW, 1, F_UNLCK);
    }
    slice->late = !slice->ours;
}

bool slice_try(struct slice *slice, bool high)
{
    if (slice->file < 0)
        return true;
    slice->high = high;
    if (slice_wanted(slice) || slice_held(slice) || defers(slice))
        return false;
    slice->ours = seize(slice);
    slice->late = slice->late && !slice->ours;
    if (!slice->ours)
        unlock_run(slice); /* of high priority, the claim: nobody is to yield to one that does not wait */
    return slice->ours;
}

void slice_ends(const struct slice *slice)
{
    if (slice->ours && !slice->high)
        lock(slice, ENDS, 1, F_WRLCK);
}

void slice_give(struct slice *slice)
{
    if (slice->file < 0)
        return;
    bool wanted = slice->ours && slice_wanted(slice);
    unlock_run(slice);
    slice->ours = false;
    slice->deferring_ns = 0;
    /* A new request of ours would overtake a waiter, which looks only now and then. */
    for (int64_t since = now_ns(); wanted && !slice_held(slice) && now_ns() - since < COME_NS;)
        sleep_ns(LOOK_ENDS_NS);
}

bool slice_held(const struct slice *slice)
{
    return taken(slice, RUN_LOW, 1) || taken(slice, RUN_HIGH, 1);
}

bool slice_drains(const struct slice *slice)
{
    return slice->high && taken(slice, RUN_LOW, 1);
}

bool slice_yields(const struct slice *slice)
{
    return slice->ours && !slice->high && taken(slice, CLAIM, 1);
}

bool slice_wanted(const struct slice *slice)
{
    return taken(slice, WAIT_LOW, 1) || taken(slice, CLAIM, 1);
}

bool slice_claimed(const struct slice *slice)
{
    return taken(slice, CLAIM, 1);
}

bool slice_beside_high(const struct slice *slice)
{
    return taken(slice, HIGH, 1);
}
