/* Cards from the rack, and slices that outlive processes: what the vendors' fake libraries share. */
#include "shelf.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAYOUT 2u /* of struct state; part of the file's name */
#define FAULTS_COUNTED 32u

struct state { /* the file, shared by all processes and read and changed under its lock: zeroes, but for its name */
    char rack[512]; /* whose state it is, for people */
    uint32_t calls[FAULTS_COUNTED]; /* how often the call of each [fault] was made, for vanish */
    struct {
        uint64_t card;
        uint32_t value[SHELF_SWITCHES], set; /* set: a bit for each */
    } switches[SHELF_CARDS];
    struct shelf_slice slices[SHELF_SLICES];
};

struct shelf {
    struct rack *rack;
    unsigned count;
    struct shelf_card cards[SHELF_CARDS];
};

/* The file's lock is the process's; this one is the thread's, and guards what is set by map_state. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct state *_Atomic state; /* mapped when first needed; left mapped when the file was removed meanwhile */
static int state_file = -1;
static char state_path[64];

/* Both are replaced whole by shelf_open, when the rack is another, and never freed: cards were handed out. */
static struct shelf *_Atomic last;  /* the rack as it was read last */
static struct shelf *_Atomic shelf; /* the same while the library is open */

/* The rack may be edited between two looks: its path is what names its state. */
static void map_state(const char *rack)
{
    snprintf(state_path, sizeof state_path, "/dev/shm/hetero-%s-%u-%016llx", shelf_vendor, (unsigned)getuid(),
             (unsigned long long)rack_hash(LAYOUT, rack, strlen(rack)));
    state_file = open(state_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    void *mapped = MAP_FAILED;
    if (state_file >= 0 && !ftruncate(state_file, sizeof(struct state)))
        mapped = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, state_file, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "%s: cannot keep the rack's slices there, no other process will see them: %s\n", state_path,
                strerror(errno));
        mapped = calloc(1, sizeof(struct state));
    }
    state = mapped;
    snprintf(state->rack, sizeof state->rack, "%s", rack);
}

static bool file_lock(short type)
{
    struct flock first = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    struct stat status;
    while (fcntl(state_file, F_SETLKW, &first) && errno == EINTR)
        ;
    return fstat(state_file, &status) || status.st_nlink; /* false: it was removed before we had it */
}

void shelf_lock(void)
{
    pthread_mutex_lock(&mutex);
    struct shelf *it = shelf;
    if (!state && it)
        map_state(it->rack->path);
    while (state_file >= 0 && !file_lock(F_WRLCK)) {
        close(state_file);
        map_state(state->rack);
    }
}

void shelf_unlock(void)
{
    if (state_file >= 0)
        file_lock(F_UNLCK);
    pthread_mutex_unlock(&mutex);
}

__attribute__((destructor)) static void remove_empty(void)
{
    static const struct state empty;
    size_t name = sizeof empty.rack;
    if (!state || state_file < 0)
        return;
    shelf_lock();
    if (!memcmp((char *)state + name, (const char *)&empty + name, sizeof empty - name))
        unlink(state_path);
    shelf_unlock();
}

