/* What the member of a gang that has the lead decides (gang.h). */
#include "gang.h"

#include "account.h"
#include "budget.h"
#include "gang_end.h"

#include "../core/log.h"

#include <errno.h>
#include <fcntl.h>

/* For so long the lead is kept by who does not look. A member that says nothing for QUIET_NS may be dead. */
#define LEASE_NS (5 * MS)
#define QUIET_NS (2 * MS)

/* Others want none of the devices when they have not for so long. */
#define ROOM_NS (5 * MS)

/* At the beginning of a row one waits so long for what others have in flight; and longer if they were idle by then the
 * last time. Two gangs that run at once on the same devices spin for each other: each takes several times as long. */
#define HELD_MOST_NS (10 * MS)
#define HELD_LONG_NS (30 * MS)

/* A row of which less is left, or less than that can be paid for, is not worth its beginning. */
#define LEAST_NS MS

/* The devices of a gang that launches nothing for so long are lent. */
#define LEND_NS (5 * MS)

/* How long work of a member takes to come further: not known before fences have passed, and forgotten slowly. */
#define MOVES_NS      (2 * MS)
#define MOVES_MOST_NS (250 * MS)
#define MOVES_FADE    16

/* What comes further so long after anybody was let through did not wait for that. */
#define HELPS_NS (50 * MS)

/* A gang whose work goes on for so long after a row may be in debt because that waits for its own launch. It has a row
 * of RESCUED_NS then, and may run over the end of that as long. */
#define RESCUE_NS  (500 * MS)
#define RESCUED_NS (10 * MS)

/* A launcher may be ahead of its device by so much in a row, and by what is left of that where others follow. A host
 * that is busy elsewhere for milliseconds, as in an optimizer, would leave the device idle else, or have others' spin.
 */
#define DEEP_NS (30 * MS)

/* How often what was used is written down at least. */
#define CHARGE_NS (200 * US)

/* A row by hand ends once the devices have been idle for so long; the gates are left open for so long at a time. */
#define SOFT_IDLE_NS (60 * US)
#define SOFT_NS      (400 * US)

/* Where nobody else wants its devices, any row does, for so long at most; but not one whose operations take longer. */
#define STEP_NS (100 * MS)

/* What waits for another node is not charged for so long, while nobody else wants the devices. */
#define FREE_SPIN_NS (120 * MS)

/* Where others follow, the gates are closed so much sooner as the end of a row takes, which is of the row this part at
 * most. */
#define ENDS_PART 2

/* But only by so much of it: an end takes more or less than the last ones, and what is left of a row when all are idle
 * is nobody's, while who follows waits for what is in flight. */
#define ENDS_BEFORE 2

/* What an elastic gang has in hand of time that nobody else wants. */
#define ELASTIC_NS (10 * MS)

/* What the lead sees of the row at a look. */
struct gang_look {
    const struct hetero_board_row *row;
    bool claimed;        /* another grant wants one of the devices */
    uint64_t overrun_ns; /* for how long it may go on after its end */
    uint64_t now_ns, wall_ns;
};

/* ---------------------------------------------------------------------------------------------------------- members */

static unsigned number_of(const struct gang *gang, const struct hetero_region_member *member)
{
    return (unsigned)(member - gang->shared_state->members);
}

static bool lock_member(const struct descriptor *usage, unsigned member_index, int command, short *type)
{
    struct flock range = {
        .l_type = *type, .l_whence = SEEK_SET, .l_start = HETERO_REGION_LOCK_MEMBER(member_index), .l_len = 1};
    int result;
    do
        result = fcntl(usage->number, command, &range);
    while (result < 0 && errno == EINTR);
    *type = range.l_type;
    return result == 0;
}

void gang_join(struct gang *gang, const struct descriptor *usage)
{
    short type = F_WRLCK;
    if (gang->own_member != NULL) {
        if (lock_member(usage, number_of(gang, gang->own_member), F_OFD_SETLK, &type)) {
            gang->own_member->taken = 1; /* while the lock was away it may have been taken for dead */
            return;
        }
        gang->own_member = NULL;
    }
    for (unsigned member_index = 0; member_index < HETERO_REGION_MEMBERS && gang->own_member == NULL; member_index++) {
        type = F_WRLCK;
        if (!lock_member(usage, member_index, F_OFD_SETLK, &type))
            continue;
        struct hetero_region_member *member = &gang->shared_state->members[member_index];
        member->device = gang->device_index;
        member->says = 0;
        member->launches = member->settled = member->allowed = member->held_back = 0;
        member->passed = member->passes;
        member->taken = 1;
        gang->own_member = member;
        uint32_t reached = atomic_load(&gang->shared_state->reached);
        while (reached <= member_index &&
               !atomic_compare_exchange_weak(&gang->shared_state->reached, &reached, member_index + 1))
            ;
    }
    if (gang->own_member == NULL)
        log_line(LOG_INFO, "gang: more than %u processes and devices: this one is not waited for",
                 HETERO_REGION_MEMBERS);
}

