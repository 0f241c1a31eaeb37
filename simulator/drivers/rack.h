/* The rack file: the hardware that the fake drivers simulate, for every vendor alike.
 *
 * Line-based: `[kind name]` opens a section, `key = value` adds to it, `#` starts a comment. The kinds so far:
 * [device], [kernel NAME] and [driver]. Each vendor's fake reads the devices whose `vendor` is its own, and the keys it
 * knows. Keys of others are kept and ignored. Values are text until they are read: a number has its unit (143771 MiB, 2
 * us, 4300 GB/s). Errors are reported on stderr as file:line: what.
 */
#ifndef HETERO_FAKE_RACK_H
#define HETERO_FAKE_RACK_H

#include <stdbool.h>
#include <stdint.h>

struct rack_entry {
    const char *key, *value;
    unsigned line_number;
};

struct rack_section {
    const char *kind, *name; /* name is "" in a section without one */
    unsigned line_number, entry_count;
    struct rack_entry *entries;
};

struct rack {
    char *path;           /* absolute, links resolved */
    uint64_t fingerprint; /* of path and text */
    char *text;           /* owns every string of the sections */
    unsigned section_count;
    struct rack_section *sections;
    unsigned fault_count; /* malformed values that were read */
};

enum rack_unit { RACK_COUNT, RACK_BYTES, RACK_NANOSECONDS, RACK_BYTES_PER_SECOND };

/* The rack that $HETERO_RACK names; NULL when the variable is unset, or with a message when the file is no good. */
struct rack *rack_open(void);
void rack_close(struct rack *rack);

/* A malformed value is reported and counted, and gives the fallback. */
const char *rack_text(const struct rack_section *section, const char *key, const char *fallback);
uint64_t rack_number(struct rack *rack, const struct rack_section *section, const char *key, enum rack_unit unit,
                     uint64_t fallback);
void rack_fault(struct rack *rack, const struct rack_section *section, const char *key, const char *expected);

/* FNV-1a, continued from seed: names and UUIDs that depend on the rack alone. */
uint64_t rack_hash(uint64_t seed, const void *bytes, uint64_t size);

#endif
