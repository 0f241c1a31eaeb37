/* Lets launchers through at the end of a row, until the devices of the gang are idle (gang_end.h). */
#include "gang_end.h"

#include "../core/log.h"

#include <stdio.h>

/* A member that has launched so much less than another is not behind it: it makes other launches. What is in flight is
 * three fences of 64 launches (gate.c), and devices may be as far apart. */
#define BEHIND_MOST 1024

/* One that is known to be behind may make a few at a time, this many at most; and twice as many the next time if its
 * device has done them within so long. */
#define FEW_MOST 64u
#define FEW_NS   (1000 * US)

/* One that was seen to wait for another waits for so long; then it is tried out, so often at most, unless what it
 * launches takes longer than that. Well below the ten seconds after which `hetero doctor` says that nobody waits. Where
 * the one that was held back had nothing to launch, as at the end of a step, that showed nothing: sooner. */
#define MET_NS           (4000 * MS)
#define PROBE_EVERY_NS   (1500 * MS)
#define PROBE_AGAIN_NS   (300 * MS)
#define PROBE_LONGEST_NS (5 * MS)

/* Where nobody was seen to wait for another for so long, nobody is let through because another has launched more: who
 * waits after all shows by standing still. `hetero doctor` says so then. */
#define APART_NS (10000 * MS)

/* How slowly it is forgotten what the end of a row takes. */
#define ENDS_FADE 8

static void doubt(struct gang *gang, bool known)
{
    if (known)
        gang->probe.doubt_score -= gang->probe.doubt_score > 0;
    else
        gang->probe.doubt_score = gang->probe.doubt_score + DOUBT < DOUBT_MOST ? gang->probe.doubt_score + DOUBT
                                                                               : DOUBT_MOST;
}

/* Another stands still, and nobody else can be behind. */
static void find_behind(struct gang *gang, const struct census *census, uint32_t member_index)
{
    bool known = ahead_of(position(&gang->shared_state->members[member_index]), census->front) > 0;
    atomic_store(&gang->shared_state->met_ns, gang->led_at_ns);
    if (gang->probe.is_on && known) { /* that was to be seen: it catches up as ever */
        gang->probe.is_on = false;
        return;
    }
    doubt(gang, known);
    gang->row.is_miscounted = true;
    for (uint32_t other_index = 0; other_index < HETERO_REGION_MEMBERS; other_index++)
        gang->seen[other_index].is_waited_for = false;
    gang->seen[member_index].is_waited_for = true;
}

static bool is_apart(const struct gang *gang)
{
    uint64_t met_ns = later(gang->shared_state->met_ns, gang->shared_state->asked_ns);
    return elapsed(met_ns, gang->led_at_ns) > APART_NS;
}

/* One that is known to be behind may make a few at a time, for as long as others wait for it. */
static uint32_t may_launch_few(struct gang_seen *seen, const struct hetero_region_member *member, uint64_t now_ns)
{
    int32_t left = ahead_of(member->launches, member->allowed);
    if (left > 0 || (member->says & MEMBER_BUSY))
        return left > 0 ? (uint32_t)left : 0;
    uint32_t few = now_ns - seen->few_at_ns > FEW_NS ? seen->few_launches / 2 : seen->few_launches * 2;
    seen->few_launches = few < 1 ? 1 : few < FEW_MOST ? few : FEW_MOST;
    seen->few_at_ns = now_ns;
    return seen->few_launches;
}

/* How many launches a member may make at the end of a row, as fast as it does: as many as a busy one is ahead of it,
 * where launches tell that. */
static uint32_t may_launch(struct gang *gang, const struct census *census, uint32_t member_index, uint64_t now_ns)
{
    const struct hetero_region_member *member = &gang->shared_state->members[member_index];
    int32_t behind = ahead_of(position(member), census->front);
    if (!member->taken || !census->busy)
        return 0;
    if (launches_count(gang))
        return !is_apart(gang) && behind > 0 && behind <= BEHIND_MOST ? (uint32_t)behind : 0;
    bool waited_for = gang->seen[member_index].is_waited_for && census->waited_for;
    return waited_for && elapsed(census->others_progress_at_ns, now_ns) > STUCK_NS
               ? may_launch_few(&gang->seen[member_index], member, now_ns)
               : 0;
}