void gang_say(struct gang *gang, uint64_t now_ns, uint32_t member_flags, uint32_t epoch)
{
    struct hetero_region_member *member = gang->own_member;
    if (member == NULL)
        return;
    atomic_store(&member->says, member_flags);
    atomic_store(&member->epoch, epoch);
    atomic_store(&member->stamp_ns, now_ns);
}

/* Whether another member is active: on this device, or anywhere. */
static bool is_other_active(const struct gang *gang, uint64_t now_ns, bool anywhere)
{
    uint32_t reached = atomic_load(&gang->shared_state->reached);
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        const struct hetero_region_member *member = &gang->shared_state->members[member_index];
        if (member != gang->own_member && member->taken && (member->says & MEMBER_ACTIVE) &&
            elapsed(member->stamp_ns, now_ns) < STALE_NS && (anywhere || member->device == gang->device_index))
            return true;
    }
    return false;
}

bool gang_goes_on(const struct gang *gang, uint64_t now_ns)
{
    return is_other_active(gang, now_ns, true);
}

static void enter(struct gang *gang, enum gang_phase phase, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    if (atomic_load(&shared->phase) == (uint32_t)phase)
        return;
    atomic_store(&shared->since_ns, now_ns);
    atomic_store(&shared->phase, phase);
    atomic_fetch_add(&shared->epoch, 1);
}

bool gang_rest(struct gang *gang, uint64_t now_ns)
{
    if (gang->own_member != NULL)
        atomic_store(&gang->own_member->says, 0);
    if (!is_other_active(gang, now_ns, true)) {
        atomic_store(&gang->shared_state->opens_ns, 0);
        atomic_store(&gang->shared_state->asked_ns, 0);
        enter(gang, GANG_CLOSED, now_ns);
    }
    return !is_other_active(gang, now_ns, false);
}

/* -------------------------------------------------------------------------------------------------------- the lead */

/* The word has until when in all but its last eight bits, and in those the member. */
#define WHO UINT64_C(0xff)

/* Work of a member came further, after so long. One that took far longer than those before may have waited for another
 * node; long kernels come again and again. */
static void note_move(struct gang *gang, uint64_t after_ns)
{
    uint64_t known_ns = gang->progress_interval_ns - gang->progress_interval_ns / MOVES_FADE;
    after_ns = after_ns < MOVES_MOST_NS ? after_ns : MOVES_MOST_NS;
    after_ns = after_ns < 2 * known_ns + MS ? after_ns : 2 * known_ns + MS;
    gang->progress_interval_ns = after_ns > known_ns ? after_ns : known_ns;
}

static bool take_lead(struct gang *gang, uint64_t now_ns)
{
    uint64_t lead = atomic_load(&gang->shared_state->lead), mine = number_of(gang, gang->own_member) + 1;
    bool ours = (lead & WHO) == mine;
    if (!ours && lead > now_ns && lead < now_ns + 2 * LEASE_NS)
        return false;
    if (!atomic_compare_exchange_strong(&gang->shared_state->lead, &lead, ((now_ns + LEASE_NS) & ~WHO) | mine))
        return false;
    if (!ours || now_ns - gang->led_at_ns > STALE_NS) { /* nothing was seen yet, or it is old */
        uint32_t reached = atomic_load(&gang->shared_state->reached);
        for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS;
             member_index++) {
            gang->seen[member_index].signaled_fences = gang->shared_state->members[member_index].signaled_fences;
            gang->seen[member_index].progress_at_ns = now_ns;
        }
        gang->used_at_ns = gang->help.let_at_ns = now_ns;
        gang->progress_interval_ns = MOVES_NS;
        gang->help.crossed_ns = stuck_ns(gang);
    }
    gang->led_at_ns = now_ns;
    return true;
}

