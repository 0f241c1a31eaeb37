/* Common parts of the vendors' fake management libraries: the cards of one vendor in the rack, the slices of them
 * (management_state.h), and the faults set for the library (faults.h). Functions of all three begin with `fake_`, but
 * for those of faults.
 *
 * Keys of a [device], for every vendor alike: model, memory, used, busy (percent), core (compute units), uuid, serial,
 * numa, pci, power and power_limit (W), temperature (degrees Celsius), health (ok, or what is wrong), links (1:HCCS
 * 2:PIX, peers counted among the vendor's own cards) and processes (pid:size, such as 4242:512 4243:1024, in MiB). Each
 * library reads further keys of its own.
 */
#ifndef HETERO_MANAGEMENT_FAKE_H
#define HETERO_MANAGEMENT_FAKE_H

#include "faults.h"

#define EXPORT __attribute__((visibility("default")))

struct fake_process {
    unsigned pid;
    uint64_t memory_bytes; /* bytes */
};

/* Reads the rack again, as a driver does when it is initialised. False: there is no rack, it is malformed, or it has
 * no device of this vendor. Cards handed out before stay valid. */
bool fake_open(void);
bool fake_opened(void);
void fake_close(void);                                          /* until opened again there are no cards */
unsigned fake_count(void);                                      /* number of cards that have not vanished */
const struct fake_card *fake_card(unsigned index);              /* NULL: not opened, no such card, or it has vanished */
const char *fake_driver(const char *key, const char *fallback); /* value of a key of [driver] */

/* The kind of link between two cards, in the rack's words: as either card gives it, else NODE or SYS by their NUMA
 * nodes. */
void fake_link(const struct fake_card *first, const struct fake_card *second, char word[16]);
unsigned fake_processes(const struct fake_card *card, struct fake_process *processes, unsigned capacity);

/* Exported by every library besides the vendor's calls, for what a runtime would do: this process uses the slice (of
 * kind 0) until it and its children end. 0: done. -1: there is no such slice. */
EXPORT int fake_occupy(unsigned index, unsigned id);

#endif
