/* Cards that share their time in slices and count memory. Their state is in one file under /dev/shm, under one lock.
 * The bytes of exported blocks follow the state in the file. */
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

#define ACCOUNTS              1024u
#define STRETCHES             1024u
#define NOBODY                UINT32_MAX
#define SHARES                2048u
#define INIT_LOCK_BYTE        ACCOUNTS             /* of the file: locked while the state is created */
#define FIRST_SHARE_LOCK_BYTE (INIT_LOCK_BYTE + 1) /* of the file: then a byte for each shared block, by number */
#define MAX_SHARE_BYTES       (UINT64_C(1) << 40)  /* of the file: for each shared block, and for the state */
#define MAGIC                 UINT64_C(0x3645474e45544848) /* layout 6 */
/* Unit in which managed memory is charged; measured on an H100, driver 580.159.04. */
#define MANAGED_BATCH_BYTES (UINT64_C(128) << 20)

static const uint64_t sample_period_ns = 166666667; /* NVML documents 1/6 s to 1 s for utilization */
static const uint64_t look_period_ns = 5000000;     /* between checks for dead neighbours during a wait */
/* A sleep ends this much early, since it may overshoot. The rest is spun, as in a driver's wait. */
static const uint64_t sleep_margin_ns = 100000;

struct stretch { /* an unbroken run of one process on its card, in which served_ns grows by one ns each ns */
    uint64_t start_ns, served_before_ns, length_ns;
};

struct account {
    uint32_t card;
    struct process_number process;       /* for display only */
    _Atomic uint64_t served_ns;          /* written under the card's lock, read without it */
    uint64_t submitted_ns, memory_bytes; /* under the card's lock, as the fields below */
    uint64_t managed_bytes;              /* not in memory_bytes */
    uint64_t table_bytes;                /* of page tables, not in memory_bytes */
    uint64_t stretch_count;              /* since the account joined; the last STRETCHES are kept */
    struct stretch stretches[STRETCHES];
};

struct share {            /* a block that processes share; under its card's lock */
    uint32_t card, maker; /* maker: index of an account; NOBODY: its process has ended */
    bool has_maker;       /* the maker has not freed it */
    uint64_t id, charged_bytes, length_bytes;
    uint64_t maker_bytes; /* part of charged_bytes that is charged to the maker; the rest is freed at the last close */
    uint64_t open_bits[ACCOUNTS / 64]; /* one bit for each account that has it open */
};

/* Which account has the time slice. Plain numbers, so that a wait can simulate the future on a copy. */
struct wheel {
    uint64_t clock_ns;                    /* the time up to which the simulation has run */
    uint32_t holder;                      /* index in tenants; NOBODY: no account */
    uint64_t slice_left_ns, swap_left_ns; /* rest of the holder's slice, and of the change to the holder */
};

struct card {
    pthread_mutex_t lock; /* robust, across processes: guards the card and its accounts */
    struct wheel wheel;
    uint64_t looked_ns;
    uint32_t tenant_count, tenants[ENGINE_TENANTS]; /* indices of accounts, in round-robin order */
};

struct state { /* the file */
    uint64_t magic, fingerprint;
    pthread_mutex_t lock; /* robust, across processes; guards is_account_taken and is_share_taken */
    uint8_t is_account_taken[ACCOUNTS], is_share_taken[SHARES];
    uint32_t share_limit; /* one more than the highest number ever used */
    uint64_t last_share_id;
    struct share shares[SHARES];
    struct card cards[ENGINE_CARDS];
    struct account accounts[ACCOUNTS];
};

struct engine {
    char path[64];
    int fd;      /* the lock byte of account i is byte i */
    pid_t owner; /* PID of the process that opened it, which a forked child is not */
    struct state *state;
    unsigned card_count;
    struct engine_card cards[ENGINE_CARDS];
    unsigned open_counts[SHARES]; /* by share number: how often this process has it open; under the card's lock */
    _Atomic bool
        is_own_account[ACCOUNTS]; /* written by the thread that joins or leaves; our own locks never show in a look */
};

static struct engine engine; /* one rack a process; set by engine_open, emptied by engine_forget */

uint64_t engine_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
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
    bool is_done = fcntl(engine.fd, command, &range) == 0;
    *type = range.l_type;
    return is_done;
}

