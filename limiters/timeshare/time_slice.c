/* Takes and gives time slices (time_slice.h). What fails is logged and goes on: time slices keep tenants from slowing
 * each other down, and a broken file must not stop a program whose share is still kept by its own budget.
 *
 * Waiters poll: seldom, and often once the time slice is about to be free. Waking up takes 50 to 200 us in which the
 * device is idle.
 */
#include "time_slice.h"

#include "../core/log.h"
#include "../core/region.h"

#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The bytes. */
enum { LEAD = 0, WANT = 1, QUEUE = 2, WAITED = 3, WORKS = 19, WORKS_END = 24, OWES = WORKS_END, OWES_END = 32 };

/* How long one has waited, in steps that each are 1.7 times the one before: up to twenty seconds. */
#define WAIT_STEP_NS INT64_C(10000000)
#define WAIT_STEPS   16u

/* How often a waiter looks: while somebody runs; while one of high priority does, whose time slices are short; and
 * once the time slice is about to be free, for so long. */
#define LOOK_NS      250000
#define LOOK_HIGH_NS 100000
#define LOOK_ENDS_NS 10000
#define ENDS_MOST_NS INT64_C(3000000)

/* Who is owed less than so many steps has hardly less than its share: the book of one that runs goes up and down. */
#define OWED_STEPS 2u

/* How often it is counted which siblings with work in flight live, and asked whether one owes much. */
#define COUNT_NS INT64_C(2000000)

/* A waiter that has not come by then was killed, or gets no processor. */
#define COME_NS INT64_C(2000000)

/* A row is kept clear of what comes from being late by so much. */
#define ROW_BEFORE_NS (200 * US)

/* One that enters has decided by then, or gets no processor. */
#define ENTERS_NS INT64_C(1000000)

static void sleep_ns(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* --------------------------------------------------------------------------------------------------------- siblings */

static bool lock_in(int file, const struct time_slice *time_slice, int byte, int count, short type)
{
    struct flock range = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = time_slice->first_byte + byte, .l_len = count};
    int result;
    do
        result = fcntl(file, F_OFD_SETLK, &range);
    while (result < 0 && errno == EINTR);
    if (result < 0 && errno != EAGAIN && errno != EACCES)
        log_line(LOG_ERROR, "time slice: lock: %s", strerror(errno));
    return result == 0;
}

static bool lock(const struct time_slice *time_slice, int byte, int count, short type)
{
    return descriptor_stands(&time_slice->usage_file) &&
           lock_in(time_slice->usage_file.number, time_slice, byte, count, type);
}

/* Not looked at first: a question changes nothing, whatever file it is asked of. */
static bool taken(const struct time_slice *time_slice, int byte, int count)
{
    struct flock range = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = time_slice->first_byte + byte, .l_len = count};
    return fcntl(time_slice->usage_file.number, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

static bool open_usage(const struct time_slice *time_slice, struct descriptor *file)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/usage", time_slice->directory);
    bool opened = descriptor_open(file, path, O_RDWR);
    if (!opened)
        log_line(LOG_ERROR, "time slice: %s: %s", path, strerror(errno));
    return opened;
}

static bool open_siblings(struct time_slice *time_slice)
{
    return open_usage(time_slice, &time_slice->usage_file);
}

/* Without the lock the debt stays as it is, and siblings do not know of it. */
static void begin_owing(struct time_slice *time_slice)
{
    struct descriptor file;
    if (!open_usage(time_slice, &file))
        return;
    int byte = OWES;
    while (byte < OWES_END && !lock_in(file.number, time_slice, byte, 1, F_WRLCK))
        byte++;
    off_t offset = (off_t)((int)HETERO_REGION_SLOTS + byte) * HETERO_REGION_SLOT_OFFSET; /* which is no slot's */
    void *keeper = byte == OWES_END ? MAP_FAILED : mmap(NULL, 1, PROT_NONE, MAP_SHARED, file.number, offset);
    if (keeper != MAP_FAILED && madvise(keeper, 1, MADV_DONTFORK) == 0) {
        time_slice->owing.claimed_byte = byte;
        time_slice->owing.keeper_mapping = keeper;
    } else if (keeper != MAP_FAILED) {
        munmap(keeper, 1);
    }
    descriptor_close(&file);
}