/* Let members that are behind catch up. Whether any may that might not before. */
static bool let_catch_up(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint32_t reached = atomic_load(&shared->reached);
    bool helped = false;
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        struct hetero_region_member *member = &shared->members[member_index];
        uint32_t launches = member->launches, may = may_launch(gang, census, member_index, now_ns);
        int32_t left = ahead_of(launches, member->allowed);
        left = left > 0 ? left : 0;
        if ((uint32_t)left == may)
            continue;
        atomic_store(&member->allowed, launches + may);
        if ((uint32_t)left < may) {
            atomic_fetch_add(&shared->passes, may - (uint32_t)left);
            helped = true;
        }
    }
    return helped;
}

static void let_through(struct gang *gang, struct hetero_region_member *member)
{
    atomic_store(&member->passes, member->passes + 1);
    atomic_fetch_add(&gang->shared_state->passes, 1);
}

/* Whether a launcher of a member that says this is kept at its gate. */
static bool is_kept(const struct hetero_region_member *member, uint32_t member_flags, uint64_t now_ns)
{
    return member->taken && (member_flags & MEMBER_WAITS) && member->passed == member->passes &&
           elapsed(member->stamp_ns, now_ns) <= STALE_NS && ahead_of(member->launches, member->allowed) <= 0;
}

/* Whether a member is to be let through whose device is idle: it is behind because one stands still. */
static bool is_behind(struct gang *gang, const struct census *census, uint32_t member_index, uint32_t member_flags)
{
    bool idle = !(member_flags & MEMBER_BUSY),
         known = idle && gang->seen[member_index].is_waited_for && census->waited_for;
    if (!known && !(idle && census->stuck))
        return false;
    if (!known)
        find_behind(gang, census, member_index);
    return true;
}

/* Let launchers through that are kept: those of idle devices, or all. Whether there were any. */
static bool help_kept(struct gang *gang, const struct census *census, bool all, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint32_t reached = atomic_load(&shared->reached);
    bool helped = false;
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        struct hetero_region_member *member = &shared->members[member_index];
        uint32_t member_flags = member->says;
        if (!is_kept(member, member_flags, now_ns) || !(all || is_behind(gang, census, member_index, member_flags)))
            continue;
        let_through(gang, member);
        helped = true;
    }
    return helped;
}

/* A busy device may wait for a launch of another that is kept at its gate: let such through. */
static void help(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    struct gang_help *last = &gang->help;
    bool helped = let_catch_up(gang, census, now_ns);
    if (census->progress_at_ns > last->let_at_ns)
        last->crossed_ns = stuck_ns(gang);
    uint64_t crossed_ns = last->crossed_ns + (census->idle_waits ? 2 * patience_ns(gang) : 0);
    bool crossed = elapsed(later(census->progress_at_ns, last->let_at_ns), now_ns) > crossed_ns;
    helped = helped || help_kept(gang, census, false, now_ns);
    if (!helped && crossed && help_kept(gang, census, true, now_ns)) {
        last->let_at_ns = now_ns;
        last->crossed_ns *= 2;
        helped = true;
    }
    if (helped)
        last->any_at_ns = now_ns;
}

/* How far members have come, the least and the furthest: all of them, or those that nobody waited for. False: there are
 * none. */
static bool find_positions(const struct gang *gang, bool all, uint32_t *least, uint32_t *front)
{
    uint32_t reached = atomic_load(&gang->shared_state->reached);
    bool any = false;
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        const struct hetero_region_member *member = &gang->shared_state->members[member_index];
        uint32_t member_position = position(member);
        if (!member->taken || (!all && gang->seen[member_index].is_waited_for))
            continue;
        *front = !any || ahead_of(*front, member_position) > 0 ? member_position : *front;
        *least = !any || ahead_of(*least, member_position) < 0 ? member_position : *least;
        any = true;
    }
    return any;
}

