/* Cards that share their time in slices and count memory, in one file under /dev/shm: one state under one lock. Behind
 * the state the file has the bytes of exported blocks. */
#include "engine.h"
#include "process_number.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ACCOUNTS  1024u
#define STRETCHES 1024u
#define NOBODY    UINT32_MAX
#define SHARES    2048u
#define MAKING    ACCOUNTS                     /* the byte locked while the state is made */
#define EXPORTED  (MAKING + 1)                 /* the first of the bytes that descriptors of shared blocks lock */
#define ROOM      (UINT64_C(1) << 40)          /* of the file for the bytes of a shared block, and for the state */
#define MAGIC     UINT64_C(0x3645474e45544848) /* layout 6 */
#define BATCH     (UINT64_C(128) << 20)        /* of managed memory; measured on an H100, driver 580.159.04 */

static const uint64_t sample_period = 166666667; /* ns; what NVML documents at most for utilization: 1/6 s to 1 s */
static const uint64_t look_period = 5000000;     /* ns between looks for dead neighbours while waiting */
static const uint64_t sleep_margin = 100000;     /* ns a sleep may overshoot: the rest is spun, as a driver's wait is */

struct stretch { /* an unbroken run of one process on its card: served grows one ns a ns */
    uint64_t start, served, length;
};

struct account {
    uint32_t card;
    struct process_number process; /* to be shown, never to decide */
    _Atomic uint64_t served;       /* written under the card's lock, read without it */
    uint64_t submitted, memory;    /* under the card's lock */
    uint64_t managed;              /* the same; not in memory */
    uint64_t tables;               /* the same; not in memory */
    uint64_t stretches;            /* how many there were, the last STRETCHES are kept */
    struct stretch stretch[STRETCHES];
};

struct share {            /* a block that processes share; under its card's lock */
    uint32_t card, maker; /* maker: an account, or NOBODY when it ended */
    bool made;            /* the maker holds it as such */
    uint64_t id, bytes, length;
    uint64_t wanted;              /* of bytes, what its maker has; the rest goes when nobody has it open */
    uint64_t open[ACCOUNTS / 64]; /* a bit for each account that opened it */
};

/* Who has the time slice. Plain numbers, so that a wait can play the future on a copy. */
struct wheel {
    uint64_t clock;            /* the time until which everything is worked out */
    uint32_t holder;           /* index in tenants, or NOBODY */
    uint64_t slice_left, swap; /* what is left of its slice, and of the change to it */
};

struct card {
    pthread_mutex_t lock; /* robust, across processes: guards the card and its accounts */
    struct wheel wheel;
    uint64_t looked;
    uint32_t count, tenants[ENGINE_TENANTS]; /* accounts, in the wheel's order */
};

struct state { /* the file */
    uint64_t magic, fingerprint;
    pthread_mutex_t lock; /* robust, across processes: guards taken */
    uint8_t taken[ACCOUNTS], shared[SHARES];
    uint32_t share_limit; /* above the highest number ever shared */
    uint64_t share_ids;
    struct share shares[SHARES];
    struct card cards[ENGINE_CARDS];
    struct account accounts[ACCOUNTS];
};

struct engine {
    char path[64];
    int fd;      /* the lock byte of account i is byte i */
    pid_t owner; /* a forked child is not */
    struct state *state;
    unsigned count;
    struct engine_card cards[ENGINE_CARDS];
    unsigned opened[SHARES];     /* how often this process has a shared block open; under its card's lock */
    _Atomic bool mine[ACCOUNTS]; /* written by the thread that joins or leaves; our own locks never show in a look */
};

static struct engine engine; /* one rack a process; set by engine_open, emptied by engine_forget */

uint64_t engine_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void lock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_lock(mutex) == EOWNERDEAD) /* every field stands on its own, so a half-done update is harmless */
        pthread_mutex_consistent(mutex);
}

static void make_lock(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &kind);
    pthread_mutexattr_destroy(&kind);
}

static bool byte_lock(int command, unsigned account, short *type)
{
    struct flock range = {.l_type = *type, .l_whence = SEEK_SET, .l_start = account, .l_len = 1};
    bool worked = fcntl(engine.fd, command, &range) == 0;
    *type = range.l_type;
    return worked;
}

