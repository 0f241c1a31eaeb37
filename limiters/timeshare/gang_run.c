/* Follows what the gang's lead decides, and tells it and others what is so here (gang_run.h). */
#include "gang_run.h"

#include "budget.h"

#include "../core/log.h"
#include "../core/tenant.h"

/* How often a member looks: while the gates are closed, and open. Near a moment that is known, and at the end of a row,
 * it waits awake: a sleep may take so much longer than asked. */
#define LOOK_CLOSED_NS MS
#define LOOK_OPEN_NS   (MS / 2)
#define LOOK_AWAKE_NS  (3 * US)
#define LOOK_ENDS_NS   (8 * US)
#define LOOK_LONG_NS   (50 * US)
#define SLEEP_NS       (80 * US)

/* After so long at the end of a row it looks less often. */
#define ENDS_AWAKE_NS (3 * MS)

/* Launchers are woken so long before the gates are opened. */
#define READY_NS (300 * US)

/* With nothing launched and nothing in flight for so long it rests; but for a while not as long as others of the gang
 * do not. A thread that launches on several devices waits at the gate of the first for the row of all. */
#define REST_NS  (20 * MS)
#define STAYS_NS (1000 * MS)

/* The mean time of a launch is of so much busy time of the device: longer than most steps. */
#define BUSY_WINDOW_NS (200 * MS)

/* After so long without progress, device time is no longer counted for the mean time of a launch: the work waits for
 * others, or is long. */
#define STALL_NS (20 * MS)

/* A launch that takes longer than this has a fence for itself (gate.c). */
#define OWN_FENCE_MIN_NS MS

/* A fence behind nothing passes so soon. */
#define FENCE_PASSES_NS (8 * US)

/* A launcher that was let through has come by then, or does not. */
#define COMES_NS (2 * MS)

/* A process that owes so much for itself does not run; it owes a little more at most. */
#define OWN_DEBT_NS (BUDGET_ARREARS_NS + BUDGET_BURST_NS)

/* How long its files are used before they are looked at again. */
#define RENEW_NS (100 * MS)

bool gang_is(struct governor *governor)
{
    struct pages *pages = &governor->time_slice.pages;
    if (governor->gang.shared_state == NULL)
        return false;
    pages_glance(pages, clock_ns());
    return row_is(&pages->own_row);
}

/* What this member knows of itself. */
struct member_run {
    uint32_t launches; /* at the last look */
    uint32_t passes;   /* of the gang's lead, followed so far */
    uint32_t allowed;  /* the same */
    uint64_t active_at_ns, looked_at_ns, renewed_at_ns;
    uint64_t let_at_ns;       /* launchers were let through then, and have made no launch yet; 0: they have */
    uint32_t launches_at_let; /* launches then */
    uint32_t signaled_fences; /* fences that were signaled by the last look */
    uint64_t progress_at_ns;  /* when a fence was last seen to be signaled, or a launch was made */
};

/* How long our device works for a launch, on average of the last steps; 0: that is not known yet. By the last fence
 * alone, one stands for a few launches after large kernels: where small ones follow them, launchers are hardly ahead.
 */
static uint64_t mean_launch_ns_of(const struct gang *gang)
{
    return gang->recent_busy_ns < BUSY_WINDOW_NS / 2
               ? 0
               : gang->recent_busy_ns / (gang->recent_busy_launches > 0 ? gang->recent_busy_launches : 1);
}

static void open_gate(struct governor *governor, uint64_t now_ns)
{
    struct gate *gate = &governor->gate;
    uint64_t asked_ns = governor->account.asked_at_ns, closed_ns = governor->last.gate_closed_at_ns;
    if (atomic_load(&gate->queue.waiting_count) > 0)
        account_stopped(&governor->account, now_ns - (asked_ns > closed_ns ? asked_ns : closed_ns));
    atomic_store(&gate->first_launch_at_ns, now_ns);
    gate_set(gate, GATE_OPEN);
}