static void end_owing(struct time_slice *time_slice)
{
    munmap(time_slice->owing.keeper_mapping, 1);
    time_slice->owing.claimed_byte = 0;
}

bool time_slice_open(struct time_slice *time_slice, const char *directory, unsigned device)
{
    *time_slice = (struct time_slice){
        .directory = directory,
        .device = device,
        .first_byte = HETERO_REGION_LOCK_TIME_SLICE(device),
    };
    if (!open_siblings(time_slice))
        return false;
    pages_open(&time_slice->pages, directory, device);
    return true;
}

bool time_slice_renew(struct time_slice *time_slice)
{
    pages_renew(&time_slice->pages);
    if (descriptor_stands(&time_slice->usage_file))
        return true;
    time_slice->has_lead = false;
    time_slice->waited_steps = 0;
    time_slice->work_byte = 0;
    return open_siblings(time_slice);
}

void time_slice_close(struct time_slice *time_slice)
{
    time_slice->owing.claimed_byte = 0; /* a child has not the mapping that keeps it */
    descriptor_close(&time_slice->usage_file);
    pages_close(&time_slice->pages);
}

void time_slice_want(const struct time_slice *time_slice, bool want)
{
    lock(time_slice, WANT, 1, want ? F_RDLCK : F_UNLCK);
}

static void queue(const struct time_slice *time_slice, bool waits)
{
    lock(time_slice, QUEUE, 1, waits ? F_RDLCK : F_UNLCK);
}

bool time_slice_wanted_by_siblings(const struct time_slice *time_slice)
{
    return taken(time_slice, WANT, 1);
}

static void advertise_wait(struct time_slice *time_slice)
{
    int64_t waited_ns = time_slice->waits_since_ns == 0 ? 0 : clock_ns() - time_slice->waits_since_ns;
    unsigned steps = 0, before = time_slice->waited_steps;
    for (int64_t step_ns = WAIT_STEP_NS; steps < WAIT_STEPS && waited_ns >= step_ns; step_ns += step_ns / 3 * 2)
        steps++;
    if (steps == before)
        return;
    if (steps > before)
        lock(time_slice, WAITED, (int)steps, F_RDLCK);
    else
        lock(time_slice, WAITED + (int)steps, (int)(WAIT_STEPS - steps), F_UNLCK);
    time_slice->waited_steps = steps;
}

void time_slice_waits(struct time_slice *time_slice, bool waits)
{
    if (!waits)
        time_slice->waits_since_ns = time_slice->defers_since_ns = 0;
    else if (time_slice->waits_since_ns == 0)
        time_slice->waits_since_ns = clock_ns();
    advertise_wait(time_slice);
}

static bool take_lead(struct time_slice *time_slice)
{
    time_slice->has_lead = time_slice->has_lead || lock(time_slice, LEAD, 1, F_WRLCK);
    return time_slice->has_lead;
}

static void leave_lead(struct time_slice *time_slice)
{
    if (time_slice->has_lead)
        lock(time_slice, LEAD, 1, F_UNLCK);
    time_slice->has_lead = false;
}

/* ------------------------------------------------------------------------------------------------------- neighbours */

static struct pages *glance(struct time_slice *time_slice)
{
    pages_glance(&time_slice->pages, clock_ns());
    return &time_slice->pages;
}

static bool is_high(const struct neighbour *neighbour)
{
    return neighbour->row.priority == HETERO_PRIORITY_HIGH;
}

static bool runs(const struct neighbour *neighbour)
{
    return neighbour->state >= PAGE_RUNS;
}

/* Whether what it has is lent to it: an elastic grant to which nothing is owed. */
static bool borrows(const struct neighbour *neighbour)
{
    return neighbour->row.policy == HETERO_POLICY_ELASTIC && neighbour->owed_steps == 0;
}

/* A gang that is there has its row, or it begins within so long. Outside of rows it waits for nothing. */
static bool row_comes(const struct neighbour *neighbour, uint64_t wall_now_ns, uint64_t within_ns)
{
    return neighbour->state >= PAGE_WANTS &&
           (row_left(&neighbour->row, wall_now_ns) > 0 || row_until_next(&neighbour->row, wall_now_ns) <= within_ns);
}

