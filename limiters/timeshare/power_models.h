/* What differs between card models in how they sample, limit and feel power: a table, one row per model.
 *
 * A card that is not in the table is neutral: its driver is not asked for power, and its time is charged as it passes.
 * `benchmarks/power.py` measures a card and prints its row.
 */
#ifndef HETERO_POWER_MODELS_H
#define HETERO_POWER_MODELS_H

#include <stdbool.h>
#include <stdint.h>

#define POWER_PERIOD_MAX_MS 100u

struct power_model {
    const char *device; /* what the driver calls the model, whole */

    /* What the card draws with contexts on it and nothing to do, at least and at most, in thousandths of its limit. A
     * reading of the last second's mean is moved into that range: busy co-tenants inflate it, sleep deflates it. */
    uint32_t idle_least, idle_most;
    double held; /* the part of its limit that a card averages while the limit holds it */

    /* How the driver samples power: so often, through a low-pass filter that forgets this part of its state in a
     * millisecond and everything in `memory_ms`, and with stamps that are late by one of the first POWER_DELAYS
     * multiples of `late_step_ms`, none included. */
    uint32_t period_ms;
    double forgotten;
    uint32_t memory_ms;
    uint32_t late_step_ms;

    /* A program that wants 1 + x of the power there is runs 1 + [0] x + [1] x^2 times as fast in short time slices as
     * alone. */
    double slowdown[2];

    /* Exponents in eighths. At the limit a program's speed is this power of what is available of what it wants. */
    uint32_t at_limit;
    /* The speed of a program at lowered clocks is this power of the clock: where its launches do not tell its speed,
     * and the least that is believed where they do. */
    uint32_t unknown, least;

    /* Processes of one grant that are busy at once, without a limit, lose this part of the device to the driver's
     * switching between them: one in so many; 0: none. In time slices they do not, so their time is charged more. */
    uint32_t switching;
};

/* The row of the neutral card. */
extern const struct power_model power_model_neutral;

/* The row of the model that the driver calls so. */
const struct power_model *power_model_of(const char *device);

#endif
