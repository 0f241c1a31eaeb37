/* Lets a program run that needs little of the device (light_run.h). */
#include "light_run.h"

#include "budget.h"
#include "futex.h"
#include "neighbours.h"
#include "spin.h"

#include "../core/fault.h"
#include "../core/log.h"
#include "../core/tenant.h"

/* How often what a light program launched is charged; and how often it is looked whether it still is one, which is a
 * call of the driver. Without a launch for so long it rests. */
#define LIGHT_TICK_NS  MS
#define LIGHT_LOOK_NS  (4 * MS)
#define LIGHT_RESTS_NS (50 * MS)

/* A look is a few calls of the driver, which the program's launches meet there. Alone, where so many in a row found no
 * long kernel, the next ones are so many times as far apart: of kernels that are rarer than that looks miss no more
 * than a point. */
#define LIGHT_QUIET_LOOKS 256u
#define LIGHT_QUIET_TIMES 4u

/* A kernel, or a driver's turn of each co-tenant, that takes longer is none of a light program. */
#define LIGHT_STANDS_NS (30 * MS)

/* Nor a burst that does, as a prefill of 100 ms among decoding steps of 3. */
#define LIGHT_BURST_STANDS_NS (100 * MS)

/* For a burst the driver goes over to a program and back, which keeps the device from others for so long at least. In
 * virtual time a kernel of 20 us each 4 ms left a neighbour 91.8 of 95 without it, 95.0 with it (2026-11-28). */
#define LIGHT_BURST_NS (120 * US)

/* At the end of a debt it has so much at most, to be woken seldom; while it waits, an elastic one looks so often
 * whether somebody still wants the device. How much it has varies, and how long it is between two looks: a program that
 * does the same again and again would otherwise be looked at, and held, where it does the same. */
#define LIGHT_PAID_NS (4 * MS)
#define LIGHT_WAIT_NS (4 * MS)

/* A light program keeps away from others that are timed for so long in all, and for so many parts of the time; it looks
 * this often whether they still are. */
#define LIGHT_AWAY_NS      (200 * MS)
#define LIGHT_AWAY_PART    32u
#define LIGHT_AWAY_LOOK_NS (100 * US)

/* What others did, and what siblings did, who may owe for long, is remembered for so long. */
#define LIGHT_LONELY_NS (1000 * MS)
#define LIGHT_SINGLE_NS (10 * 1000 * MS)

struct light_count light_count(struct governor *governor)
{
    struct gate *gate = &governor->gate;
    struct light *light = &governor->light;
    struct light_count count = {.graphs = gate_graphs(gate)};
    for (unsigned kind = 0; count.graphs != light->graphs.graphs_at_poll && kind < HOLD_GRAPH_KINDS; kind++) {
        struct light_graph *graph = &light->graphs.kinds[kind];
        uint32_t made = atomic_load_explicit(&gate->made.graph_count_by_kind[kind], memory_order_relaxed) - graph->seen;
        light->graphs.graphs_at_poll_ns += made * light_graph_ns(light, graph);
        graph->seen += made;
        light->graphs.has_unknown_kind = light->graphs.has_unknown_kind || (made > 0 && graph->holds == 0);
    }
    light->graphs.graphs_at_poll = count.graphs;
    count.graphs_ns = light->graphs.graphs_at_poll_ns;
    count.launches = gate_launches(gate); /* a graph is counted there first */
    return count;
}

/* Whether nobody else has work in flight. */
static bool is_clear(struct governor *governor)
{
    struct time_slice *time_slice = &governor->time_slice;
    return time_slice_others(time_slice) == 0 && (time_slice->is_ours || !time_slice_held(time_slice)) &&
           (governor->measure.is_on || time_slice_lit(time_slice) == 0);
}

/* Whether nobody else had work in flight before and after the hold. */
static bool was_clear(struct governor *governor)
{
    return governor->measure.was_clear && is_clear(governor) &&
           time_slice_light(&governor->time_slice) == governor->measure.clear_light_ns;
}

/* Whether a hold of a program that launches graphs, which took so long, tells what the device works for it. */
static bool is_certain(struct governor *governor, uint64_t ns)
{
    return ns < LIGHT_CERTAIN_NS || was_clear(governor);
}

/* A hold of a graph was read: when the next one is to be timed in a time slice of its own. */
static void plan_measure(struct governor *governor)
{
    if (was_clear(governor))
        governor->light.measure_at_ns = governor->engine->now() +
                                        (light_known(&governor->light) ? LIGHT_MEASURED_NS : LIGHT_RETRIED_NS);
}

/* Whether a hold that was asked for before a burst is of all of it. */
static bool is_whole(struct governor *governor, uint32_t launches)
{
    struct light *light = &governor->light;
    const struct hold *hold = &governor->gate.hold;
    uint64_t took_ns = elapsed(atomic_load(&hold->begun_at_ns), atomic_load(&hold->last_launch_at_ns));
    bool whole = launches < HOLD_BURST && took_ns < HOLD_MOST_NS - HOLD_PAUSE_NS;
    light->holds.cut_burst_count = whole ? 0 : light->holds.cut_burst_count + 1;
    light->holds.of_bursts = light->holds.cut_burst_count < LIGHT_CUT;
    return whole;
}

static void learn_graph(struct governor *governor, uint64_t ns, int32_t kernels)
{
    struct hold *hold = &governor->gate.hold;
    uint32_t kind = atomic_load(&hold->last_graph_kind);
    light_learn_graph(&governor->light, &governor->light.graphs.kinds[kind], ns, kernels);
    atomic_store(&hold->known_graph_kinds[kind], true);
}

