/* Start of every call of the fake libmtml: the card of a handle, and the faults set for the call. */
#ifndef HETERO_FAKE_MTML_CARD_H
#define HETERO_FAKE_MTML_CARD_H

#include "management_fake.h"
#include "mtml.h"

#include <string.h>

/* Handles are checked by their addresses: each is a cell of one of these. */
struct MtmlLibrary {
    char unused;
};
struct MtmlSystem {
    char unused;
};
struct MtmlDevice {
    char unused;
};
struct MtmlMemory {
    char unused;
};
struct MtmlGpu {
    char unused;
};
extern struct MtmlDevice devices[FAKE_CARDS]; /* by position, as the two below */
extern struct MtmlMemory memories[FAKE_CARDS];
extern struct MtmlGpu gpus[FAKE_CARDS];

static inline bool is_null(const void *out)
{
    return !out;
}

/* The card a handle is about, or the end of the call. */
#define HANDLE_NOISE(cells, handle, out, size)                                                                         \
    const unsigned position = (unsigned)((handle) - (cells));                                                          \
    const struct fake_card *card = (handle) == (cells) + position ? fake_at(position) : NULL;                          \
    FAULTS(card, out, size);                                                                                           \
    if (!card || is_null(out))                                                                                         \
        return fake_opened() ? MTML_ERROR_INVALID_ARGUMENT : MTML_ERROR_DRIVER_NOT_LOADED;                             \
    if (!faults_spare(card))                                                                                           \
    return MTML_ERROR_DRIVER_FAILURE
#define HANDLE(cells, handle, out) HANDLE_NOISE(cells, handle, (out), sizeof *(out))

#endif
