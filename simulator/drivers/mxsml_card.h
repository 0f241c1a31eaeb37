/* Start of every call of the fake libmxsml: its card, and the faults set for the call. */
#ifndef HETERO_FAKE_MXSML_CARD_H
#define HETERO_FAKE_MXSML_CARD_H

#include "management_fake.h"
#include "mxsml.h"

#include <stdio.h>
#include <string.h>

static inline bool is_null(const void *out)
{
    return !out;
}

/* The card a call is about, or the end of the call. */
#define CARD_NOISE(out, size)                                                                                          \
    const struct fake_card *card = fake_card(deviceId);                                                                \
    FAULTS(card, out, size);                                                                                           \
    if (!card || !faults_spare(card))                                                                                  \
        return MXSML_InvalidDeviceId;                                                                                  \
    if (is_null(out))                                                                                                  \
    return MXSML_InvalidInput
#define CARD(out) CARD_NOISE((out), sizeof *(out))

static inline mxSmlReturn_t text(char *out, unsigned int *size, const char *value)
{
    unsigned capacity = *size;
    *size = (unsigned)strlen(value) + 1;
    if (*size > capacity)
        return MXSML_InsufficientSize;
    memcpy(out, value, *size);
    return MXSML_Success;
}

#endif