/* All are idle. One may have come further than another in what waits for nothing, so that launches tell no more who is
 * behind if that were forgotten. But one that was waited for was behind. */
static void note_settled(struct gang *gang)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint32_t reached = atomic_load(&shared->reached), front = 0, least = 0, others_front = 0, others_least = 0;
    bool any = find_positions(gang, true, &least, &front);
    bool other = find_positions(gang, false, &others_least, &others_front);
    bool anew = any && ahead_of(least, front) > BEHIND_MOST; /* it came later, or makes launches of its own */
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        struct hetero_region_member *member = &shared->members[member_index];
        if (anew)
            member->settled = member->launches;
        else if (gang->seen[member_index].is_waited_for && other && ahead_of(others_front, position(member)) > 0)
            member->settled = member->launches - others_front;
    }
}

bool gang_end_probes(const struct gang *gang, const struct census *census, uint64_t now_ns)
{
    bool several = (census->devices & (census->devices - 1)) != 0;
    return several && elapsed(gang->shared_state->met_ns, now_ns) >= MET_NS && now_ns >= gang->probe.due_at_ns;
}

void gang_end_probe(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    if (gang->probe.is_on || !gang_end_probes(gang, census, now_ns))
        return;
    if (gang->progress_interval_ns > PROBE_LONGEST_NS) { /* who waits for whom would not show for too long */
        atomic_store(&shared->met_ns, now_ns);
        return;
    }
    uint32_t reached = shared->reached < HETERO_REGION_MEMBERS ? shared->reached : HETERO_REGION_MEMBERS;
    for (uint32_t member_index = 0; member_index < reached && !gang->probe.is_on; member_index++) {
        gang->probe.held_member_index = (gang->probe.held_member_index + 1) % reached;
        struct hetero_region_member *member = &shared->members[gang->probe.held_member_index];
        gang->probe.is_on = member->taken && (member->says & MEMBER_ACTIVE);
        if (gang->probe.is_on)
            atomic_store(&member->held_back, 1);
    }
    gang->probe.begun_at_ns = now_ns;
    gang->probe.due_at_ns = now_ns + PROBE_EVERY_NS;
}

/* --------------------------------------------------------------------------------------------------------- the trace
 */

/* Members beyond these are not shown: a line of the log is not longer. */
#define SHOWN 4u

void gang_end_opened(struct gang *gang, uint64_t now_ns)
{
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS && member_index < gang->shared_state->reached;
         member_index++)
        atomic_store(&gang->shared_state->members[member_index].held_back, 0);
    gang->row.opened_at_ns = gang->trace.looked_at_ns = now_ns;
    gang->trace.opened_row = gang->shared_state->rows;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS; member_index++)
        gang->trace.began_ns[member_index] = gang->trace.idle_ns[member_index] = gang->trace.stood_ns[member_index] = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        gang->trace.charged_ns[device] = gang->device_accounts[device].gpu_ns;
}

void gang_end_looked(struct gang *gang, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = gang->shared_state;
    struct row_trace *trace = &gang->trace;
    uint64_t since_ns = now_ns - trace->looked_at_ns;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS && member_index < shared->reached;
         member_index++) {
        bool busy = shared->members[member_index].says & MEMBER_BUSY;
        if (busy && trace->began_ns[member_index] == 0)
            trace->began_ns[member_index] = now_ns - gang->row.opened_at_ns;
        else if (!busy && trace->began_ns[member_index] != 0)
            trace->idle_ns[member_index] += since_ns;
        else if (busy && now_ns - later(gang->seen[member_index].progress_at_ns, gang->row.opened_at_ns) > STOOD_NS)
            trace->stood_ns[member_index] += since_ns;
    }
    trace->looked_at_ns = now_ns;
}

