/* One vendor's shelf of the rack: its cards, the slices cut from them, and the faults its library was told to show.
 *
 * What a [device] says, to every vendor alike: model, memory, used, busy (percent), core (compute units), uuid, serial,
 * numa, pci, health (ok, or what is wrong), links (1:HCCS 2:PIX, peers counted among the vendor's own cards) and
 * processes (pid:size, such as 4242:512 4243:1024, in MiB). Each library reads further keys of its own.
 *
 * Slices are the driver's and outlive who cut them: they stand in a file under /dev/shm, which is there only while
 * something stands in it. A slice is in use while a process that occupies it lives; the kernel knows, no PID decides.
 *
 *     [fault]
 *     call = dcmi_get_device_health   # a shell pattern: *_v2 is an older library
 *     device = 1                      # on this card alone; not said: on all, and on calls that name none
 *     vendor = ascend                 # needed only where two vendors' libraries share a name
 *     does = error -8008              # the code as the call returns it
 *          | hang 3 s                 # the answer comes, but late; plain hang: never
 *          | garbage                  # success, and noise in all that should have been filled in
 *          | missing                  # the library does not export it
 *          | vanish                   # the card is gone from the second such call on (vanish 3: from the third)
 */
#ifndef HETERO_FAKE_SHELF_H
#define HETERO_FAKE_SHELF_H

#include "rack.h"

#define SHELF_CARDS  64u
#define SHELF_SLICES 512u
#define SHELF_SWITCHES 4u
#define EXPORT __attribute__((visibility("default")))

struct shelf_card {
    const struct rack_section *section;
    unsigned place; /* among the vendor's cards; stays when another card vanishes */
    uint64_t key;   /* what slices know the card by: its vendor and PCI address */
    const char *model, *health;
    char uuid[48], serial[32];
    uint64_t memory, used; /* bytes */
    unsigned core, busy;
    int numa; /* -1: not said */
    unsigned domain, bus, device, function;
};

struct shelf_slice {
    uint64_t card;             /* 0: none */
    uint32_t kind, id, parent; /* the library's own numbers; kind 0 is what a program can run on */
    uint32_t core;
    uint64_t memory; /* in the library's own unit */
    uint32_t settings[2];
    char name[100];
};

struct shelf_process {
    unsigned pid;
    uint64_t memory; /* bytes */
};

extern const char shelf_vendor[]; /* defined by each library */

/* Looks at the rack afresh, as a driver does when it is initialised: false without a rack, with a malformed one, or
 * without a device of this vendor. Cards handed out before stay valid. */
bool shelf_open(void);
bool shelf_opened(void);
void shelf_close(void); /* until opened again there are no cards */
unsigned shelf_count(void);                        /* cards that are there now */
const struct shelf_card *shelf_card(unsigned index); /* NULL: not opened, or no such card now */
const struct shelf_card *shelf_at(unsigned place);   /* there now or not; NULL: not opened, or no such place */
const char *shelf_driver(const char *key, const char *fallback); /* what a [driver] says of key */

/* What lies between two cards, by the rack's word for it: what either says, else NODE or SYS by their NUMA nodes. */
void shelf_link(const struct shelf_card *one, const struct shelf_card *other, char word[16]);
unsigned shelf_processes(const struct shelf_card *card, struct shelf_process *processes, unsigned room);

/* Slices and switches are read and changed between these two, by one process at a time. Nothing in between may look for
 * cards, but for shelf_at: whether one has vanished is asked under the same lock. */
void shelf_lock(void);
void shelf_unlock(void);
struct shelf_slice *shelf_cut(const struct shelf_card *card, uint32_t kind, uint32_t id); /* zeroed; NULL: no room */
void shelf_drop(struct shelf_slice *slice);
struct shelf_slice *shelf_next(const struct shelf_card *card, uint32_t kind, const struct shelf_slice *after);
struct shelf_slice *shelf_find(const struct shelf_card *card, uint32_t kind, uint32_t id);
bool shelf_in_use(const struct shelf_slice *slice);
/* Settings of a card that outlive processes: the number last stored, or the rack's if none was. */
uint32_t shelf_switch(const struct shelf_card *card, unsigned which, uint32_t fallback);
void shelf_set_switch(const struct shelf_card *card, unsigned which, uint32_t value);

/* Exported by every library beside the vendor's calls, for what a runtime would do: this process works on the slice
 * (of kind 0) until it and its children end. 0, or -1. */
EXPORT int fake_occupy(unsigned index, unsigned id);

/* faults.c */

/* Whether the call ends here: with *code to be returned, after filling out with noise if so told. */
bool shelf_meet(const char *call, const struct shelf_card *card, void *out, uint64_t size, int *code);
#define FAULTS(card, out, size)                                        \
    do {                                                               \
        int code_;                                                     \
        if (shelf_meet(__func__, (card), (out), (size), &code_))       \
            return code_;                                              \
    } while (0)

bool shelf_present(const struct shelf_card *card); /* still there: it has not vanished since it was handed out */

/* Between shelf.c and faults.c. */
struct rack *shelf_rack(void);          /* NULL: not opened */
uint32_t *shelf_calls(unsigned fault);  /* how often the call of a vanishing was made; under the lock */
bool faults_sound(struct rack *rack);   /* whatever is malformed is told */

#endif