/* Whether no sibling has work in flight, and no stream of ours waits: a launch that is timed could wait for that. */
static bool is_sole(struct governor *governor)
{
    return time_slice_siblings(&governor->time_slice) == 0 && !gate_waits(&governor->gate);
}

/* A launch was timed where it ran. What others had in flight, or looks see, is not compared. */
static void time_launch(struct governor *governor, uint32_t launches, uint64_t ns)
{
    struct light *light = &governor->light;
    struct hold *hold = &governor->gate.hold;
    uint64_t made_ns = elapsed(atomic_load(&hold->begun_at_ns), atomic_load(&hold->last_launch_at_ns)) +
                       light->holds.empty_hold_ns;
    bool clear = was_clear(governor) && is_sole(governor);
    uint64_t now = governor->engine->now(), owed_ns = 0;
    if (launches > 0 && clear && light_known(light))
        owed_ns = light_time(light, ns > made_ns ? ns - made_ns : 0);
    if (light->timed.sure)
        light->timed.vouch_at_ns = now + LIGHT_VOUCHED_NS;
    if (owed_ns == 0)
        return;
    log_line(LOG_DEBUG, "governor: launches take more than twice as long as while they are held");
    account_spend(&governor->account, &governor->time_slice, now, owed_ns, owed_ns);
}

static void read_graph_hold(struct governor *governor, uint32_t launches, uint64_t ns)
{
    governor->light.graphs.pending_is_of_graph = false;
    struct light_count count = light_count(governor);
    if (launches == 0)
        return;
    plan_measure(governor);
    if (is_certain(governor, ns))
        learn_graph(governor, ns, (int32_t)(count.launches - count.graphs));
}

/* Whether this is the program that was known. */
static bool read_launches(struct governor *governor, uint32_t launches, uint64_t ns)
{
    struct light *light = &governor->light;
    if (light->holds.of_bursts && !light->holds.of_single_launch && !is_whole(governor, launches))
        return true;
    if (light->graphs.are_launched && !is_certain(governor, ns))
        return true;
    if (ns > LIGHT_SERVES_NS) /* the driver has gone over to others meanwhile */
        ns = budget_part(ns, time_slice_others(&governor->time_slice));
    bool same = light_learn(light, launches, ns);
    if (light->holds.odd_hold_pending)
        light->holds.not_before_at_ns = governor->engine->now(); /* the next one tells whether it is another program */
    return same;
}

bool light_read_hold(struct governor *governor)
{
    struct light *light = &governor->light;
    uint32_t launches;
    uint64_t ns;
    if (!light->holds.is_pending || !gate_held(&governor->gate, &launches, &ns))
        return true;
    light->holds.is_pending = false;
    if (light->holds.pending_is_unstalled)
        time_launch(governor, launches, ns);
    else if (light->graphs.pending_is_of_graph)
        read_graph_hold(governor, launches, ns);
    else if (launches > 0)
        return read_launches(governor, launches, ns);
    else if (ns > 0)
        light->holds.empty_hold_ns = ns;
    else {
        light_miss(light);
        log_line(LOG_DEBUG, "governor: a hold told nothing, %u in a row; %u did", light->holds.missed_count,
                 light->all.holds);
    }
    return true;
}

static bool is_high(const struct governor *governor)
{
    return terms_priority(governor->grant_device) == HETERO_PRIORITY_HIGH;
}

/* One of high priority whose steps are short has nothing of time slices that the driver's turns do not give. */
static bool may_be_light(struct governor *governor)
{
    return !is_high(governor) || (gate_graphs(&governor->gate) > 0 && light_is_short(&governor->light));
}

static bool may_hold(struct governor *governor)
{
    const struct light *light = &governor->light;
    return !light->holds.unsupported && !light->holds.is_pending && may_be_light(governor) &&
           !atomic_load_explicit(&governor->gate.sole.kernels_are_long, memory_order_relaxed) &&
           !(light_queues(light) && time_slice_others(&governor->time_slice) == 0);
}

/* Poll the launches, and choose the launch to be held where none is chosen. Whether to request a hold now; sets
 * *launches_until_sample to the number of launches before the one to be held. */
static bool poll_sample(struct governor *governor, uint32_t *launches_until_sample)
{
    struct light *light = &governor->light;
    struct light_count count = light_count(governor);
    uint32_t launch_count = count.launches - count.graphs;
    uint32_t launches_since_poll = light_count_since_poll(light, launch_count);
    if (!may_hold(governor)) {
        light->holds.sample_chosen = false;
        return false;
    }
    if (!light->holds.sample_chosen && governor->engine->now() < light->holds.not_before_at_ns)
        return false;
    if (!light->holds.sample_chosen || light_launches_until_sample(light, launch_count) < 0)
        light_choose_sample(light, launch_count, (uint32_t)governor_random(&light->rng, UINT32_MAX));
    *launches_until_sample = (uint32_t)light_launches_until_sample(light, launch_count);
    return *launches_until_sample <= 2 * light->holds.peak_launches_per_poll + LIGHT_LEAD_LAUNCHES &&
           (launches_since_poll > 0 || governor_random(&light->rng, LIGHT_IDLE_POLL_INTERVAL) == 0);
}

/* How many launches the next hold may have. */
static uint32_t most_held(const struct light *light)
{
    if (light->holds.empty_hold_ns == 0 || light->holds.of_single_launch)
        return light->holds.empty_hold_ns != 0;
    return light->holds.of_bursts ? HOLD_BURST : light_most(light);
}

