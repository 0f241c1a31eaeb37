/* What a vendor's fake library has open, and what outlives its processes: slices, switches and the counts of faults. */
#include "management_state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAYOUT         2u /* of struct state; part of the file's name */
#define FAULTS_COUNTED 32u

struct state { /* the file, shared by all processes and read and changed under its lock: zeroes, but for its name */
    char rack_path[512];                  /* for people who read the file */
    uint32_t call_counts[FAULTS_COUNTED]; /* how often the call of each [fault] was made, for vanish */
    struct {
        uint64_t card_key;
        uint32_t values[FAKE_SWITCHES], set_bits; /* set_bits: a bit for each value that was set */
    } switches[FAKE_CARDS];
    struct fake_slice slices[FAKE_SLICES];
};

/* The file's lock is the process's; this one is the thread's, and guards what is set by map_state. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct state *_Atomic state; /* mapped when first needed; left mapped when the file was removed meanwhile */
static int state_file = -1;
static char state_path[64];

static struct fake_cards *_Atomic opened; /* NULL: the library is not open */

/* The state is named by the rack's path, since its text may be edited between two reads. */
static void map_state(const char *rack_path)
{
    snprintf(state_path, sizeof state_path, "/dev/shm/hetero-%s-%u-%016llx", fake_vendor, (unsigned)getuid(),
             (unsigned long long)rack_hash(LAYOUT, rack_path, strlen(rack_path)));
    state_file = open(state_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    void *mapping = MAP_FAILED;
    if (state_file >= 0 && !ftruncate(state_file, sizeof(struct state)))
        mapping = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, state_file, 0);
    if (mapping == MAP_FAILED) {
        fprintf(stderr, "%s: cannot keep the rack's slices there, no other process will see them: %s\n", state_path,
                strerror(errno));
        mapping = calloc(1, sizeof(struct state));
    }
    state = mapping;
    snprintf(state->rack_path, sizeof state->rack_path, "%s", rack_path);
}

static bool file_lock(short type)
{
    struct flock first = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    struct stat status;
    while (fcntl(state_file, F_SETLKW, &first) && errno == EINTR)
        ;
    return fstat(state_file, &status) || status.st_nlink; /* false: it was removed before it was locked */
}

void fake_lock(void)
{
    pthread_mutex_lock(&mutex);
    struct fake_cards *fake_cards = opened;
    if (!state && fake_cards)
        map_state(fake_cards->rack->path);
    while (state_file >= 0 && !file_lock(F_WRLCK)) {
        close(state_file);
        map_state(state->rack_path);
    }
}

void fake_unlock(void)
{
    if (state_file >= 0)
        file_lock(F_UNLCK);
    pthread_mutex_unlock(&mutex);
}

__attribute__((destructor)) static void remove_empty(void)
{
    static const struct state empty;
    size_t name = sizeof empty.rack_path;
    if (!state || state_file < 0)
        return;
    /* Of a program that crashed in a call and ends by exit(): what it locked, its end unlocks. */
    if (pthread_mutex_trylock(&mutex))
        return;
    pthread_mutex_unlock(&mutex);
    fake_lock();
    if (!memcmp((char *)state + name, (const char *)&empty + name, sizeof empty - name))
        unlink(state_path);
    fake_unlock();
}

void fake_open_cards(struct fake_cards *cards)
{
    opened = cards;
}
struct fake_cards *fake_cards(void)
{
    return opened;
}
uint32_t *fake_calls(unsigned fault)
{
    return &state->call_counts[fault % FAULTS_COUNTED];
}

const struct fake_card *fake_at(unsigned position)
{
    struct fake_cards *fake_cards = opened;
    return fake_cards && position < fake_cards->card_count ? &fake_cards->cards[position] : NULL;
}

struct fake_slice *fake_cut(const struct fake_card *card, uint32_t kind, uint32_t id)
{
    for (unsigned i = 0; i < FAKE_SLICES; i++)
        if (!state->slices[i].card_key) {
            state->slices[i] = (struct fake_slice){.card_key = card->key, .kind = kind, .id = id};
            return &state->slices[i];
        }
    return NULL;
}

void fake_drop(struct fake_slice *slice)
{
    *slice = (struct fake_slice){0};
}

struct fake_slice *fake_next(const struct fake_card *card, uint32_t kind, const struct fake_slice *previous)
{
    for (struct fake_slice *slice = previous ? state->slices + (previous - state->slices) + 1 : state->slices;
         slice < state->slices + FAKE_SLICES; slice++)
        if (slice->card_key && (!card || slice->card_key == card->key) && slice->kind == kind)
            return slice;
    return NULL;
}

struct fake_slice *fake_find(const struct fake_card *card, uint32_t kind, uint32_t id)
{
    struct fake_slice *slice = NULL;
    while ((slice = fake_next(card, kind, slice)) && slice->id != id)
        ;
    return slice;
}

/* The byte of the file for a slice. Processes that use the slice lock it, each through an open file description of
 * its own. The kernel drops the lock with the last duplicate of that description. */
static struct flock byte_of(const struct fake_slice *slice, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = 1 + (slice - state->slices), .l_len = 1};
}

bool fake_in_use(const struct fake_slice *slice)
{
    struct flock byte = byte_of(slice, F_WRLCK);
    return fcntl(state_file, F_OFD_GETLK, &byte) || byte.l_type != F_UNLCK;
}

bool fake_hold(const struct fake_card *card, unsigned id)
{
    fake_lock();
    int file = open(state_path, O_RDWR); /* inherited on exec, as a device node would be */
    struct fake_slice *slice = fake_find(card, 0, id);
    struct flock byte = slice ? byte_of(slice, F_RDLCK) : (struct flock){.l_type = F_UNLCK};
    bool worked = slice && file >= 0 && !fcntl(file, F_OFD_SETLK, &byte);
    fake_unlock();
    return worked; /* a file not used stays open: closing it would drop this process's lock on the others */
}

static unsigned switches_of(const struct fake_card *card)
{
    unsigned i = 0;
    while (i < FAKE_CARDS - 1 && state->switches[i].card_key && state->switches[i].card_key != card->key)
        i++;
    return i;
}

uint32_t fake_switch(const struct fake_card *card, unsigned switch_number, uint32_t fallback)
{
    unsigned i = switches_of(card);
    return state->switches[i].card_key && state->switches[i].set_bits >> switch_number & 1
               ? state->switches[i].values[switch_number]
               : fallback;
}

void fake_set_switch(const struct fake_card *card, unsigned switch_number, uint32_t value)
{
    unsigned i = switches_of(card);
    state->switches[i].card_key = card->key;
    state->switches[i].values[switch_number] = value;
    state->switches[i].set_bits |= 1u << switch_number;
}
