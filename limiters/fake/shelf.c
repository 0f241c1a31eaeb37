/* Cards from the rack, slices that outlive processes, faults on demand: what the vendors' fake libraries share. */
#include "shelf.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT 1u /* of struct state; part of the file's name */
#define FAULTS_COUNTED 32u

struct state { /* the file, shared by all processes: zeroes at first */
    _Atomic uint32_t calls[FAULTS_COUNTED]; /* how often the call of each [fault] was made, for vanish */
    /* The rest is under the file's lock. */
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

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* the file's lock is the process's: this one is the thread's */
static struct rack *loaded_under;    /* set by the constructor; its faults count until shelf_open */
static struct shelf *_Atomic shelf;  /* replaced whole by shelf_open, never freed: cards were handed out */
static struct state *_Atomic state;  /* mapped by the first shelf_open, for good */
static int state_file = -1;          /* set with state */
static char state_path[64];          /* likewise */

static const char *const fault_words[] = {"error", "hang", "garbage", "missing", "vanish"};

static bool does(const struct rack_section *section, const char *what)
{
    const char *said = rack_text(section, "does", "");
    size_t length = strcspn(said, " ");
    return !strcmp(section->kind, "fault") && strlen(what) == length && !strncmp(said, what, length);
}

static bool concerns(const struct rack_section *section, const char *call)
{
    return !fnmatch(rack_text(section, "call", ""), call, 0) &&
           !strcmp(rack_text(section, "vendor", shelf_vendor), shelf_vendor);
}

/* A library that never had the symbol is one whose dynamic symbol table gives it no value: so dlsym sees it. */
static int hide_in(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    const struct rack *rack = argument;
    const ElfW(Dyn) *dynamic = NULL;
    bool own = false;
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)start;
        if (header->p_type == PT_LOAD && (uintptr_t)shelf_vendor - start < header->p_memsz)
            own = true;
    }
    if (!own || !dynamic)
        return 0;
    ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL; /* buckets, then as many chains as there are symbols */
    for (; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (ElfW(Sym) *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            names = (const char *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_HASH)
            hash = (const uint32_t *)dynamic->d_un.d_ptr;
    if (!symbols || !names || !hash)
        return 1;
    uintptr_t first = (uintptr_t)symbols & -(uintptr_t)sysconf(_SC_PAGESIZE);
    size_t length = (uintptr_t)(symbols + hash[1]) - first;
    if (mprotect((void *)first, length, PROT_READ | PROT_WRITE))
        return 1;
    for (uint32_t s = 1; s < hash[1]; s++)
        for (unsigned i = 0; i < rack->count; i++)
            if (does(&rack->sections[i], "missing") && concerns(&rack->sections[i], names + symbols[s].st_name))
                symbols[s].st_value = 0;
    mprotect((void *)first, length, PROT_READ);
    return 1;
}

__attribute__((constructor)) static void hide_missing(void)
{
    loaded_under = rack_open();
    for (unsigned i = 0; loaded_under && i < loaded_under->count; i++)
        if (does(&loaded_under->sections[i], "missing")) {
            dl_iterate_phdr(hide_in, loaded_under);
            break;
        }
}

void shelf_lock(void)
{
    pthread_mutex_lock(&mutex);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    while (fcntl(state_file, F_SETLKW, &whole) && errno == EINTR)
        ;
}

void shelf_unlock(void)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_len = 1};
    fcntl(state_file, F_SETLK, &whole);
    pthread_mutex_unlock(&mutex);
}

/* The slices of this rack; it may be edited between two looks, its path is what names it. */
static bool map_state(const struct rack *rack)
{
    pthread_mutex_lock(&mutex);
    if (!state) {
        snprintf(state_path, sizeof state_path, "/dev/shm/hetero-%s-%u-%016llx", shelf_vendor, (unsigned)getuid(),
                 (unsigned long long)rack_hash(LAYOUT, rack->path, strlen(rack->path)));
        int file = open(state_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        void *mapped = MAP_FAILED;
        if (file >= 0 && !ftruncate(file, sizeof(struct state)))
            mapped = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) {
            fprintf(stderr, "%s: cannot keep the rack's slices there: %s\n", state_path, strerror(errno));
            if (file >= 0)
                close(file);
        } else {
            state_file = file;
            state = mapped;
        }
    }
    pthread_mutex_unlock(&mutex);
    return state;
}

