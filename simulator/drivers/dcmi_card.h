/* Start of every call of the fake libdcmi: its card, and the faults set for the call. */
#ifndef HETERO_FAKE_DCMI_CARD_H
#define HETERO_FAKE_DCMI_CARD_H

#include "dcmi.h"
#include "management_fake.h"

#include <stdlib.h>
#include <string.h>

static inline unsigned number(const struct fake_card *card, const char *key, unsigned fallback)
{
    const char *text = rack_text(card->section, key, NULL);
    return text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

static inline unsigned card_of(const struct fake_card *card)
{
    return number(card, "card", card->position);
}
static inline unsigned chip_of(const struct fake_card *card)
{
    return number(card, "chip", 0);
}

static inline const struct fake_card *device(int card_id, int device_id)
{
    const struct fake_card *card;
    for (unsigned i = 0; (card = fake_card(i)); i++)
        if ((int)card_of(card) == card_id && (int)chip_of(card) == device_id)
            return card;
    return NULL;
}

static inline unsigned mebibytes(uint64_t bytes)
{
    return (unsigned)(bytes >> 20);
}
static inline bool is_null(const void *out)
{
    return !out;
}

/* The card a call is about, or the end of the call. */
#define DEVICE_NOISE(out, size)                                                                                        \
    const struct fake_card *card = device(card_id, device_id);                                                         \
    FAULTS(card, out, size);                                                                                           \
    if (is_null(out))                                                                                                  \
        return DCMI_ERR_CODE_INVALID_PARAMETER;                                                                        \
    if (!card || !faults_spare(card))                                                                                  \
    return fake_opened() ? DCMI_ERR_CODE_DEVICE_NOT_EXIST : DCMI_ERR_CODE_NOT_REDAY
#define DEVICE(out) DEVICE_NOISE((out), sizeof *(out))

#endif
