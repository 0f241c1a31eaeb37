/* Cards from the rack: what the vendors' fake management libraries share. */
#include "management_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaced whole by fake_open, when the rack is another, and never freed: cards were handed out. */
static struct fake_cards *_Atomic last_cards; /* the rack as it was read last */

static void take_card(struct fake_cards *fake_cards, const struct rack_section *section)
{
    struct fake_card *card = &fake_cards->cards[fake_cards->card_count];
    const char *uuid = rack_text(section, "uuid", NULL), *serial = rack_text(section, "serial", NULL);
    const char *pci = rack_text(section, "pci", NULL);
    *card = (struct fake_card){.section = section, .position = fake_cards->card_count++, .numa_node = -1};
    card->model = rack_text(section, "model", NULL);
    if (!card->model)
        rack_fault(fake_cards->rack, section, "model", "the name the driver tells");
    card->memory_bytes = rack_number(fake_cards->rack, section, "memory", RACK_BYTES, 0);
    if (!rack_text(section, "memory", NULL))
        rack_fault(fake_cards->rack, section, "memory", "a size such as 64 GiB");
    card->health = rack_text(section, "health", "ok");
    card->core_units = (unsigned)rack_number(fake_cards->rack, section, "core", RACK_COUNT, 0);
    card->busy_percent = (unsigned)rack_number(fake_cards->rack, section, "busy", RACK_COUNT, 0);
    card->power_w = (unsigned)rack_number(fake_cards->rack, section, "power", RACK_COUNT, 0);
    card->power_limit_w = (unsigned)rack_number(fake_cards->rack, section, "power_limit", RACK_COUNT, 0);
    card->temperature_c = (unsigned)rack_number(fake_cards->rack, section, "temperature", RACK_COUNT, 0);
    if (rack_text(section, "numa", NULL))
        card->numa_node = (int)rack_number(fake_cards->rack, section, "numa", RACK_COUNT, 0);
    card->bus = 0x18 + card->position;
    if (pci && sscanf(pci, "%x:%x:%x.%u", &card->domain, &card->bus, &card->device, &card->function) != 4)
        rack_fault(fake_cards->rack, section, "pci", "an address such as 0000:18:00.0");
    unsigned address[] = {card->domain, card->bus, card->device, card->function};
    card->key = rack_hash(rack_hash(0, fake_vendor, strlen(fake_vendor)), address, sizeof address) | 1;
    uint64_t uuid_high = rack_hash(card->key, fake_cards->rack->path, strlen(fake_cards->rack->path)),
             uuid_low = rack_hash(uuid_high, "low", 3);
    if (uuid)
        snprintf(card->uuid, sizeof card->uuid, "%s", uuid);
    else
        snprintf(card->uuid, sizeof card->uuid, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(uuid_high >> 32),
                 (unsigned)(uuid_high >> 16) & 0xffff, 0x4000u | ((unsigned)uuid_high & 0xfff),
                 0x8000u | ((unsigned)(uuid_low >> 48) & 0x3fff), (unsigned long long)uuid_low & 0xffffffffffffULL);
    if (serial)
        snprintf(card->serial, sizeof card->serial, "%s", serial);
    else
        snprintf(card->serial, sizeof card->serial, "%012llu", (unsigned long long)(uuid_high % 1000000000000u));
    struct fake_process processes[FAKE_SLICES];
    uint64_t process_bytes = 0;
    for (unsigned i = fake_processes(card, processes, FAKE_SLICES); i-- > 0;)
        process_bytes += processes[i].memory_bytes;
    card->used_bytes = rack_number(fake_cards->rack, section, "used", RACK_BYTES, process_bytes);
}

bool fake_open(void)
{
    struct rack *rack = rack_open();
    if (!rack)
        return false;
    struct fake_cards *cards = last_cards;
    if (cards && cards->rack->fingerprint == rack->fingerprint) {
        rack_close(rack);
    } else {
        cards = calloc(1, sizeof *cards);
        if (!cards)
            return false;
        cards->rack = rack;
        for (unsigned i = 0; i < rack->section_count; i++) {
            const struct rack_section *section = &rack->sections[i];
            if (!strcmp(section->kind, "device") && !strcmp(rack_text(section, "vendor", ""), fake_vendor) &&
                cards->card_count < FAKE_CARDS)
                take_card(cards, section);
        }
        last_cards = cards;
    }
    bool is_good = faults_sound(cards->rack) && cards->card_count && !cards->rack->fault_count;
    fake_open_cards(is_good ? cards : NULL);
    return is_good;
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
    struct fake_cards *cards = fake_cards();
    for (unsigned i = 0; cards && i < cards->card_count; i++)
        if (faults_spare(&cards->cards[i]) && !index--)
            return &cards->cards[i];
    return NULL;
}

const char *fake_driver(const char *key, const char *fallback)
{
    struct fake_cards *cards = fake_cards();
    for (unsigned i = 0; cards && i < cards->rack->section_count; i++)
        if (!strcmp(cards->rack->sections[i].kind, "driver"))
            fallback = rack_text(&cards->rack->sections[i], key, fallback);
    return fallback;
}

void fake_link(const struct fake_card *first, const struct fake_card *second, char word[16])
{
    for (unsigned side = 0; side < 2; side++) {
        const struct fake_card *card = side ? second : first, *peer_card = side ? first : second;
        const char *cursor = rack_text(card->section, "links", "");
        unsigned peer_position;
        for (int parsed_length; sscanf(cursor, " %u:%15s%n", &peer_position, word, &parsed_length) == 2;
             cursor += parsed_length)
            if (peer_position == peer_card->position)
                return;
    }
    strcpy(word, first->numa_node >= 0 && first->numa_node == second->numa_node ? "NODE" : "SYS");
}

unsigned fake_processes(const struct fake_card *card, struct fake_process *processes, unsigned capacity)
{
    const char *cursor = rack_text(card->section, "processes", "");
    unsigned count = 0;
    unsigned long long mebibytes;
    for (int parsed_length;
         count < capacity && sscanf(cursor, " %u:%llu%n", &processes[count].pid, &mebibytes, &parsed_length) == 2;
         cursor += parsed_length)
        processes[count++].memory_bytes = (uint64_t)mebibytes << 20;
    return count;
}

int fake_occupy(unsigned index, unsigned id)
{
    const struct fake_card *card = fake_card(index);
    return card && fake_hold(card, id) ? 0 : -1;
}