static bool alive(unsigned account)
{
    short type = F_WRLCK;
    return engine.mine[account] || !byte_lock(F_OFD_GETLK, account, &type) || type != F_UNLCK;
}

static bool same_file(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino;
}

/* Opens the state's file and holds it: shared by whoever uses it, so that the last one to leave can tell. */
static int hold(const char *path)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || (flock(fd, LOCK_SH) == 0 && same_file(fd, path)))
            return fd;
        close(fd); /* removed since it was opened */
    }
}

static void make_state(struct state *state, uint64_t fingerprint)
{
    make_lock(&state->lock);
    for (unsigned i = 0; i < ENGINE_CARDS; i++) {
        make_lock(&state->cards[i].lock);
        state->cards[i].wheel = (struct wheel){.clock = engine_now(), .holder = NOBODY};
    }
    state->fingerprint = fingerprint;
    state->magic = MAGIC;
}

/* Maps the state that fd holds, made anew in an empty file; NULL when it is not of this rack. */
static struct state *map_state(int fd, uint64_t fingerprint)
{
    short type = F_WRLCK;
    struct stat status;
    engine.fd = fd;
    struct state *state = MAP_FAILED;
    if (byte_lock(F_OFD_SETLKW, MAKING, &type) && fstat(fd, &status) == 0 &&
        (status.st_size || ftruncate(fd, (off_t)(ROOM * (SHARES + 1))) == 0))
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state != MAP_FAILED && !state->magic)
        make_state(state, fingerprint);
    type = F_UNLCK;
    byte_lock(F_OFD_SETLK, MAKING, &type);
    if (state != MAP_FAILED && (state->magic != MAGIC || state->fingerprint != fingerprint)) {
        munmap(state, sizeof *state);
        return NULL;
    }
    return state;
}

struct engine *engine_open(uint64_t name, uint64_t fingerprint, const struct engine_card *cards, unsigned count)
{
    snprintf(engine.path, sizeof engine.path, "/dev/shm/hetero-rack-%u-%016llx", (unsigned)getuid(),
             (unsigned long long)name);
    int fd;
    struct state *state = NULL;
    while ((fd = hold(engine.path)) >= 0 && !(state = map_state(fd, fingerprint))) {
        unlink(engine.path); /* the rack was edited: those who run keep theirs, the rest start afresh */
        close(fd);
    }
    if (fd < 0 || state == MAP_FAILED) {
        fprintf(stderr, "%s: cannot keep the simulated cards' state: %s\n", engine.path, strerror(errno));
        return NULL;
    }
    engine.state = state;
    engine.owner = getpid();
    engine.count = count;
    memcpy(engine.cards, cards, count * sizeof *cards);
    return &engine;
}

/* The last to leave removes the file. One that is killed leaves it to the next. */
__attribute__((destructor)) static void leave(void)
{
    if (engine.state && engine.owner == getpid() && flock(engine.fd, LOCK_EX | LOCK_NB) == 0 &&
        same_file(engine.fd, engine.path))
        unlink(engine.path);
}

void engine_forget(struct engine *it)
{
    munmap(it->state, sizeof *it->state);
    close(it->fd);
    memset(it, 0, sizeof *it);
}

/* The next stretch of the wheel, at most until `until`: who was served (NOBODY for a change of holder) and how long. */
static uint64_t next_stretch(struct wheel *wheel, const struct engine_card *card, const uint64_t *pending,
                             uint32_t count, uint64_t until, uint32_t *who)
{
    uint32_t busy = 0, next = NOBODY;
    for (uint32_t i = 0; i < count; i++) { /* next: the first with work after the holder, the holder itself last */
        uint32_t at = (wheel->holder == NOBODY ? i : wheel->holder + 1 + i) % count;
        if (pending[at]) {
            busy++;
            if (next == NOBODY)
                next = at;
        }
    }
    *who = NOBODY;
    if (!busy) {
        wheel->clock = until;
        return 0;
    }
    bool holds = wheel->holder != NOBODY && pending[wheel->holder];
    if (!holds || (wheel->slice_left == 0 && busy > 1)) {
        wheel->swap = busy > 1 && next != wheel->holder ? card->swap : 0;
        wheel->holder = next;
        wheel->slice_left = card->slice;
    }
    uint64_t left = until - wheel->clock;
    if (busy > 1 && wheel->swap) {
        uint64_t lost = wheel->swap < left ? wheel->swap : left;
        wheel->swap -= lost;
        wheel->clock += lost;
        return 0;
    }
    uint64_t length = pending[wheel->holder] < left ? pending[wheel->holder] : left;
    if (busy > 1 && length > wheel->slice_left)
        length = wheel->slice_left;
    wheel->slice_left = busy > 1 ? wheel->slice_left - length : card->slice;
    wheel->clock += length;
    *who = wheel->holder;
    return length;
}

