/* The turn's locks (turn.h). A lock that fails is logged and taken for granted: turns keep tenants from slowing each
 * other down, and a broken lock must not stop a program whose share is still kept by its own budget.
 *
 * Waiting for a lock in the kernel has no time limit, and takes 50 to 200 us to wake up from, which a device does
 * nothing in. So waiters look now and then, and often once the turn is about to be free.
 */
#include "turn.h"

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

/* How often a waiter looks: while somebody runs; while that is one of high priority, whose turns are short; and once
 * the turn is about to be free, for so long. */
#define LOOK_NS      250000
#define LOOK_HIGH_NS 100000
#define LOOK_ENDS_NS 10000
#define ENDS_MOST_NS INT64_C(3000000)

/* Who waits and has not come by then was killed, or gets no processor. */
#define COME_NS INT64_C(2000000)

static bool lock_in(int file, int start, int count, short type)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    int result;
    do
        result = fcntl(file, F_OFD_SETLK, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "turn: lock: %s", strerror(errno));
    return result == 0;
}

static bool lock(const struct turn *turn, int byte, int count, short type)
{
    return lock_in(turn->file, turn->at + byte, count, type);
}

static bool taken_in(int file, int start, int count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = count};
    return file >= 0 && fcntl(file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

static bool taken(const struct turn *turn, int byte, int count)
{
    return taken_in(turn->file, turn->at + byte, count);
}

void turn_open(struct turn *turn, const char *directory, unsigned device)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/usage", directory);
    turn->own_file = open(path, O_RDWR | O_CLOEXEC);
    turn->own_at = HETERO_REGION_LOCK_TURN(device);
    int error = errno;
    snprintf(path, sizeof path, "%s/turn.%u", directory, device);
    turn->file = open(path, O_RDWR | O_CLOEXEC);
    turn->at = 0;
    if (turn->file < 0) {
        turn->file = turn->own_file;
        turn->at = turn->own_at;
    }
    if (turn->file < 0)
        log_line(LOG_ERROR, "turn %s and usage: %s", path, strerror(error));
}

void turn_close(struct turn *turn)
{
    if (turn->own_file >= 0 && turn->own_file != turn->file)
        close(turn->own_file);
    if (turn->file >= 0)
        close(turn->file);
    turn->file = turn->own_file = -1;
}

void turn_want(const struct turn *turn, bool want)
{
    if (turn->own_file >= 0)
        lock_in(turn->own_file, turn->own_at + WANT, 1, want ? F_RDLCK : F_UNLCK);
}

bool turn_wanted_by_kin(const struct turn *turn)
{
    return taken_in(turn->own_file, turn->own_at + WANT, 1);
}

void turn_announce(struct turn *turn, bool high)
{
    if (turn->file >= 0 && high != turn->announced)
        turn->announced = lock(turn, HIGH, 1, high ? F_RDLCK : F_UNLCK) && high;
}

/* Have so many of `most` bytes from `start` locked; `told` is how many are. */
static void tell(int file, int start, unsigned most, unsigned *told, unsigned count)
{
    if (file < 0 || count == *told)
        return;
    if (count > *told)
        lock_in(file, start, (int)count, F_RDLCK);
    else
        lock_in(file, start + (int)count, (int)(most - count), F_UNLCK);
    *told = count;
}

static bool told_more(int file, int start, unsigned most, unsigned told)
{
    return told < most && taken_in(file, start + (int)told, (int)(most - told));
}

void turn_owe(struct turn *turn, int64_t ns)
{
    int64_t steps = ns < 0 ? 0 : ns / TURN_STEP_NS;
    tell(turn->file, turn->at + OWED, TURN_STEPS, &turn->owed, steps < TURN_STEPS ? (unsigned)steps : TURN_STEPS);
}