void gang_end_asked(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = gang->shared_state;
    struct row_trace *trace = &gang->trace;
    trace->asked_at_ns = trace->looked_at_ns = now_ns;
    trace->asked_row = shared->rows;
    trace->passes = shared->passes;
    if (gang->probe.is_on && !(shared->members[gang->probe.held_member_index].says & MEMBER_WAITS))
        gang->probe.due_at_ns = now_ns + PROBE_AGAIN_NS;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS && member_index < shared->reached;
         member_index++) {
        trace->busy_ns[member_index] = 0;
        trace->behind[member_index] = census->busy ? ahead_of(position(&shared->members[member_index]), census->front)
                                                   : 0;
    }
}

static void look(struct gang *gang, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = gang->shared_state;
    struct row_trace *trace = &gang->trace;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS && member_index < shared->reached;
         member_index++)
        if (shared->members[member_index].says & MEMBER_BUSY)
            trace->busy_ns[member_index] += now_ns - trace->looked_at_ns;
    trace->looked_at_ns = now_ns;
}

static unsigned long long us(uint64_t ns)
{
    return ns / US;
}

static void show(const struct gang *gang, bool over, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = gang->shared_state;
    const struct row_trace *trace = &gang->trace;
    if (trace->opened_row != shared->rows || trace->asked_row != shared->rows)
        return; /* another had the lead for a part of it */
    char members[360] = "";
    size_t length = 0;
    for (uint32_t member_index = 0, shown = 0;
         member_index < HETERO_REGION_MEMBERS && member_index < shared->reached && shown < SHOWN; member_index++) {
        const struct hetero_region_member *member = &shared->members[member_index];
        uint32_t device = member->device % HETERO_MAX_DEVICES;
        if (!member->taken)
            continue;
        shown++;
        length += (size_t)snprintf(
            members + length, sizeof members - length,
            "; device %u: charged %llu, began %llu, idle %llu, stood %llu, behind %d, end %llu%s", (unsigned)device,
            us(gang->device_accounts[device].gpu_ns - trace->charged_ns[device]), us(trace->began_ns[member_index]),
            us(trace->idle_ns[member_index]), us(trace->stood_ns[member_index]), trace->behind[member_index],
            us(trace->busy_ns[member_index]), gang->seen[member_index].is_waited_for ? " waited for" : "");
        length = length < sizeof members ? length : sizeof members - 1;
    }
    log_line(
        LOG_DEBUG,
        "gang: row %llu, us: begun at %llu%s, open %llu, %llu of it over, end %llu%s, %llu let through, moves %llu%s%s",
        (unsigned long long)shared->rows, us(trace->into_ns), trace->held ? " beside others" : "",
        us(trace->asked_at_ns - gang->row.opened_at_ns),
        us(gang->row.extended_at_ns != 0 ? trace->asked_at_ns - gang->row.extended_at_ns : 0),
        us(now_ns - trace->asked_at_ns), over ? " and not idle" : "",
        (unsigned long long)(shared->passes - trace->passes), us(gang->progress_interval_ns),
        launches_count(gang) ? "" : ", launches do not tell", members);
}

/* ------------------------------------------------------------------------------------------------------------- over
 */

/* The gates were closed so long before all were idle: on average of late. */
static void learn_end(struct hetero_region_gang *shared, uint64_t took_ns)
{
    uint64_t known_ns = shared->ends_ns;
    shared->ends_ns = known_ns - known_ns / ENDS_FADE + took_ns / ENDS_FADE;
}

bool gang_end_is_over(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint64_t took_ns = elapsed(atomic_load(&shared->since_ns), now_ns);
    bool over = now_ns >= shared->until_ns;
    look(gang, now_ns);
    if (!over && (census->busy || census->late)) {
        help(gang, census, now_ns);
        return false;
    }
    atomic_fetch_add(&shared->overruns, over);
    if (!over)
        note_settled(gang);
    if (!over && !gang->row.is_miscounted)
        doubt(gang, true);
    learn_end(shared, took_ns);
    atomic_fetch_add(&shared->overrun_ns, took_ns);
    show(gang, over, now_ns);
    gang->help.crossed_ns = stuck_ns(gang);
    gang->row.is_miscounted = gang->probe.is_on = false;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS; member_index++)
        gang->seen[member_index].is_waited_for = false;
    return true;
}