static void check_fault(struct rack *rack, const struct rack_section *section)
{
    if (!rack_text(section, "call", NULL))
        rack_fault(rack, section, "call", "the name of a library call, or a pattern");
    for (unsigned i = 0; i < sizeof fault_words / sizeof *fault_words; i++)
        if (does(section, fault_words[i]))
            return;
    rack_fault(rack, section, "does", "error CODE, hang [TIME], garbage, missing or vanish [COUNT]");
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
    struct shelf *it = calloc(1, sizeof *it);
    if (!it || !(it->rack = rack_open()) || !map_state(it->rack)) {
        free(it);
        return false;
    }
    for (unsigned i = 0; i < it->rack->count; i++) {
        const struct rack_section *section = &it->rack->sections[i];
        if (!strcmp(section->kind, "fault"))
            check_fault(it->rack, section);
        if (!strcmp(section->kind, "device") && !strcmp(rack_text(section, "vendor", ""), shelf_vendor) &&
            it->count < SHELF_CARDS)
            take_card(it, section);
    }
    bool good = it->count && !it->rack->faults;
    shelf = good ? it : NULL;
    return good;
}

bool shelf_opened(void) { return shelf; }
void shelf_close(void) { shelf = NULL; }

bool shelf_present(const struct shelf_card *card)
{
    struct shelf *it = shelf;
    for (unsigned i = 0; it && i < it->rack->count; i++) {
        const struct rack_section *section = &it->rack->sections[i];
        unsigned count = 2;
        if (!does(section, "vanish") || rack_number(it->rack, section, "device", RACK_COUNT, 0) != card->place)
            continue;
        sscanf(rack_text(section, "does", ""), "vanish %u", &count);
        if (state->calls[i % FAULTS_COUNTED] >= count)
            return false;
    }
    return it;
}

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

static void hang(const char *does)
{
    double amount = 1e9;
    char unit[3] = "s";
    sscanf(does, "hang %lf %2s", &amount, unit);
    if (!strcmp(unit, "ms"))
        amount /= 1e3;
    struct timespec left = {(time_t)amount, (long)((amount - (double)(time_t)amount) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

bool shelf_meet(const char *call, const struct shelf_card *card, void *out, uint64_t size, int *code)
{
    struct shelf *it = shelf;
    struct rack *rack = it ? it->rack : loaded_under;
    for (unsigned i = 0; rack && i < rack->count; i++) {
        const struct rack_section *section = &rack->sections[i];
        if (strcmp(section->kind, "fault") || !concerns(section, call))
            continue;
        if (rack_text(section, "device", NULL) && (card || !does(section, "vanish")) &&
            (!card || rack_number(rack, section, "device", RACK_COUNT, 0) != card->place))
            continue;
        *code = 0;
        if (does(section, "vanish") && it)
            state->calls[i % FAULTS_COUNTED]++;
        else if (does(section, "hang"))
            hang(rack_text(section, "does", ""));
        else if (does(section, "error") && sscanf(rack_text(section, "does", ""), "error %i", code) == 1)
            return true;
        else if (does(section, "garbage")) {
            if (out)
                memset(out, 0xa5, size); /* no text, no length, no zero */
            return true;
        }
    }
    return false;
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
    int file = card ? open(state_path, O_RDWR) : -1; /* inherited on exec, as a device node would be */
    if (file < 0)
        return -1;
    shelf_lock();
    struct shelf_slice *slice = shelf_find(card, 0, id);
    struct flock byte = slice ? byte_of(slice, F_RDLCK) : (struct flock){.l_type = F_UNLCK};
    bool worked = slice && !fcntl(file, F_OFD_SETLK, &byte);
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