/* Whether it counts: one that was killed is forgotten, and of one that says nothing nothing is known. */
static bool counts(struct gang *gang, const struct descriptor *usage, unsigned member_index, uint64_t now_ns,
                   struct census *census)
{
    struct hetero_region_member *member = &gang->shared_state->members[member_index];
    uint64_t age_ns = elapsed(member->stamp_ns, now_ns);
    if (!member->taken)
        return false;
    if (age_ns > QUIET_NS && (member->says & MEMBER_ACTIVE)) {
        short type = F_WRLCK;
        if (member != gang->own_member && lock_member(usage, member_index, F_OFD_GETLK, &type) && type == F_UNLCK) {
            census->died = true;
            member->says = member->taken = 0;
            return false;
        }
    }
    census->stopped = census->stopped || (age_ns >= STALE_NS && (member->says & MEMBER_ACTIVE));
    return age_ns < STALE_NS;
}

/* Work of a member came further, or it has none. */
static void note_progress(struct gang *gang, uint32_t member_index, uint32_t member_flags, uint32_t signaled_fences,
                          uint64_t now_ns)
{
    struct gang_seen *seen = &gang->seen[member_index];
    bool busy = member_flags & MEMBER_BUSY;
    if (busy && signaled_fences == seen->signaled_fences)
        return;
    bool helped = gang->help.any_at_ns >= seen->progress_at_ns && now_ns - gang->help.any_at_ns < HELPS_NS;
    if (busy && !helped && gang->shared_state->rescue_ns == 0)
        note_move(gang, elapsed(later(seen->progress_at_ns, gang->row.opened_at_ns), now_ns));
    seen->signaled_fences = signaled_fences;
    seen->progress_at_ns = now_ns;
}

static void count_active(struct census *census, const struct hetero_region_member *member, uint32_t member_flags,
                         uint32_t device, uint32_t epoch)
{
    bool waits = member_flags & MEMBER_WAITS;
    census->active = true;
    census->waits = census->waits || waits;
    census->waiting_devices |= waits ? device : 0;
    census->idle_waits = census->idle_waits || (waits && !(member_flags & MEMBER_BUSY));
    census->held = census->held || (member_flags & MEMBER_HELD);
    census->intruded = census->intruded || (member_flags & MEMBER_INTRUDED);
    census->late = census->late || member->epoch != epoch;
    census->claimed_at_ns = later(member->claimed_ns, census->claimed_at_ns);
}

static void count_busy(const struct gang *gang, struct census *census, uint32_t member_index, uint32_t member_flags,
                       uint64_t now_ns)
{
    const struct hetero_region_member *member = &gang->shared_state->members[member_index];
    const struct gang_seen *seen = &gang->seen[member_index];
    uint64_t progress_at_ns = later(seen->progress_at_ns, atomic_load(&gang->shared_state->since_ns));
    uint32_t member_position = position(member), device = member->device % HETERO_MAX_DEVICES;
    census->busy_devices |= UINT32_C(1) << device;
    census->beside[device] = member_flags / MEMBER_BESIDE;
    census->any_progress_at_ns = later(seen->progress_at_ns, census->any_progress_at_ns);
    if (!seen->is_waited_for) {
        census->waited_for = true;
        census->others_progress_at_ns = later(progress_at_ns, census->others_progress_at_ns);
    }
    census->stuck = census->stuck || elapsed(progress_at_ns, now_ns) > stuck_ns(gang) + patience_ns(gang);
    census->progress_at_ns = later(progress_at_ns, census->progress_at_ns);
    census->front = !census->busy || ahead_of(census->front, member_position) > 0 ? member_position : census->front;
    census->busy = true;
}

static struct census count_members(struct gang *gang, const struct descriptor *usage, uint64_t now_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    struct census census = {0};
    uint32_t reached = atomic_load(&shared->reached), epoch = atomic_load(&shared->epoch);
    for (uint32_t member_index = 0; member_index < reached && member_index < HETERO_REGION_MEMBERS; member_index++) {
        const struct hetero_region_member *member = &shared->members[member_index];
        if (!counts(gang, usage, member_index, now_ns, &census))
            continue;
        uint32_t member_flags = member->says, device = UINT32_C(1) << (member->device % HETERO_MAX_DEVICES);
        note_progress(gang, member_index, member_flags, member->signaled_fences, now_ns);
        if (member_flags & (MEMBER_ACTIVE | MEMBER_STAYS))
            census.devices |= device;
        if (member_flags & MEMBER_ACTIVE)
            count_active(&census, member, member_flags, device, epoch);
        if ((member_flags & MEMBER_ACTIVE) && (member_flags & MEMBER_BUSY))
            count_busy(gang, &census, member_index, member_flags, now_ns);
    }
    return census;
}

