/* What is known of a light program, which leaves the device idle between its launches: how long the device works for
 * one of them, and so how much of the device the program needs (docs/decisions/busy-time.md).
 *
 * It is learnt from streams that are held now and then (hold.h).
 */
#ifndef HETERO_LIGHT_H
#define HETERO_LIGHT_H

#include "hold.h"

#include "../core/fault.h"

#include <string.h>

/* A launch is known from so many holds; the mean is of about so many of the last. */
#define LIGHT_HOLDS  12u
#define LIGHT_FADING 1024u

/* A launch is charged so many times as long at most, for those before it; and at once so much at most. */
#define LIGHT_RECKONED_MOST    4u
#define LIGHT_RECKONED_MOST_NS (100 * MS)

/* With a larger standard error it is held more often. */
#define LIGHT_ERROR  0.03
#define LIGHT_COARSE 0.06

/* What needs more of the device than this while it runs takes time slices. Beside another the driver gives each context
 * time slices of its own, and what needs most of the device would get half of it. Nobody is kept waiting by one that is
 * alone, so it is charged for what it needs, and not for its time slices, up to where what is known is too inexact. */
#define LIGHT_MOST_PERCENT  60u
#define LIGHT_ALONE_PERCENT 85u

/* A program launches in bursts if LIGHT_UNBEGUN holds in a row were begun by no launch: it waits for the device after
 * each burst and then works on its host, so a look finds launches after all of a burst were made. Then a hold is asked
 * for before a burst, and is of all of it: the mean of a part is wrong where launches are of unlike lengths. After
 * LIGHT_CUT holds in a row that were of a part of a burst, that is not tried again. */
#define LIGHT_UNBEGUN 32u
#define LIGHT_CUT     8u

/* One that needs all of the device has what its time slices are, and these are charged by its power, too (power.h). */
#define LIGHT_ALL_PERCENT 100u

/* With so many fences in flight, one behind the other, the device surely works; how often that is so is the mean of so
 * many looks. */
#define LIGHT_QUEUED 2u
#define LIGHT_LOOKS  64u

/* What a program needs is not learnt from less than this, if that is known; and from so much at once beside others,
 * where only more than is known counts: of short times that would be the most, where the mean is asked for. */
#define LIGHT_SHORT_NS (3 * MS / 2)
#define LIGHT_LONG_NS  (32 * MS)

/* Two holds in a row that are so much longer than expected are of another program: so many times as long, and longer by
 * so many times what holds differ by. */
#define LIGHT_ODD_TIMES      4u
#define LIGHT_ODD_DEVIATIONS 3u
#define LIGHT_ODD_NS         (200 * US)

/* A kernel that is longer than this is seen by looks, too. It is rare where it is in fewer of the holds than a part; a
 * program of which that is so is charged for it by looks, and for the others by their number. */
#define LIGHT_SEEN_NS    MS
#define LIGHT_RARE_PART  8u
#define LIGHT_RARE_HOLDS 4u

/* What was charged for rare kernels by all holds is taken off what looks see; so much at most. */
#define LIGHT_AHEAD_NS (20 * MS)

/* The least pause between two holds: one that failed at once is not tried again at once. Shorter while nothing is
 * known. */
#define LIGHT_PAUSE_NS   (2 * MS)
#define LIGHT_UNKNOWN_NS (MS / 2)

/* A program can be short while its stream is held. So once launches are known one hold in LIGHT_TIMED_PART does not
 * stall, and times one where it runs anyway (hold.h). A program is doubted where LIGHT_TIMED of these, of about
 * LIGHT_TIMED_FADING of the last, took more than LIGHT_DOUBTED_TIMES as long as holds say, by three standard errors:
 * less than twice may be kernels of its other streams. It takes time slices until they do so no longer. Before that is
 * sure, or LIGHT_TIMED_MOST were timed, every other hold is such a one. Beside others, where one had a time slice at
 * LIGHT_BESIDE of the looks of late, launches are timed in a time slice of the program's own, LIGHT_UNSURE_NS apart:
 * LIGHT_UNVOUCHED_NS after it began to run without one, and LIGHT_VOUCHED_NS after the last that were. */
#define LIGHT_TIMED         8u
#define LIGHT_TIMED_MOST    32u
#define LIGHT_TIMED_FADING  256u
#define LIGHT_TIMED_PART    16u
#define LIGHT_DOUBTED_TIMES 2u
#define LIGHT_UNSURE_NS     (MS / 8)
#define LIGHT_UNVOUCHED_NS  (1000 * MS)
#define LIGHT_VOUCHED_NS    (16000 * MS)
#define LIGHT_BESIDE        0.2

