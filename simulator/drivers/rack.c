/* Reads a rack file into sections of key = value. */
#include "rack.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum rack_unit unit;
    double scale;
} units[] = {
    {"", RACK_COUNT, 1},
    {"B", RACK_BYTES, 1},
    {"KiB", RACK_BYTES, 1024.0},
    {"MiB", RACK_BYTES, 1048576.0},
    {"GiB", RACK_BYTES, 1073741824.0},
    {"TiB", RACK_BYTES, 1099511627776.0},
    {"ns", RACK_NANOSECONDS, 1},
    {"us", RACK_NANOSECONDS, 1e3},
    {"ms", RACK_NANOSECONDS, 1e6},
    {"s", RACK_NANOSECONDS, 1e9},
    {"MB/s", RACK_BYTES_PER_SECOND, 1e6},
    {"GB/s", RACK_BYTES_PER_SECOND, 1e9},
};
static const char *const unit_words[] = {
    [RACK_COUNT] = "a whole number",
    [RACK_BYTES] = "a size such as 80 GiB or 143771 MiB",
    [RACK_NANOSECONDS] = "a time such as 2 us or 150 ns",
    [RACK_BYTES_PER_SECOND] = "a rate such as 4300 GB/s",
};

uint64_t rack_hash(uint64_t seed, const void *bytes, uint64_t size)
{
    uint64_t hash = seed ^ UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static char *whole_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    size_t size = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        size += fread(text + size, 1, capacity - size - 1, file);
        if (feof(file) || ferror(file))
            break;
        text = realloc(text, capacity *= 2);
    }
    bool failed = ferror(file);
    fclose(file);
    if (!text || failed) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    return text;
}

/* Adds one line to the rack. NULL, or what is wrong with the line. */
static const char *take_line(struct rack *rack, char *line, unsigned number)
{
    char *comment = strchr(line, '#');
    if (comment)
        *comment = '\0';
    line = trimmed(line);
    if (!*line)
        return NULL;
    if (*line == '[') {
        char *end = strchr(line, ']');
        if (!end || end[1])
            return "expected [kind] or [kind name]";
        *end = '\0';
        char *kind = trimmed(line + 1), *name = kind + strcspn(kind, " \t");
        if (*name)
            *name++ = '\0';
        if (!*kind)
            return "expected [kind] or [kind name]";
        rack->sections = realloc(rack->sections, (rack->section_count + 1) * sizeof *rack->sections);
        rack->sections[rack->section_count++] =
            (struct rack_section){.kind = kind, .name = trimmed(name), .line_number = number};
        return NULL;
    }
    char *equals = strchr(line, '=');
    if (!equals || equals == line)
        return "expected key = value";
    if (!rack->section_count)
        return "a key outside of any section";
    *equals = '\0';
    struct rack_section *section = &rack->sections[rack->section_count - 1];
    char *key = trimmed(line);
    if (rack_text(section, key, NULL))
        return "a key given twice in one section";
    section->entries = realloc(section->entries, (section->entry_count + 1) * sizeof *section->entries);
    section->entries[section->entry_count++] = (struct rack_entry){key, trimmed(equals + 1), number};
    return NULL;
}

struct rack *rack_open(void)
{
    const char *named = getenv("HETERO_RACK");
    if (!named || !*named)
        return NULL;
    struct rack *rack = calloc(1, sizeof *rack);
    if (!rack || !(rack->path = realpath(named, NULL)) || !(rack->text = whole_file(rack->path))) {
        fprintf(stderr, "%s: cannot read the rack that HETERO_RACK names: %s\n", named, strerror(errno));
        return NULL;
    }
    rack->fingerprint = rack_hash(0, rack->path, strlen(rack->path));
    rack->fingerprint = rack_hash(rack->fingerprint, rack->text, strlen(rack->text));
    unsigned number = 1;
    for (char *line = rack->text, *next; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        const char *wrong = take_line(rack, line, number);
        if (wrong) {
            fprintf(stderr, "%s:%u: %s\n", rack->path, number, wrong);
            return NULL;
        }
    }
    return rack;
}

void rack_close(struct rack *rack)
{
    for (unsigned i = 0; i < rack->section_count; i++)
        free(rack->sections[i].entries);
    free(rack->sections);
    free(rack->text);
    free(rack->path);
    free(rack);
}

static const struct rack_entry *find(const struct rack_section *section, const char *key)
{
    for (unsigned i = 0; i < section->entry_count; i++)
        if (!strcmp(section->entries[i].key, key))
            return &section->entries[i];
    return NULL;
}

const char *rack_text(const struct rack_section *section, const char *key, const char *fallback)
{
    const struct rack_entry *entry = find(section, key);
    return entry ? entry->value : fallback;
}

void rack_fault(struct rack *rack, const struct rack_section *section, const char *key, const char *expected)
{
    const struct rack_entry *entry = find(section, key);
    if (entry)
        fprintf(stderr, "%s:%u: %s: expected %s, not '%s'\n", rack->path, entry->line_number, key, expected,
                entry->value);
    else
        fprintf(stderr, "%s:%u: [%s]: %s is missing: expected %s\n", rack->path, section->line_number, section->kind,
                key, expected);
    rack->fault_count++;
}

uint64_t rack_number(struct rack *rack, const struct rack_section *section, const char *key, enum rack_unit unit,
                     uint64_t fallback)
{
    const char *text = rack_text(section, key, NULL);
    if (!text)
        return fallback;
    char *end;
    double value = strtod(text, &end);
    if (end != text && value >= 0) {
        while (isspace((unsigned char)*end))
            end++;
        for (unsigned i = 0; i < sizeof units / sizeof *units; i++)
            if (units[i].unit == unit && !strcmp(units[i].name, end))
                return (uint64_t)(value * units[i].scale + 0.5);
    }
    rack_fault(rack, section, key, unit_words[unit]);
    return fallback;
}
