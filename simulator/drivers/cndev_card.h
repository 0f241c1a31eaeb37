/* Start of every call of the fake libcndev: its card, the faults set for the call, and the version of its struct. */
#ifndef HETERO_FAKE_CNDEV_CARD_H
#define HETERO_FAKE_CNDEV_CARD_H

#include "cndev.h"
#include "management_fake.h"

#include <stdlib.h>

static inline bool knows(int32_t version)
{
    return version >= 5 && version <= atoi(fake_driver("cndev", "6"));
}

static inline bool is_null(const void *out)
{
    return !out;
}

/* The card a call is about, or the end of the call. A handle is the card's slot. */
#define CARD(out)                                                                                                      \
    const struct fake_card *card = fake_at((unsigned)device);                                                          \
    FAULTS(card, (out), sizeof *(out));                                                                                \
    if (!fake_opened())                                                                                                \
        return CNDEV_ERROR_UNINITIALIZED;                                                                              \
    if (is_null(out))                                                                                                  \
        return CNDEV_ERROR_INVALID_ARGUMENT;                                                                           \
    if (!card || !faults_spare(card))                                                                                  \
    return CNDEV_ERROR_INVALID_DEVICE_ID
#define VERSIONED(out)                                                                                                 \
    CARD(out);                                                                                                         \
    if (!knows((out)->version))                                                                                        \
    return CNDEV_ERROR_UNSUPPORTED_API_VERSION

#endif