/* Asks, and comes when it can. */
static bool waits(const struct pages *pages, const struct neighbour *neighbour)
{
    if (row_is(&neighbour->row))
        return false;
    return (neighbour->state == PAGE_WANTS && pages->looked_at_ns >= neighbour->absent_until_ns) ||
           neighbour->state == PAGE_ENTERS;
}

static bool claims(const struct pages *pages, const struct neighbour *neighbour)
{
    return is_high(neighbour) && (runs(neighbour) || waits(pages, neighbour));
}

/* Whether a neighbour keeps us, of this priority, from running. */
static bool in_the_way(const struct pages *pages, const struct neighbour *neighbour, bool high)
{
    return is_high(neighbour) == high ? runs(neighbour) : !high && claims(pages, neighbour);
}

bool time_slice_row_comes(struct time_slice *time_slice)
{
    const struct pages *pages = glance(time_slice);
    uint64_t wall_now_ns = 0;
    for (const struct neighbour *it = pages->neighbours; it < pages->neighbours + pages->neighbour_count; it++) {
        if (!row_is(&it->row))
            continue;
        wall_now_ns = wall_now_ns == 0 ? wall_ns() : wall_now_ns;
        if (row_comes(it, wall_now_ns, time_slice->drain_ns + ROW_BEFORE_NS))
            return true;
    }
    return false;
}

#define ANY(time_slice, condition)                                                                                     \
    const struct pages *pages = glance(time_slice);                                                                    \
    for (const struct neighbour *it = pages->neighbours; it < pages->neighbours + pages->neighbour_count; it++)        \
        if (condition)                                                                                                 \
            return true;                                                                                               \
    return false

void time_slice_announce(struct time_slice *time_slice)
{
    pages_say_recent(&time_slice->pages);
}

void time_slice_owe(struct time_slice *time_slice, int64_t owed_ns)
{
    int64_t owed_steps = owed_ns < 0 ? 0 : owed_ns / TIME_SLICE_STEP_NS;
    time_slice->owed_steps = owed_steps < TIME_SLICE_STEPS ? (unsigned)owed_steps : TIME_SLICE_STEPS;
    pages_say_owed(&time_slice->pages, time_slice->owed_steps);
}

bool time_slice_owed_more(struct time_slice *time_slice)
{
    unsigned owed = time_slice->owed_steps;
    ANY(time_slice, it->state >= PAGE_WANTS && owed < TIME_SLICE_STEPS && it->owed_steps > owed);
}

bool time_slice_owed(struct time_slice *time_slice)
{
    ANY(time_slice, it->owed_steps >= OWED_STEPS);
}

bool time_slice_held(struct time_slice *time_slice)
{
    if (taken(time_slice, LEAD, 1))
        return true;
    ANY(time_slice, runs(it));
}

bool time_slice_held_by_right(struct time_slice *time_slice)
{
    if (taken(time_slice, LEAD, 1))
        return true;
    ANY(time_slice, runs(it) && !borrows(it));
}

bool time_slice_claimed(struct time_slice *time_slice)
{
    ANY(time_slice, claims(pages, it));
}

bool time_slice_yields(struct time_slice *time_slice)
{
    return time_slice->is_ours && !time_slice->is_high_priority && time_slice_claimed(time_slice);
}

bool time_slice_sought(struct time_slice *time_slice)
{
    ANY(time_slice, it->state >= PAGE_WANTS && (row_is(&it->row) || runs(it) || waits(pages, it)));
}

bool time_slice_contended(struct time_slice *time_slice)
{
    return time_slice_sought(time_slice) || time_slice_others(time_slice) > 0 || time_slice_lit(time_slice) > 0;
}

bool time_slice_held_by_high(struct time_slice *time_slice)
{
    ANY(time_slice, is_high(it) && runs(it));
}

bool time_slice_held_by_low(struct time_slice *time_slice)
{
    ANY(time_slice, !is_high(it) && runs(it));
}

bool time_slice_wanted(struct time_slice *time_slice)
{
    if (taken(time_slice, QUEUE, 1) || time_slice_row_comes(time_slice))
        return true;
    ANY(time_slice, claims(pages, it) || waits(pages, it));
}