/* ------------------------------------------------------------------------------------------------------ what it used
 */

/* Whether what is in flight stands still for longer than kernels took so far: else those would be free. */
static bool waits_for_a_node(const struct gang *gang, const struct census *census, uint64_t now_ns)
{
    uint64_t stood_ns = elapsed(census->progress_at_ns, now_ns);
    return census->busy && stood_ns > stuck_ns(gang) && stood_ns < FREE_SPIN_NS;
}

/* The same of one whose user gave its row, as of gangs of several nodes, while nobody else wants its devices. */
static bool spins_for_a_node(const struct gang *gang, const struct census *census, const struct gang_look *look)
{
    return row_is_by_hand(look->row) && !look->claimed && waits_for_a_node(gang, census, look->now_ns);
}

/* Whether what is in flight has stood still for long, and a device of the grant has nothing: a process of it may not
 * have come yet, or come again. */
static bool waits_for_a_process(const struct gang *gang, const struct census *census, uint64_t now_ns)
{
    unsigned busy = (unsigned)__builtin_popcount(census->busy_devices);
    return census->busy && busy < gang->device_count &&
           elapsed(census->any_progress_at_ns, now_ns) > (uint64_t)PAGES_STOPPED_NS;
}

/* A kernel may be long, or wait for a process that has not come yet: it is charged. Where it stands until there is a
 * launcher of another device, it has waited, and what was charged for that is given back where nobody else wanted a
 * device: else the gang would have nothing for as long again. */
static void give_waiting_back(struct gang *gang, const struct census *census, bool waits)
{
    bool came = waits && (census->waiting_devices & ~census->busy_devices) != 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        if (came)
            account_refund_device(&gang->device_accounts[device], gang->waited_ns[device]);
        if (came || !waits)
            gang->waited_ns[device] = 0;
    }
}

/* Whether what is in flight is not charged: it waits for a process that was stopped, for longer than one would be
 * charged for itself; or it stands since a process of it was killed, and nobody else wants a device. */
static bool is_excused(struct gang *gang, const struct census *census, uint64_t now_ns, bool unwanted)
{
    const struct hetero_region_gang *shared = gang->shared_state;
    const uint64_t most_ns = PAGES_STOPPED_NS;
    gang->died_at_ns = census->died ? now_ns : gang->died_at_ns;
    bool lost = gang->died_at_ns != 0 && census->any_progress_at_ns < gang->died_at_ns + most_ns;
    bool stopped = census->stopped && shared->phase == GANG_CLOSED && elapsed(shared->since_ns, now_ns) > most_ns;
    return stopped || (unwanted && lost);
}

/* Whether one of high priority runs in the open row, which has lost so much by it. */
static bool note_intrusion(struct gang *gang, const struct census *census, uint64_t lost_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    bool intruded = census->intruded && shared->phase == GANG_OPEN;
    if (intruded) {
        atomic_fetch_add(&shared->intrusions, !gang->row.is_intruded);
        atomic_fetch_add(&shared->intruded_ns, lost_ns);
    }
    gang->row.is_intruded = intruded;
    return intruded;
}

/* How long it is since the last charge; where nobody had the lead for longer, so much at most. */
static uint64_t since_charge(const struct hetero_region_gang *shared, uint64_t now_ns)
{
    uint64_t from_ns = atomic_load(&shared->charged_ns);
    uint64_t spent_ns = from_ns != 0 && from_ns < now_ns ? now_ns - from_ns : 0;
    return spent_ns < STALE_NS ? spent_ns : STALE_NS;
}

/* Each device is charged for the time for which it worked, and in an open row all of them where others wanted one. What
 * an idle device waits for at the end of a row is ours, not the program's; and so is what it takes to wake launchers,
 * as with grants of one device. */