/* A hold was asked for in vain. */
static void count_unbegun(struct light *light)
{
    light->holds.unbegun_count++;
    if (light->holds.of_bursts || light->graphs.are_launched || light->holds.cut_burst_count >= LIGHT_CUT ||
        light->holds.unbegun_count < LIGHT_UNBEGUN || light_known(light))
        return;
    light_forget(light); /* what holds told that met a part of a burst */
    light->holds.of_bursts = true;
    light->holds.of_single_launch = false;
}

/* Ask for a hold. Whether a launch began it. */
static bool hold(struct governor *governor, uint64_t since, uint32_t most, uint32_t left, enum hold_of of, bool stalls,
                 uint64_t wait_ns)
{
    governor->measure.was_clear = is_clear(governor);
    governor->measure.clear_light_ns = time_slice_light(&governor->time_slice);
    bool was_held = gate_hold(&governor->gate, most, left, of, stalls, wait_ns);
    bool begun = atomic_load(&governor->gate.hold.begun_at_ns) >= since;
    governor->light.holds.is_pending = was_held && begun;
    governor->light.holds.pending_is_unstalled = !stalls;
    return begun;
}

/* Whether a hold of a graph is due; how many are launched before it. */
static bool is_graph_due(struct governor *governor, uint32_t graphs, uint64_t now, uint32_t *left)
{
    struct light *light = &governor->light;
    if (light->graphs.sample_chosen &&
        (int32_t)(light->graphs.sample_graph_index - graphs) < 0) /* it was launched meanwhile */
        light->graphs.sample_chosen = false;
    if (!light->graphs.sample_chosen && now >= light->graphs.not_before_at_ns) {
        uint32_t made = graphs - light->graphs.graphs_at_hold,
                 spread = made < LIGHT_GRAPH_SPREAD ? made : LIGHT_GRAPH_SPREAD;
        light->graphs.sample_graph_index = graphs + (uint32_t)governor_random(&light->rng, spread + 1);
        light->graphs.sample_chosen = true;
    }
    *left = light->graphs.sample_graph_index - graphs;
    return light->graphs.sample_chosen && *left <= light->graphs.peak_graphs_per_poll;
}

/* For how long a graph is waited for. A step of an engine may be the same each time, and its graph come a little later
 * than a wait that always begins and ends at the same moment: one of 1.42 ms behind 24 launches 60 us apart was never
 * held in 13 s of virtual time (2026-11-30). */
static uint64_t graph_wait_ns(struct governor *governor)
{
    struct light *light = &governor->light;
    return HOLD_MOST_NS + (light_known(light) ? 0 : governor_random(&light->rng, 2 * HOLD_MOST_NS));
}

/* Hold the next graph of a kind that no hold told of, if some were launched. */
static bool hold_unknown(struct governor *governor, uint64_t since)
{
    struct light *light = &governor->light;
    if (!light->graphs.has_unknown_kind || since < light->graphs.unknown_not_before_at_ns)
        return false;
    light->graphs.pending_is_of_graph = hold(governor, since, 1, 0, HOLD_OF_UNKNOWN, true, graph_wait_ns(governor));
    light->graphs.has_unknown_kind = light->graphs.pending_is_of_graph ||
                                     governor_random(&light->rng, LIGHT_UNKNOWN_TRIES) > 0;
    light->graphs.unknown_not_before_at_ns = governor->engine->now() + LIGHT_PAUSE_NS;
    return true;
}

/* Hold a graph, if it is time. */
static bool hold_graph(struct governor *governor)
{
    struct light *light = &governor->light;
    struct light_count count = light_count(governor);
    struct light_launches made = light_between(light->graphs.count_at_poll, count);
    light_see_graphs(light, made);
    light->graphs.count_at_poll = count;
    if (!light->graphs.are_launched || light->holds.empty_hold_ns == 0 || !may_hold(governor))
        return false;
    uint64_t since = governor->engine->now();
    uint32_t left = 0;
    bool next = governor->time_slice.is_ours && light_wants_measure(governor);
    light->graphs.is_turn = governor_random(&light->rng, 2) > 0;
    if (!light->graphs.is_turn && !(next && light_known(light)))
        return false;
    if (hold_unknown(governor, since))
        return true;
    if (!next && !is_graph_due(governor, count.graphs, since, &left))
        return false;
    light->graphs.pending_is_of_graph = hold(governor, since, 1, left, HOLD_OF_GRAPHS, true, graph_wait_ns(governor));
    uint32_t graphs = gate_graphs(&governor->gate);
    light->graphs.sample_graph_index = graphs + atomic_load(&governor->gate.hold.skip_count);
    if (light->graphs.pending_is_of_graph) {
        uint64_t pause_ns = light->graphs.all.holds >= LIGHT_GRAPHS ? LIGHT_GRAPH_NS : LIGHT_PAUSE_NS;
        light->graphs.sample_chosen = false;
        light->graphs.graphs_at_hold = graphs;
        light->graphs.not_before_at_ns = governor->engine->now() + pause_ns / 2 +
                                         governor_random(&light->rng, pause_ns);
    }
    return true;
}

/* Whether launches are to be timed beside one that takes time slices. Programs that take none are in flight together,
 * and would all have to keep away; one of them takes a time slice now and then. */
static bool is_unsure(struct governor *governor)
{
    const struct light *light = &governor->light;
    return light->timed.vouch_at_ns != 0 && light_may_hide(light) &&
           governor->engine->now() >= light->timed.vouch_at_ns && is_sole(governor) &&
           light->timed.beside > LIGHT_BESIDE;
}