static void serve(struct account *account, uint64_t start, uint64_t length)
{
    struct stretch *last = &account->stretch[(account->stretches - 1) % STRETCHES];
    if (account->stretches && last->start + last->length == start && last->served + last->length == account->served)
        last->length += length;
    else
        account->stretch[account->stretches++ % STRETCHES] = (struct stretch){start, account->served, length};
    account->served += length;
}

static void pending_of(const struct card *card, uint64_t *pending)
{
    for (uint32_t i = 0; i < card->count; i++) {
        struct account *account = &engine.state->accounts[card->tenants[i]];
        pending[i] = account->submitted - account->served;
    }
}

/* Everything that happened on the card until now. Called with its lock held. */
static void advance(struct card *card, const struct engine_card *spec, uint64_t now)
{
    uint64_t pending[ENGINE_TENANTS];
    if (card->wheel.clock >= now)
        return;
    pending_of(card, pending);
    while (card->wheel.clock < now) {
        uint32_t who;
        uint64_t length = next_stretch(&card->wheel, spec, pending, card->count, now, &who);
        if (who == NOBODY)
            continue;
        serve(&engine.state->accounts[card->tenants[who]], card->wheel.clock - length, length);
        pending[who] -= length;
    }
}

/* When the account will reach the fence, if nobody submits anything more. Called with the card's lock held. */
static uint64_t foresee(const struct card *card, const struct engine_card *spec, const struct account *account,
                        uint64_t fence)
{
    uint64_t pending[ENGINE_TENANTS];
    struct wheel wheel = card->wheel;
    uint64_t todo = fence - account->served;
    pending_of(card, pending);
    while (todo) {
        uint32_t who;
        uint64_t before = wheel.clock;
        uint64_t length = next_stretch(&wheel, spec, pending, card->count, UINT64_MAX, &who);
        if (who == NOBODY)
            continue;
        if (&engine.state->accounts[card->tenants[who]] == account) {
            if (length >= todo)
                return before + todo;
            todo -= length;
        }
        pending[who] -= length;
    }
    return wheel.clock;
}

static struct share *share_on(const struct card *card, uint32_t number)
{
    struct state *state = engine.state;
    bool taken = __atomic_load_n(&state->shared[number], __ATOMIC_ACQUIRE);
    return taken && &state->cards[state->shares[number].card] == card ? &state->shares[number] : NULL;
}

#define EACH_SHARE(share, card)                                                                                        \
    for (uint32_t number = 0; number < engine.state->share_limit; number++)                                            \
        for (struct share *share = share_on(card, number); share; share = NULL)

static bool is_open(const struct share *share, uint32_t account)
{
    return share->open[account / 64] >> account % 64 & 1;
}

static bool opened(const struct share *share)
{
    uint64_t any = 0;
    for (unsigned i = 0; i < ACCOUNTS / 64; i++)
        any |= share->open[i];
    return any != 0;
}

/* Whose figure has it: its maker's, or else that of one who opened it and did not make it; NOBODY's if there is none.
 */
static uint32_t shown_with(const struct share *share)
{
    for (uint32_t i = 0; !share->made && i < ACCOUNTS; i++)
        if (i != share->maker && is_open(share, i))
            return i;
    return share->made ? share->maker : NOBODY;
}

static void close_shares(const struct card *card, uint32_t account)
{
    EACH_SHARE(share, card)
    {
        share->open[account / 64] &= ~(UINT64_C(1) << account % 64);
        if (share->maker == account) {
            share->made = false;
            share->maker = NOBODY;
        }
    }
}