static void take_card(struct shelf *it, const struct rack_section *section)
{
    struct shelf_card *card = &it->cards[it->count];
    const char *uuid = rack_text(section, "uuid", NULL), *serial = rack_text(section, "serial", NULL);
    const char *pci = rack_text(section, "pci", NULL);
    *card = (struct shelf_card){.section = section, .place = it->count++, .numa = -1};
    card->model = rack_text(section, "model", NULL);
    if (!card->model)
        rack_fault(it->rack, section, "model", "the name the driver tells");
    card->memory = rack_number(it->rack, section, "memory", RACK_BYTES, 0);
    if (!rack_text(section, "memory", NULL))
        rack_fault(it->rack, section, "memory", "a size such as 64 GiB");
    card->health = rack_text(section, "health", "ok");
    card->core = (unsigned)rack_number(it->rack, section, "core", RACK_COUNT, 0);
    card->busy = (unsigned)rack_number(it->rack, section, "busy", RACK_COUNT, 0);
    if (rack_text(section, "numa", NULL))
        card->numa = (int)rack_number(it->rack, section, "numa", RACK_COUNT, 0);
    card->bus = 0x18 + card->place;
    if (pci && sscanf(pci, "%x:%x:%x.%u", &card->domain, &card->bus, &card->device, &card->function) != 4)
        rack_fault(it->rack, section, "pci", "an address such as 0000:18:00.0");
    unsigned address[] = {card->domain, card->bus, card->device, card->function};
    card->key = rack_hash(rack_hash(0, shelf_vendor, strlen(shelf_vendor)), address, sizeof address) | 1;
    uint64_t high = rack_hash(card->key, it->rack->path, strlen(it->rack->path)), low = rack_hash(high, "low", 3);
    if (uuid)
        snprintf(card->uuid, sizeof card->uuid, "%s", uuid);
    else
        snprintf(card->uuid, sizeof card->uuid, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32),
                 (unsigned)(high >> 16) & 0xffff, 0x4000u | ((unsigned)high & 0xfff),
                 0x8000u | ((unsigned)(low >> 48) & 0x3fff), (unsigned long long)low & 0xffffffffffffULL);
    if (serial)
        snprintf(card->serial, sizeof card->serial, "%s", serial);
    else
        snprintf(card->serial, sizeof card->serial, "%012llu", (unsigned long long)(high % 1000000000000u));
    struct shelf_process processes[SHELF_SLICES];
    uint64_t used = 0;
    for (unsigned i = shelf_processes(card, processes, SHELF_SLICES); i-- > 0;)
        used += processes[i].memory;
    card->used = rack_number(it->rack, section, "used", RACK_BYTES, used);
}

bool shelf_open(void)
{
    struct rack *rack = rack_open();
    if (!rack)
        return false;
    struct shelf *it = last;
    if (it && it->rack->fingerprint == rack->fingerprint) {
        rack_close(rack);
    } else {
        it = calloc(1, sizeof *it);
        if (!it)
            return false;
        it->rack = rack;
        for (unsigned i = 0; i < rack->count; i++) {
            const struct rack_section *section = &rack->sections[i];
            if (!strcmp(section->kind, "device") && !strcmp(rack_text(section, "vendor", ""), shelf_vendor) &&
                it->count < SHELF_CARDS)
                take_card(it, section);
        }
        last = it;
    }
    bool good = faults_sound(it->rack) && it->count && !it->rack->faults;
    shelf = good ? it : NULL;
    return good;
}

struct rack *shelf_rack(void)
{
    struct shelf *it = shelf;
    return it ? it->rack : NULL;
}

uint32_t *shelf_calls(unsigned fault) { return &state->calls[fault % FAULTS_COUNTED]; }
bool shelf_opened(void) { return shelf; }
void shelf_close(void) { shelf = NULL; }

const struct shelf_card *shelf_at(unsigned place)
{
    struct shelf *it = shelf;
    return it && place < it->count ? &it->cards[place] : NULL;
}

unsigned shelf_count(void)
{
    unsigned count = 0;
    while (shelf_card(count))
        count++;
    return count;
}

const struct shelf_card *shelf_card(unsigned index)
{
    struct shelf *it = shelf;
    for (unsigned i = 0; it && i < it->count; i++)
        if (shelf_present(&it->cards[i]) && !index--)
            return &it->cards[i];
    return NULL;
}

const char *shelf_driver(const char *key, const char *fallback)
{
    struct shelf *it = shelf;
    for (unsigned i = 0; it && i < it->rack->count; i++)
        if (!strcmp(it->rack->sections[i].kind, "driver"))
            fallback = rack_text(&it->rack->sections[i], key, fallback);
    return fallback;
}

