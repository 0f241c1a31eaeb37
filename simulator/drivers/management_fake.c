/* Cards from the rack: what the vendors' fake management libraries share. */
#include "management_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaced whole by fake_open, when the rack is another, and never freed: cards were handed out. */
static struct fake_cards *_Atomic last; /* the rack as it was read last */

static void take_card(struct fake_cards *it, const struct rack_section *section)
{
    struct fake_card *card = &it->cards[it->count];
    const char *uuid = rack_text(section, "uuid", NULL), *serial = rack_text(section, "serial", NULL);
    const char *pci = rack_text(section, "pci", NULL);
    *card = (struct fake_card){.section = section, .place = it->count++, .numa = -1};
    card->model = rack_text(section, "model", NULL);
    if (!card->model)
        rack_fault(it->rack, section, "model", "the name the driver tells");
    card->memory = rack_number(it->rack, section, "memory", RACK_BYTES, 0);
    if (!rack_text(section, "memory", NULL))
        rack_fault(it->rack, section, "memory", "a size such as 64 GiB");
    card->health = rack_text(section, "health", "ok");
    card->core = (unsigned)rack_number(it->rack, section, "core", RACK_COUNT, 0);
    card->busy = (unsigned)rack_number(it->rack, section, "busy", RACK_COUNT, 0);
    card->power = (unsigned)rack_number(it->rack, section, "power", RACK_COUNT, 0);
    card->power_limit = (unsigned)rack_number(it->rack, section, "power_limit", RACK_COUNT, 0);
    card->temperature = (unsigned)rack_number(it->rack, section, "temperature", RACK_COUNT, 0);
    if (rack_text(section, "numa", NULL))
        card->numa = (int)rack_number(it->rack, section, "numa", RACK_COUNT, 0);
    card->bus = 0x18 + card->place;
    if (pci && sscanf(pci, "%x:%x:%x.%u", &card->domain, &card->bus, &card->device, &card->function) != 4)
        rack_fault(it->rack, section, "pci", "an address such as 0000:18:00.0");
    unsigned address[] = {card->domain, card->bus, card->device, card->function};
    card->key = rack_hash(rack_hash(0, fake_vendor, strlen(fake_vendor)), address, sizeof address) | 1;
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
    struct fake_process processes[FAKE_SLICES];
    uint64_t used = 0;
    for (unsigned i = fake_processes(card, processes, FAKE_SLICES); i-- > 0;)
        used += processes[i].memory;
    card->used = rack_number(it->rack, section, "used", RACK_BYTES, used);
}

bool fake_open(void)
{
    struct rack *rack = rack_open();
    if (!rack)
        return false;
    struct fake_cards *it = last;
    if (it && it->rack->fingerprint == rack->fingerprint) {
        rack_close(rack);
    } else {
        it = calloc(1, sizeof *it);
        if (!it)
            return false;
        it->rack = rack;
        for (unsigned i = 0; i < rack->count; i++) {
            const struct rack_section *section = &rack->sections[i];
            if (!strcmp(section->kind, "device") && !strcmp(rack_text(section, "vendor", ""), fake_vendor) &&
                it->count < FAKE_CARDS)
                take_card(it, section);
        }
        last = it;
    }
    bool good = faults_sound(it->rack) && it->count && !it->rack->faults;
    fake_open_cards(good ? it : NULL);
    return good;
}

bool fake_opened(void)
{
    return fake_cards();
}
void fake_close(void)
{
    fake_open_cards(NULL);
}

unsigned fake_count(void)
{
    unsigned count = 0;
    while (fake_card(count))
        count++;
    return count;
}

const struct fake_card *fake_card(unsigned index)
{
    struct fake_cards *it = fake_cards();
    for (unsigned i = 0; it && i < it->count; i++)
        if (faults_spare(&it->cards[i]) && !index--)
            return &it->cards[i];
    return NULL;
}

const char *fake_driver(const char *key, const char *fallback)
{
    struct fake_cards *it = fake_cards();
    for (unsigned i = 0; it && i < it->rack->count; i++)
        if (!strcmp(it->rack->sections[i].kind, "driver"))
            fallback = rack_text(&it->rack->sections[i], key, fallback);
    return fallback;
}

void fake_link(const struct fake_card *one, const struct fake_card *other, char word[16])
{
    for (unsigned end = 0; end < 2; end++) {
        const struct fake_card *near = end ? other : one, *far = end ? one : other;
        const char *at = rack_text(near->section, "links", "");
        unsigned peer;
        for (int used; sscanf(at, " %u:%15s%n", &peer, word, &used) == 2; at += used)
            if (peer == far->place)
                return;
    }
    strcpy(word, one->numa >= 0 && one->numa == other->numa ? "NODE" : "SYS");
}

unsigned fake_processes(const struct fake_card *card, struct fake_process *processes, unsigned room)
{
    const char *at = rack_text(card->section, "processes", "");
    unsigned count = 0;
    unsigned long long mebibytes;
    for (int used; count < room && sscanf(at, " %u:%llu%n", &processes[count].pid, &mebibytes, &used) == 2; at += used)
        processes[count++].memory = (uint64_t)mebibytes << 20;
    return count;
}

int fake_occupy(unsigned index, unsigned id)
{
    const struct fake_card *card = fake_card(index);
    return card && fake_hold(card, id) ? 0 : -1;
}
