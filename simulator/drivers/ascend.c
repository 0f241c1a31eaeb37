/* What a rack says of Ascend cards that DCMI does not tell: the time and memory that programs share. */
#include "ascend.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define SLICE     UINT64_C(2090000)
#define SWAP      UINT64_C(150000)
#define BANDWIDTH UINT64_C(4300000000000)
#define KERNEL_NS 2000u

const char fake_vendor[] = "ascend";

static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
static struct engine *opened; /* under the lock */

static struct engine *open_engine(struct fake_cards *cards)
{
    struct engine_card engine_cards[ENGINE_CARDS];
    struct rack *rack = cards->rack;
    for (unsigned i = 0; i < cards->card_count; i++) {
        const struct fake_card *card = &cards->cards[i];
        if (card->used_bytes > card->memory_bytes)
            rack_fault(rack, card->section, "used", "no more than the memory");
        /* What the rack says is used is of programs that are not simulated. */
        engine_cards[i] = (struct engine_card){card->memory_bytes - card->used_bytes,
                                               rack_number(rack, card->section, "slice", RACK_NANOSECONDS, SLICE),
                                               rack_number(rack, card->section, "switch", RACK_NANOSECONDS, SWAP)};
        if (!engine_cards[i].slice_ns)
            rack_fault(rack, card->section, "slice", "more than nothing");
        if (!ascend_bytes_per_s(card))
            rack_fault(rack, card->section, "bandwidth", "more than nothing");
    }
    uint64_t name = rack_hash(rack_hash(0, rack->path, strlen(rack->path)), fake_vendor, strlen(fake_vendor));
    return rack->fault_count ? NULL : engine_open(name, rack->fingerprint, engine_cards, cards->card_count);
}

struct engine *ascend_engine(void)
{
    pthread_mutex_lock(&once);
    if (!opened && fake_cards())
        opened = open_engine(fake_cards());
    pthread_mutex_unlock(&once);
    return opened;
}

void ascend_forget(void)
{
    if (opened)
        engine_forget(opened);
    opened = NULL;
}

uint64_t ascend_context_bytes(const struct fake_card *card)
{
    return rack_number(fake_cards()->rack, card->section, "context", RACK_BYTES, 0);
}

uint64_t ascend_bytes_per_s(const struct fake_card *card)
{
    return rack_number(fake_cards()->rack, card->section, "bandwidth", RACK_BYTES_PER_SECOND, BANDWIDTH);
}

/* The rack's uuid in hexadecimal, or of the card's own if the rack gives none. */
void ascend_die(const struct fake_card *card, unsigned die[5])
{
    if (sscanf(card->uuid, "%x %x %x %x %x", &die[0], &die[1], &die[2], &die[3], &die[4]) != 5)
        for (unsigned i = 0; i < 5; i++)
            die[i] = (unsigned)rack_hash(card->key + i, card->uuid, strlen(card->uuid));
}

bool ascend_has_hbm(const struct fake_card *card)
{
    return strncmp(card->model, "310", 3);
}

uint64_t ascend_kernel_ns(const char *name, const void *arguments)
{
    struct rack *rack = fake_cards()->rack;
    uint32_t first_argument = 0;
    if (arguments)
        memcpy(&first_argument, arguments, sizeof first_argument);
    for (unsigned i = 0; i < rack->section_count; i++) {
        const struct rack_section *section = &rack->sections[i];
        if (!strcmp(section->kind, "kernel") && !strcmp(section->name, name))
            return rack_number(rack, section, "time", RACK_NANOSECONDS, KERNEL_NS) +
                   first_argument * rack_number(rack, section, "per_arg0", RACK_NANOSECONDS, 0);
    }
    return KERNEL_NS;
}
