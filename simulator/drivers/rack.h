/* The rack file: what hardware the fake drivers pretend to have, for every vendor's fakes alike.
 *
 * Line-based: `[kind name]` opens a section, `key = value` fills it, `#` starts a comment. Kinds used so far: [device],
 * [kernel NAME] and [driver]. Each vendor's fake takes the devices whose `vendor` is its own and reads the keys it
 * knows; keys of others are kept and ignored. Values are text until asked for: a number carries its unit (143771 MiB,
 * 2 us, 4300 GB/s). Whatever is wrong is told on stderr as file:line: what.
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
    unsigned fault_count; /* values found malformed when asked for */
};

enum rack_unit { RACK_COUNT, RACK_BYTES, RACK_NANOSECONDS, RACK_BYTES_PER_SECOND };

/* The rack that $HETERO_RACK names; NULL when the variable is unset, or with a message when the file is no good. */
struct rack *rack_open(void);
void rack_close(struct rack *rack);

/* A fault is told, counted and answered with the fallback. */
const char *rack_text(const struct rack_section *section, const char *key, const char *fallback);
uint64_t rack_number(struct rack *rack, const struct rack_section *section, const char *key, enum rack_unit unit,
                     uint64_t fallback);
void rack_fault(struct rack *rack, const struct rack_section *section, const char *key, const char *expected);

/* FNV-1a, continued from seed: names and UUIDs that depend on the rack alone. */
uint64_t rack_hash(uint64_t seed, const void *bytes, uint64_t size);

#endif