/* Graphs have holds of their own: one is often a hundred times as long as another launch, and a mean of both is off by
 * a tenth after a thousand holds. Graphs are known after LIGHT_GRAPHS holds. What all of them take on average is of
 * about LIGHT_GRAPH_FADING holds. Which graph is held is drawn among the next LIGHT_GRAPH_SPREAD: an engine launches a
 * long graph every few milliseconds, and for a prefill twenty short ones in a row, so the next graph after a random
 * moment is mostly a long one. LIGHT_GRAPH_NS lies between two such holds. After LIGHT_GRAPHLESS launches without a
 * graph a program is taken to launch none. */
#define LIGHT_GRAPHS        4u
#define LIGHT_GRAPH_FADING  64u
#define LIGHT_GRAPH_SPREAD  64u
#define LIGHT_UNKNOWN_TRIES 64u /* holds asked for, on average, until an unknown kind is given up */
#define LIGHT_GRAPH_HOLDS   16u /* the mean of one kind is of about so many */
#define LIGHT_GRAPHLESS     4096
#define LIGHT_GRAPH_NS      (20 * MS)

/* Where so many holds in a row told nothing, holds of the other kind are tried: of several launches, which tell nothing
 * of a program that launches into one stream and then another, or waits for each launch; or of a single one, which are
 * less exact. With LIGHT_MISSED in a row what was known is no longer believed. */
#define LIGHT_TRIES  3u
#define LIGHT_MISSED 12u

/* How long the driver lets a context run while others have work, too. */
#define LIGHT_SERVES_NS (2 * MS)

/* A program's steps count as long where so many of the looks find work behind work. */
#define LIGHT_SHORT_PERCENT 50u

/* What is in flight at a look and is not done so long after what small kernels of it take, and half of that besides,
 * has a long one in it; beside others so much longer for each of them, because the driver has served each by then (for
 * 2 ms, and the way there and back). */
#define LIGHT_STOOD_NS      (200 * US)
#define LIGHT_STOOD_EACH_NS (5 * MS / 2)

/* For so long it is added up what long kernels took beyond what holds say. A program is another one where that is so
 * many times what holds say and a part of the time besides. Beside others a smaller part of the time is enough: each
 * long kernel there costs all of them what the driver loses by going over to another. Then it takes time slices for as
 * long as one that is not served. */
#define LIGHT_STOOD_WINDOW_NS (200 * MS)
#define LIGHT_STOOD_TIMES     16u
#define LIGHT_STOOD_PART      10u
#define LIGHT_STOOD_BESIDE    20u

/* Beside others it is looked for so long whether the device serves it. If not, it takes time slices for so long, and
 * twice as long each time. */
#define LIGHT_SERVED_NS        (100 * MS)
#define LIGHT_UNSERVED_NS      (1000 * MS)
#define LIGHT_UNSERVED_MOST_NS (16000 * MS)

/* Which launch is held is drawn among as many as were made in the pause before, so that all are met alike, whatever the
 * program does in between: a program of PyTorch launches two kernels in a row, the first of which is next to nothing,
 * and waits. LIGHT_SPREAD_MAX_LAUNCHES is the largest range of the draw, LIGHT_SPREAD_GRAPH_LAUNCHES that of a program
 * which launches graphs: its steps have fewer other launches, and half of the chosen ones are missed. The hold is
 * requested once the chosen launch is at most LIGHT_LEAD_LAUNCHES beyond those that are expected before the next poll.
 */
#define LIGHT_SPREAD_MAX_LAUNCHES   8192u
#define LIGHT_SPREAD_GRAPH_LAUNCHES 512u
#define LIGHT_LEAD_LAUNCHES         16u

/* Where nothing was launched since the last poll, a hold is requested at one poll in so many. */
#define LIGHT_IDLE_POLL_INTERVAL 4u

/* Beside others a hold of more than LIGHT_CERTAIN_NS may have waited for the driver's turns of the others: on an H100
 * an engine was charged up to 2.5 times what it was charged alone (2026-11-28). Such a graph is timed in a time slice
 * of its own, each LIGHT_MEASURED_NS, and again LIGHT_RETRIED_NS after a slice that told nothing. */
#define LIGHT_CERTAIN_NS  (500 * US)
#define LIGHT_MEASURED_NS (2000 * MS)
#define LIGHT_RETRIED_NS  (50 * MS)

/* How many launches were made since the start, each wraps around. */
struct light_count {
    uint32_t launches, graphs;
    uint64_t graphs_ns; /* what those graphs take */
};

/* How many were made. `kernels` may be -1: a graph is counted as a launch first, and as a graph a moment later. */
struct light_launches {
    int32_t kernels; /* and copies and fills: all that are no graphs */
    uint32_t graphs;
    uint64_t graphs_ns;
};

