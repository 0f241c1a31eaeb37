/* The time slice's locks (time_slice.h). A lock that fails is logged and taken to be held: time slices keep tenants
 * from slowing each other down, and a broken lock must not stop a program whose share is still kept by its own budget.
 *
 * Waiting for a lock in the kernel has no time limit, and waking up takes 50 to 200 us in which the device is idle. So
 * waiters poll: seldom, and often once the time slice is about to be free.
 */
#include "time_slice.h"

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

static bool lock_in(const struct descriptor *file, int start, int count, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    int result;
    if (!descriptor_stands(file))
        return false;
    do
        result = fcntl(file->number, F_OFD_SETLK, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "time slice: lock: %s", strerror(errno));
    return result == 0;
}

static bool lock(const struct time_slice *time_slice, int byte, int count, short type)
{
    return lock_in(&time_slice->file, time_slice->at + byte, count, type);
}

/* Not looked at first: a question changes nothing, whatever file it is asked of. */
static bool taken_in(const struct descriptor *file, int start, int count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    return fcntl(file->number, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

static bool taken(const struct time_slice *time_slice, int byte, int count)
{
    return taken_in(&time_slice->file, time_slice->at + byte, count);
}

bool time_slice_open(struct time_slice *time_slice, const char *directory, unsigned device)
{
    char path[PATH_MAX + 32];
    *time_slice = (struct time_slice){.directory = directory, .device = device};
    snprintf(path, sizeof path, "%s/usage", directory);
    time_slice->own_at = HETERO_REGION_LOCK_TIME_SLICE(device);
    bool opened = descriptor_open(&time_slice->own, path);
    snprintf(path, sizeof path, "%s/time_slice.%u", directory, device);
    if (!descriptor_open(&time_slice->file, path)) {
        opened = opened && errno == ENOENT;
        time_slice->file = time_slice->own;
        time_slice->at = time_slice->own_at;
    }
    if (opened)
        return true;
    log_line(LOG_ERROR, "time slice %s and usage: %s", path, strerror(errno));
    time_slice_close(time_slice);
    return false;
}

bool time_slice_renew(struct time_slice *time_slice)
{
    if (descriptor_stands(&time_slice->file) && descriptor_stands(&time_slice->own))
        return true;
    time_slice_close(time_slice);
    return time_slice_open(time_slice, time_slice->directory, time_slice->device);
}

void time_slice_close(struct time_slice *time_slice)
{
    descriptor_close(&time_slice->own);
    descriptor_close(&time_slice->file);
}

void time_slice_want(const struct time_slice *time_slice, bool want)
{
    lock_in(&time_slice->own, time_slice->own_at + WANT, 1, want ? F_RDLCK : F_UNLCK);
}

bool time_slice_wanted_by_siblings(const struct time_slice *time_slice)
{
    return taken_in(&time_slice->own, time_slice->own_at + WANT, 1);
}

void time_slice_announce(struct time_slice *time_slice, bool high)
{
    if (high != time_slice->announced)
        time_slice->announced = lock(time_slice, HIGH, 1, high ? F_RDLCK : F_UNLCK) && high;
}

/* Have so many of `most` bytes from `start` locked; `advertised` is how many are. */
static void advertise(const struct descriptor *file, int start, unsigned most, unsigned *advertised, unsigned count)
{
    if (count == *advertised)
        return;
    if (count > *advertised)
        lock_in(file, start, (int)count, F_RDLCK);
    else
        lock_in(file, start + (int)count, (int)(most - count), F_UNLCK);
    *advertised = count;
}

static bool advertised_more(const struct descriptor *file, int start, unsigned most, unsigned advertised)
{
    return advertised < most && taken_in(file, start + (int)advertised, (int)(most - advertised));
}

void time_slice_owe(struct time_slice *time_slice, int64_t ns)
{
    int64_t steps = ns < 0 ? 0 : ns / TIME_SLICE_STEP_NS;
    advertise(&time_slice->file, time_slice->at + OWED, TIME_SLICE_STEPS, &time_slice->owed,
              steps < TIME_SLICE_STEPS ? (unsigned)steps : TIME_SLICE_STEPS);
}

bool time_slice_owed_more(const struct time_slice *time_slice)
{
    return advertised_more(&time_slice->file, time_slice->at + OWED, TIME_SLICE_STEPS, time_slice->owed);
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void advertise_wait(struct time_slice *time_slice)
{
    int64_t waited_ns = time_slice->waits_ns == 0 ? 0 : now_ns() - time_slice->waits_ns;
    unsigned steps = 0;
    for (int64_t step_ns = WAIT_STEP_NS; steps < WAIT_STEPS && waited_ns >= step_ns; step_ns += step_ns / 3 * 2)
        steps++;
    advertise(&time_slice->own, time_slice->own_at + WAITED, WAIT_STEPS, &time_slice->waited, steps);
}

void time_slice_waits(struct time_slice *time_slice, bool waits)
{
    if (!waits)
        time_slice->waits_ns = time_slice->deferring_ns = 0;
    else if (time_slice->waits_ns == 0)
        time_slice->waits_ns = now_ns();
    advertise_wait(time_slice);
}

static void sleep_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Whether a sibling that has waited longer is to go first, and comes. */
static bool defers(struct time_slice *time_slice)
{
    bool behind = advertised_more(&time_slice->own, time_slice->own_at + WAITED, WAIT_STEPS, time_slice->waited);
    if (!behind || (time_slice->high ? taken(time_slice, RUN_HIGH, 1) : time_slice_held(time_slice))) {
        time_slice->deferring_ns = 0;
        return false;
    }
    if (time_slice->deferring_ns == 0)
        time_slice->deferring_ns = now_ns();
    return now_ns() - time_slice->deferring_ns < COME_NS;
}

/* Unlock what the owner of a time slice has locked, all of it or a part. */
static void unlock_run(const struct time_slice *time_slice)
{
    lock(time_slice, time_slice->high ? CLAIM : ENDS, 1, F_UNLCK);
    lock(time_slice, time_slice->high ? RUN_HIGH : RUN_LOW, 1, F_UNLCK);
}

/* Take the time slice if it can be had at once. */
static bool seize(const struct time_slice *time_slice)
{
    if (time_slice->high)
        return lock(time_slice, CLAIM, 1, F_RDLCK) && lock(time_slice, RUN_HIGH, 1, F_WRLCK);
    /* Locking RUN_LOW for a moment only would look like draining to a grant of high priority that runs. */
    if (taken(time_slice, CLAIM, 1) || !lock(time_slice, RUN_LOW, 1, F_WRLCK))
        return false;
    if (!taken(time_slice, CLAIM, 1))
        return true;
    unlock_run(time_slice);
    return false;
}

static bool wait_for(struct time_slice *time_slice, void (*soon)(void *owner), void *owner)
{
    int64_t since = now_ns(), now = since, ends_since = 0;
    for (; now - since < TIME_SLICE_PATIENCE_NS; now = now_ns()) {
        advertise_wait(time_slice);
        if (!defers(time_slice) && seize(time_slice))
            return true;
        bool ends = taken(time_slice, ENDS, 1);
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
            sleep_ns(taken(time_slice, CLAIM, 1) ? LOOK_HIGH_NS : LOOK_NS);
    }
    log_line(LOG_INFO, "time slice: not given up for %d ms: running beside its holder",
             (int)(TIME_SLICE_PATIENCE_NS / 1000000));
    return false;
}

void time_slice_take(struct time_slice *time_slice, bool high, void (*soon)(void *owner), void *owner)
{
    time_slice->high = high;
    time_slice->deferring_ns = 0;
    time_slice->ours = (time_slice->late || !defers(time_slice)) && seize(time_slice);
    if (!time_slice->ours && !time_slice->late) {
        if (!high)
            lock(time_slice, WAIT_LOW, 1, F_RDLCK);
        time_slice->ours = wait_for(time_slice, soon, owner);
        if (!high)
            lock(time_slice, WAIT_LOW, 1, F_UNLCK);
    }
    time_slice->late = !time_slice->ours;
}

bool time_slice_try(struct time_slice *time_slice, bool high)
{
    time_slice->high = high;
    if (time_slice_wanted(time_slice) || time_slice_held(time_slice) || defers(time_slice))
        return false;
    time_slice->ours = seize(time_slice);
    time_slice->late = time_slice->late && !time_slice->ours;
    if (!time_slice->ours)
        unlock_run(time_slice); /* of high priority, the claim: nobody is to yield to one that does not wait */
    return time_slice->ours;
}

void time_slice_ends(const struct time_slice *time_slice)
{
    if (time_slice->ours && !time_slice->high)
        lock(time_slice, ENDS, 1, F_WRLCK);
}

void time_slice_give(struct time_slice *time_slice)
{
    bool wanted = time_slice->ours && time_slice_wanted(time_slice);
    unlock_run(time_slice);
    time_slice->ours = false;
    time_slice->deferring_ns = 0;
    /* A new request of ours would overtake a waiter, which looks only now and then. */
    for (int64_t since = now_ns(); wanted && !time_slice_held(time_slice) && now_ns() - since < COME_NS;)
        sleep_ns(LOOK_ENDS_NS);
}

bool time_slice_held(const struct time_slice *time_slice)
{
    return taken(time_slice, RUN_LOW, 1) || taken(time_slice, RUN_HIGH, 1);
}

bool time_slice_drains(const struct time_slice *time_slice)
{
    return time_slice->high && taken(time_slice, RUN_LOW, 1);
}

bool time_slice_yields(const struct time_slice *time_slice)
{
    return time_slice->ours && !time_slice->high && taken(time_slice, CLAIM, 1);
}

bool time_slice_wanted(const struct time_slice *time_slice)
{
    return taken(time_slice, WAIT_LOW, 1) || taken(time_slice, CLAIM, 1);
}

bool time_slice_claimed(const struct time_slice *time_slice)
{
    return taken(time_slice, CLAIM, 1);
}

bool time_slice_beside_high(const struct time_slice *time_slice)
{
    return taken(time_slice, HIGH, 1);
}