bool time_slice_beside_high(struct time_slice *time_slice)
{
    ANY(time_slice, is_high(it) && it->is_recent);
}

bool time_slice_overrun(struct time_slice *time_slice)
{
    ANY(time_slice, it->overruns_slice);
}

unsigned time_slice_others(struct time_slice *time_slice)
{
    return pages_others(glance(time_slice));
}

unsigned time_slice_doubted(struct time_slice *time_slice)
{
    return pages_doubted(glance(time_slice));
}

unsigned time_slice_beside(struct time_slice *time_slice)
{
    return time_slice_others(time_slice) + pages_siblings(&time_slice->pages);
}

bool time_slice_beside_another_by_right(struct time_slice *time_slice)
{
    if (time_slice_siblings(time_slice) > 0)
        return true;
    ANY(time_slice, it->busy_process_count > 0 && !borrows(it));
}

unsigned time_slice_siblings(struct time_slice *time_slice)
{
    return pages_siblings(glance(time_slice));
}

/* A lock goes with its process, a count does not. */
static void count_siblings(struct time_slice *time_slice)
{
    unsigned count = 0;
    int64_t now_ns = clock_ns();
    if (now_ns - time_slice->siblings_counted_at_ns < COUNT_NS)
        return;
    time_slice->siblings_counted_at_ns = now_ns;
    for (int byte = WORKS; byte < WORKS_END; byte++)
        count += taken(time_slice, byte, 1);
    pages_count_busy(&time_slice->pages, count);
}

void time_slice_owes_much(struct time_slice *time_slice, bool owes)
{
    time_slice->owing.owes_much = owes;
}

bool time_slice_owed_by_siblings(struct time_slice *time_slice)
{
    int64_t now_ns = clock_ns();
    if (now_ns - time_slice->owing.asked_at_ns < COUNT_NS)
        return time_slice->owing.siblings_owe_much;
    int own = time_slice->owing.claimed_byte == 0 ? OWES_END : time_slice->owing.claimed_byte;
    time_slice->owing.asked_at_ns = now_ns;
    time_slice->owing.siblings_owe_much = (own > OWES && taken(time_slice, OWES, own - OWES)) ||
                                          (own + 1 < OWES_END && taken(time_slice, own + 1, OWES_END - own - 1));
    return time_slice->owing.siblings_owe_much;
}

void time_slice_busy(struct time_slice *time_slice, bool busy)
{
    bool owes = busy && time_slice->owing.owes_much;
    if (owes && time_slice->owing.claimed_byte == 0)
        begin_owing(time_slice);
    else if (!owes && time_slice->owing.claimed_byte != 0)
        end_owing(time_slice);
    for (int byte = WORKS; busy && time_slice->work_byte == 0 && byte < WORKS_END; byte++)
        time_slice->work_byte = lock(time_slice, byte, 1, F_WRLCK) ? byte : 0;
    pages_say_busy(glance(time_slice), busy, busy && time_slice->work_byte != 0);
    if (busy && pages_siblings(&time_slice->pages) > 0)
        count_siblings(time_slice);
    if (busy || time_slice->work_byte == 0)
        return;
    lock(time_slice, time_slice->work_byte, 1, F_UNLCK);
    time_slice->work_byte = 0;
}

void time_slice_say_light(struct time_slice *time_slice, uint64_t used_ns)
{
    pages_say_light(&time_slice->pages, used_ns);
}

void time_slice_measure(struct time_slice *time_slice, bool measures)
{
    pages_say_measures(&time_slice->pages, measures);
}

bool time_slice_measured(struct time_slice *time_slice)
{
    ANY(time_slice, it->is_measuring);
}

uint64_t time_slice_light(struct time_slice *time_slice)
{
    return glance(time_slice)->neighbours_light_ns;
}

unsigned time_slice_lit(struct time_slice *time_slice)
{
    return pages_lit(glance(time_slice));
}

/* ------------------------------------------------------------------------------------------------- taking and giving
 */

/* Whether a neighbour keeps us from running. */
static bool is_kept(struct time_slice *time_slice)
{
    if (!time_slice->is_high_priority && time_slice_row_comes(time_slice))
        return true;
    ANY(time_slice, in_the_way(pages, it, time_slice->is_high_priority));
}