static inline struct light_launches light_between(struct light_count then, struct light_count now)
{
    uint32_t graphs = now.graphs - then.graphs;
    return (struct light_launches){.kernels = (int32_t)(now.launches - then.launches - graphs),
                                   .graphs = graphs,
                                   .graphs_ns = now.graphs_ns - then.graphs_ns};
}

struct light_hold {
    double launches, ns; /* of the device's work, without what lies between launches */
};

/* In a window: what holds say, and what long kernels took besides. */
struct light_stood {
    uint64_t ns, stood_ns, charged_ns;
    bool beside; /* some of it beside others */
};

/* Over the last holds, the older the fainter. */
struct light_sums {
    double launches, ns, ns_ns, ns_launches, launches_launches;
    unsigned holds;
    uint64_t launch_ns;  /* how long the device works for a launch, and the error of that; 0: not known yet */
    uint64_t differs_ns; /* the standard deviation of a hold */
    double error;        /* of that mean, as a part of it */
};

/* By how much launches that were timed where they ran took longer than is believed, the older the fainter. */
struct light_timed {
    double launches, excess_ns, squares;
    bool doubted, sure;   /* that they took longer, and that they did not */
    uint64_t vouch_at_ns; /* when they are next to be timed while nobody else has work in flight; 0: never yet */
    double beside;        /* part of the looks of late at which another had a time slice */
};

/* So many launches were charged that much by number, the older the fainter; and `small` more without what looks see. */
struct light_reckoned {
    double launches, small, graphs_ns, ns;
};

/* One kind of graphs. */
struct light_graph {
    uint32_t seen;  /* launched by the last look */
    unsigned holds; /* of it, as many as the mean is of */
    double ns;
};

/* The graphs that a program launches: each kind is timed by itself, in holds of a single one. */
struct light_graphs {
    struct light_sums all; /* of all kinds */
    struct light_graph kinds[HOLD_GRAPH_KINDS];
    bool are_launched;                /* the program launches graphs */
    bool has_unknown_kind;            /* at the last poll, some were of a kind that no hold was of */
    uint32_t graphs_at_poll;          /* graphs launched by the last poll */
    uint64_t graphs_at_poll_ns;       /* the device time of those graphs */
    struct light_count count_at_poll; /* all launches by the last poll */
    unsigned consecutive_count;       /* holds of graphs in a row between which nothing but graphs was launched */
    int32_t kernels_since_graph;      /* launches since the last graph */
    int32_t kernels_at_hold;          /* launches that are no graphs, by the last hold of a graph */
    uint32_t peak_graphs_per_poll;    /* decaying peak of the graphs between two polls */
    double launch_fraction;           /* the fraction of recent launches that are graphs */

    /* Holds of them. */
    bool pending_is_of_graph;          /* the pending hold is of a graph */
    uint64_t not_before_at_ns;         /* the next hold of a graph is not requested before */
    uint64_t unknown_not_before_at_ns; /* the next hold of an unknown kind is not requested before */
    bool is_turn;                      /* the next hold is of graphs, if one of them is due */
    bool sample_chosen;                /* the graph that is held next was chosen */
    uint32_t sample_graph_index;       /* its index among all graphs: so many are launched before it */
    uint32_t graphs_at_hold;           /* graphs launched by the last hold of one */
};

/* Which launches are held, and how. */
struct light_holds {
    bool unsupported;                /* the driver cannot hold a stream */
    bool is_pending;                 /* the device has not passed the last hold yet */
    bool pending_is_unstalled;       /* the pending hold does not stall */
    bool of_single_launch;           /* each hold is of a single launch */
    bool of_bursts;                  /* each hold is of a whole burst */
    uint64_t not_before_at_ns;       /* the next hold is not requested before */
    uint64_t empty_hold_ns;          /* what a hold without a launch takes; 0: not known yet */
    bool sample_chosen;              /* the launch that is held next was chosen, at random */
    uint32_t sample_launch_index;    /* its index among all launches: so many are made before it */
    uint32_t launches_at_hold;       /* launches made by the last hold */
    uint32_t launches_at_poll;       /* launches made by the last poll */
    uint32_t peak_launches_per_poll; /* decaying peak of the launches between two polls */
    unsigned missed_count;           /* holds in a row that told nothing */
    unsigned failed_count;           /* holds in a row that began and told nothing, of either kind */
    unsigned unbegun_count;          /* requests in a row for which no launch came */
    unsigned cut_burst_count;        /* holds in a row that were of a part of a burst */
    bool odd_hold_pending;           /* the last hold was far longer than expected, and is not in the sums yet */
    struct light_hold odd_hold;      /* that hold */
};

