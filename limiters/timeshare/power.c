/* Works out whose power it was, and the charge rate of our time (power.h). Measurements: docs/notes/limiter.md. */
#include "power.h"

#include "engine.h"

#include <string.h>

/* What is left after POWER_EVERY_NS of what was learnt before: a program's needs change, and so do its neighbours'. */
#define KEPT 0.6

/* Readings in a row with full clocks, after which launches are taken to be as fast as they get: those that are known
 * are of the last two seconds. */
#define FULL 8u

/* Weight of the belief that everybody's work draws the same. It decides while time slices are too alike to tell tenants
 * apart, and always where the driver keeps no samples. */
#define BELIEF      0.03
#define BELIEF_MEAN 1e4

/* Sum of squared activity below which our own draw is not known: 2 % of the time, or a second at 10 %. */
#define LEAST 0.1

static unsigned bin(uint64_t ms)
{
    return (unsigned)(ms % POWER_BINS);
}

/* x to the power of so many eighths. A library that glibc 2.17 loads has no pow() without libm; a square root is an
 * instruction. */
static double to_eighths(double x, uint32_t eighths)
{
    double half = __builtin_sqrt(x), fourth = __builtin_sqrt(half), result = 1;
    for (; eighths >= 8; eighths -= 8)
        result *= x;
    if (eighths & 4)
        result *= half;
    if (eighths & 2)
        result *= fourth;
    if (eighths & 1)
        result *= __builtin_sqrt(fourth);
    return result;
}

double power_slowdown(const struct power_model *model, double wanted_mw, double available_mw)
{
    double more = wanted_mw / available_mw - 1;
    return more <= 0 ? 1 : 1 + model->slowdown[0] * more + model->slowdown[1] * more * more;
}

void power_begin(struct power *power, const struct power_model *model, uint64_t now_ns,
                 const struct power_reading *reading)
{
    uint32_t least = (uint32_t)(reading->limit_mw * (uint64_t)model->idle_least / 1000);
    uint32_t most = (uint32_t)(reading->limit_mw * (uint64_t)model->idle_most / 1000);
    uint32_t idle_mw = reading->mean_mw < least ? least : reading->mean_mw > most ? most : reading->mean_mw;
    *power = (struct power){
        .model = model,
        .idle_mw = idle_mw,
        .charge_rate = POWER_UNITY,
        .looked_at_ns = now_ns,
        .newest_ms = now_ns / MS,
        .mean_clock_units = POWER_UNITY,
    };
    power_unwatched(power, now_ns);
}

static void remember_until(struct power *power, uint64_t ms)
{
    if (ms > power->newest_ms + POWER_BINS)
        power->newest_ms = ms - POWER_BINS;
    while (power->newest_ms < ms) {
        power->newest_ms++;
        power->own_us[bin(power->newest_ms)] = power->others_us[bin(power->newest_ms)] = 0;
    }
}

void power_ran(struct power *power, uint64_t from_ns, uint64_t to_ns, bool own)
{
    if (own)
        power->worked_ns += (double)(to_ns - from_ns);
    remember_until(power, to_ns / MS);
    if (from_ns / MS + POWER_BINS <= power->newest_ms)
        from_ns = (power->newest_ms - POWER_BINS + 1) * MS;
    while (from_ns < to_ns) {
        uint64_t next = (from_ns / MS + 1) * MS, end = next < to_ns ? next : to_ns;
        uint16_t *filled = &(own ? power->own_us : power->others_us)[bin(from_ns / MS)];
        uint64_t sum = *filled + (end - from_ns) / 1000;
        *filled = sum < 1000 ? (uint16_t)sum : 1000;
        from_ns = end;
    }
}

void power_rested(struct power *power, uint64_t rest_ns)
{
    power->rested_ns += (double)rest_ns;
}

void power_unwatched(struct power *power, uint64_t now_ns)
{
    power->sampled_until_ns = now_ns + power->model->memory_ms * MS;
}

void power_forget(struct power *power)
{
    memset(power->fits, 0, sizeof power->fits);
}