static void close_gate(struct governor *governor, uint32_t state, uint64_t now_ns)
{
    struct gate *gate = &governor->gate;
    uint32_t state_before = atomic_load(&gate->state);
    if (gate_opens(state_before)) {
        governor->last.gate_closed_at_ns = now_ns;
        log_line(LOG_DEBUG, "gang: device %u: gate closed with %u fences in flight, each of %u launches now",
                 (unsigned)governor->gang.device_index, (unsigned)atomic_load(&gate->fences.pending_count),
                 (unsigned)atomic_load(&gate->fences.stride_launches));
        gate_forget_timing(gate);
    }
    if (state_before != state)
        gate_set(gate, state);
}

/* A process that is ahead of its grant's share by more than could be owed does not run, whatever the region says. */
static bool may_run(const struct governor *governor, uint64_t now_ns)
{
    const struct pages *pages = &governor->time_slice.pages;
    const struct account *account = &governor->account;
    return budget_balance(&account->own_counts, account->asked_at_ns, now_ns, pages->own_row.gang_core) +
               BUDGET_ARREARS_NS >
           0;
}

static void set_gate(struct governor *governor, uint32_t phase, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = governor->gang.shared_state;
    struct hetero_region_member *member = governor->gang.own_member;
    uint64_t until_ns = atomic_load(&shared->until_ns), opens_ns = atomic_load(&shared->opens_ns);
    bool held_back = member != NULL && atomic_load(&member->held_back);
    if (phase == GANG_OPEN && now_ns < until_ns && !held_back && may_run(governor, now_ns)) {
        if (!gate_opens(atomic_load(&governor->gate.state)))
            open_gate(governor, now_ns);
    } else if (phase != GANG_CLOSED) {
        close_gate(governor, GATE_ENDS, now_ns);
    } else {
        bool soon = opens_ns != 0 && opens_ns < now_ns + READY_NS;
        close_gate(governor, soon ? GATE_READY : GATE_CLOSED, now_ns);
    }
}

/* Let launchers through that the lead lets through. */
static void let_launch(struct governor *governor, struct hetero_region_member *member, struct member_run *run,
                       uint64_t now_ns)
{
    struct gate *gate = &governor->gate;
    if (run->passes != atomic_load(&member->passes)) {
        run->passes = atomic_load(&member->passes);
        run->launches_at_let = gate_launches(gate);
        run->let_at_ns = now_ns;
        gate_let_through(gate);
    }
    if (run->allowed != atomic_load(&member->allowed)) {
        run->allowed = atomic_load(&member->allowed);
        run->launches_at_let = gate_launches(gate);
        run->let_at_ns = (int32_t)(run->allowed - run->launches_at_let) > 0 ? now_ns : 0;
        gate_allow(gate, run->allowed);
    }
}

/* Do what the gang's phase says. Returns which change of it that was. */
static uint32_t follow(struct governor *governor, struct member_run *run, uint64_t now_ns)
{
    struct hetero_region_gang *shared = governor->gang.shared_state;
    struct hetero_region_member *member = governor->gang.own_member;
    uint32_t epoch = atomic_load(&shared->epoch), phase = atomic_load(&shared->phase);
    set_gate(governor, phase, now_ns);
    uint64_t mean_launch_ns = mean_launch_ns_of(&governor->gang);
    bool deep = mean_launch_ns > 0 && member != NULL && phase == GANG_OPEN;
    gate_deepen(&governor->gate,
                deep ? (uint32_t)(atomic_load(&member->depth) * MS / later(mean_launch_ns, OWN_FENCE_MIN_NS)) : 0);
    if (member != NULL)
        let_launch(governor, member, run, now_ns);
    return epoch;
}

/* Charge this process for itself what it used since the last look at the open gate, and count its launches. What it
 * does not run for any longer need not be remembered; nor what nobody else wanted. */
static void charge_own(struct governor *governor, uint64_t used_ns, uint64_t now_ns)
{
    bool lent = terms_policy(governor->grant_device) == HETERO_POLICY_ELASTIC &&
                !time_slice_sought(&governor->time_slice);
    account_spend_in_row(&governor->account, now_ns, governor->time_slice.pages.own_row.gang_core, used_ns, OWN_DEBT_NS,
                         lent);
    account_count(&governor->account, gate_launches(&governor->gate));
}

/* Learn the mean time of a launch, of `busy_ns` in which so many launches were made. Not at the end of a row, where
 * devices wait for each other. */