/* Of two that enter: who is owed more, and then who is first on the board. */
static bool goes_first(const struct time_slice *time_slice, unsigned neighbour_index)
{
    unsigned theirs = time_slice->pages.neighbours[neighbour_index].owed_steps;
    return theirs != time_slice->owed_steps ? theirs > time_slice->owed_steps
                                            : neighbour_index < time_slice->pages.own_row_index;
}

/* With our page saying that we enter: 1 if we may run, 0 if another does or goes first, -1 if another is deciding. */
static int decide(const struct time_slice *time_slice)
{
    const struct pages *pages = &time_slice->pages;
    int decided = 1;
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++) {
        const struct neighbour *neighbour = &pages->neighbours[neighbour_index];
        if (in_the_way(pages, neighbour, time_slice->is_high_priority))
            return 0;
        if (neighbour->state != PAGE_ENTERS || is_high(neighbour) != time_slice->is_high_priority)
            continue;
        if (goes_first(time_slice, neighbour_index))
            return 0;
        decided = -1;
    }
    return decided;
}

/* Say that we run, who began to enter at `since_ns`. Who entered meanwhile did not wait for us for longer than
 * ENTERS_NS: after about that, false if another says that it runs, too. */
static bool say_runs(struct time_slice *time_slice, int64_t since_ns)
{
    pages_say(&time_slice->pages, PAGE_RUNS);
    if (clock_ns() - since_ns < ENTERS_NS / 2)
        return true;
    __sync_synchronize();
    pages_look(&time_slice->pages, clock_ns());
    return decide(time_slice) != 0;
}

/* Take the time slice if it can be had at once; otherwise say that we want it. */
static bool seize(struct time_slice *time_slice)
{
    struct pages *pages = &time_slice->pages;
    int64_t since_ns = clock_ns();
    if (!take_lead(time_slice))
        return false;
    pages_look(pages, since_ns);
    bool row = !time_slice->is_high_priority && time_slice_row_comes(time_slice);
    int decided = row ? 0 : decide(time_slice);
    if (decided != 0) {
        pages_say(pages, PAGE_ENTERS);
        int64_t entered_at_ns = clock_ns(), now_ns = entered_at_ns;
        for (decided = -1; decided < 0 && now_ns - entered_at_ns < ENTERS_NS; now_ns = clock_ns()) {
            __sync_synchronize();
            pages_look(pages, now_ns);
            decided = decide(time_slice);
            if (decided < 0)
                sleep_ns(LOOK_ENDS_NS);
        }
    }
    bool runs = decided != 0 && say_runs(time_slice, since_ns);
    if (!runs) {
        pages_say(pages, PAGE_WANTS);
        leave_lead(time_slice);
    }
    return runs;
}

/* Whether a sibling that has waited longer is to go first, and comes. */
static bool defers(struct time_slice *time_slice)
{
    unsigned waited = time_slice->waited_steps;
    bool behind = waited < WAIT_STEPS && taken(time_slice, WAITED + (int)waited, (int)(WAIT_STEPS - waited));
    if (behind)
        pages_look(&time_slice->pages, clock_ns()); /* what is known may be a moment old */
    if (!behind || taken(time_slice, LEAD, 1) || is_kept(time_slice)) {
        time_slice->defers_since_ns = 0;
        return false;
    }
    if (time_slice->defers_since_ns == 0)
        time_slice->defers_since_ns = clock_ns();
    return clock_ns() - time_slice->defers_since_ns < COME_NS;
}

/* Whether whoever is in the way says that it is about to be out of it. */
static bool is_ending(const struct time_slice *time_slice)
{
    const struct pages *pages = &time_slice->pages;
    bool ends = false;
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        if (in_the_way(pages, &pages->neighbours[neighbour_index], time_slice->is_high_priority)) {
            if (pages->neighbours[neighbour_index].state != PAGE_ENDS)
                return false;
            ends = true;
        }
    return ends;
}