static void charge(struct gang *gang, const struct census *census, const struct gang_look *look)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint64_t now_ns = look->now_ns, spent_ns = since_charge(shared, now_ns);
    gang->row.has_begun = gang->row.has_begun || census->busy;
    bool lent = gang->policy == HETERO_POLICY_ELASTIC && !look->claimed;
    bool holds = look->claimed && shared->phase == GANG_OPEN && gang->row.has_begun;
    bool waits = waits_for_a_process(gang, census, now_ns), unwanted = waits && !look->claimed;
    if (is_excused(gang, census, now_ns, unwanted))
        spent_ns = 0;
    atomic_store(&shared->charged_ns, now_ns);
    if (note_intrusion(gang, census, spent_ns))
        spent_ns = 0;
    if (spins_for_a_node(gang, census, look))
        spent_ns = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        uint32_t bit = UINT32_C(1) << device;
        uint64_t used_ns = holds || (census->busy_devices & bit) ? spent_ns : 0;
        if (shared->phase == GANG_CLOSED) /* others have their time slices */
            used_ns /= 1 + census->beside[device];
        if (!(census->devices & bit))
            continue;
        gang->waited_ns[device] += unwanted ? (int64_t)used_ns : 0;
        account_spend_device(&gang->device_accounts[device], shared->asked_ns, now_ns, look->row->gang_core, used_ns,
                             lent);
    }
    give_waiting_back(gang, census, waits);
}

/* What may be used until the row begins again: what is there by then, of the device that has least. */
static int64_t ahead(const struct gang *gang, const struct census *census, const struct gang_look *look)
{
    const struct hetero_board_row *row = look->row;
    int64_t least_ns = INT64_MAX;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++) {
        if (!(census->devices & (UINT32_C(1) << device)))
            continue;
        int64_t balance_ns = budget_balance(&gang->device_accounts[device], gang->shared_state->asked_ns, look->now_ns,
                                            row->gang_core);
        least_ns = balance_ns < least_ns ? balance_ns : least_ns;
    }
    return least_ns == INT64_MAX ? 0 : least_ns + budget_share(row_until_next(row, look->wall_ns), row->gang_core);
}

/* ---------------------------------------------------------------------------------------------------------- phases */

/* How much is left of its row until the gates have to be closed for all to be idle by its end. */
static uint64_t left_before_end(const struct gang *gang, const struct gang_look *look)
{
    uint64_t left_ns = row_left(look->row, look->wall_ns), ends_ns = gang->shared_state->ends_ns,
             most_ns = look->row->length_ns / ENDS_PART;
    ends_ns = (ends_ns < most_ns ? ends_ns : most_ns) / ENDS_BEFORE;
    return left_ns > ends_ns ? left_ns - ends_ns : 0;
}

/* From here on no launch passes but those that others wait for. */
static void begin_end(struct gang *gang, const struct census *census, uint64_t most_ns, bool resumed, uint64_t now_ns)
{
    gang_end_asked(gang, census, now_ns);
    uint64_t one_ns = gang->progress_interval_ns +
                      gang->progress_interval_ns / 4; /* an operation that is as long as they are */
    atomic_store(&gang->shared_state->until_ns, now_ns + (one_ns > most_ns && !resumed ? one_ns : most_ns));
    enter(gang, GANG_ENDS, now_ns);
}

static void open_gates(struct gang *gang, const struct census *census, const struct gang_look *look)
{
    gang->trace.into_ns = row_position(look->row, look->wall_ns);
    gang->trace.held = census->held;
    gang->used_at_ns = look->now_ns;
    gang->row.has_begun = false;
    atomic_fetch_add(&gang->shared_state->rows, 1);
    gang_end_opened(gang, look->now_ns);
    atomic_store(&gang->shared_state->until_ns, look->now_ns + LEAST_NS);
    enter(gang, GANG_OPEN, look->now_ns);
}

/* Whether work that goes on after a row is to be helped by one: it may wait for its own launch, or for others of its
 * own on another node. */
static bool is_rescued(const struct gang *gang, const struct census *census, const struct gang_look *look)
{
    bool late = row_is_by_hand(look->row) || elapsed(gang->shared_state->since_ns, look->now_ns) > RESCUE_NS;
    return left_before_end(gang, look) > LEAST_NS && census->busy && census->waits && late;
}

/* In its row. It waits for what others have in flight, unless it comes in the middle of a row that was lent: then
 * longer. */