/* Whether a launch is timed where it runs now, in place of a hold that stalls. */
static bool times_one(struct governor *governor)
{
    struct light *light = &governor->light;
    return light_may_hide(light) && !light_surely_heavy(light) && is_clear(governor) && is_sole(governor) &&
           governor_random(&light->rng, light_times_part(light, governor->time_slice.is_ours)) == 0;
}

void light_hold_now_and_then(struct governor *governor, uint64_t wait_ns, bool begins)
{
    struct light *light = &governor->light;
    if (hold_graph(governor))
        return;
    uint64_t since = governor->engine->now();
    uint32_t left = 0;
    bool due = light->holds.of_bursts ? begins && since >= light->holds.not_before_at_ns && may_hold(governor)
                                      : poll_sample(governor, &left);
    if (!due)
        return;
    bool stalls = !times_one(governor);
    if (!hold(governor, since, stalls ? most_held(light) : 1, left, HOLD_OF_KERNELS, stalls,
              stalls ? wait_ns : LIGHT_CERTAIN_NS)) {
        count_unbegun(light);
        struct light_count count = light_count(governor);
        light->holds.sample_launch_index = count.launches - count.graphs + atomic_load(&governor->gate.hold.skip_count);
        return;
    }
    struct light_count count = light_count(governor);
    uint64_t now = governor->engine->now(), begun_ns = atomic_load(&governor->gate.hold.begun_at_ns);
    light->holds.unbegun_count = 0;
    uint64_t least_ns = light_known(light) ? LIGHT_PAUSE_NS : LIGHT_UNKNOWN_NS;
    uint64_t pause_ns = least_ns + elapsed(begun_ns, now) * light_pause(light);
    if (!stalls && is_unsure(governor))
        pause_ns = LIGHT_UNSURE_NS;
    light->holds.sample_chosen = false;
    light->holds.launches_at_hold = count.launches - count.graphs;
    light->holds.not_before_at_ns = now + pause_ns / 2 + governor_random(&light->rng, pause_ns + 1);
}

/* Whether nobody else has the device, wants it or uses it without a time slice. */
static bool is_only(struct governor *governor)
{
    struct time_slice *time_slice = &governor->time_slice;
    return !time_slice_wanted(time_slice) && !time_slice_held(time_slice) && time_slice_others(time_slice) == 0 &&
           time_slice_lit(time_slice) == 0;
}

/* Whether nobody else, and no sibling, has used the device of late: one that needs most of it would keep it from them.
 */
static bool is_lonely(struct governor *governor, bool only)
{
    uint64_t siblings_ns = account_siblings(&governor->account), now = governor->engine->now();
    if (!only)
        governor->company.others_wanted_at_ns = now;
    if (siblings_ns != governor->company.siblings_used_ns)
        governor->company.siblings_grew_at_ns = now;
    governor->company.siblings_used_ns = siblings_ns;
    return elapsed(governor->company.others_wanted_at_ns, now) > LIGHT_LONELY_NS &&
           (governor->company.siblings_grew_at_ns == 0 ||
            elapsed(governor->company.siblings_grew_at_ns, now) > LIGHT_SINGLE_NS);
}

static bool is_heavy(struct governor *governor, bool runs)
{
    bool only = is_only(governor), lonely = is_lonely(governor, only);
    return light_heavy(&governor->light, only, runs) && !(lonely && light_exact(&governor->light));
}

static bool needs_no_slice(struct governor *governor, bool runs)
{
    return light_known(&governor->light) && !is_heavy(governor, runs) &&
           (is_high(governor) ? may_be_light(governor) : !time_slice_claimed(&governor->time_slice)) &&
           !governor_runs_beside(governor, 0) && governor->engine->now() >= governor->light.slices_until_at_ns;
}

bool light_needs_no_slice(struct governor *governor)
{
    return needs_no_slice(governor, false);
}

static bool goes_light(struct governor *governor, bool runs)
{
    return needs_no_slice(governor, runs) && !(light_wants_measure(governor) && !is_only(governor));
}

bool light_wants_measure(struct governor *governor)
{
    const struct light *light = &governor->light;
    return (light->graphs.are_launched || is_unsure(governor)) && !light->holds.unsupported && !light_queues(light) &&
           may_be_light(governor) &&
           !atomic_load_explicit(&governor->gate.sole.kernels_are_long, memory_order_relaxed) &&
           governor->engine->now() >= light->measure_at_ns;
}

void light_measured(struct governor *governor)
{
    uint64_t next_ns = governor->engine->now() + LIGHT_RETRIED_NS;
    if (governor->light.measure_at_ns < next_ns)
        governor->light.measure_at_ns = next_ns;
}

bool light_is(struct governor *governor)
{
    return goes_light(governor, false);
}

void light_learn_from(struct governor *governor, struct light_launches made, uint64_t ran_ns, uint64_t charged_ns)
{
    struct light *light = &governor->light;
    if (ran_ns > 0)
        light_ran(light, made, ran_ns, true);
    if (light_known(light)) { /* of what it launched before without a time slice */
        uint64_t owed_ns = light_reckon(light, (struct light_launches){0}, LIGHT_RECKONED_MOST_NS);
        account_spend(&governor->account, &governor->time_slice, governor->engine->now(), owed_ns, owed_ns);
    }
    if (light->unsettled.settled || time_slice_wanted(&governor->time_slice))
        return;
    light->unsettled.charged_ns += charged_ns;
    light->unsettled.charged.kernels += made.kernels;
    light->unsettled.charged.graphs_ns += made.graphs_ns;
    if (!light_known(light))
        return;
    light->unsettled.settled = true;
    uint64_t used_ns = light_takes(light, light->unsettled.charged);
    if (!light_is(governor) || light->unsettled.charged_ns <= used_ns)
        return;
    light->unsettled.refunded_ns = light->unsettled.charged_ns - used_ns;
    light_reckon(light, light->unsettled.charged, used_ns);
    account_refund(&governor->account, light->unsettled.refunded_ns);
}