/* What was charged in time slices that nobody else wanted, before launches were known, for so many. */
struct light_unsettled {
    uint64_t charged_ns;
    struct light_launches charged;
    bool settled;         /* until this */
    uint64_t refunded_ns; /* of it, until it is known well */
};

struct light {
    struct light_sums all;
    struct light_sums small; /* without holds that met a kernel which looks see */
    struct light_graphs graphs;
    struct light_holds holds;
    struct light_timed timed;
    struct light_unsettled unsettled;
    struct light_reckoned reckoned;
    uint64_t measure_at_ns;                  /* it is not timed before, while nobody else has work in flight */
    double needed_fraction;                  /* the fraction of the device that it keeps from others while it runs */
    uint64_t unlearnt_ns;                    /* time it ran beside others that was not learnt from yet */
    struct light_launches unlearnt_launches; /* launches made in that time */
    unsigned poll_count;                     /* polls while nobody else had work in flight, LIGHT_LOOKS at most */
    double queued_fraction;                  /* the fraction of those polls that found work behind work */
    struct light_stood stood;
    uint64_t unserved_ns;        /* how long it takes time slices because others leave it too little */
    uint64_t stood_for_ns;       /* how long it takes time slices because of its long kernels */
    uint64_t slices_until_at_ns; /* when it stops taking time slices for either reason */
    uint64_t rng;
};

static inline bool light_known(const struct light *light)
{
    bool kernels = light->all.holds >= LIGHT_HOLDS && light->all.launches > 0;
    if (!light->graphs.are_launched)
        return kernels;
    return light->graphs.all.holds >= LIGHT_GRAPHS && (kernels || light->graphs.consecutive_count >= LIGHT_GRAPHS);
}

/* Whether it waits for the device after each step, and works elsewhere then, as a serving engine does. */
static inline bool light_in_steps(const struct light *light)
{
    return light->holds.of_bursts || light->graphs.are_launched;
}

/* What is charged by the number of launches: where kernels that looks see are rare, those are charged by looks. */
static inline const struct light_sums *light_counted(const struct light *light)
{
    bool rare = light->small.launches * LIGHT_RARE_PART > light->all.launches * (LIGHT_RARE_PART - 1);
    return rare ? &light->small : &light->all;
}

static inline double light_mean(const struct light_sums *sums)
{
    return sums->launches > 0 ? sums->ns / sums->launches : 0;
}

/* The standard error of what is known, as a part of it. */
static inline double light_error(const struct light *light)
{
    const struct light_sums *kernels = light_counted(light);
    if (!light->graphs.are_launched)
        return kernels->error;
    double part = light->graphs.launch_fraction, kernels_ns = (1 - part) * light_mean(kernels);
    return kernels_ns * kernels->error /
           (kernels_ns + part * light_mean(&light->graphs.all)); /* graphs of a kind are alike */
}

/* Whether it may need more than a light program: few holds of launches that differ tell little. One that runs as such
 * goes on as long as that is likely: to go over and back again and again costs it and others more. */
static inline bool light_heavy(const struct light *light, bool alone, bool runs)
{
    double most = light->needed_fraction * (1 + (runs && !alone ? 1 : 3) * light_error(light)),
           need = most > light->queued_fraction ? most : light->queued_fraction;
    return light->needed_fraction == 0 || light->timed.doubted ||
           need * 100 >= (alone || light_in_steps(light) ? LIGHT_ALONE_PERCENT : LIGHT_MOST_PERCENT);
}

/* Whether what it needs is less than all of the device, and known so well that it may be charged for that alone. Work
 * that waits behind work is surely all of it. */
static inline bool light_exact(const struct light *light)
{
    return !light->timed.doubted && light_error(light) < LIGHT_ERROR && light->poll_count >= LIGHT_LOOKS &&
           light->queued_fraction * 100 < LIGHT_ALONE_PERCENT && light->needed_fraction * 100 < LIGHT_ALL_PERCENT;
}

/* It was looked at while nobody else had work in flight. */
static inline void light_queue(struct light *light, uint32_t fences)
{
    light->poll_count += light->poll_count < LIGHT_LOOKS;
    light->queued_fraction += ((fences >= LIGHT_QUEUED) - light->queued_fraction) / light->poll_count;
}

/* What was found tells nothing of it. */
static inline void light_unqueue(struct light *light)
{
    light->poll_count = 0;
    light->queued_fraction = 0;
}

/* Whether work has waited behind work at nearly all of the last looks: then holds have nothing to tell. */
static inline bool light_queues(const struct light *light)
{
    return light->poll_count >= LIGHT_LOOKS && light->queued_fraction * 100 >= LIGHT_ALONE_PERCENT;
}