void shelf_link(const struct shelf_card *one, const struct shelf_card *other, char word[16])
{
    for (unsigned end = 0; end < 2; end++) {
        const struct shelf_card *near = end ? other : one, *far = end ? one : other;
        const char *at = rack_text(near->section, "links", "");
        unsigned peer;
        for (int used; sscanf(at, " %u:%15s%n", &peer, word, &used) == 2; at += used)
            if (peer == far->place)
                return;
    }
    strcpy(word, one->numa >= 0 && one->numa == other->numa ? "NODE" : "SYS");
}

unsigned shelf_processes(const struct shelf_card *card, struct shelf_process *processes, unsigned room)
{
    const char *at = rack_text(card->section, "processes", "");
    unsigned count = 0;
    unsigned long long mebibytes;
    for (int used; count < room && sscanf(at, " %u:%llu%n", &processes[count].pid, &mebibytes, &used) == 2; at += used)
        processes[count++].memory = (uint64_t)mebibytes << 20;
    return count;
}

struct shelf_slice *shelf_cut(const struct shelf_card *card, uint32_t kind, uint32_t id)
{
    for (unsigned i = 0; i < SHELF_SLICES; i++)
        if (!state->slices[i].card) {
            state->slices[i] = (struct shelf_slice){.card = card->key, .kind = kind, .id = id};
            return &state->slices[i];
        }
    return NULL;
}

void shelf_drop(struct shelf_slice *slice) { *slice = (struct shelf_slice){0}; }

struct shelf_slice *shelf_next(const struct shelf_card *card, uint32_t kind, const struct shelf_slice *after)
{
    for (struct shelf_slice *slice = after ? state->slices + (after - state->slices) + 1 : state->slices;
         slice < state->slices + SHELF_SLICES; slice++)
        if (slice->card && (!card || slice->card == card->key) && slice->kind == kind)
            return slice;
    return NULL;
}

struct shelf_slice *shelf_find(const struct shelf_card *card, uint32_t kind, uint32_t id)
{
    struct shelf_slice *slice = NULL;
    while ((slice = shelf_next(card, kind, slice)) && slice->id != id)
        ;
    return slice;
}

/* The byte of the file that stands for the slice: locked by those who occupy it, each through a description of its own,
 * so that the kernel lets go of it when the last copy of that is gone. */
static struct flock byte_of(const struct shelf_slice *slice, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = 1 + (slice - state->slices), .l_len = 1};
}

bool shelf_in_use(const struct shelf_slice *slice)
{
    struct flock byte = byte_of(slice, F_WRLCK);
    return fcntl(state_file, F_OFD_GETLK, &byte) || byte.l_type != F_UNLCK;
}

int fake_occupy(unsigned index, unsigned id)
{
    const struct shelf_card *card = shelf_card(index);
    if (!card)
        return -1;
    shelf_lock();
    int file = open(state_path, O_RDWR); /* inherited on exec, as a device node would be */
    struct shelf_slice *slice = shelf_find(card, 0, id);
    struct flock byte = slice ? byte_of(slice, F_RDLCK) : (struct flock){.l_type = F_UNLCK};
    bool worked = slice && file >= 0 && !fcntl(file, F_OFD_SETLK, &byte);
    shelf_unlock();
    return worked ? 0 : -1; /* a file not used stays open: closing it would drop this process's lock on the others */
}

static unsigned switches_of(const struct shelf_card *card)
{
    unsigned i = 0;
    while (i < SHELF_CARDS - 1 && state->switches[i].card && state->switches[i].card != card->key)
        i++;
    return i;
}

uint32_t shelf_switch(const struct shelf_card *card, unsigned which, uint32_t fallback)
{
    unsigned i = switches_of(card);
    return state->switches[i].card && state->switches[i].set >> which & 1 ? state->switches[i].value[which] : fallback;
}

void shelf_set_switch(const struct shelf_card *card, unsigned which, uint32_t value)
{
    unsigned i = switches_of(card);
    state->switches[i].card = card->key;
    state->switches[i].value[which] = value;
    state->switches[i].set |= 1u << which;
}