/* What was in flight at one look is watched until it is done. Looks are at random moments, so that what is done is on
 * average begun as long before the first look as it is done before the last. */
struct light_watch {
    uint64_t looked_at_ns;        /* the look; 0: nothing is watched */
    uint64_t charged_until_at_ns; /* up to then, once it stands */
    uint64_t long_ns;             /* what small kernels do not take */
    bool stands;                  /* a long one is in it */
    unsigned others; /* so many others had work in flight meanwhile, at most: it may still wait for what they had */
    struct light_launches graphs; /* made since the look before that one */
    struct gate_moment moment;
};

/* How a light program runs. */
struct light_course {
    uint64_t launched_at_ns;          /* when a look last found that it had launched something */
    uint64_t looked_at_ns;            /* when it was last looked whether something is in flight */
    uint64_t settled_at_ns;           /* when that was last not so */
    uint64_t unsettled_ns;            /* for so long it was, since the last hold told something */
    uint64_t charged_ns;              /* what was charged since */
    struct light_count charged_count; /* launches, all of them charged */
    struct light_count count_at_look; /* and at that look */
    bool is_another;                  /* it launches something else than what was timed */
    struct light_watch watch;
    unsigned quiet;   /* so many looks in a row found no long kernel, alone */
    uint64_t watched; /* when the last of them was */
    struct light_count
        done;           /* launches made by the look before, which is the least that is done when nothing is watched */
    uint64_t windowed;  /* when it was last compared what long kernels took */
    uint64_t unsaid_ns; /* of what they took, what was not said to others yet */
    uint64_t ahead_ns;  /* was charged for them by holds, and not seen yet */
    struct light_served served;
};

static void charge_light(struct governor *governor, struct light_course *course)
{
    uint64_t now = governor->engine->now();
    struct light_count count = light_count(governor);
    struct light_launches made = light_between(course->charged_count, count);
    uint64_t used_ns = light_reckon(&governor->light, made, LIGHT_RECKONED_MOST * light_takes(&governor->light, made));
    if (!is_only(governor)) { /* where looks do not see all */
        uint64_t more_ns = light_keeps_more(&governor->light, made.kernels);
        used_ns += more_ns;
        course->ahead_ns += more_ns;
        course->unsaid_ns += more_ns;
    }
    course->ahead_ns += light_has_more(&governor->light, made.kernels); /* looks are not to charge it again */
    course->ahead_ns = course->ahead_ns < LIGHT_AHEAD_NS ? course->ahead_ns : LIGHT_AHEAD_NS;
    account_spend(&governor->account, &governor->time_slice, now, used_ns, used_ns);
    account_keep_burst(&governor->account);
    account_count(&governor->account, count.launches);
    uint64_t said_ns = course->unsaid_ns < LIGHT_TICK_NS ? course->unsaid_ns : LIGHT_TICK_NS; /* others take no more */
    course->unsaid_ns -= said_ns;
    uint64_t keeps_ns = light_keeps(&governor->light, made);
    bool begins = count.launches != course->charged_count.launches &&
                  elapsed(course->launched_at_ns, now) > 3 * LIGHT_TICK_NS / 2; /* a tick had no launch */
    if (governor->light.holds.of_bursts && begins && keeps_ns < LIGHT_BURST_NS)
        keeps_ns = LIGHT_BURST_NS;
    time_slice_say_light(&governor->time_slice, keeps_ns + said_ns);
    course->charged_ns += used_ns;
    governor->light.stood.charged_ns += used_ns;
    if (count.launches != course->charged_count.launches)
        course->launched_at_ns = now;
    course->charged_count = count;
}

/* It may launch something else than what was timed, and takes time slices from now on. Since the last hold that was as
 * expected, the device worked for it while it had something in flight; half of the time where another ran. What was
 * given back because of the first holds was too much. */
static void charge_another(struct governor *governor, struct light_course *course)
{
    bool beside = time_slice_held(&governor->time_slice) || time_slice_others(&governor->time_slice) > 0;
    uint64_t took_ns = budget_part(course->unsettled_ns, beside ? 1 : 0);
    uint64_t owed_ns = took_ns > course->charged_ns ? took_ns - course->charged_ns : 0;
    owed_ns += governor->light.unsettled.refunded_ns;
    governor->light.unsettled.refunded_ns = 0;
    account_spend(&governor->account, &governor->time_slice, governor->engine->now(), owed_ns, owed_ns);
}

/* Of so many launches in flight, as many graphs as there may be. */
static struct light_launches in_flight(const struct light_watch *watch, uint32_t launches)
{
    uint32_t graphs = watch->graphs.graphs < launches ? watch->graphs.graphs : launches;
    return (struct light_launches){.kernels = (int32_t)(launches - graphs),
                                   .graphs = graphs,
                                   .graphs_ns = graphs > 0 ? watch->graphs.graphs_ns : 0};
}

/* Our part of the time for which a long kernel is in flight, beyond what its small ones were charged, and without what
 * light neighbours used meanwhile. */
