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

static bool lock(const struct turn *turn, int byte, short type, int command)
{
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = turn->at + byte, .l_len = 1};
    int result;
    do
        result = fcntl(turn->file, command, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "turn: lock: %s", strerror(errno));
    return result == 0;
}

static bool taken(const struct turn *turn, int byte)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = turn->at + byte, .l_len = 1};
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

static int byte_of(enum turn_word word)
{
    return word == TURN_HIGH ? HIGH : OWED;
}

void turn_say(struct turn *turn, enum turn_word word, bool so)
{
    if (turn->file >= 0 && so != turn->said[word])
        turn->said[word] = lock(turn, byte_of(word), so ? F_RDLCK : F_UNLCK, F_OFD_SETLK) && so;
}

bool turn_heard(const struct turn *turn, enum turn_word word)
{
    return taken(turn, byte_of(word));
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
    lock(turn, turn->high ? RUN_HIGH : RUN_LOW, F_UNLCK, F_OFD_SETLK);
    if (turn->high)
        lock(turn, CLAIM, F_UNLCK, F_OFD_SETLK);
}

/* Take the turn if that takes no waiting. */
static bool seize(const struct turn *turn)
{
    if (turn->high)
        return lock(turn, CLAIM, F_RDLCK, F_OFD_SETLK) && lock(turn, RUN_HIGH, F_WRLCK, F_OFD_SETLK);
    if (!lock(turn, RUN_LOW, F_WRLCK, F_OFD_SETLK))
        return false;
    if (!taken(turn, CLAIM))
        return true;
    let_go(turn);
    return false;
}

/* Wait for the turn in the kernel, for as long as it takes. */
static void queue(struct turn *turn)
{
    if (turn->high) {
        lock(turn, CLAIM, F_RDLCK, F_OFD_SETLKW);
        lock(turn, RUN_HIGH, F_WRLCK, F_OFD_SETLKW);
        return;
    }
    lock(turn, WAIT_LOW, F_RDLCK, F_OFD_SETLKW);
    lock(turn, RUN_LOW, F_WRLCK, F_OFD_SETLKW);
    while (taken(turn, CLAIM)) {
        let_go(turn);
        /* An exclusive lock on their byte is to be had once no high-priority grant claims the device any more. */
        lock(turn, CLAIM, F_WRLCK, F_OFD_SETLKW);
        lock(turn, CLAIM, F_UNLCK, F_OFD_SETLK);
        lock(turn, RUN_LOW, F_WRLCK, F_OFD_SETLKW);
    }
    lock(turn, WAIT_LOW, F_UNLCK, F_OFD_SETLK);
}

static void *wait_for_owner(void *argument)
{
    struct turn *turn = argument;
    for (;;) {
        for (uint32_t seen = atomic_load(&turn->state); seen != WANTED; seen = atomic_load(&turn->state))
            sleep_on(turn, seen, TURN_PATIENCE_NS);
        queue(turn);
        turn->since_ns = (uint64_t)now_ns();
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
    turn->since_ns = 0;
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
    turn->since_ns = 0;
    if (!seize(turn))
        return false;
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
    return taken(turn, RUN_LOW) || taken(turn, RUN_HIGH);
}

bool turn_drains(const struct turn *turn)
{
    return turn->high && taken(turn, RUN_LOW);
}

bool turn_yields(const struct turn *turn)
{
    return atomic_load(&turn->state) == OURS && !turn->high && taken(turn, CLAIM);
}

bool turn_wanted(const struct turn *turn)
{
    return taken(turn, WAIT_LOW) || taken(turn, CLAIM);
}

bool turn_claimed(const struct turn *turn)
{
    return taken(turn, CLAIM);
}

uint64_t turn_since(const struct turn *turn)
{
    return turn->since_ns;
}
