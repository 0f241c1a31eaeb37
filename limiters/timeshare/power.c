/* Whose power it was, and what that makes of the charge rate of time (power.h). Measurements: docs/notes/limiter.md. */
#include "power.h"

#include <string.h>

#define MS UINT64_C(1000000)

/* How an H200 (driver 580) samples its power: every 20 ms, through a low-pass filter that forgets four fifths of what
 * was within a sample, and with time stamps that are late: all by 4 ms or, when the driver is busy, by more, and some
 * by more than others. Taken is what explains the samples best, of multiples of this. */
#define PERIOD_MS 20u
#define FORGOTTEN 0.0769 /* a millisecond: 1 - exp(-1 ms / 12.5 ms) */
#define LATE_MS   2u
#define MEMORY_MS 100u /* what is older says nothing of a sample */

/* What is left after POWER_EVERY_NS of what was learnt before: a program's needs change, and so do its neighbours. */
#define KEPT 0.6

/* Readings in a row with full clocks, after which launches are taken to be as fast as they get: those that are known
 * are of the last two seconds. */
#define FULL 8u

/* Weight of the belief that everybody's work draws the same: it decides while time slices are too alike to tell them apart,
 * and always where there is a mean alone. */
#define BELIEF      0.03
#define BELIEF_MEAN 1e4

/* Sum of squared activity below which our own draw is not known: 2 % of the time, or a second at 10 %. */
#define LEAST 0.1

static unsigned bin(uint64_t ms)
{
    return (unsigned)(ms % POWER_BINS);
}

/* Fitted to what programs had of the power they are given at the limit, and how much faster they ran in their time slices
 * than alone, on two H200s: 8192^3 bf16 products 1.23 and 1.080, 1.47 and 1.183; 2048^3 ones on four streams and
 * 16384^3 ones agree to two points. */
double power_slowdown(double wanted, double available)
{
    double more = wanted / available - 1;
    return more <= 0 ? 1 : 1 + 0.317 * more + 0.148 * more * more;
}

/* A busy neighbour would make the card look power-limited at rest, and a sleeping card unconstrained: between time slices an H200 drew
 * 0.17 to 0.185 of its limit. */
void power_begin(struct power *power, uint64_t now_ns, const struct power_reading *reading)
{
    uint32_t least = reading->limit_mw * UINT64_C(17) / 100, most = reading->limit_mw * UINT64_C(37) / 200;
    uint32_t idle_mw = reading->mean_mw < least ? least : reading->mean_mw > most ? most : reading->mean_mw;
    *power = (struct power){
        .idle_mw = idle_mw,
        .charge_rate = POWER_UNITY,
        .looked_ns = now_ns,
        .newest = now_ns / MS,
        .clock = POWER_UNITY,
    };
    power_unwatched(power, now_ns);
}

static void remember_until(struct power *power, uint64_t ms)
{
    if (ms > power->newest + POWER_BINS)
        power->newest = ms - POWER_BINS;
    while (power->newest < ms) {
        power->newest++;
        power->own[bin(power->newest)] = power->others[bin(power->newest)] = 0;
    }
}

void power_ran(struct power *power, uint64_t from_ns, uint64_t to_ns, bool own)
{
    remember_until(power, to_ns / MS);
    if (from_ns / MS + POWER_BINS <= power->newest)
        from_ns = (power->newest - POWER_BINS + 1) * MS;
    while (from_ns < to_ns) {
        uint64_t next = (from_ns / MS + 1) * MS, end = next < to_ns ? next : to_ns;
        uint16_t *filled = &(own ? power->own : power->others)[bin(from_ns / MS)];
        uint64_t sum = *filled + (end - from_ns) / 1000;
        *filled = sum < 1000 ? (uint16_t)sum : 1000;
        from_ns = end;
    }
}

void power_unwatched(struct power *power, uint64_t now_ns)
{
    power->sampled_ns = now_ns + MEMORY_MS * MS;
}

void power_forget(struct power *power)
{
    memset(power->fits, 0, sizeof power->fits);
}

bool power_due(const struct power *power, uint64_t now_ns)
{
    return now_ns - power->looked_ns >= POWER_EVERY_NS;
}

static void take(struct power_fit *fit, double own, double others, double above_idle, double weight)
{
    fit->oo += weight * own * own;
    fit->ot += weight * own * others;
    fit->tt += weight * others * others;
    fit->op += weight * own * above_idle;
    fit->tp += weight * others * above_idle;
    fit->pp += weight * above_idle * above_idle;
}

static double above_idle(const struct power *power, uint32_t mw)
{
    return mw > power->idle_mw ? mw - power->idle_mw : 0;
}

/* Samples are taken on a beat, but stamped when the driver came to it: the beat is where most stamps are. */
static uint64_t beat(const struct power_reading *reading)
{
    unsigned stamps[PERIOD_MS] = {0};
    for (unsigned i = 0; i < reading->count; i++)
        stamps[reading->samples[i].at_ns / MS % PERIOD_MS]++;
    unsigned best = 0;
    for (unsigned ms = 1; ms < PERIOD_MS; ms++)
        if (stamps[ms] > stamps[best])
            best = ms;
    return best;
}

/* Compare each new sample with what the filter would make of our activity and of the others', if it is late by so
 * much. */