static void charge_long(struct governor *governor, struct light_course *course, uint64_t now, unsigned others)
{
    struct light_watch *watch = &course->watch;
    bool first = watch->charged_until_at_ns == watch->looked_at_ns;
    uint64_t small_ns = first ? light_takes(&governor->light, in_flight(watch, watch->moment.least_in_flight)) : 0;
    uint64_t used_ns = budget_part(neighbours_leave(governor, elapsed(watch->charged_until_at_ns, now)), others);
    used_ns = used_ns > small_ns ? used_ns - small_ns : 0;
    watch->charged_until_at_ns = now;
    uint64_t ahead_ns = used_ns < course->ahead_ns ? used_ns : course->ahead_ns;
    course->ahead_ns -= ahead_ns;
    used_ns -= ahead_ns;
    governor->light.stood.stood_ns += used_ns;
    account_spend(&governor->account, &governor->time_slice, now, used_ns, used_ns);
    course->charged_ns += used_ns;
    course->unsaid_ns += first ? used_ns : 0; /* from now on others know that we have work in flight */
    governor->light.stood.beside = governor->light.stood.beside || others > 0;
}

/* Whether it is too early for another look. */
static bool is_quiet(const struct light_course *course, uint64_t now)
{
    return course->watch.looked_at_ns == 0 && course->quiet >= LIGHT_QUIET_LOOKS &&
           elapsed(course->watched, now) < (LIGHT_QUIET_TIMES - 1) * LIGHT_TICK_NS;
}

/* Whether what is watched is still in flight; a long one is charged. So many others may have had work in flight before,
 * and so many have now. */
static bool still_stands(struct governor *governor, struct light_course *course, unsigned before, unsigned others,
                         uint64_t now)
{
    struct light_watch *watch = &course->watch;
    bool stands = gate_stands(&governor->gate, &watch->moment);
    watch->others = before > watch->others ? before : watch->others;
    watch->stands = watch->stands || (stands && elapsed(watch->looked_at_ns, now) >
                                                    watch->long_ns + watch->others * LIGHT_STOOD_EACH_NS);
    if (watch->stands && !FAULT(rare_long_kernels_unseen))
        charge_long(governor, course, now, others);
    time_slice_busy(&governor->time_slice, watch->stands && stands);
    return stands;
}

/* Look at what was in flight at the look before, and at what is now. */
static void watch(struct governor *governor, struct light_course *course)
{
    struct light_watch *watch = &course->watch;
    unsigned others = time_slice_others(&governor->time_slice);
    unsigned before = others == 0 && time_slice_held(&governor->time_slice) ? 1 : others; /* it has not said so yet */
    before += time_slice_lit(&governor->time_slice); /* the driver gives them turns, too */
    uint64_t now = governor->engine->now();
    if (before == 0 && is_quiet(course, now))
        return;
    if (watch->looked_at_ns != 0 && still_stands(governor, course, before, others, now))
        return;
    course->quiet = watch->stands || before > 0 ? 0 : course->quiet + (course->quiet < LIGHT_QUIET_LOOKS);
    course->watched = now;
    *watch = (struct light_watch){0};
    struct light_count done = course->done;
    course->done = light_count(governor);
    bool works = gate_marks(&governor->gate, &watch->moment);
    course->done.launches = watch->moment.launch_count;
    if (!works)
        return;
    uint32_t made = watch->moment.launch_count - done.launches,
             most = watch->moment.most_in_flight < made ? watch->moment.most_in_flight : made;
    watch->graphs = light_between(done, course->done);
    watch->looked_at_ns = watch->charged_until_at_ns = now;
    neighbours_begin(governor);
    watch->others = before;
    watch->long_ns = LIGHT_STOOD_NS + 3 * light_keeps(&governor->light, in_flight(watch, most)) / 2;
}

/* When to look next. */
static uint64_t watch_pause(struct governor *governor, const struct light_course *course)
{
    const struct light_watch *watch = &course->watch;
    uint64_t now = governor->engine->now(), until = watch->looked_at_ns + watch->long_ns;
    if (watch->looked_at_ns != 0 && !watch->stands && until > now && until - now < LIGHT_TICK_NS)
        return until - now;
    uint64_t tick_ns = watch->stands ? LIGHT_TICK_NS * 3 / 4 : LIGHT_TICK_NS; /* as far apart as those before it */
    return tick_ns / 2 + governor_random(&governor->light.rng, tick_ns);
}

/* Whether long kernels used much more of the device than what holds say. */
static bool is_contradicted(struct governor *governor, struct light_course *course)
{
    struct light_stood *stood = &governor->light.stood;
    uint64_t now = governor->engine->now();
    stood->ns += elapsed(course->windowed, now);
    course->windowed = now;
    bool is = light_contradicts(&governor->light);
    if (is || stood->ns >= LIGHT_STOOD_WINDOW_NS)
        *stood = (struct light_stood){0};
    return is;
}

/* Whether a kernel of it stands beside others for so long as none of a light program. */
static bool stands_still(struct governor *governor, const struct light_course *course)
{
    uint64_t passed = atomic_load(&governor->gate.fences.popped_at_ns);
    passed = passed > course->settled_at_ns ? passed : course->settled_at_ns;
    uint64_t stands_ns = governor->light.holds.of_bursts ? LIGHT_BURST_STANDS_NS : LIGHT_STANDS_NS;
    return elapsed(passed, governor->engine->now()) > stands_ns && course->launched_at_ns > passed &&
           !is_only(governor);
}