bool turn_owed_more(const struct turn *turn)
{
    return told_more(turn->file, turn->at + OWED, TURN_STEPS, turn->owed);
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void tell_kin(struct turn *turn)
{
    int64_t waited_ns = turn->waits_ns == 0 ? 0 : now_ns() - turn->waits_ns;
    unsigned steps = 0;
    for (int64_t step_ns = WAIT_STEP_NS; steps < WAIT_STEPS && waited_ns >= step_ns; step_ns += step_ns / 3 * 2)
        steps++;
    tell(turn->own_file, turn->own_at + WAITED, WAIT_STEPS, &turn->waited, steps);
}

void turn_waits(struct turn *turn, bool waits)
{
    if (!waits)
        turn->waits_ns = turn->polite_ns = 0;
    else if (turn->waits_ns == 0)
        turn->waits_ns = now_ns();
    tell_kin(turn);
}

static void doze(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Whether another process of the grant is to go first, and comes. */
static bool polite(struct turn *turn)
{
    bool behind = told_more(turn->own_file, turn->own_at + WAITED, WAIT_STEPS, turn->waited);
    if (!behind || (turn->high ? taken(turn, RUN_HIGH, 1) : turn_held(turn))) {
        turn->polite_ns = 0;
        return false;
    }
    if (turn->polite_ns == 0)
        turn->polite_ns = now_ns();
    return now_ns() - turn->polite_ns < COME_NS;
}

/* Unlock what a turn's owner has locked, all of it or a part. */
static void let_go(const struct turn *turn)
{
    lock(turn, turn->high ? CLAIM : ENDS, 1, F_UNLCK);
    lock(turn, turn->high ? RUN_HIGH : RUN_LOW, 1, F_UNLCK);
}

/* Take the turn if that takes no waiting. */
static bool seize(const struct turn *turn)
{
    if (turn->high)
        return lock(turn, CLAIM, 1, F_RDLCK) && lock(turn, RUN_HIGH, 1, F_WRLCK);
    /* One of high priority that runs would take who locks that byte for a moment for one that drains. */
    if (taken(turn, CLAIM, 1) || !lock(turn, RUN_LOW, 1, F_WRLCK))
        return false;
    if (!taken(turn, CLAIM, 1))
        return true;
    let_go(turn);
    return false;
}

static bool wait_for(struct turn *turn, void (*soon)(void *whom), void *whom)
{
    int64_t since = now_ns(), now = since, ends_since = 0;
    for (; now - since < TURN_PATIENCE_NS; now = now_ns()) {
        tell_kin(turn);
        if (!polite(turn) && seize(turn))
            return true;
        bool ends = taken(turn, ENDS, 1);
        if (!ends) {
            ends_since = 0;
        } else if (ends_since == 0) {
            ends_since = now;
            if (soon != NULL)
                soon(whom);
        }
        doze(ends && now - ends_since < ENDS_MOST_NS ? LOOK_ENDS_NS : taken(turn, CLAIM, 1) ? LOOK_HIGH_NS : LOOK_NS);
    }
    log_line(LOG_INFO, "turn: not given up for %d ms: running beside its holder", (int)(TURN_PATIENCE_NS / 1000000));
    return false;
}

void turn_take(struct turn *turn, bool high, void (*soon)(void *whom), void *whom)
{
    if (turn->file < 0)
        return;
    turn->high = high;
    turn->polite_ns = 0;
    turn->ours = (turn->late || !polite(turn)) && seize(turn);
    if (!turn->ours && !turn->late) {
        if (!high)
            lock(turn, WAIT_LOW, 1, F_RDLCK);
        turn->ours = wait_for(turn, soon, whom);
        if (!high)
            lock(turn, WAIT_LOW, 1, F_UNLCK);
    }
    turn->late = !turn->ours;
}

bool turn_try(struct turn *turn, bool high)
{
    if (turn->file < 0)
        return true;
    turn->high = high;
    if (turn_wanted(turn) || turn_held(turn) || polite(turn))
        return false;
    turn->ours = seize(turn);
    turn->late = turn->late && !turn->ours;
    if (!turn->ours)
        let_go(turn); /* of high priority, the claim: nobody is to make way for one that does not wait */
    return turn->ours;
}

void turn_ends(const struct turn *turn)
{
    if (turn->ours && !turn->high)
        lock(turn, ENDS, 1, F_WRLCK);
}

void turn_give(struct turn *turn)
{
    if (turn->file < 0)
        return;
    bool wanted = turn->ours && turn_wanted(turn);
    let_go(turn);
    turn->ours = false;
    turn->polite_ns = 0;
    /* A new request of ours would overtake who waits, which looks only now and then. */
    for (int64_t since = now_ns(); wanted && !turn_held(turn) && now_ns() - since < COME_NS;)
        doze(LOOK_ENDS_NS);
}

bool turn_held(const struct turn *turn)
{
    return taken(turn, RUN_LOW, 1) || taken(turn, RUN_HIGH, 1);
}

bool turn_drains(const struct turn *turn)
{
    return turn->high && taken(turn, RUN_LOW, 1);
}

bool turn_yields(const struct turn *turn)
{
    return turn->ours && !turn->high && taken(turn, CLAIM, 1);
}

bool turn_wanted(const struct turn *turn)
{
    return taken(turn, WAIT_LOW, 1) || taken(turn, CLAIM, 1);
}

bool turn_claimed(const struct turn *turn)
{
    return taken(turn, CLAIM, 1);
}

bool turn_beside_high(const struct turn *turn)
{
    return taken(turn, HIGH, 1);
}