static void learn(struct governor *governor, struct member_run *run, uint64_t busy_ns, uint32_t launches,
                  uint64_t now_ns)
{
    struct gang *gang = &governor->gang;
    uint32_t signaled_fences = gate_signaled_fences(&governor->gate);
    if (signaled_fences != run->signaled_fences || launches > 0)
        run->progress_at_ns = now_ns;
    run->signaled_fences = signaled_fences;
    gang->recent_busy_ns += now_ns - run->progress_at_ns < STALL_NS ? busy_ns : 0;
    gang->recent_busy_launches += launches;
    if (gang->recent_busy_ns > BUSY_WINDOW_NS) {
        gang->recent_busy_ns /= 2;
        gang->recent_busy_launches /= 2;
    }
    uint64_t mean_launch_ns = mean_launch_ns_of(gang);
    gate_know(&governor->gate, mean_launch_ns < OWN_FENCE_MIN_NS ? mean_launch_ns : 0);
}

/* What others on the device see: that it runs, or will in its next row. */
static void say_to_others(struct governor *governor)
{
    static const enum page_state states[] = {
        [GANG_CLOSED] = PAGE_WANTS, [GANG_OPEN] = PAGE_RUNS, [GANG_ENDS] = PAGE_ENDS};
    struct hetero_region_gang *shared = governor->gang.shared_state;
    uint32_t phase = atomic_load(&shared->phase);
    bool comes = phase != GANG_CLOSED || atomic_load(&shared->opens_ns) != 0;
    pages_say(&governor->time_slice.pages, comes && phase <= GANG_ENDS ? states[phase] : PAGE_IDLE);
}

/* Whether its device has work of ours. A fence that was only set to ask passes a moment later where it has none: to
 * take that for work would charge each pause of the program for a look more, and miss short ones. */
static bool is_busy(struct governor *governor)
{
    struct gate *gate = &governor->gate;
    bool busy = !gate_is_idle(gate);
    if (busy && gate_opens(atomic_load(&gate->state)) && atomic_load(&gate->fences.pending_count) == 0) {
        governor->engine->pause(FENCE_PASSES_NS);
        busy = !gate_is_idle(gate);
    }
    return busy;
}

/* What it says to its gang, of which it has work in flight or not, and launchers that wait or not. */
static uint32_t says_of(struct governor *governor, const struct member_run *run, bool busy, bool waits, uint64_t now_ns)
{
    struct time_slice *time_slice = &governor->time_slice;
    uint64_t rests_ns = now_ns - run->active_at_ns;
    uint32_t says = rests_ns < REST_NS ? MEMBER_ACTIVE : 0;
    says |= rests_ns >= REST_NS && rests_ns < STAYS_NS && gang_goes_on(&governor->gang, now_ns) ? MEMBER_STAYS : 0;
    says |= busy ? MEMBER_BUSY : 0;
    says |= waits ? MEMBER_WAITS : 0;
    says |= time_slice_held_by_low(time_slice) ? MEMBER_HELD : 0;
    says |= time_slice_held_by_high(time_slice) ? MEMBER_INTRUDED : 0;
    return says | MEMBER_BESIDE * time_slice_others(time_slice);
}

/* Tell the lead how far it has come. */
static void tell_lead(struct governor *governor, const struct member_run *run, uint64_t now_ns)
{
    struct hetero_region_member *member = governor->gang.own_member;
    if (member == NULL)
        return;
    if (time_slice_sought(&governor->time_slice))
        atomic_store(&member->claimed_ns, now_ns);
    atomic_store(&member->signaled_fences, gate_signaled_fences(&governor->gate));
    atomic_store(&member->launches, run->launches);
    if (run->let_at_ns == 0) /* what was let through is counted: else as much would be let through again */
        atomic_store(&member->passed, run->passes);
}