/* Why it is another program than the one that is known; NULL: it is not. Holds tell so, or have told nothing for long;
 * or fences stand still; or looks tell otherwise. */
static const char *seems_another(struct governor *governor, struct light_course *course)
{
    bool stands = stands_still(governor, course), missed = governor->light.holds.failed_count >= LIGHT_MISSED,
         contradicted = is_contradicted(governor, course);
    if (stands || missed || contradicted)
        light_forget(&governor->light);
    if (stands || contradicted)
        light_is_long(&governor->light, governor->engine->now());
    if (stands || missed || contradicted)
        return stands ? "a kernel stands" : missed ? "holds tell nothing" : "more was used than holds tell";
    return light_read_hold(governor) ? NULL : "two holds in a row took long";
}

/* Whether others leave it less than its share: then it has that in time slices. */
static bool is_unserved(struct governor *governor, struct light_course *course, uint64_t ns, bool idle)
{
    struct light_served *served = &course->served;
    if (is_only(governor)) {
        *served = (struct light_served){0};
        return false;
    }
    served->ns += ns;
    served->waited_ns += idle ? 0 : ns;
    served->kept_ns += light_keeps(&governor->light, light_between(course->count_at_look, course->charged_count));
    if (served->ns < LIGHT_SERVED_NS)
        return false;
    double share = (double)terms_core(governor->grant_device) / HETERO_CORE_FULL;
    bool is = light_unserved(&governor->light, served, share, governor->engine->now());
    *served = (struct light_served){0};
    return is;
}

static void look_at_light(struct governor *governor, struct light_course *course)
{
    uint64_t now = governor->engine->now();
    bool idle = course->watch.looked_at_ns == 0;
    governor->light.timed.beside += (time_slice_held(&governor->time_slice) - governor->light.timed.beside) /
                                    LIGHT_LOOKS;
    if (is_only(governor))
        light_queue(&governor->light, atomic_load_explicit(&governor->gate.fences.pending_count, memory_order_relaxed));
    gate_fence_next(&governor->gate);
    unsigned holds = governor->light.all.holds + governor->light.graphs.all.holds;
    if (course->charged_count.launches != course->count_at_look.launches)
        light_ran(&governor->light, light_between(course->count_at_look, course->charged_count),
                  elapsed(course->looked_at_ns, now), is_only(governor));
    if (is_unserved(governor, course, elapsed(course->looked_at_ns, now), idle))
        log_line(LOG_DEBUG, "governor: light, and has less than its share beside others");
    if (idle)
        course->settled_at_ns = now;
    else
        course->unsettled_ns += elapsed(course->looked_at_ns, now);
    const char *reason = seems_another(governor, course);
    course->is_another = reason != NULL;
    if (reason != NULL)
        log_line(LOG_DEBUG, "governor: light no longer: %s", reason);
    if (!course->is_another && governor->light.all.holds + governor->light.graphs.all.holds != holds)
        course->unsettled_ns = course->charged_ns = 0;
    course->looked_at_ns = now;
    course->count_at_look = course->charged_count;
}

static bool may_run(const struct governor *governor)
{
    return terms_limit_core(governor->grant_device) && !atomic_load(&gates_retired);
}

/* Whether it owes more than so much, and may not go on for that. */
static bool is_kept_by_debt(struct governor *governor, int64_t least)
{
    bool lent = terms_policy(governor->grant_device) == HETERO_POLICY_ELASTIC &&
                !time_slice_wanted(&governor->time_slice) && !time_slice_held_by_right(&governor->time_slice);
    return !lent && governor_balance(governor) < least;
}

/* Whether another is to be timed alone, and is kept from that by us: three in a hundred of the time at most. */
static bool keeps_away(struct governor *governor)
{
    return time_slice_measured(&governor->time_slice) &&
           governor->measure.kept_away_ns <
               LIGHT_AWAY_NS + elapsed(governor->measure.away_began_at_ns, governor->engine->now()) / LIGHT_AWAY_PART;
}

/* Wait at the closed gate for so long. Returns for how long of it no launcher waited there: it needed nothing then. */
static uint64_t wait_closed(struct governor *governor, uint64_t ns)
{
    struct gate *gate = &governor->gate;
    uint64_t since = governor->engine->now();
    uint32_t looks = atomic_load(&gate->queue.look_count);
    if (!governor->light.graphs.are_launched || atomic_load(&gate->queue.waiting_count) > 0) {
        governor->engine->pause(ns);
        return 0;
    }
    futex_sleep(&gate->queue.look_count, looks, ns);
    return elapsed(since, governor->engine->now());
}

/* Wait out a debt at the closed gate; an elastic grant only while somebody wants what it would take. And keep away
 * while another is timed. */