static bool begins(struct gang *gang, const struct census *census, const struct gang_look *look)
{
    uint64_t at_ns = row_position(look->row, look->wall_ns);
    uint64_t most_ns = gang->row.held_in_vain ? HELD_MOST_NS : HELD_LONG_NS;
    bool came_late = gang->shared_state->asked_ns + at_ns > look->now_ns && at_ns > most_ns;
    bool is = !census->held || (!came_late && at_ns >= most_ns);
    if (is)
        gang->row.held_in_vain = census->held;
    return is;
}

/* When the gates are opened next, 0: it is not known; the rest of a row that was given up is lent. */
static uint64_t opens_ns(const struct gang_look *look, int64_t left_ns)
{
    const struct hetero_board_row *row = look->row;
    int64_t next_ns = left_ns + budget_share(row->period_ns, row->gang_core); /* what may be used at its beginning */
    bool comes = row_left(row, look->wall_ns) == 0 && next_ns > (int64_t)LEAST_NS;
    return comes ? look->now_ns + row_until_next(row, look->wall_ns) : 0;
}

/* Whether work that goes on after a row may wait for a process that was elsewhere then, and is back. */
static bool is_back(const struct census *census, const struct gang_look *look)
{
    return census->active && census->busy && census->idle_waits &&
           (!look->claimed || row_left(look->row, look->wall_ns) > 0);
}

/* Closed: open the gates if it is time; say when. */
static void wait_for_row(struct gang *gang, const struct census *census, const struct gang_look *look)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint64_t whole_ns = row_left(look->row, look->wall_ns);
    int64_t left_ns = ahead(gang, census, look);
    bool paid = left_ns > (int64_t)LEAST_NS, lent = paid || gang->policy == HETERO_POLICY_ELASTIC;
    if (is_back(census, look)) {
        bool whole = look->claimed && whole_ns <= look->overrun_ns;
        begin_end(gang, census, whole ? whole_ns : look->overrun_ns, true, look->now_ns);
    } else if (!census->active || waits_for_a_process(gang, census, look->now_ns)) {
        atomic_store(&shared->opens_ns, 0); /* a row would be of no use to it */
    } else if (is_rescued(gang, census, look)) {
        atomic_store(&shared->rescue_ns, look->now_ns + RESCUED_NS);
        open_gates(gang, census, look);
    } else if (!look->claimed && lent) {
        open_gates(gang, census, look);
    } else if (left_before_end(gang, look) <= LEAST_NS || !paid) {
        atomic_store(&shared->opens_ns, opens_ns(look, left_ns));
    } else if (begins(gang, census, look)) {
        open_gates(gang, census, look);
    } else {
        atomic_store(&shared->opens_ns, look->now_ns);
    }
}

/* A gang of several nodes has a row by hand on each, which ends there by itself. Stopped within a step it leaves others
 * waiting for it. So it goes on until its devices are idle by themselves, as at the end of a step, which others reach
 * at the same time. One that has its devices to itself does as well: nothing is lost by a stop within a step then. */
static bool goes_on(struct gang *gang, const struct census *census, uint64_t overrun_ns, uint64_t now_ns)
{
    if (gang->row.extended_at_ns < gang->shared_state->since_ns) /* that was another row's */
        gang->row.extended_at_ns = gang->row.idle_at_ns = now_ns;
    if (census->busy)
        gang->row.idle_at_ns = now_ns;
    return census->active && now_ns - gang->row.idle_at_ns < SOFT_IDLE_NS &&
           now_ns - gang->row.extended_at_ns < overrun_ns;
}

/* Say how far launchers may be ahead of their devices. */
static void deepen(struct gang *gang, const struct census *census, bool claimed, uint64_t left_ns, uint64_t now_ns)
{
    uint64_t most_ns = !claimed || left_ns > DEEP_NS ? DEEP_NS : left_ns;
    /* At the end of a row that shows who waits for whom, what is in flight would hide it: it is gone by then. */
    if (gang->probe.is_on || (left_ns < 2 * DEEP_NS && gang_end_probes(gang, census, now_ns)))
        most_ns = 0;
    for (uint32_t member_index = 0; member_index < HETERO_REGION_MEMBERS && member_index < gang->shared_state->reached;
         member_index++)
        atomic_store(&gang->shared_state->members[member_index].depth, (uint32_t)(most_ns / MS));
}