/* Whether the device works for it no longer at a time than the driver lets a context run. */
static inline bool light_is_short(const struct light *light)
{
    return light->queued_fraction * 100 < LIGHT_SHORT_PERCENT && light_mean(&light->graphs.all) < LIGHT_SERVES_NS;
}

/* Whether it surely needs most of the device: it loses what that is idle for while it is held. */
static inline bool light_surely_heavy(const struct light *light)
{
    double least = light_known(light) ? light->needed_fraction * (1 - 2 * light_error(light)) : 0;
    return (least > light->queued_fraction ? least : light->queued_fraction) * 100 >= LIGHT_ALONE_PERCENT;
}

/* How many times as long as a hold is the pause after it: one time in a hundred is held, and more while little is
 * known. A program that surely needs most of the device is held seldom, and so is one of which holds tell nothing. */
static inline unsigned light_pause(const struct light *light)
{
    unsigned missed = light->holds.missed_count < 9 ? light->holds.missed_count : 9;
    if (light_surely_heavy(light))
        return light->queued_fraction * 100 < LIGHT_ALONE_PERCENT && light->all.holds < 64 ? 20u << missed : 400;
    if (!light_known(light))
        return 2u << missed;
    if (light->all.error > LIGHT_COARSE)
        return 8u << missed;
    return light->all.holds < 64 || light_counted(light)->error > LIGHT_ERROR ? 20u << missed : 100;
}

/* How many launches a hold may have: what it lets through overruns a time slice. */
static inline uint32_t light_most(const struct light *light)
{
    uint64_t launch_ns = light_counted(light)->launch_ns, most = launch_ns == 0 ? 1 : HOLD_MOST_NS / launch_ns;
    return most < 1 ? 1 : most < HOLD_LAUNCHES ? (uint32_t)most : HOLD_LAUNCHES;
}

/* How long the device works for so many launches. */
static inline uint64_t light_takes(const struct light *light, struct light_launches made)
{
    uint64_t kernels = made.kernels > 0 ? (uint64_t)made.kernels : 0;
    return light_counted(light)->launch_ns * kernels + made.graphs_ns;
}

/* What is charged for so many launches, `most_ns` at most. What holds say grows more exact, so all launches of late are
 * charged anew: those that were charged too little, because no hold had met a long kernel yet, and those that bore the
 * error of few holds. */
static inline uint64_t light_reckon(struct light *light, struct light_launches made, uint64_t most_ns)
{
    struct light_reckoned *reckoned = &light->reckoned;
    const struct light_sums *all = &light->all, *small = light->small.holds > 0 ? &light->small : all;
    *(light_counted(light) == all ? &reckoned->launches : &reckoned->small) += made.kernels;
    reckoned->graphs_ns += (double)made.graphs_ns;
    double due_ns = reckoned->launches * (double)all->launch_ns + reckoned->small * (double)small->launch_ns;
    due_ns += reckoned->graphs_ns;
    due_ns -= reckoned->ns;
    due_ns = due_ns < 0 ? 0 : due_ns < (double)most_ns ? due_ns : (double)most_ns;
    reckoned->ns += due_ns;
    return (uint64_t)due_ns;
}

/* What lies between two kernels in a row. Measured on an H100 (2026-11-25): 0.93 us, and 2.88 us from one event to the
 * next in a stream, which is what a hold without a launch takes. Copies have none. */
static inline uint64_t light_gap(const struct light *light)
{
    return light->holds.empty_hold_ns / 3;
}

/* How long others cannot have it for them, on average: between two launches in a row it is nobody else's, either. */
static inline uint64_t light_keeps(const struct light *light, struct light_launches made)
{
    uint64_t kernels = made.kernels > 0 ? (uint64_t)made.kernels : 0;
    double kernel_ns = light_mean(light_counted(light));
    return (kernel_ns > 0 ? ((uint64_t)kernel_ns + light_gap(light)) * kernels : 0) + made.graphs_ns;
}

/* How much longer by all holds than by those that met no kernel which looks see. */
static inline uint64_t light_longer(const struct light *light, int32_t launches)
{
    const struct light_sums *all = &light->all, *small = &light->small;
    double more_ns = small->launches > 0 ? all->ns / all->launches - small->ns / small->launches : 0;
    return more_ns > 0 && launches > 0 ? (uint64_t)(more_ns * launches) : 0;
}

/* So much of it is not charged by their number, where more than a few met rare kernels; and so much is. */
static inline uint64_t light_keeps_more(const struct light *light, int32_t launches)
{
    const struct light_sums *all = &light->all, *counted = light_counted(light);
    return counted == all || all->holds - counted->holds < LIGHT_RARE_HOLDS ? 0 : light_longer(light, launches);
}

static inline uint64_t light_has_more(const struct light *light, int32_t launches)
{
    return light_counted(light) == &light->all ? light_longer(light, launches) : 0;
}