static bool is_alive(unsigned account)
{
    short lock_type = F_WRLCK;
    return engine.is_own_account[account] || !byte_lock(F_OFD_GETLK, account, &lock_type) || lock_type != F_UNLCK;
}

static bool is_same_file(int fd, const char *path)
{
    struct stat open_status, path_status;
    return fstat(fd, &open_status) == 0 && stat(path, &path_status) == 0 && open_status.st_ino == path_status.st_ino;
}

/* Opens the state's file with a shared lock, so that the last process to close it can tell. */
static int open_state(const char *path)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || (flock(fd, LOCK_SH) == 0 && is_same_file(fd, path)))
            return fd;
        close(fd); /* removed since it was opened */
    }
}

static void make_state(struct state *state, uint64_t fingerprint)
{
    make_lock(&state->lock);
    for (unsigned i = 0; i < ENGINE_CARDS; i++) {
        make_lock(&state->cards[i].lock);
        state->cards[i].wheel = (struct wheel){.clock_ns = engine_now(), .holder = NOBODY};
    }
    state->fingerprint = fingerprint;
    state->magic = MAGIC;
}

/* Maps the state in the file; an empty file is initialised. NULL: the state is of another rack. */
static struct state *map_state(int fd, uint64_t fingerprint)
{
    short lock_type = F_WRLCK;
    struct stat status;
    engine.fd = fd;
    struct state *state = MAP_FAILED;
    if (byte_lock(F_OFD_SETLKW, INIT_LOCK_BYTE, &lock_type) && fstat(fd, &status) == 0 &&
        (status.st_size || ftruncate(fd, (off_t)(MAX_SHARE_BYTES * (SHARES + 1))) == 0))
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state != MAP_FAILED && !state->magic)
        make_state(state, fingerprint);
    lock_type = F_UNLCK;
    byte_lock(F_OFD_SETLK, INIT_LOCK_BYTE, &lock_type);
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
    while ((fd = open_state(engine.path)) >= 0 && !(state = map_state(fd, fingerprint))) {
        unlink(engine.path); /* the rack was edited: running processes keep the old state, new ones start afresh */
        close(fd);
    }
    if (fd < 0 || state == MAP_FAILED) {
        fprintf(stderr, "%s: cannot keep the simulated cards' state: %s\n", engine.path, strerror(errno));
        return NULL;
    }
    engine.state = state;
    engine.owner = getpid();
    engine.card_count = count;
    memcpy(engine.cards, cards, count * sizeof *cards);
    return &engine;
}

/* The last process to close the file removes it. A killed process leaves that to the next. */
__attribute__((destructor)) static void remove_state(void)
{
    if (engine.state && engine.owner == getpid() && flock(engine.fd, LOCK_EX | LOCK_NB) == 0 &&
        is_same_file(engine.fd, engine.path))
        unlink(engine.path);
}

void engine_forget(struct engine *forgotten)
{
    munmap(forgotten->state, sizeof *forgotten->state);
    close(forgotten->fd);
    memset(forgotten, 0, sizeof *forgotten);
}

/* The next stretch of the wheel, at most until until_ns: the account that was served (NOBODY: a change of holder)
 * and the duration. */