/* Blocks that nobody holds and no descriptor is of are the card's again. Called with the card's lock held. */
static void sweep(const struct card *card)
{
    EACH_SHARE(share, card)
    {
        short type = F_WRLCK;
        if (share->made && !opened(share))
            share->bytes = share->wanted;
        if (share->made || opened(share) || !byte_lock(F_OFD_GETLK, EXPORTED + number, &type) || type != F_UNLCK)
            continue;
        fallocate(engine.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)engine_share_offset((int)number),
                  (off_t)share->length);
        __atomic_store_n(&engine.state->shared[number], 0, __ATOMIC_RELEASE);
    }
}

static void drop_tenant(struct card *card, uint32_t at)
{
    uint32_t account = card->tenants[at];
    memmove(&card->tenants[at], &card->tenants[at + 1], (card->count - at - 1) * sizeof *card->tenants);
    card->count--;
    if (card->wheel.holder == at)
        card->wheel.holder = NOBODY;
    else if (card->wheel.holder != NOBODY && card->wheel.holder > at)
        card->wheel.holder--;
    engine.state->accounts[account].memory = engine.state->accounts[account].managed =
        engine.state->accounts[account].tables = 0;
    close_shares(card, account);
    __atomic_store_n(&engine.state->taken[account], 0, __ATOMIC_RELEASE);
}

/* Looks for the dead. Called with the card's lock held. */
static void look(struct card *card, uint64_t now)
{
    card->looked = now;
    for (uint32_t i = card->count; i-- > 0;)
        if (!alive(card->tenants[i]))
            drop_tenant(card, i);
    sweep(card);
}

static struct card *enter(unsigned index, bool must_look)
{
    struct card *card = &engine.state->cards[index];
    lock(&card->lock);
    uint64_t now = engine_now();
    advance(card, &engine.cards[index], now);
    if (must_look || (card->count > 1 && now - card->looked > look_period))
        look(card, now);
    return card;
}

struct account *engine_join(struct engine *it, unsigned index)
{
    struct state *state = it->state;
    struct card *card = enter(index, true);
    uint32_t slot = NOBODY;
    lock(&state->lock);
    for (uint32_t i = 0; i < ACCOUNTS && card->count < ENGINE_TENANTS && slot == NOBODY; i++)
        if (!__atomic_load_n(&state->taken[i], __ATOMIC_ACQUIRE))
            slot = i;
    short type = F_WRLCK;
    struct account *account = NULL;
    if (slot != NOBODY && byte_lock(F_OFD_SETLK, slot, &type)) {
        account = &state->accounts[slot];
        account->card = index;
        account->process = process_number_own();
        account->served = account->submitted = account->memory = account->managed = account->tables =
            account->stretches = 0;
        it->mine[slot] = true;
        state->taken[slot] = 1;
        card->tenants[card->count++] = slot;
    }
    pthread_mutex_unlock(&state->lock);
    pthread_mutex_unlock(&card->lock);
    return account;
}

void engine_leave(struct account *account)
{
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct card *card = enter(account->card, false);
    for (uint32_t i = card->count; i-- > 0;)
        if (card->tenants[i] == slot)
            drop_tenant(card, i);
    short type = F_UNLCK;
    engine.mine[slot] = false;
    byte_lock(F_OFD_SETLK, slot, &type);
    pthread_mutex_unlock(&card->lock);
}

static uint64_t batches(uint64_t managed)
{
    return (managed + BATCH - 1) / BATCH * BATCH;
}

static uint64_t used_on(const struct card *card)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < card->count; i++) {
        const struct account *account = &engine.state->accounts[card->tenants[i]];
        used += account->memory + batches(account->managed) + account->tables;
    }
    EACH_SHARE(share, card)
    used += share->bytes;
    return used;
}

