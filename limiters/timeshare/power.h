/* What a power limit does to a share: a card at its power limit runs slower the longer it is busy.
 *
 * A program that wants more power than the card may draw runs at lowered clocks when it runs alone and without a share.
 * In time slices it runs at full clocks, because the card draws little between them. So in 30 % of the time it gets
 * more done than 30 % of what it does alone: 36 % for large bf16 products on an H200. A share is a share of what the
 * program does alone, so the time of such a program is charged at a rate above unity: by how much slower it would run
 * if it ran whenever it wants to. One that rests for half of the time lets the card draw half as much, and is not
 * slowed.
 *
 * The driver has the power of the card alone. What of it is ours follows from comparing its samples with whose time
 * slice it was (power_look).
 */
#ifndef HETERO_POWER_H
#define HETERO_POWER_H

#include "power_models.h"

#include <stdbool.h>
#include <stdint.h>

#define POWER_UNITY 1024u /* of a charge rate: time is charged as it passes */
#define POWER_MOST  (2 * POWER_UNITY)

/* How often the driver is asked. It keeps samples of the last 2.4 s. */
#define POWER_EVERY_NS UINT64_C(250000000)

#define POWER_SAMPLES 128u  /* an H200 keeps 119 */
#define POWER_BINS    2048u /* milliseconds that are remembered */
#define POWER_DELAYS  12u

/* What the driver says of a device. */
struct power_reading {
    uint32_t mean_mw, limit_mw; /* about the last second's mean; what it may draw at most */
    uint32_t clock_units;       /* its clock now, of POWER_UNITY when no power limit lowers it */
    unsigned sample_count;      /* of samples, oldest first; 0: the driver keeps none */
    struct {
        uint64_t at_ns; /* CLOCK_MONOTONIC */
        uint32_t mw;
    } samples[POWER_SAMPLES];
};

struct power {
    const struct power_model *model;
    uint32_t idle_mw;          /* what the card draws with contexts on it and nothing to do; 0: not known, or neutral */
    uint32_t charge_rate;      /* what a nanosecond is charged at, of POWER_UNITY; while idle_mw is 0, unity */
    uint64_t looked_at_ns;     /* when the driver was asked last */
    uint64_t sampled_until_ns; /* samples up to here are not, or no longer, taken into account */
    uint64_t newest_ms;        /* the last millisecond that has a bin */
    uint16_t own_us[POWER_BINS],
        others_us[POWER_BINS]; /* how many microseconds of each millisecond we, or others, ran */
    /* Of the samples so far, newer ones weighing more: sums of squares and products of our activity (o), theirs (t) and
     * the power above idle in milliwatt (p); for each of the delays that their time stamps may have. */
    struct power_fit {
        double oo, ot, tt, op, tp, pp;
    } fits[POWER_DELAYS];
    double worked_ns, rested_ns;  /* how long the device worked for us, and we wanted nothing of it; old is faint */
    double mean_clock_units;      /* mean of the readings' so far */
    unsigned full_clock_readings; /* readings in a row whose clock was not lowered */
    double usual_launches_per_ms; /* our launches a millisecond at full clocks; 0: not known */
};

/* By how much a program that wants so much power is slowed down by a limit. */
double power_slowdown(const struct power_model *model, double wanted_mw, double available_mw);

/* Begin, with what the driver says now. */
void power_begin(struct power *power, const struct power_model *model, uint64_t now_ns,
                 const struct power_reading *reading);

/* The device worked for us, or for others, from `from_ns` to `to_ns`. */
void power_ran(struct power *power, uint64_t from_ns, uint64_t to_ns, bool own);

/* We wanted nothing of the device for so long. */
void power_rested(struct power *power, uint64_t rest_ns);

/* It was not recorded until now whose time slice it was: what the card drew meanwhile says nothing. */
void power_unwatched(struct power *power, uint64_t now_ns);

/* Our share has changed: what we drew at the limit beside others says little of what we shall draw. */
void power_forget(struct power *power);

/* Whether the driver is to be asked again. */
bool power_due(const struct power *power, uint64_t now_ns);

/* Work out the charge rate from the driver's answer and our launches a millisecond (0: not known). */
void power_look(struct power *power, uint64_t now_ns, const struct power_reading *reading, double launches_per_ms);

/* What device time is charged at. */
static inline uint64_t power_charge(const struct power *power, uint64_t spent_ns)
{
    return power->idle_mw == 0 ? spent_ns : spent_ns * power->charge_rate / POWER_UNITY;
}

#endif