static uint64_t next_stretch(struct wheel *wheel, const struct engine_card *card, const uint64_t *pending_ns,
                             uint32_t tenant_count, uint64_t until_ns, uint32_t *tenant)
{
    uint32_t busy_tenants = 0, next_tenant = NOBODY;
    for (uint32_t i = 0; i < tenant_count;
         i++) { /* next: the first with work after the holder, the holder itself last */
        uint32_t candidate = (wheel->holder == NOBODY ? i : wheel->holder + 1 + i) % tenant_count;
        if (pending_ns[candidate]) {
            busy_tenants++;
            if (next_tenant == NOBODY)
                next_tenant = candidate;
        }
    }
    *tenant = NOBODY;
    if (!busy_tenants) {
        wheel->clock_ns = until_ns;
        return 0;
    }
    bool holder_has_work = wheel->holder != NOBODY && pending_ns[wheel->holder];
    if (!holder_has_work || (wheel->slice_left_ns == 0 && busy_tenants > 1)) {
        wheel->swap_left_ns = busy_tenants > 1 && next_tenant != wheel->holder ? card->swap_ns : 0;
        wheel->holder = next_tenant;
        wheel->slice_left_ns = card->slice_ns;
    }
    uint64_t remaining_ns = until_ns - wheel->clock_ns;
    if (busy_tenants > 1 && wheel->swap_left_ns) {
        uint64_t swap_ns = wheel->swap_left_ns < remaining_ns ? wheel->swap_left_ns : remaining_ns;
        wheel->swap_left_ns -= swap_ns;
        wheel->clock_ns += swap_ns;
        return 0;
    }
    uint64_t length_ns = pending_ns[wheel->holder] < remaining_ns ? pending_ns[wheel->holder] : remaining_ns;
    if (busy_tenants > 1 && length_ns > wheel->slice_left_ns)
        length_ns = wheel->slice_left_ns;
    wheel->slice_left_ns = busy_tenants > 1 ? wheel->slice_left_ns - length_ns : card->slice_ns;
    wheel->clock_ns += length_ns;
    *tenant = wheel->holder;
    return length_ns;
}

static void add_served(struct account *account, uint64_t start_ns, uint64_t length_ns)
{
    struct stretch *last_stretch = &account->stretches[(account->stretch_count - 1) % STRETCHES];
    if (account->stretch_count && last_stretch->start_ns + last_stretch->length_ns == start_ns &&
        last_stretch->served_before_ns + last_stretch->length_ns == account->served_ns)
        last_stretch->length_ns += length_ns;
    else
        account->stretches[account->stretch_count++ % STRETCHES] = (struct stretch){start_ns, account->served_ns,
                                                                                    length_ns};
    account->served_ns += length_ns;
}

static void pending_of(const struct card *card, uint64_t *pending_ns)
{
    for (uint32_t i = 0; i < card->tenant_count; i++) {
        struct account *account = &engine.state->accounts[card->tenants[i]];
        pending_ns[i] = account->submitted_ns - account->served_ns;
    }
}

/* Simulates the card until now. Under the card's lock. */
static void advance_to(struct card *card, const struct engine_card *card_spec, uint64_t now_ns)
{
    uint64_t pending_ns[ENGINE_TENANTS];
    if (card->wheel.clock_ns >= now_ns)
        return;
    pending_of(card, pending_ns);
    while (card->wheel.clock_ns < now_ns) {
        uint32_t tenant;
        uint64_t length_ns = next_stretch(&card->wheel, card_spec, pending_ns, card->tenant_count, now_ns, &tenant);
        if (tenant == NOBODY)
            continue;
        add_served(&engine.state->accounts[card->tenants[tenant]], card->wheel.clock_ns - length_ns, length_ns);
        pending_ns[tenant] -= length_ns;
    }
}

/* When the account will reach the fence, if no process submits more. Under the card's lock. */
static uint64_t predict_fence(const struct card *card, const struct engine_card *card_spec,
                              const struct account *account, uint64_t fence)
{
    uint64_t pending_ns[ENGINE_TENANTS];
    struct wheel wheel = card->wheel;
    uint64_t todo_ns = fence - account->served_ns;
    pending_of(card, pending_ns);
    while (todo_ns) {
        uint32_t tenant;
        uint64_t clock_before_ns = wheel.clock_ns;
        uint64_t length_ns = next_stretch(&wheel, card_spec, pending_ns, card->tenant_count, UINT64_MAX, &tenant);
        if (tenant == NOBODY)
            continue;
        if (&engine.state->accounts[card->tenants[tenant]] == account) {
            if (length_ns >= todo_ns)
                return clock_before_ns + todo_ns;
            todo_ns -= length_ns;
        }
        pending_ns[tenant] -= length_ns;
    }
    return wheel.clock_ns;
}

static struct share *share_on(const struct card *card, uint32_t number)
{
    struct state *state = engine.state;
    bool is_taken = __atomic_load_n(&state->is_share_taken[number], __ATOMIC_ACQUIRE);
    return is_taken && &state->cards[state->shares[number].card] == card ? &state->shares[number] : NULL;
}