static void pay(struct governor *governor, struct light_course *course)
{
    uint64_t since = governor->engine->now(), ran_ns = elapsed(course->looked_at_ns, since);
    int64_t paid_ns = (int64_t)governor_random(&governor->light.rng, LIGHT_PAID_NS);
    bool only = is_only(governor);
    gate_set(&governor->gate, GATE_CLOSED);
    for (bool away = keeps_away(governor); may_run(governor) && (away || is_kept_by_debt(governor, paid_ns));
         away = keeps_away(governor)) {
        uint64_t wait_ns = budget_wait(governor_balance(governor) - paid_ns, terms_core(governor->grant_device));
        uint64_t most_ns = course->watch.looked_at_ns != 0 ? watch_pause(governor, course) : LIGHT_WAIT_NS;
        wait_ns = away ? LIGHT_AWAY_LOOK_NS : wait_ns < most_ns ? wait_ns : most_ns;
        ran_ns += wait_closed(governor, wait_ns);
        governor->measure.kept_away_ns += away ? wait_ns : 0;
        if (away)
            time_slice_busy(&governor->time_slice, !gate_is_idle(&governor->gate));
        if (course->watch.looked_at_ns != 0)
            watch(governor, course);
        spin_pass(governor, governor->engine->now(), course->watch.looked_at_ns != 0);
    }
    light_ran(&governor->light, light_between(course->count_at_look, course->charged_count), ran_ns, only);
    charge_light(governor, course); /* what was launched while the gate was being closed */
    gate_set(&governor->gate, GATE_OPEN);
    uint64_t now = governor->engine->now();
    account_stopped(&governor->account, elapsed(since, now));
    course->looked_at_ns = course->launched_at_ns = course->settled_at_ns = course->windowed = now;
    course->count_at_look = course->charged_count;
}

/* How long others cannot have the device for one launch, on average. */
static uint64_t launch_keeps(const struct light *light)
{
    double part = light->graphs.are_launched ? light->graphs.launch_fraction : 0;
    return (uint64_t)((1 - part) * (double)light_keeps(light, (struct light_launches){.kernels = 1}) +
                      part * light_mean(&light->graphs.all));
}

static void begin_light(struct governor *governor, uint64_t now)
{
    struct light *light = &governor->light;
    log_line(LOG_DEBUG, "governor: light, needs %u %% of the device, %u ns a launch by %u holds of %s",
             (unsigned)(100 * light->needed_fraction), (unsigned)light_counted(light)->launch_ns, light->all.holds,
             light->holds.of_single_launch ? "one" : "several");
    if (light->timed.vouch_at_ns < now) /* at first, and where a time slice told nothing */
        light->timed.vouch_at_ns = now + (light->timed.vouch_at_ns == 0 ? LIGHT_UNVOUCHED_NS : LIGHT_RETRIED_NS);
    uint64_t asked_ns = governor->account.asked_at_ns;
    account_stopped(&governor->account,
                    now - (asked_ns > governor->last.gate_closed_at_ns ? asked_ns : governor->last.gate_closed_at_ns));
    atomic_store(&governor->gate.first_launch_at_ns, now);
    atomic_store_explicit(&governor->gate.wants_low_latency, false, memory_order_relaxed);
    gate_deepen(&governor->gate, GOVERNOR_IN_FLIGHT);
    gate_set(&governor->gate, GATE_OPEN);
}

/* Look once, and charge. Returns when. */
static uint64_t look_once(struct governor *governor, struct light_course *course)
{
    watch(governor, course);
    charge_light(governor, course);
    if (is_kept_by_debt(governor, 0) || keeps_away(governor))
        pay(governor, course);
    gate_know(&governor->gate, launch_keeps(&governor->light));
    uint64_t now = governor->engine->now();
    spin_note(governor, now, course->watch.looked_at_ns != 0);
    if (elapsed(course->looked_at_ns, now) > LIGHT_LOOK_NS / 2 + governor_random(&governor->light.rng, LIGHT_LOOK_NS))
        look_at_light(governor, course);
    else if (course->launched_at_ns + LIGHT_LOOK_NS > now && !course->watch.stands)
        light_hold_now_and_then(governor, governor->light.holds.of_bursts ? HOLD_MOST_NS : LIGHT_STOOD_NS,
                                course->launched_at_ns < now && course->watch.looked_at_ns == 0);
    return now;
}

static void end_light(struct governor *governor, struct light_course *course, bool was_heavy)
{
    gate_set(&governor->gate, GATE_CLOSED);
    gate_deepen(&governor->gate, 0);
    gate_know(&governor->gate, 0);
    charge_light(governor, course);
    if (course->is_another || governor->light.holds.odd_hold_pending)
        charge_another(governor, course);
    /* One that is now light and now is not would lose others what going over to it and back takes. */
    if (!course->is_another && !was_heavy && light_heavy(&governor->light, false, true) && !is_only(governor))
        light_is_long(&governor->light, governor->engine->now());
    time_slice_busy(&governor->time_slice, course->watch.stands);
    if (course->watch.stands) { /* the rest is charged as what a time slice leaves in flight is */
        governor->trail.charged_until_at_ns = course->watch.charged_until_at_ns;
        governor->trail.stands_at_waits = false;
    }
    log_line(LOG_DEBUG, "governor: light until now, needs %u %%, found work behind work at %u %% of the looks",
             (unsigned)(100 * governor->light.needed_fraction), (unsigned)(100 * governor->light.queued_fraction));
    governor->last.gate_closed_at_ns = governor->engine->now();
    gate_forget_timing(&governor->gate);
}

void light_run(struct governor *governor)
{
    uint64_t now = governor->engine->now();
    struct light_count count = light_count(governor);
    struct light_course course = {.launched_at_ns = now,
                                  .looked_at_ns = now,
                                  .settled_at_ns = now,
                                  .windowed = now,
                                  .charged_count = count,
                                  .count_at_look = count,
                                  .done = count};
    bool was_heavy = light_heavy(&governor->light, false, true);
    begin_light(governor, now);
    while (may_run(governor) && !course.is_another && goes_light(governor, true) &&
           elapsed(course.launched_at_ns, now) < LIGHT_RESTS_NS) {
        gate_look(&governor->gate, now);
        governor->engine->pause(watch_pause(governor, &course));
        now = look_once(governor, &course);
    }
    end_light(governor, &course, was_heavy);
}