/* So many launches were made in `ns` in which they could be. What is short tells of nothing but its end; beside others
 * a program may launch less than it would. */
static inline void light_ran(struct light *light, struct light_launches made, uint64_t ns, bool only)
{
    if (!light_known(light) || ns <= (light->needed_fraction > 0 ? LIGHT_SHORT_NS : 0))
        return;
    if ((!only || light->graphs.are_launched) && light->needed_fraction > 0) {
        light->unlearnt_ns += ns;
        light->unlearnt_launches.kernels += made.kernels;
        light->unlearnt_launches.graphs_ns += made.graphs_ns;
        if (light->unlearnt_ns < LIGHT_LONG_NS)
            return;
        ns = light->unlearnt_ns;
        made = light->unlearnt_launches;
    }
    light->unlearnt_ns = 0;
    light->unlearnt_launches = (struct light_launches){0};
    double kept = (double)light_keeps(light, made) / (double)ns;
    if (only || kept > light->needed_fraction)
        light->needed_fraction += (kept - light->needed_fraction) / (light->needed_fraction > 0 ? 4 : 1);
}

/* Whether what holds say is of another program than the one that was looked at. Holds of bursts miss no long kernel;
 * what stands there is a burst of many launches, as an engine's prefill. */
static inline bool light_contradicts(const struct light *light)
{
    const struct light_stood *stood = &light->stood;
    bool beside = !light_in_steps(light) && stood->beside &&
                  stood->stood_ns > LIGHT_STOOD_WINDOW_NS / LIGHT_STOOD_BESIDE;
    bool over = stood->ns >= LIGHT_STOOD_WINDOW_NS;
    return beside || (over && stood->stood_ns > LIGHT_STOOD_TIMES * stood->charged_ns + stood->ns / LIGHT_STOOD_PART);
}

/* It takes time slices for a second, and each time that follows for twice as long. */
static inline void light_distrust(struct light *light, uint64_t *for_ns, uint64_t now)
{
    uint64_t twice_ns = *for_ns < LIGHT_UNSERVED_NS / 2 ? LIGHT_UNSERVED_NS : 2 * *for_ns;
    *for_ns = twice_ns < LIGHT_UNSERVED_MOST_NS ? twice_ns : LIGHT_UNSERVED_MOST_NS;
    light->slices_until_at_ns = now + *for_ns;
}

/* Because of its long kernels. Whoever had none for as long as it took time slices for the last ones begins anew. */
static inline void light_is_long(struct light *light, uint64_t now)
{
    if (now > light->slices_until_at_ns + light->stood_for_ns)
        light->stood_for_ns = 0;
    light_distrust(light, &light->stood_for_ns, now);
}

/* How it was served beside others: of so many nanoseconds it had work in flight for some, and kept the device for some.
 */
struct light_served {
    uint64_t ns, waited_ns, kept_ns;
};

/* Whether the device left it less than its share, in parts of one: it nearly always waited, and got less of what it
 * needs. For one that has been looked at for long enough. */
static inline bool light_unserved(struct light *light, const struct light_served *served, double share, uint64_t now)
{
    bool is = served->waited_ns * 10 > served->ns * 7 &&
              (double)served->kept_ns < 0.9 * share * light->needed_fraction * (double)served->ns;
    if (is)
        light_distrust(light, &light->unserved_ns, now);
    else
        light->unserved_ns = 0;
    return is;
}

/* The mean, and its standard error: where launches vary much, the mean of few holds may be far too small, and who is
 * charged too little takes that from others. The error is that of a ratio of two means. */
static inline void light_add(struct light_sums *sums, struct light_hold hold, unsigned fading)
{
    double kept = 1 - 1.0 / fading;
    sums->launches = kept * sums->launches + hold.launches;
    sums->ns = kept * sums->ns + hold.ns;
    sums->ns_ns = kept * sums->ns_ns + hold.ns * hold.ns;
    sums->ns_launches = kept * sums->ns_launches + hold.ns * hold.launches;
    sums->launches_launches = kept * sums->launches_launches + hold.launches * hold.launches;
    double mean = sums->ns / sums->launches;
    double squares = sums->ns_ns - 2 * mean * sums->ns_launches + mean * mean * sums->launches_launches;
    double deviation = __builtin_sqrt(squares > 0 ? squares : 0), error = deviation / sums->launches;
    sums->launch_ns = (uint64_t)(mean + error);
    sums->error = error / mean;
    sums->holds++;
    sums->differs_ns = (uint64_t)(deviation / __builtin_sqrt(sums->holds < fading ? sums->holds : fading));
}

