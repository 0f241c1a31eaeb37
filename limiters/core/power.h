/* What a power limit does to a share: a card at its power limit runs slower the longer it is busy.
 *
 * Alone and without a share, a program that wants more power than the card may draw runs at lowered clocks. In turns it
 * runs at full clocks, because the card cools its budget between them, and so gets more done in 30 % of the time than
 * 30 % of what it does alone: 36 % for large bf16 products on an H200. A share is meant of what the card can do, so the
 * time of such a program is charged dearer, by how much slower it would run if it ran all the time.
 */
#ifndef HETERO_POWER_H
#define HETERO_POWER_H

#include <stdbool.h>
#include <stdint.h>

#define POWER_PAR 1024u /* time is charged as it passes */

/* How often the price of time is looked at, and the longest look that still says something of a busy program: the
 * driver's figure is a mean over the last second. */
#define POWER_EVERY_NS  UINT64_C(1000000000)
#define POWER_STALE_NS  UINT64_C(3000000000)
#define POWER_LEAST_BUSY 50 /* permille of the time: below, the difference to an idle card is lost in noise */
#define POWER_MOST      (2 * POWER_PAR)

struct power {
    uint32_t idle_mw;   /* what the card draws with contexts on it and nothing to do; 0: not known, time is at par */
    uint32_t price;     /* what a nanosecond is charged at, of POWER_PAR */
    uint64_t since_ns;  /* when the current look began */
    uint64_t busy_ns;   /* device time of ours in it */
    uint64_t others_ns; /* device time of others in it, as far as we met them */
};

/* Speed falls with the power there is as its 0.44th power: on one H200, 8192^3 bf16 products at full clocks draw
 * 848 W above idle where 565 W are to be had, and run 1.196 times as fast as alone (docs/notes/limiter.md). Seven
 * sixteenths are square roots. */
static inline double power_slowdown(double wanted, double available)
{
    if (wanted <= available)
        return 1;
    double root4 = __builtin_sqrt(__builtin_sqrt(wanted / available));
    double root8 = __builtin_sqrt(root4);
    return root4 * root8 * __builtin_sqrt(root8);
}

/* Begin, with what the card draws now and may draw at most. A busy neighbour would make it look hungry at rest, and a
 * sleeping card modest: between turns an H200 drew 0.17 to 0.20 of its limit. */
static inline void power_begin(struct power *power, uint64_t now_ns, uint32_t now_mw, uint32_t limit_mw)
{
    uint32_t least = limit_mw * UINT64_C(17) / 100, most = limit_mw * UINT64_C(20) / 100;
    *power = (struct power){.price = POWER_PAR, .since_ns = now_ns};
    power->idle_mw = now_mw < least ? least : now_mw > most ? most : now_mw;
}

/* Whether a look is over and the driver is to be asked. */
static inline bool power_due(const struct power *power, uint64_t now_ns)
{
    return power->idle_mw != 0 && now_ns - power->since_ns >= POWER_EVERY_NS;
}

/* End a look with the mean power over it, and begin the next. */
static inline void power_look(struct power *power, uint64_t now_ns, uint32_t mean_mw, uint32_t limit_mw)
{
    uint64_t elapsed = now_ns - power->since_ns, busy = power->busy_ns + power->others_ns;
    power->since_ns = now_ns;
    power->busy_ns = power->others_ns = 0;
    if (busy > elapsed)
        busy = elapsed;
    /* A card that is held at its limit averages a little less: 679 to 690 W of 700. */
    double available = limit_mw * 0.98 - power->idle_mw;
    if (elapsed > POWER_STALE_NS || busy * 1000 < elapsed * POWER_LEAST_BUSY || available <= 0)
        return;
    double above_idle = mean_mw > power->idle_mw ? (double)(mean_mw - power->idle_mw) : 0;
    double slowdown = power_slowdown(above_idle * (double)elapsed / (double)busy, available);
    uint32_t price = slowdown * POWER_PAR > POWER_MOST ? POWER_MOST : (uint32_t)(slowdown * POWER_PAR);
    /* The first look may have begun before the power rose to what it is; later ones smooth the figure's noise. */
    power->price = power->price == POWER_PAR ? price : (power->price + price) / 2;
}

/* What device time is charged at. */
static inline uint64_t power_charge(const struct power *power, uint64_t spent_ns)
{
    return power->idle_mw == 0 ? spent_ns : spent_ns * power->price / POWER_PAR;
}

#endif