#define EACH_SHARE(share, card)                                                                                        \
    for (uint32_t number = 0; number < engine.state->share_limit; number++)                                            \
        for (struct share *share = share_on(card, number); share; share = NULL)

static bool is_open(const struct share *share, uint32_t account)
{
    return share->open_bits[account / 64] >> account % 64 & 1;
}

static bool is_open_anywhere(const struct share *share)
{
    uint64_t any_bits = 0;
    for (unsigned word = 0; word < ACCOUNTS / 64; word++)
        any_bits |= share->open_bits[word];
    return any_bits != 0;
}

/* The account that reports a shared block: its maker's, else that of a process that opened it; NOBODY: there is
 * none. */
static uint32_t shown_account(const struct share *share)
{
    for (uint32_t account = 0; !share->has_maker && account < ACCOUNTS; account++)
        if (account != share->maker && is_open(share, account))
            return account;
    return share->has_maker ? share->maker : NOBODY;
}

static void close_shares(const struct card *card, uint32_t account)
{
    EACH_SHARE(share, card)
    {
        share->open_bits[account / 64] &= ~(UINT64_C(1) << account % 64);
        if (share->maker == account) {
            share->has_maker = false;
            share->maker = NOBODY;
        }
    }
}

/* Releases blocks that no process has open and that no descriptor names. Under the card's lock. */
static void free_unused_shares(const struct card *card)
{
    EACH_SHARE(share, card)
    {
        short type = F_WRLCK;
        if (share->has_maker && !is_open_anywhere(share))
            share->charged_bytes = share->maker_bytes;
        if (share->has_maker || is_open_anywhere(share) ||
            !byte_lock(F_OFD_GETLK, FIRST_SHARE_LOCK_BYTE + number, &type) || type != F_UNLCK)
            continue;
        fallocate(engine.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)engine_share_offset((int)number),
                  (off_t)share->length_bytes);
        __atomic_store_n(&engine.state->is_share_taken[number], 0, __ATOMIC_RELEASE);
    }
}

static void drop_tenant(struct card *card, uint32_t tenant)
{
    uint32_t account = card->tenants[tenant];
    memmove(&card->tenants[tenant], &card->tenants[tenant + 1],
            (card->tenant_count - tenant - 1) * sizeof *card->tenants);
    card->tenant_count--;
    if (card->wheel.holder == tenant)
        card->wheel.holder = NOBODY;
    else if (card->wheel.holder != NOBODY && card->wheel.holder > tenant)
        card->wheel.holder--;
    engine.state->accounts[account].memory_bytes = engine.state->accounts[account].managed_bytes =
        engine.state->accounts[account].table_bytes = 0;
    close_shares(card, account);
    __atomic_store_n(&engine.state->is_account_taken[account], 0, __ATOMIC_RELEASE);
}

/* Releases what dead processes had. Under the card's lock. */
static void drop_dead_tenants(struct card *card, uint64_t now_ns)
{
    card->looked_ns = now_ns;
    for (uint32_t i = card->tenant_count; i-- > 0;)
        if (!is_alive(card->tenants[i]))
            drop_tenant(card, i);
    free_unused_shares(card);
}

static struct card *enter_card(unsigned card_index, bool checks_dead)
{
    struct card *card = &engine.state->cards[card_index];
    lock(&card->lock);
    uint64_t now_ns = engine_now();
    advance_to(card, &engine.cards[card_index], now_ns);
    if (checks_dead || (card->tenant_count > 1 && now_ns - card->looked_ns > look_period_ns))
        drop_dead_tenants(card, now_ns);
    return card;
}

struct account *engine_join(struct engine *joined, unsigned card_index)
{
    struct state *state = joined->state;
    struct card *card = enter_card(card_index, true);
    uint32_t slot = NOBODY;
    lock(&state->lock);
    for (uint32_t i = 0; i < ACCOUNTS && card->tenant_count < ENGINE_TENANTS && slot == NOBODY; i++)
        if (!__atomic_load_n(&state->is_account_taken[i], __ATOMIC_ACQUIRE))
            slot = i;
    short lock_type = F_WRLCK;
    struct account *account = NULL;
    if (slot != NOBODY && byte_lock(F_OFD_SETLK, slot, &lock_type)) {
        account = &state->accounts[slot];
        account->card = card_index;
        account->process = process_number_own();
        account->served_ns = account->submitted_ns = account->memory_bytes = account->managed_bytes =
            account->table_bytes = account->stretch_count = 0;
        joined->is_own_account[slot] = true;
        state->is_account_taken[slot] = 1;
        card->tenants[card->tenant_count++] = slot;
    }
    pthread_mutex_unlock(&state->lock);
    pthread_mutex_unlock(&card->lock);
    return account;
}