static uint32_t look(struct governor *governor, struct member_run *run, uint64_t now_ns, uint32_t epoch)
{
    struct gate *gate = &governor->gate;
    bool waits = atomic_load(&gate->queue.waiting_count) > 0, busy = is_busy(governor);
    uint32_t launches = gate_launches(gate);
    time_slice_busy(&governor->time_slice, busy);
    if (run->let_at_ns != 0 && (launches != run->launches_at_let || now_ns - run->let_at_ns > COMES_NS))
        run->let_at_ns = 0;
    busy = busy || run->let_at_ns != 0;
    if (busy || waits || launches != run->launches)
        run->active_at_ns = now_ns;
    uint64_t since_ns = now_ns - run->looked_at_ns;
    bool open = gate_opens(atomic_load(&gate->state));
    uint64_t busy_ns = busy && open ? (since_ns < PAGES_STOPPED_NS ? since_ns : PAGES_STOPPED_NS) : 0;
    charge_own(governor, busy_ns, now_ns);
    if (open)
        learn(governor, run, busy_ns, launches - run->launches, now_ns);
    run->launches = launches;
    run->looked_at_ns = now_ns;
    uint32_t says = says_of(governor, run, busy, waits, now_ns);
    tell_lead(governor, run, now_ns);
    gang_say(&governor->gang, now_ns, says, epoch);
    return says;
}

/* Until the next look. */
static uint64_t rest_ns(const struct governor *governor, uint64_t now_ns)
{
    const struct hetero_region_gang *shared = governor->gang.shared_state;
    uint32_t phase = atomic_load(&shared->phase);
    if (phase == GANG_ENDS)
        return elapsed(atomic_load(&shared->since_ns), now_ns) < ENDS_AWAKE_NS ? LOOK_ENDS_NS : LOOK_LONG_NS;
    if (phase == GANG_OPEN && governor->gang.row.extended_at_ns != 0)
        return LOOK_LONG_NS;
    uint64_t most_ns = phase == GANG_OPEN ? LOOK_OPEN_NS : LOOK_CLOSED_NS;
    uint64_t phase_ends_at_ns = phase == GANG_OPEN ? atomic_load(&shared->until_ns) : atomic_load(&shared->opens_ns);
    uint64_t left_ns = phase_ends_at_ns > now_ns ? phase_ends_at_ns - now_ns : 0;
    if (phase_ends_at_ns == 0 || left_ns > most_ns + SLEEP_NS)
        return most_ns;
    return left_ns > SLEEP_NS ? left_ns - SLEEP_NS : LOOK_AWAKE_NS;
}

void gang_run(struct governor *governor)
{
    const struct engine *engine = governor->engine;
    struct time_slice *time_slice = &governor->time_slice;
    struct gang *gang = &governor->gang;
    struct member_run run = {.launches = gate_launches(&governor->gate)};
    run.active_at_ns = run.looked_at_ns = engine->now();
    gang->policy = terms_policy(governor->grant_device);
    time_slice->pages.is_asking = true;
    while (gang_is(governor) && terms_limit_core(governor->grant_device) && !atomic_load(&gates_retired)) {
        uint64_t now_ns = engine->now();
        if (now_ns - run.renewed_at_ns > RENEW_NS) {
            if (!time_slice_renew(time_slice)) {
                engine->pause(LOOK_CLOSED_NS);
                continue;
            }
            gang_join(gang, &time_slice->usage_file);
            if (run.renewed_at_ns == 0 && gang->own_member != NULL)
                run.passes = atomic_load(&gang->own_member->passes);
            run.renewed_at_ns = now_ns;
        }
        uint32_t epoch = follow(governor, &run, now_ns);
        uint32_t says = look(governor, &run, now_ns, epoch);
        const struct pages *pages = &time_slice->pages;
        uint64_t overrun_ns = pages->board->overrun_ns != 0 ? pages->board->overrun_ns : pages->own_row.period_ns;
        gang_lead(gang, &time_slice->usage_file, &pages->own_row, overrun_ns, engine->now(), wall_ns());
        say_to_others(governor);
        if (!(says & (MEMBER_ACTIVE | MEMBER_STAYS)))
            break;
        engine->pause(rest_ns(governor, engine->now()));
    }
    uint64_t now_ns = engine->now();
    close_gate(governor, GATE_CLOSED, now_ns);
    gate_know(&governor->gate, 0);
    if (gang_rest(gang, now_ns))
        pages_say(&time_slice->pages, PAGE_IDLE);
    else
        pages_hush(&time_slice->pages);
    time_slice->pages.is_asking = false;
}