static void take_samples(struct power *power, struct power_fit *fit, uint64_t late_ms,
                         const struct power_reading *reading)
{
    uint64_t first = power->newest > POWER_BINS ? power->newest - POWER_BINS + 1 : 0, ms = first, on = beat(reading);
    double own = 0, others = 0;
    for (unsigned i = 0; i < reading->count; i++) {
        uint64_t stamp = reading->samples[i].at_ns / MS;
        /* A stamp may be a little before the beat as well. */
        uint64_t at = (stamp + 2 - on) / PERIOD_MS * PERIOD_MS + on;
        if (reading->samples[i].at_ns <= power->sampled_ns || at < first + MEMORY_MS + late_ms || at >= power->newest)
            continue;
        for (; ms <= at - late_ms; ms++) {
            own += FORGOTTEN * (power->own[bin(ms)] / 1e3 - own);
            others += FORGOTTEN * (power->others[bin(ms)] / 1e3 - others);
        }
        take(fit, own, others, above_idle(power, reading->samples[i].mw), 1);
    }
}

/* A driver without samples has the last second's mean, which weighs as much as the samples of a look. */
static void take_mean(struct power *power, struct power_fit *fit, const struct power_reading *reading)
{
    if (power->newest * MS < power->sampled_ns + 1000 * MS)
        return;
    double own = 0, others = 0;
    for (uint64_t ms = power->newest - 1000; ms < power->newest; ms++) {
        own += power->own[bin(ms)] / 1e6;
        others += power->others[bin(ms)] / 1e6;
    }
    take(fit, own, others, above_idle(power, reading->mean_mw), (double)POWER_EVERY_NS / (PERIOD_MS * MS));
}

/* What we draw, by least squares for that and what they draw as two equations; and how much it leaves unexplained. */
static double drawn_by_us(const struct power_fit *fit, double belief, double *unexplained)
{
    double oo = fit->oo + belief, ot = fit->ot - belief, tt = fit->tt + belief, all = oo * tt - ot * ot;
    double ours = (fit->op * tt - fit->tp * ot) / all, theirs = (fit->tp * oo - fit->op * ot) / all;
    *unexplained = fit->pp - ours * fit->op - theirs * fit->tp;
    return ours;
}

/* What of its speed alone a unconstrained program has whose neighbours' power limit lowers the clocks. Alone its own would be full;
 * or, if it nearly draws what there is now that they are low, such that it drew that: power grows with the 2.7th power
 * of the clock, by which the slowdown above is what it is, too. Copies are not slowed down at all, resnet18 by the 0.8th
 * power of the clock: a program tells by its launches, once they are known at full clocks, and is believed as far as the
 * 1.5th power of the clock, which is told late: one warp's arithmetic beside large products made 0.87 of its launches
 * where the mean of what was told was 0.91. For one that does not tell, or never ran at full clocks, the root of
 * the clock is a point off for training and four for one warp's arithmetic. */
static double speed_left(const struct power *power, double rate, double drawn, double available)
{
    double fourth = __builtin_sqrt(__builtin_sqrt(drawn > 0 ? drawn / available : 0));
    double clock = power->clock / POWER_UNITY, alone = fourth * __builtin_sqrt(fourth);
    double speed = power->usual_rate > 0 ? rate / power->usual_rate : 0;
    if (speed == 0)
        return __builtin_sqrt(clock > alone ? clock : alone);
    double believed = clock * __builtin_sqrt(clock), least = believed > alone ? believed : alone;
    return speed < least ? least : speed > 1 ? 1 : speed;
}

void power_look(struct power *power, uint64_t now_ns, const struct power_reading *reading, double rate)
{
    double kept = KEPT;
    for (uint64_t at = power->looked_ns + 2 * POWER_EVERY_NS; at <= now_ns && kept > 1e-3; at += POWER_EVERY_NS)
        kept *= KEPT;
    power->looked_ns = now_ns;
    remember_until(power, now_ns / MS);
    power->clock = KEPT * power->clock + (1 - KEPT) * reading->clock;
    power->full = reading->clock == POWER_UNITY ? power->full + 1 : 0;
    if (power->full >= FULL && rate > 0)
        power->usual_rate = power->usual_rate > 0 ? KEPT * power->usual_rate + (1 - KEPT) * rate : rate;
    double belief = reading->count > 0 ? BELIEF : BELIEF_MEAN, drawn = 0, least = 0;
    for (unsigned d = 0; d < POWER_DELAYS; d++) {
        struct power_fit *fit = &power->fits[d];
        fit->oo *= kept, fit->ot *= kept, fit->tt *= kept, fit->op *= kept, fit->tp *= kept, fit->pp *= kept;
        if (reading->count > 0)
            take_samples(power, fit, d * LATE_MS, reading);
        else
            take_mean(power, fit, reading);
        double unexplained, ours = drawn_by_us(fit, belief, &unexplained);
        if (d == 0 || unexplained < least) {
            least = unexplained;
            drawn = ours;
        }
    }
    if (reading->count > 0 && reading->samples[reading->count - 1].at_ns > power->sampled_ns)
        power->sampled_ns = reading->samples[reading->count - 1].at_ns;
    /* A card that is held at its limit averages a little less: 679 to 690 W of 700. */
    double available = reading->limit_mw * 0.98 - power->idle_mw;
    if (power->fits[0].oo < LEAST || available <= 0)
        return;
    double charge_rate = power_slowdown(drawn, available) * POWER_UNITY;
    if (drawn < available)
        charge_rate = speed_left(power, rate, drawn, available) * POWER_UNITY;
    power->charge_rate = charge_rate > POWER_MOST ? POWER_MOST : (uint32_t)charge_rate;
}