/* How much longer the gates may be open. */
static uint64_t open_for(struct gang *gang, const struct census *census, const struct gang_look *look, bool probed)
{
    int64_t left = ahead(gang, census, look);
    uint64_t row_ns = left_before_end(gang, look), most_ns = left > 0 ? (uint64_t)left : 0;
    uint64_t rescue_ns = atomic_load(&gang->shared_state->rescue_ns);
    if (look->claimed)
        most_ns = most_ns < row_ns ? most_ns : row_ns;
    else if (gang->policy == HETERO_POLICY_ELASTIC && most_ns < ELASTIC_NS)
        most_ns = ELASTIC_NS;
    if (rescue_ns > look->now_ns && rescue_ns - look->now_ns > most_ns)
        most_ns = rescue_ns - look->now_ns;
    bool unused = look->claimed && look->now_ns - gang->used_at_ns > LEND_NS;
    return census->died || !census->active || probed || unused ? 0 : most_ns;
}

/* Whether it goes on beyond its end: where its user gave the row, and where nobody else wants its devices. */
static bool goes_on_beyond(struct gang *gang, const struct census *census, const struct gang_look *look, bool probed)
{
    bool by_hand = row_is_by_hand(look->row);
    bool alone = !look->claimed && !probed && gang->shared_state->rescue_ns == 0 &&
                 gang->progress_interval_ns < STEP_NS;
    uint64_t most_ns = by_hand || look->overrun_ns < STEP_NS ? look->overrun_ns : STEP_NS;
    return (by_hand || alone) && !census->died && goes_on(gang, census, most_ns, look->now_ns);
}

/* Open: say until when. */
static void run_row(struct gang *gang, const struct census *census, const struct gang_look *look)
{
    struct hetero_region_gang *shared = gang->shared_state;
    uint64_t now_ns = look->now_ns, overrun_ns = look->overrun_ns, rescue_ns = atomic_load(&shared->rescue_ns);
    gang_end_looked(gang, now_ns);
    if (census->busy || census->waits)
        gang->used_at_ns = now_ns;
    bool probed = gang->probe.is_on && now_ns - gang->probe.begun_at_ns > PROBE_NS;
    uint64_t most_ns = open_for(gang, census, look, probed);
    atomic_store(&shared->until_ns, now_ns + most_ns);
    if (most_ns > 0 && most_ns <= PROBE_NS)
        gang_end_probe(gang, census, now_ns);
    deepen(gang, census, look->claimed, most_ns, now_ns);
    if (most_ns > 0) {
        gang->row.extended_at_ns = 0;
        return;
    }
    if (goes_on_beyond(gang, census, look, probed)) {
        atomic_store(&shared->until_ns, now_ns + SOFT_NS);
        return;
    }
    begin_end(gang, census, rescue_ns != 0 && overrun_ns > RESCUED_NS ? RESCUED_NS : overrun_ns, rescue_ns != 0,
              now_ns);
}

/* The gates are closed: wait until all are idle. */
static void end_row(struct gang *gang, const struct census *census, uint64_t now_ns)
{
    if (!gang_end_is_over(gang, census, now_ns))
        return;
    atomic_store(&gang->shared_state->opens_ns, 0);
    atomic_store(&gang->shared_state->rescue_ns, 0);
    enter(gang, GANG_CLOSED, now_ns);
}

void gang_lead(struct gang *gang, const struct descriptor *usage, const struct hetero_board_row *row,
               uint64_t overrun_ns, uint64_t now_ns, uint64_t wall_ns)
{
    struct hetero_region_gang *shared = gang->shared_state;
    if (gang->own_member == NULL || !take_lead(gang, now_ns))
        return;
    struct census census = count_members(gang, usage, now_ns);
    struct gang_look look = {
        .row = row,
        .claimed = census.claimed_at_ns != 0 && elapsed(census.claimed_at_ns, now_ns) < ROOM_NS,
        .overrun_ns = overrun_ns,
        .now_ns = now_ns,
        .wall_ns = wall_ns,
    };
    if (census.active && shared->asked_ns == 0)
        atomic_store(&shared->asked_ns, now_ns);
    uint32_t phase_before = atomic_load(&shared->phase);
    if (phase_before != GANG_ENDS || elapsed(shared->charged_ns, now_ns) > CHARGE_NS || !census.busy)
        charge(gang, &census, &look);
    switch (phase_before) {
    case GANG_OPEN: run_row(gang, &census, &look); break;
    case GANG_ENDS: end_row(gang, &census, now_ns); break;
    default: wait_for_row(gang, &census, &look); break;
    }
}