void engine_leave(struct account *account)
{
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct card *card = enter_card(account->card, false);
    for (uint32_t i = card->tenant_count; i-- > 0;)
        if (card->tenants[i] == slot)
            drop_tenant(card, i);
    short lock_type = F_UNLCK;
    engine.is_own_account[slot] = false;
    byte_lock(F_OFD_SETLK, slot, &lock_type);
    pthread_mutex_unlock(&card->lock);
}

static uint64_t batch_bytes(uint64_t managed_bytes)
{
    return (managed_bytes + MANAGED_BATCH_BYTES - 1) / MANAGED_BATCH_BYTES * MANAGED_BATCH_BYTES;
}

static uint64_t used_bytes_of(const struct card *card)
{
    uint64_t used_bytes = 0;
    for (uint32_t i = 0; i < card->tenant_count; i++) {
        const struct account *account = &engine.state->accounts[card->tenants[i]];
        used_bytes += account->memory_bytes + batch_bytes(account->managed_bytes) + account->table_bytes;
    }
    EACH_SHARE(share, card)
    used_bytes += share->charged_bytes;
    return used_bytes;
}

bool engine_charge(struct account *account, uint64_t bytes)
{
    uint64_t memory_bytes = engine.cards[account->card].memory_bytes;
    struct card *card = enter_card(account->card, false);
    if (bytes > memory_bytes - used_bytes_of(card))
        drop_dead_tenants(card, engine_now());
    bool fits = bytes <= memory_bytes - used_bytes_of(card);
    if (fits)
        account->memory_bytes += bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

void engine_release(struct account *account, uint64_t bytes)
{
    struct card *card = enter_card(account->card, false);
    account->memory_bytes -= bytes;
    pthread_mutex_unlock(&card->lock);
}

bool engine_charge_managed(struct account *account, uint64_t bytes)
{
    struct card *card = enter_card(account->card, true);
    uint64_t growth_bytes = batch_bytes(account->managed_bytes + bytes) - batch_bytes(account->managed_bytes);
    bool fits = growth_bytes <= engine.cards[account->card].memory_bytes - used_bytes_of(card);
    if (fits)
        account->managed_bytes += bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

void engine_release_managed(struct account *account, uint64_t bytes)
{
    struct card *card = enter_card(account->card, false);
    account->managed_bytes -= bytes;
    pthread_mutex_unlock(&card->lock);
}

bool engine_change_tables(struct account *account, int64_t bytes)
{
    struct card *card = enter_card(account->card, bytes > 0);
    bool fits = bytes <= 0 || (uint64_t)bytes <= engine.cards[account->card].memory_bytes - used_bytes_of(card);
    if (fits)
        account->table_bytes += (uint64_t)bytes;
    pthread_mutex_unlock(&card->lock);
    return fits;
}

uint64_t engine_used(struct engine *unused, unsigned card_index)
{
    (void)unused;
    struct card *card = enter_card(card_index, true);
    uint64_t used_bytes = used_bytes_of(card);
    pthread_mutex_unlock(&card->lock);
    return used_bytes;
}

int engine_file(void)
{
    return engine.fd;
}

uint64_t engine_share_offset(int share_number)
{
    return MAX_SHARE_BYTES * ((uint64_t)share_number + 1);
}

bool engine_share(struct account *account, uint64_t bytes, uint64_t length_bytes, bool is_charged,
                  struct engine_share *handle)
{
    struct state *state = engine.state;
    struct card *card = enter_card(account->card, true);
    uint32_t number = 0;
    lock(&state->lock);
    while (number < SHARES && __atomic_load_n(&state->is_share_taken[number], __ATOMIC_ACQUIRE))
        number++;
    bool fits = number < SHARES &&
                (is_charged || bytes <= engine.cards[account->card].memory_bytes - used_bytes_of(card));
    if (fits) {
        account->memory_bytes -= is_charged ? bytes : 0;
        state->shares[number] = (struct share){.card = account->card,
                                               .maker = (uint32_t)(account - state->accounts),
                                               .has_maker = true,
                                               .id = ++state->last_share_id,
                                               .charged_bytes = bytes,
                                               .maker_bytes = bytes,
                                               .length_bytes = length_bytes};
        *handle = (struct engine_share){state->last_share_id, length_bytes, (int)number, account->card};
        state->share_limit = number < state->share_limit ? state->share_limit : number + 1;
        __atomic_store_n(&state->is_share_taken[number], 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&state->lock);
    pthread_mutex_unlock(&card->lock);
    return fits;
}

bool engine_share_resize(struct account *account, int share_number, uint64_t bytes)
{
    struct card *card = enter_card(account->card, true);
    struct share *share = &engine.state->shares[share_number];
    uint64_t growth_bytes = bytes > share->charged_bytes ? bytes - share->charged_bytes : 0;
    bool fits = growth_bytes <= engine.cards[account->card].memory_bytes - used_bytes_of(card);
    if (fits) {
        share->maker_bytes = bytes;
        share->charged_bytes += growth_bytes;
        free_unused_shares(card);
    }
    pthread_mutex_unlock(&card->lock);
    return fits;
}

bool engine_unshare(struct account *account, int share_number)
{
    struct card *card = enter_card(account->card, false);
    struct share *share = &engine.state->shares[share_number];
    bool is_still_open = is_open_anywhere(share);
    share->has_maker = false;
    free_unused_shares(card);
    pthread_mutex_unlock(&card->lock);
    return is_still_open;
}

bool engine_share_open(struct account *account, const struct engine_share *handle)
{
    struct card *card = enter_card(account->card, true);
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct share *share = share_on(card, (uint32_t)handle->number);
    bool exists = share && share->id == handle->id;
    if (exists) {
        share->open_bits[slot / 64] |= UINT64_C(1) << slot % 64;
        engine.open_counts[handle->number]++;
    }
    pthread_mutex_unlock(&card->lock);
    return exists;
}

void engine_share_again(struct account *account, int share_number)
{
    struct card *card = enter_card(account->card, false);
    engine.open_counts[share_number]++;
    pthread_mutex_unlock(&card->lock);
}

bool engine_share_close(struct account *account, int share_number)
{
    struct card *card = enter_card(account->card, false);
    uint32_t slot = (uint32_t)(account - engine.state->accounts);
    struct share *share = &engine.state->shares[share_number];
    if (!--engine.open_counts[share_number])
        share->open_bits[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    bool is_still_open = share->has_maker || is_open_anywhere(share);
    free_unused_shares(card);
    pthread_mutex_unlock(&card->lock);
    return is_still_open;
}

/* The file position of a descriptor is the number of its block; duplicates share it with the locks. The shared lock
 * of the whole file keeps the state from being removed. */
int engine_share_export(int share_number)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", engine.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock_range = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FIRST_SHARE_LOCK_BYTE + (unsigned)share_number, .l_len = 1};
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock_range) == 0 && flock(fd, LOCK_SH) == 0 &&
        lseek(fd, (off_t)engine_share_offset(share_number), SEEK_SET) >= 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool engine_share_import(int fd, struct engine_share *handle)
{
    struct stat own_status, imported_status;
    off_t offset = lseek(fd, 0, SEEK_CUR);
    uint64_t share_number = (uint64_t)offset / MAX_SHARE_BYTES - 1;
    if (fstat(engine.fd, &own_status) || fstat(fd, &imported_status) || own_status.st_ino != imported_status.st_ino ||
        own_status.st_dev != imported_status.st_dev || offset < (off_t)MAX_SHARE_BYTES ||
        (uint64_t)offset % MAX_SHARE_BYTES || share_number >= SHARES)
        return false;
    const struct share *share = &engine.state->shares[share_number]; /* it exists as long as the descriptor */
    *handle = (struct engine_share){share->id, share->length_bytes, (int)share_number, share->card};
    return true;
}

/* Nanoseconds that the account was served between since_ns and now_ns. */
static uint64_t busy_ns_between(const struct account *account, uint64_t since_ns, uint64_t now_ns)
{
    uint64_t busy_ns = 0;
    uint64_t oldest = account->stretch_count > STRETCHES ? account->stretch_count - STRETCHES : 0;
    for (uint64_t i = account->stretch_count; i-- > oldest;) {
        const struct stretch *stretch = &account->stretches[i % STRETCHES];
        uint64_t from_ns = stretch->start_ns > since_ns ? stretch->start_ns : since_ns;
        uint64_t to_ns = stretch->start_ns + stretch->length_ns < now_ns ? stretch->start_ns + stretch->length_ns
                                                                         : now_ns;
        if (from_ns >= to_ns)
            break;
        busy_ns += to_ns - from_ns;
    }
    return busy_ns;
}

unsigned engine_tenants(struct engine *rack_engine, unsigned card_index, struct engine_tenant tenants[ENGINE_TENANTS])
{
    struct process_number processes[ENGINE_TENANTS];
    struct card *card = enter_card(card_index, true);
    uint64_t now_ns = card->wheel.clock_ns, since_ns = now_ns - sample_period_ns;
    unsigned count = card->tenant_count;
    for (uint32_t i = 0; i < count; i++) {
        const struct account *account = &rack_engine->state->accounts[card->tenants[i]];
        uint64_t memory_bytes = account->memory_bytes;
        EACH_SHARE(share, card)
        memory_bytes += shown_account(share) == card->tenants[i] ? share->charged_bytes : 0;
        processes[i] = account->process;
        tenants[i] = (struct engine_tenant){
            0, memory_bytes, (double)busy_ns_between(account, since_ns, now_ns) / (double)sample_period_ns};
    }
    pthread_mutex_unlock(&card->lock);
    for (uint32_t i = 0; i < count; i++)
        tenants[i].pid = process_number_here(processes[i]);
    return count;
}

uint64_t engine_submit(struct account *account, uint64_t work_ns)
{
    struct card *card = enter_card(account->card, false);
    uint64_t fence = account->submitted_ns += work_ns;
    pthread_mutex_unlock(&card->lock);
    return fence;
}

bool engine_done(struct account *account, uint64_t fence)
{
    if (account->served_ns >= fence)
        return true;
    struct card *card = enter_card(account->card, false);
    pthread_mutex_unlock(&card->lock);
    return account->served_ns >= fence;
}

void engine_wait(struct account *account, uint64_t fence)
{
    while (account->served_ns < fence) {
        struct card *card = enter_card(account->card, false);
        uint64_t fence_time_ns = 0;
        if (account->served_ns < fence)
            fence_time_ns = predict_fence(card, &engine.cards[account->card], account, fence);
        bool is_shared = card->tenant_count > 1;
        pthread_mutex_unlock(&card->lock);
        uint64_t now_ns = engine_now();
        if (is_shared && fence_time_ns > now_ns + look_period_ns)
            fence_time_ns = now_ns + look_period_ns; /* if a neighbour dies meanwhile, its time slices are freed */
        if (fence_time_ns > now_ns + 2 * sleep_margin_ns) {
            uint64_t wake_ns = fence_time_ns - sleep_margin_ns;
            struct timespec wake_time = {(time_t)(wake_ns / 1000000000u), (long)(wake_ns % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake_time, NULL);
        }
        while (engine_now() < fence_time_ns)
            continue;
    }
}

uint64_t engine_when(struct account *account, uint64_t fence)
{
    struct card *card = enter_card(account->card, false);
    uint64_t oldest = account->stretch_count > STRETCHES ? account->stretch_count - STRETCHES : 0;
    uint64_t time_ns = 0; /* no stretch was served yet */
    for (uint64_t i = account->stretch_count; i-- > oldest;) {
        const struct stretch *stretch = &account->stretches[i % STRETCHES];
        time_ns = stretch->start_ns;
        if (stretch->served_before_ns < fence) {
            time_ns += fence - stretch->served_before_ns < stretch->length_ns ? fence - stretch->served_before_ns
                                                                              : stretch->length_ns;
            break;
        }
    }
    pthread_mutex_unlock(&card->lock);
    return time_ns;
}