bool engine_charge(struct account *account, uint64_t bytes)
{
    uint64_t memory = engine.cards[account->card].memory;
    struct card *card = enter(account->card, false);
    if (bytes > memory - used_on(card))
        look(card, engine_now());
    bool fits = bytes <= memory - used_on(card);
    if (fits)
        account->memory += bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

void engine_release(struct account *account, uint64_t bytes)
{
    struct card *card = enter(account->card, false);
    account->memory -= bytes;
    pthread_mutex_unlock(&card->lock);
}

bool engine_charge_managed(struct account *account, uint64_t bytes)
{
    struct card *card = enter(account->card, true);
    uint64_t more = batches(account->managed + bytes) - batches(account->managed);
    bool fits = more <= engine.cards[account->card].memory - used_on(card);
    if (fits)
        account->managed += bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

void engine_release_managed(struct account *account, uint64_t bytes)
{
    struct card *card = enter(account->card, false);
    account->managed -= bytes;
    pthread_mutex_unlock(&card->lock);
}

bool engine_change_tables(struct account *account, int64_t bytes)
{
    struct card *card = enter(account->card, bytes > 0);
    bool fits = bytes <= 0 || (uint64_t)bytes <= engine.cards[account->card].memory - used_on(card);
    if (fits)
        account->tables += (uint64_t)bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

uint64_t engine_used(struct engine *it, unsigned index)
{
    (void)it;
    struct card *card = enter(index, true);
    uint64_t used = used_on(card);
    pthread_mutex_unlock(&card->lock);
    return used;
}

int engine_file(void)
{
    return engine.fd;
}

uint64_t engine_share_offset(int share)
{
    return ROOM * ((uint64_t)share + 1);
}

bool engine_share(struct account *account, uint64_t bytes, uint64_t length, bool charged, struct engine_share *share)
{
    struct state *state = engine.state;
    struct card *card = enter(account->card, true);
    uint32_t number = 0;
    lock(&state->lock);
    while (number < SHARES && __atomic_load_n(&state->shared[number], __ATOMIC_ACQUIRE))
        number++;
    bool fits = number < SHARES && (charged || bytes <= engine.cards[account->card].memory - used_on(card));
    if (fits) {
        account->memory -= charged ? bytes : 0;
        state->shares[number] = (struct share){.card = account->card,
                                               .maker = (uint32_t)(account - state->accounts),
                                               .made = true,
                                               .id = ++state->share_ids,
                                               .bytes = bytes,
                                               .wanted = bytes,
                                               .length = length};
        *share = (struct engine_share){state->share_ids, length, (int)number, account->card};
        state->share_limit = number < state->share_limit ? state->share_limit : number + 1;
        __atomic_store_n(&state->shared[number], 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&state->lock);
    pthread_mutex_unlock(&card->lock);
    return fits;
}

bool engine_share_resize(struct account *account, int number, uint64_t bytes)
{
    struct card *card = enter(account->card, true);
    struct share *share = &engine.state->shares[number];
    uint64_t more = bytes > share->bytes ? bytes - share->bytes : 0;
    bool fits = more <= engine.cards[account->card].memory - used_on(card);
    if (fits) {
        share->wanted = bytes;
        share->bytes += more;
        sweep(card);
    }
    pthread_mutex_unlock(&card->lock);
    return fits;
}

bool engine_unshare(struct account *account, int number)
{
    struct card *card = enter(account->card, false);
    struct share *share = &engine.state->shares[number];
    bool still = opened(share);
    share->made = false;
    sweep(card);
    pthread_mutex_unlock(&card->lock);
    return still;
}

bool engine_share_open(struct account *account, const struct engine_share *it)
{
    struct card *card = enter(account->card, true);
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct share *share = share_on(card, (uint32_t)it->number);
    bool there = share && share->id == it->id;
    if (there) {
        share->open[slot / 64] |= UINT64_C(1) << slot % 64;
        engine.opened[it->number]++;
    }
    pthread_mutex_unlock(&card->lock);
    return there;
}

void engine_share_again(struct account *account, int number)
{
    struct card *card = enter(account->card, false);
    engine.opened[number]++;
    pthread_mutex_unlock(&card->lock);
}

bool engine_share_close(struct account *account, int number)
{
    struct card *card = enter(account->card, false);
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct share *share = &engine.state->shares[number];
    if (!--engine.opened[number])
        share->open[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    bool still = share->made || opened(share);
    sweep(card);
    pthread_mutex_unlock(&card->lock);
    return still;
}

/* The file position tells which block it is of: duplicates share it with the locks. The shared lock of the whole keeps
 * the state from being removed. */
int engine_share_export(int number)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", engine.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock held = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = EXPORTED + (unsigned)number, .l_len = 1};
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &held) == 0 && flock(fd, LOCK_SH) == 0 &&
        lseek(fd, (off_t)engine_share_offset(number), SEEK_SET) >= 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool engine_share_import(int fd, struct engine_share *it)
{
    struct stat ours, theirs;
    off_t at = lseek(fd, 0, SEEK_CUR);
    uint64_t number = (uint64_t)at / ROOM - 1;
    if (fstat(engine.fd, &ours) || fstat(fd, &theirs) || ours.st_ino != theirs.st_ino || ours.st_dev != theirs.st_dev ||
        at < (off_t)ROOM || (uint64_t)at % ROOM || number >= SHARES)
        return false;
    const struct share *share = &engine.state->shares[number]; /* the descriptor keeps it */
    *it = (struct engine_share){share->id, share->length, (int)number, share->card};
    return true;
}

/* How long the account was served between since and now. */
static uint64_t busy_between(const struct account *account, uint64_t since, uint64_t now)
{
    uint64_t busy = 0;
    uint64_t oldest = account->stretches > STRETCHES ? account->stretches - STRETCHES : 0;
    for (uint64_t i = account->stretches; i-- > oldest;) {
        const struct stretch *it = &account->stretch[i % STRETCHES];
        uint64_t from = it->start > since ? it->start : since;
        uint64_t to = it->start + it->length < now ? it->start + it->length : now;
        if (from >= to)
            break;
        busy += to - from;
    }
    return busy;
}

unsigned engine_tenants(struct engine *it, unsigned index, struct engine_tenant tenants[ENGINE_TENANTS])
{
    struct process_number processes[ENGINE_TENANTS];
    struct card *card = enter(index, true);
    uint64_t now = card->wheel.clock, since = now - sample_period;
    unsigned count = card->count;
    for (uint32_t i = 0; i < count; i++) {
        const struct account *account = &it->state->accounts[card->tenants[i]];
        uint64_t memory = account->memory;
        EACH_SHARE(share, card)
        memory += shown_with(share) == card->tenants[i] ? share->bytes : 0;
        processes[i] = account->process;
        tenants[i] = (struct engine_tenant){0, memory,
                                            (double)busy_between(account, since, now) / (double)sample_period};
    }
    pthread_mutex_unlock(&card->lock);
    for (uint32_t i = 0; i < count; i++)
        tenants[i].pid = process_number_here(processes[i]);
    return count;
}

uint64_t engine_submit(struct account *account, uint64_t ns)
{
    struct card *card = enter(account->card, false);
    uint64_t fence = account->submitted += ns;
    pthread_mutex_unlock(&card->lock);
    return fence;
}

bool engine_done(struct account *account, uint64_t fence)
{
    if (account->served >= fence)
        return true;
    struct card *card = enter(account->card, false);
    pthread_mutex_unlock(&card->lock);
    return account->served >= fence;
}

void engine_wait(struct account *account, uint64_t fence)
{
    while (account->served < fence) {
        struct card *card = enter(account->card, false);
        uint64_t then = 0;
        if (account->served < fence)
            then = foresee(card, &engine.cards[account->card], account, fence);
        bool shared = card->count > 1;
        pthread_mutex_unlock(&card->lock);
        uint64_t now = engine_now();
        if (shared && then > now + look_period)
            then = now + look_period; /* a neighbour may die and hand its time slices over */
        if (then > now + 2 * sleep_margin) {
            uint64_t until = then - sleep_margin;
            struct timespec wake = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
        }
        while (engine_now() < then)
            continue;
    }
}

uint64_t engine_when(struct account *account, uint64_t fence)
{
    struct card *card = enter(account->card, false);
    uint64_t oldest = account->stretches > STRETCHES ? account->stretches - STRETCHES : 0;
    uint64_t when = 0; /* before anything was ever served */
    for (uint64_t i = account->stretches; i-- > oldest;) {
        const struct stretch *it = &account->stretch[i % STRETCHES];
        when = it->start;
        if (it->served < fence) {
            when += fence - it->served < it->length ? fence - it->served : it->length;
            break;
        }
    }
    pthread_mutex_unlock(&card->lock);
    return when;
}