/* Whether a hold is of a kernel so long that looks see it, where its launches would else take `typical_ns`. */
static inline bool light_is_seen(double ns, double typical_ns)
{
    return ns > LIGHT_SEEN_NS + LIGHT_ODD_TIMES * typical_ns;
}

static inline void light_average(struct light *light, struct light_hold hold)
{
    struct light_sums *small = &light->small;
    light_add(&light->all, hold, LIGHT_FADING);
    light->reckoned.launches *= 1 - 1.0 / LIGHT_FADING;
    light->reckoned.small *= 1 - 1.0 / LIGHT_FADING;
    light->reckoned.graphs_ns *= 1 - 1.0 / LIGHT_FADING;
    light->reckoned.ns *= 1 - 1.0 / LIGHT_FADING;
    if (light->all.holds >= LIGHT_LOOKS)
        light->unsettled.refunded_ns = 0;
    double typical_ns = small->launches > 0 ? small->ns / small->launches * hold.launches : hold.ns;
    if (light_is_seen(hold.ns, typical_ns))
        return;
    if (light_is_seen(typical_ns, hold.ns)) /* the first ones were of such kernels */
        *small = (struct light_sums){0};
    light_add(small, hold, LIGHT_FADING);
}

/* What was known is of something else than what is launched now. How often it may be held stays as it was, and so does
 * what is known of graphs. */
static inline void light_forget(struct light *light)
{
    light->all = light->small = (struct light_sums){0};
    light->graphs.has_unknown_kind = light->graphs.pending_is_of_graph = false;
    light->holds.odd_hold_pending = light->holds.sample_chosen = false;
    light->holds.failed_count = light->holds.sample_launch_index = 0;
    light->unsettled.charged_ns = 0;
    light->unsettled.charged = light->unlearnt_launches = (struct light_launches){0};
    light->reckoned = (struct light_reckoned){0};
    light->stood = (struct light_stood){0};
    light->needed_fraction = light->queued_fraction = 0;
    light->unlearnt_ns = light->poll_count = 0;
}

/* A hold told nothing. */
static inline void light_miss(struct light *light)
{
    light->holds.missed_count++;
    light->holds.failed_count++;
    light->holds.of_single_launch ^= light->holds.failed_count % LIGHT_TRIES == 0;
}

/* At a poll, `count` launches have been made since the start. Returns how many since the last poll. */
static inline uint32_t light_count_since_poll(struct light *light, uint32_t count)
{
    uint32_t made = count - light->holds.launches_at_poll,
             faded = light->holds.peak_launches_per_poll - light->holds.peak_launches_per_poll / 64;
    light->holds.launches_at_poll = count;
    light->holds.peak_launches_per_poll = made > faded ? made : faded;
    return made;
}

/* Choose the launch that is held next; `random` is any number. */
static inline void light_choose_sample(struct light *light, uint32_t count, uint32_t random)
{
    uint32_t made = count - light->holds.launches_at_hold,
             most = light->graphs.are_launched ? LIGHT_SPREAD_GRAPH_LAUNCHES : LIGHT_SPREAD_MAX_LAUNCHES,
             spread = made < most ? made : most;
    if (light->graphs.are_launched && !light_known(light) &&
        spread > 2 * light->holds.peak_launches_per_poll + LIGHT_LEAD_LAUNCHES) /* soon */
        spread = 2 * light->holds.peak_launches_per_poll + LIGHT_LEAD_LAUNCHES;
    if (FAULT(rare_long_kernels_unseen) && spread >= 16)
        spread = 15;
    light->holds.sample_launch_index = count + random % (spread + 1);
    light->holds.sample_chosen = true;
}

/* How many launches are still made before that one; negative: it was made. */
static inline int32_t light_launches_until_sample(const struct light *light, uint32_t count)
{
    return (int32_t)(light->holds.sample_launch_index - count);
}

/* At a look, so many more launches have been made. */
static inline void light_see_graphs(struct light *light, struct light_launches made)
{
    uint32_t faded = light->graphs.peak_graphs_per_poll - light->graphs.peak_graphs_per_poll / 64;
    light->graphs.peak_graphs_per_poll = made.graphs > faded ? made.graphs : faded > 0 ? faded : 1;
    light->graphs.kernels_since_graph = made.graphs > 0 ? 0
                                        : light->graphs.kernels_since_graph < LIGHT_GRAPHLESS
                                            ? light->graphs.kernels_since_graph + made.kernels
                                            : light->graphs.kernels_since_graph;
    light->graphs.are_launched = made.graphs > 0 ||
                                 (light->graphs.are_launched && light->graphs.kernels_since_graph < LIGHT_GRAPHLESS);
    light->holds.of_bursts = light->holds.of_bursts && !light->graphs.are_launched; /* those are timed by themselves */
    double all = made.kernels + (double)made.graphs, weight = all / (all + 256);
    if (all > 0)
        light->graphs.launch_fraction += (made.graphs / all - light->graphs.launch_fraction) * weight;
}

