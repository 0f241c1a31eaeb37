/* The turn's locks (turn.h). A lock that fails is logged and taken for granted: turns keep tenants from slowing each
 * other down, and a broken lock must not stop a program whose share is still kept by its own budget.
 */
#include "turn.h"

#include "log.h"
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUN = 0, WAIT_LOW = 1, WAIT_HIGH = 2 };

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

void turn_take(struct turn *turn, bool high)
{
    int waiting = high ? WAIT_HIGH : WAIT_LOW;
    for (;;) {
        if (turn->file < 0)
            return;
        lock(turn, waiting, F_RDLCK, F_OFD_SETLKW);
        lock(turn, RUN, F_WRLCK, F_OFD_SETLKW);
        lock(turn, waiting, F_UNLCK, F_OFD_SETLK);
        if (high || !taken(turn, WAIT_HIGH))
            return;
        lock(turn, RUN, F_UNLCK, F_OFD_SETLK);
        /* An exclusive lock on their byte is to be had once no high-priority grant waits any more. */
        lock(turn, WAIT_HIGH, F_WRLCK, F_OFD_SETLKW);
        lock(turn, WAIT_HIGH, F_UNLCK, F_OFD_SETLK);
    }
}

bool turn_try(struct turn *turn)
{
    return turn->file < 0 || (!turn_wanted(turn) && lock(turn, RUN, F_WRLCK, F_OFD_SETLK));
}

void turn_give(struct turn *turn)
{
    if (turn->file < 0)
        return;
    bool wanted = turn_wanted(turn);
    lock(turn, RUN, F_UNLCK, F_OFD_SETLK);
    if (wanted) /* waking takes the kernel some 50 us, and a new request of ours would overtake it */
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
}

bool turn_held(const struct turn *turn)
{
    return taken(turn, RUN);
}

bool turn_wanted(const struct turn *turn)
{
    return taken(turn, WAIT_LOW) || taken(turn, WAIT_HIGH);
}

bool turn_wanted_by_high(const struct turn *turn)
{
    return taken(turn, WAIT_HIGH);
}
