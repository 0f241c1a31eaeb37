/* The cards that a vendor's fake library has open, and the state that outlives its processes.
 *
 * Slices belong to the driver and outlive the processes that create them. They are in a file under /dev/shm, which
 * exists only while it is not empty. A slice is in use while a process that occupies it lives. The kernel's locks tell
 * that, and no PID does.
 */
#ifndef HETERO_MANAGEMENT_STATE_H
#define HETERO_MANAGEMENT_STATE_H

#include "rack.h"

#define FAKE_CARDS    64u
#define FAKE_SLICES   512u
#define FAKE_SWITCHES 4u

struct fake_card {
    const struct rack_section *section;
    unsigned position; /* among the vendor's cards; it stays the same when another card vanishes */
    uint64_t key;      /* id of the card in slices: a hash of its vendor and PCI address */
    const char *model, *health;
    char uuid[48], serial[32];
    uint64_t memory_bytes, used_bytes;
    unsigned core_units, busy_percent;
    unsigned power_w, power_limit_w; /* 0: the card does not report it */
    unsigned temperature_c;          /* degrees Celsius; 0: the card does not report it */
    int numa_node;                   /* -1: unknown */
    unsigned domain, bus, device, function;
};

struct fake_cards { /* the cards of one vendor, with their rack; never freed, because cards are handed out */
    struct rack *rack;
    unsigned card_count;
    struct fake_card cards[FAKE_CARDS];
};

struct fake_slice {
    uint64_t card_key;         /* fake_card.key of its card; 0: no slice */
    uint32_t kind, id, parent; /* numbers of the library; kind 0 is what a program can run on */
    uint32_t core_units;
    uint64_t memory_size; /* in the library's unit */
    uint32_t settings[2];
    char name[100];
};

extern const char fake_vendor[]; /* defined by each library */

/* The cards that are open: NULL until the library is opened, and after it is closed. */
struct fake_cards *fake_cards(void);
void fake_open_cards(struct fake_cards *cards);
const struct fake_card *fake_at(unsigned position); /* also a vanished card; NULL: not opened, or no such position */

/* The functions below need this lock. Code that holds it must not look up cards but by fake_at, because the lookup
 * of a vanished card takes the lock. */
void fake_lock(void);
void fake_unlock(void);
uint32_t *fake_calls(unsigned fault); /* how often the call of a [fault] was made */
struct fake_slice *fake_cut(const struct fake_card *card, uint32_t kind, uint32_t id); /* zeroed; NULL: no room */
void fake_drop(struct fake_slice *slice);
struct fake_slice *fake_next(const struct fake_card *card, uint32_t kind, const struct fake_slice *previous);
struct fake_slice *fake_find(const struct fake_card *card, uint32_t kind, uint32_t id);
bool fake_in_use(const struct fake_slice *slice);
/* Settings of a card that outlive processes: the number last stored, or the rack's if none was. */
uint32_t fake_switch(const struct fake_card *card, unsigned switch_number, uint32_t fallback);
void fake_set_switch(const struct fake_card *card, unsigned switch_number, uint32_t value);

/* Takes the lock itself. This process uses the slice (of kind 0) until it and its children end. */
bool fake_hold(const struct fake_card *card, unsigned id);

#endif