static bool wait_for(struct time_slice *time_slice, const struct time_slice_waiter *waiter)
{
    int64_t since_ns = clock_ns(), now_ns = since_ns, ends_since = 0;
    for (int64_t before = since_ns; now_ns - since_ns < TIME_SLICE_PATIENCE_NS; now_ns = clock_ns()) {
        if (!time_slice->is_high_priority && time_slice_row_comes(time_slice))
            since_ns += now_ns - before; /* rows end by the clock */
        before = now_ns;
        advertise_wait(time_slice);
        if (!defers(time_slice) && seize(time_slice))
            return true;
        glance(time_slice);
        bool ends = is_ending(time_slice);
        ends_since = !ends ? 0 : ends_since == 0 ? now_ns : ends_since;
        time_slice->has_joined = waiter != NULL && waiter->look(waiter->owner, ends);
        if (time_slice->has_joined)
            return false;
        if (ends && now_ns - ends_since < ENDS_MOST_NS)
            sleep_ns(LOOK_ENDS_NS);
        else
            sleep_ns(time_slice_claimed(time_slice) ? LOOK_HIGH_NS : LOOK_NS);
    }
    log_line(LOG_INFO, "time slice: not given up for %d ms: running beside its holder",
             (int)(TIME_SLICE_PATIENCE_NS / 1000000));
    return false;
}

void time_slice_take(struct time_slice *time_slice, bool high, const struct time_slice_waiter *waiter)
{
    time_slice->is_high_priority = high;
    time_slice->defers_since_ns = 0;
    time_slice->pages.is_asking = true;
    time_slice->is_ours = (time_slice->is_late || !defers(time_slice)) && seize(time_slice);
    if (!time_slice->is_ours && !time_slice->is_late) {
        queue(time_slice, true);
        time_slice->is_ours = wait_for(time_slice, waiter);
        queue(time_slice, false);
    }
    time_slice->is_late = !time_slice->is_ours && !time_slice->has_joined;
    if (time_slice->is_late)
        pages_hush(&time_slice->pages);
}

bool time_slice_try(struct time_slice *time_slice, bool high)
{
    time_slice->is_high_priority = high;
    if (time_slice_wanted(time_slice) || time_slice_held(time_slice) || time_slice_others(time_slice) > 0 ||
        defers(time_slice))
        return false;
    time_slice->is_ours = seize(time_slice);
    time_slice->is_late = time_slice->is_late && !time_slice->is_ours;
    if (!time_slice->is_ours)
        pages_hush(&time_slice->pages); /* nobody is to yield to one that does not wait */
    time_slice->pages.is_asking = time_slice->is_ours;
    return time_slice->is_ours;
}

void time_slice_join(struct time_slice *time_slice)
{
    time_slice->has_joined = true;
}

enum page_state time_slice_of_sibling(const struct time_slice *time_slice)
{
    const struct hetero_page *own = time_slice->pages.own_page;
    uint32_t said = own == NULL || time_slice->has_lead ? PAGE_IDLE : atomic_load(&own->state);
    return said >= PAGE_RUNS && taken(time_slice, LEAD, 1) ? (enum page_state)said : PAGE_IDLE;
}

void time_slice_ends(struct time_slice *time_slice)
{
    if (time_slice->is_ours && !time_slice->is_high_priority)
        pages_say(&time_slice->pages, PAGE_ENDS);
}

void time_slice_ends_for_siblings(struct time_slice *time_slice)
{
    if (time_slice->is_ours)
        pages_say(&time_slice->pages, PAGE_ENDS);
}

void time_slice_give(struct time_slice *time_slice)
{
    bool wanted = time_slice->is_ours && time_slice_wanted(time_slice) && !time_slice_row_comes(time_slice);
    if (time_slice->is_ours)
        pages_say(&time_slice->pages, PAGE_IDLE);
    leave_lead(time_slice);
    time_slice->is_ours = time_slice->has_joined = time_slice->pages.is_asking = false;
    time_slice->defers_since_ns = 0;
    /* A new request of ours would overtake a waiter, which looks only now and then. */
    int64_t since_ns = clock_ns(), now_ns = since_ns;
    for (; wanted && now_ns - since_ns < COME_NS; now_ns = clock_ns()) {
        pages_look(&time_slice->pages, now_ns);
        if (time_slice_held(time_slice))
            return;
        sleep_ns(LOOK_ENDS_NS);
    }
    if (wanted)
        pages_note_absent(&time_slice->pages, now_ns);
}
