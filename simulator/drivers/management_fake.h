/* What the vendors' fake management libraries share: the cards of one vendor in the rack, the slices cut from them
 * (management_state.h), and the faults the library was told to show (faults.h). Functions of all three begin with
 * `fake_`, but for those of faults.
 *
 * What a [device] says, to every vendor alike: model, memory, used, busy (percent), core (compute units), uuid, serial,
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

/* Looks at the rack afresh, as a driver does when it is initialised: false without a rack, with a malformed one, or
 * without a device of this vendor. Cards handed out before stay valid. */
bool fake_open(void);
bool fake_opened(void);
void fake_close(void);                                          /* until opened again there are no cards */
unsigned fake_count(void);                                      /* cards that are there now */
const struct fake_card *fake_card(unsigned index);              /* NULL: not opened, or no such card now */
const char *fake_driver(const char *key, const char *fallback); /* what a [driver] says of key */

/* What lies between two cards, by the rack's word for it: what either says, else NODE or SYS by their NUMA nodes. */
void fake_link(const struct fake_card *first, const struct fake_card *second, char word[16]);
unsigned fake_processes(const struct fake_card *card, struct fake_process *processes, unsigned capacity);

/* Exported by every library beside the vendor's calls, for what a runtime would do: this process works on the slice
 * (of kind 0) until it and its children end. 0, or -1. */
EXPORT int fake_occupy(unsigned index, unsigned id);

#endif
