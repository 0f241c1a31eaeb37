/* The turn's locks (turn.h). A lock that fails is logged and taken for granted: turns keep tenants from slowing each
 * other down, and a broken lock must not stop a program whose share is still kept by its own budget.
 *
 * Waiting in the kernel has no time limit, so a thread of its own does it, the waiter, and the owner waits for that.
 */
#include "turn.h"

#include "log.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The bytes. */
enum { RUN_LOW = 0, WAIT_LOW = 1, CLAIM = 2, HIGH = 3, RUN_HIGH = 4, OWED = 5 };

/* The states: nobody runs here; the turn is ours; the waiter waits for it; it still does, but its owner went ahead. */
enum { NONE = 0, OURS, WANTED, LATE };

/* Who waits and has not come by then was killed, or gets no processor. */
#define WAKE_NS INT64_C(2000000)

static bool lock(const struct turn *turn, int byte, int count, short type, int command)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = turn->at + byte, .l_len = count};
    int result;
    do
        result = fcntl(turn->file, command, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "turn: lock: %s", strerror(errno));
    return result == 0;
}

static bool taken(const struct turn *turn, int byte, int count)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = turn->at + byte, .l_len = count};
    return turn->file >= 0 && fcntl(turn->file, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

void turn_open(struct turn *turn, const char *directory, unsigned device)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/turn.%u", directory, device);
    turn->at = 0;
    turn->file = open(path, O_RDWR | O_CLOEXEC);
    if (turn->file < 0) {
        snprintf(path, sizeof path, "%s/usage", directory);
        turn->at = HETERO_REGION_LOCK_TURN(device);
        turn->file = open(path, O_RDWR | O_CLOEXEC);
    }
    if (turn->file < 0)
        log_line(LOG_ERROR, "turn %s: %s", path, strerror(errno));
}

void turn_close(struct turn *turn)
{
    if (turn->file >= 0)
        close(turn->file);
    turn->file = -1;
}

void turn_announce(struct turn *turn, bool high)
{
    if (turn->file >= 0 && high != turn->announced)
        turn->announced = lock(turn, HIGH, 1, high ? F_RDLCK : F_UNLCK, F_OFD_SETLK) && high;
}

void turn_owe(struct turn *turn, int64_t ns)
{
    int64_t steps = ns < 0 ? 0 : ns / TURN_STEP_NS;
    unsigned owed = steps < TURN_STEPS ? (unsigned)steps : TURN_STEPS;
    if (turn->file < 0 || owed == turn->owed)
        return;
    if (owed > turn->owed)
        lock(turn, OWED, (int)owed, F_RDLCK, F_OFD_SETLK);
    else
        lock(turn, OWED + (int)owed, (int)(TURN_STEPS - owed), F_UNLCK, F_OFD_SETLK);
    turn->owed = owed;
}