/* How long others cannot have the device for a graph of that kind: as for all on average, if it is not known. */
static inline uint64_t light_graph_ns(const struct light *light, const struct light_graph *graph)
{
    double ns = graph->holds > 0 ? graph->ns : light_mean(&light->graphs.all);
    return ns > 0 ? (uint64_t)ns + light_gap(light) : 0;
}

/* A hold told how long a graph of that kind takes; so many other launches have been made since the start. */
static inline void light_learn_graph(struct light *light, struct light_graph *graph, uint64_t ns, int32_t kernels)
{
    uint64_t between_ns = light->holds.empty_hold_ns + light_gap(light);
    struct light_hold hold = {1, (double)(ns > between_ns ? ns - between_ns : 0)};
    light_add(&light->graphs.all, hold, LIGHT_GRAPH_FADING);
    graph->holds += graph->holds < LIGHT_GRAPH_HOLDS;
    graph->ns += (hold.ns - graph->ns) / graph->holds;
    light->graphs.consecutive_count = kernels != light->graphs.kernels_at_hold
                                          ? 0
                                          : light->graphs.consecutive_count +
                                                (light->graphs.consecutive_count < LIGHT_GRAPHS);
    light->graphs.kernels_at_hold = kernels;
}

/* Whether launches may be longer than is known, and so short that looks do not see it. */
static inline bool light_may_hide(const struct light *light)
{
    return light_known(light) && !light->holds.of_bursts &&
           LIGHT_DOUBTED_TIMES * light_counted(light)->launch_ns < LIGHT_CERTAIN_NS;
}

/* One hold in how many does not stall; all of a time slice that is for that. */
static inline unsigned light_times_part(const struct light *light, bool slice)
{
    return light->timed.sure ? LIGHT_TIMED_PART : slice ? 1 : 2;
}

/* A launch that was not held took so long, at least. What is owed for those of late, once that shows that they were
 * longer than is believed. */
static inline uint64_t light_time(struct light *light, uint64_t ns)
{
    struct light_timed *timed = &light->timed;
    bool doubted = timed->doubted;
    double believed_ns = (double)light_counted(light)->launch_ns, kept = 1 - 1.0 / LIGHT_TIMED_FADING,
           excess_ns = (double)ns - LIGHT_DOUBTED_TIMES * believed_ns;
    timed->launches = kept * timed->launches + 1;
    timed->excess_ns = kept * timed->excess_ns + excess_ns;
    timed->squares = kept * timed->squares + excess_ns * excess_ns;
    double mean = timed->excess_ns / timed->launches, variance = timed->squares / timed->launches - mean * mean,
           error = variance > 0 ? __builtin_sqrt(variance / timed->launches) : 0;
    timed->doubted = timed->launches > LIGHT_TIMED && mean > (doubted ? 0 : 3 * error);
    timed->sure = timed->launches > LIGHT_TIMED_MOST || (timed->launches > LIGHT_TIMED && mean < -3 * error);
    double owed_ns = (light->reckoned.launches + light->reckoned.small) *
                     (mean + (LIGHT_DOUBTED_TIMES - 1) * believed_ns);
    if (doubted || !timed->doubted)
        return 0;
    return owed_ns < LIGHT_RECKONED_MOST_NS ? (uint64_t)owed_ns : LIGHT_RECKONED_MOST_NS;
}

/* A hold told that so many launches take so long. False: this is not the program that was known; the last two holds are
 * the first of what it is now. */
static inline bool light_learn(struct light *light, uint32_t launches, uint64_t ns)
{
    uint64_t between_ns = launches *
                          (light->holds.empty_hold_ns + light_gap(light)); /* its stamp, and what lies before it */
    struct light_hold hold = {.launches = launches, .ns = (double)(ns > between_ns ? ns - between_ns : 0)};
    uint64_t most_ns = LIGHT_ODD_NS + LIGHT_ODD_TIMES * light->all.launch_ns * launches +
                       LIGHT_ODD_DEVIATIONS * light->all.differs_ns;
    bool odd = light_known(light) && !light->graphs.are_launched && hold.ns > (double)most_ns,
         before = light->holds.odd_hold_pending;
    struct light_hold odd_hold = light->holds.odd_hold;
    light->holds.missed_count = light->holds.failed_count = 0;
    if (odd && before)
        light_forget(light);
    light->holds.odd_hold_pending = odd && !before;
    light->holds.odd_hold = hold;
    if (before)
        light_average(light, odd_hold);
    if (!light->holds.odd_hold_pending)
        light_average(light, hold);
    return !odd || !before;
}

#endif