bool power_due(const struct power *power, uint64_t now_ns)
{
    return now_ns - power->looked_at_ns >= POWER_EVERY_NS;
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

/* Samples are periodic, but their timestamps are late by a varying time. Their phase (timestamp modulo period, in ms)
 * is taken as the most frequent one. */
static uint64_t sampling_phase_ms(const struct power_reading *reading, uint32_t period_ms)
{
    unsigned samples_at_phase[POWER_PERIOD_MAX_MS] = {0};
    for (unsigned i = 0; i < reading->sample_count; i++)
        samples_at_phase[reading->samples[i].at_ns / MS % period_ms]++;
    unsigned phase_ms = 0;
    for (unsigned ms = 1; ms < period_ms; ms++)
        if (samples_at_phase[ms] > samples_at_phase[phase_ms])
            phase_ms = ms;
    return phase_ms;
}

/* Compare each new sample with what the filter would make of our activity and of the others', if its stamp is late by
 * so much. */
static void take_samples(struct power *power, struct power_fit *fit, uint64_t late_ms,
                         const struct power_reading *reading)
{
    const struct power_model *model = power->model;
    uint64_t first = power->newest_ms > POWER_BINS ? power->newest_ms - POWER_BINS + 1 : 0, ms = first;
    uint64_t phase_ms = sampling_phase_ms(reading, model->period_ms);
    double own = 0, others = 0;
    for (unsigned i = 0; i < reading->sample_count; i++) {
        uint64_t stamp_ms = reading->samples[i].at_ns / MS;
        /* A timestamp may be a little early as well. */
        uint64_t at_ms = (stamp_ms + 2 - phase_ms) / model->period_ms * model->period_ms + phase_ms;
        if (reading->samples[i].at_ns <= power->sampled_until_ns || at_ms < first + model->memory_ms + late_ms ||
            at_ms >= power->newest_ms)
            continue;
        for (; ms <= at_ms - late_ms; ms++) {
            own += model->forgotten * (power->own_us[bin(ms)] / 1e3 - own);
            others += model->forgotten * (power->others_us[bin(ms)] / 1e3 - others);
        }
        take(fit, own, others, above_idle(power, reading->samples[i].mw), 1);
    }
}

/* A driver without samples has the last second's mean, which weighs as much as the samples of a look. */
static void take_mean(struct power *power, struct power_fit *fit, const struct power_reading *reading)
{
    if (power->newest_ms * MS < power->sampled_until_ns + 1000 * MS)
        return;
    double own = 0, others = 0;
    for (uint64_t ms = power->newest_ms - 1000; ms < power->newest_ms; ms++) {
        own += power->own_us[bin(ms)] / 1e6;
        others += power->others_us[bin(ms)] / 1e6;
    }
    take(fit, own, others, above_idle(power, reading->mean_mw),
         (double)POWER_EVERY_NS / (double)(power->model->period_ms * MS));
}

/* What we draw, by least squares for that and what they draw as two equations; and how much it leaves unexplained. */
static double drawn_by_us(const struct power_fit *fit, double belief, double *unexplained)
{
    double oo = fit->oo + belief, ot = fit->ot - belief, tt = fit->tt + belief, all = oo * tt - ot * ot;
    double ours = (fit->op * tt - fit->tp * ot) / all, theirs = (fit->tp * oo - fit->op * ot) / all;
    *unexplained = fit->pp - ours * fit->op - theirs * fit->tp;
    return ours;
}

/* The part of its speed alone that an unconstrained program has while its neighbours hold the clocks down.
 *
 * Alone, its own clocks would be full; or, if it nearly draws what there is now that they are low, such that it drew
 * that. How much lowered clocks cost a program is its own: nothing a program that copies, a program of one warp's
 * arithmetic more than in proportion. Its launches tell, once their rate at full clocks is known; they are believed
 * down to the model's `least` power of the clock, because the driver's clock lags behind. Where they do not tell, the
 * model's `unknown` power is a middle: on an H200 a point off for training, and four for one warp's arithmetic. */
static double speed_left(const struct power *power, double launches_per_ms, double drawn, double available)
{
    const struct power_model *model = power->model;
    double clock = power->mean_clock_units / POWER_UNITY;
    double alone = to_eighths(drawn > 0 ? drawn / available : 0, model->at_limit);
    double speed = power->usual_launches_per_ms > 0 ? launches_per_ms / power->usual_launches_per_ms : 0;
    if (speed == 0)
        return to_eighths(clock > alone ? clock : alone, model->unknown);
    double believed = to_eighths(clock, model->least), least = believed > alone ? believed : alone;
    return speed < least ? least : speed > 1 ? 1 : speed;
}

/* What the driver's clocks and our launches say of our speed at full clocks. */
static void look_at_clock(struct power *power, uint32_t clock, double launches_per_ms)
{
    power->mean_clock_units = KEPT * power->mean_clock_units + (1 - KEPT) * clock;
    power->full_clock_readings = clock == POWER_UNITY ? power->full_clock_readings + 1 : 0;
    if (power->full_clock_readings >= FULL && launches_per_ms > 0)
        power->usual_launches_per_ms = power->usual_launches_per_ms > 0
                                           ? KEPT * power->usual_launches_per_ms + (1 - KEPT) * launches_per_ms
                                           : launches_per_ms;
}

/* What we draw, by the delay that leaves least unexplained; `kept` of what was learnt before counts. */
static double look_at_power(struct power *power, const struct power_reading *reading, double kept)
{
    double belief = reading->sample_count > 0 ? BELIEF : BELIEF_MEAN, drawn = 0, least = 0;
    for (unsigned d = 0; d < POWER_DELAYS; d++) {
        struct power_fit *fit = &power->fits[d];
        fit->oo *= kept, fit->ot *= kept, fit->tt *= kept, fit->op *= kept, fit->tp *= kept, fit->pp *= kept;
        if (reading->sample_count > 0)
            take_samples(power, fit, d * power->model->late_step_ms, reading);
        else
            take_mean(power, fit, reading);
        double unexplained, ours = drawn_by_us(fit, belief, &unexplained);
        if (d == 0 || unexplained < least) {
            least = unexplained;
            drawn = ours;
        }
    }
    /* The driver stamps by a clock that may be set back: what was stamped before is then of later than now. */
    uint64_t last_ns = reading->sample_count > 0 ? reading->samples[reading->sample_count - 1].at_ns : 0;
    last_ns = last_ns < power->looked_at_ns ? last_ns : power->looked_at_ns;
    if (last_ns > power->sampled_until_ns)
        power->sampled_until_ns = last_ns;
    return drawn;
}

void power_look(struct power *power, uint64_t now_ns, const struct power_reading *reading, double launches_per_ms)
{
    if (power->idle_mw == 0)
        return;
    double kept = KEPT;
    for (uint64_t at = power->looked_at_ns + 2 * POWER_EVERY_NS; at <= now_ns && kept > 1e-3; at += POWER_EVERY_NS)
        kept *= KEPT;
    power->looked_at_ns = now_ns;
    remember_until(power, now_ns / MS);
    look_at_clock(power, reading->clock_units, launches_per_ms);
    double wants_ns = power->worked_ns + power->rested_ns, works = wants_ns > 0 ? power->worked_ns / wants_ns : 1;
    power->worked_ns *= kept;
    power->rested_ns *= kept;
    /* On average of the time, as the card's limit is: it would rest without a share, too. */
    double drawn = works * look_at_power(power, reading, kept);
    double available = reading->limit_mw * power->model->held - power->idle_mw;
    if (power->fits[0].oo < LEAST || available <= 0)
        return;
    double charge_rate = power_slowdown(power->model, drawn, available) * POWER_UNITY;
    if (drawn < available)
        charge_rate = speed_left(power, launches_per_ms, drawn, available) * POWER_UNITY;
    power->charge_rate = charge_rate > POWER_MOST ? POWER_MOST : (uint32_t)charge_rate;
}