bool turn_owed_more(const struct turn *turn)
{
    return turn->owed < TURN_STEPS && taken(turn, OWED + (int)turn->owed, (int)(TURN_STEPS - turn->owed));
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Sleep while the state is `seen`. */
static void sleep_on(struct turn *turn, uint32_t seen, int64_t ns)
{
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    syscall(SYS_futex, &turn->state, FUTEX_WAIT_PRIVATE, seen, &timeout, NULL, 0);
}

static void wake(struct turn *turn)
{
    syscall(SYS_futex, &turn->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Unlock what a turn's owner has locked, all of it or a part. */
static void let_go(const struct turn *turn)
{
    lock(turn, turn->high ? RUN_HIGH : RUN_LOW, 1, F_UNLCK, F_OFD_SETLK);
    if (turn->high)
        lock(turn, CLAIM, 1, F_UNLCK, F_OFD_SETLK);
}

/* Take the turn if that takes no waiting. */
static bool seize(const struct turn *turn)
{
    if (turn->high)
        return lock(turn, CLAIM, 1, F_RDLCK, F_OFD_SETLK) && lock(turn, RUN_HIGH, 1, F_WRLCK, F_OFD_SETLK);
    if (!lock(turn, RUN_LOW, 1, F_WRLCK, F_OFD_SETLK))
        return false;
    if (!taken(turn, CLAIM, 1))
        return true;
    let_go(turn);
    return false;
}

/* Wait for the turn in the kernel, for as long as it takes. */
static void queue(struct turn *turn)
{
    if (turn->high) {
        lock(turn, CLAIM, 1, F_RDLCK, F_OFD_SETLKW);
        lock(turn, RUN_HIGH, 1, F_WRLCK, F_OFD_SETLKW);
        return;
    }
    lock(turn, WAIT_LOW, 1, F_RDLCK, F_OFD_SETLKW);
    lock(turn, RUN_LOW, 1, F_WRLCK, F_OFD_SETLKW);
    while (taken(turn, CLAIM, 1)) {
        let_go(turn);
        /* An exclusive lock on their byte is to be had once no high-priority grant claims the device any more. */
        lock(turn, CLAIM, 1, F_WRLCK, F_OFD_SETLKW);
        lock(turn, CLAIM, 1, F_UNLCK, F_OFD_SETLK);
        lock(turn, RUN_LOW, 1, F_WRLCK, F_OFD_SETLKW);
    }
    lock(turn, WAIT_LOW, 1, F_UNLCK, F_OFD_SETLK);
}

static void *wait_for_owner(void *argument)
{
    struct turn *turn = argument;
    for (;;) {
        for (uint32_t seen = atomic_load(&turn->state); seen != WANTED; seen = atomic_load(&turn->state))
            sleep_on(turn, seen, TURN_PATIENCE_NS);
        queue(turn);
        uint32_t wanted = WANTED;
        if (!atomic_compare_exchange_strong(&turn->state, &wanted, OURS)) {
            let_go(turn); /* too late: the owner asks anew for its next turn */
            atomic_store(&turn->state, NONE);
        }
        wake(turn);
    }
    return NULL;
}

static bool start_waiter(struct turn *turn)
{
    pthread_t thread;
    if (turn->waiter)
        return true;
    turn->waiter = pthread_create(&thread, NULL, wait_for_owner, turn) == 0;
    if (turn->waiter)
        pthread_detach(thread);
    else if (log_due(&turn->told_ns, (uint64_t)now_ns()))
        log_line(LOG_ERROR, "turn: no thread could be started to wait for it");
    return turn->waiter;
}

void turn_take(struct turn *turn, bool high)
{
    if (turn->file < 0 || atomic_load(&turn->state) == LATE)
        return;
    turn->high = high;
    if (seize(turn)) {
        atomic_store(&turn->state, OURS);
        return;
    }
    if (!start_waiter(turn)) {
        let_go(turn);
        return;
    }
    atomic_store(&turn->state, WANTED);
    wake(turn);
    int64_t since = now_ns(), waited = 0;
    while (atomic_load(&turn->state) == WANTED && waited < TURN_PATIENCE_NS) {
        sleep_on(turn, WANTED, TURN_PATIENCE_NS - waited);
        waited = now_ns() - since;
    }
    uint32_t wanted = WANTED;
    if (atomic_compare_exchange_strong(&turn->state, &wanted, LATE))
        log_line(LOG_INFO, "turn: not given up for %d ms: running beside its holder",
                 (int)(TURN_PATIENCE_NS / 1000000));
}

bool turn_try(struct turn *turn, bool high)
{
    if (turn->file < 0)
        return true;
    if (atomic_load(&turn->state) != NONE || turn_wanted(turn) || turn_held(turn))
        return false;
    turn->high = high;
    if (!seize(turn)) {
        let_go(turn); /* of high priority, the claim: nobody is to make way for one that does not wait */
        return false;
    }
    atomic_store(&turn->state, OURS);
    return true;
}

void turn_give(struct turn *turn)
{
    if (turn->file < 0 || atomic_load(&turn->state) != OURS)
        return;
    bool wanted = turn_wanted(turn);
    let_go(turn);
    atomic_store(&turn->state, NONE);
    /* Until the kernel has woken who waits, 50 to 200 us, a new request of ours would overtake it. */
    for (int64_t since = now_ns(); wanted && !turn_held(turn) && now_ns() - since < WAKE_NS;)
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000}, NULL);
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
    return atomic_load(&turn->state) == OURS && !turn->high && taken(turn, CLAIM, 1);
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
