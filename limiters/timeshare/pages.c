/* Reads the board and the pages of a device's tenants, and writes our own (pages.h). */
#include "pages.h"

#include "../core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A page whose counter stands still for so long is silent. Its owner counts twice a millisecond, unless it gets no
 * processor. One that is busy is silent once nobody lives who was, or after a second. */
#define SILENCE_NS INT64_C(100000000)
#define BUSY_NS    INT64_C(20000000)
#define RECENT_NS  INT64_C(2000000000)

/* One with work in flight counts each 2 ms: after so long without it is asked whether any lives. */
#define BUSY_LOOK_NS INT64_C(5000000)

/* More processes of one grant at once are not believed. */
#define BUSY_MOST 4u

/* A usual time slice is shorter, with what drains after it. */
#define USUAL_NS INT64_C(50000000)

/* What is known is good for so long. */
#define FRESH_NS INT64_C(50000)

/* A file that could not be opened, or is not what it was, is tried again. */
#define AGAIN_NS INT64_C(100000000)

/* A book grows at so many quarters of the share, because honest grants are not charged for all of their time (pauses,
 * clocks that others lower); what it may be overdrawn by, and the most that is in it. One that was stopped comes back
 * with what it is owed, a second at most (budget.h), which its book knows nothing of. */
#define BOOK_QUARTERS  5
#define BOOK_OVERDRAFT INT64_C(2000000000)
#define BOOK_OVERRUN   INT64_C(10000000000) /* by kernels that nothing can stop */
#define BOOK_MOST      INT64_C(30000000000)

/* The longest step between two looks that a book believes. */
#define STEP_MOST_NS INT64_C(50000000)

/* What a grant may use without a time slice at once. */
#define LIGHT_MOST INT64_C(100000000)

/* One that used the device without a time slice says so each millisecond or two; a decoder rests longer between two
 * tokens. */
#define LIT_NS INT64_C(10000000)

/* Co-tenants can have tens of thousands of locks on a page, and the kernel then takes milliseconds for one of ours
 * (80,000 locks: 6 ms for a question, 13 ms for a lock). After one that was slow, no other is asked for so many times
 * as long. */
#define SLOW_NS    INT64_C(50000)
#define SLOW_TIMES 500

#define ABSENT_NS      INT64_C(50000000)
#define ABSENT_MOST_NS INT64_C(1000000000)

/* ------------------------------------------------------------------------------------------------------------ files */

static void open_own(struct pages *pages)
{
    if (!descriptor_open(&pages->own_page_file, pages->own_path, O_RDWR)) {
        if (errno != ENOENT)
            log_line(LOG_ERROR, "page %s: %s", pages->own_path, strerror(errno));
        return;
    }
    struct hetero_page page;
    void *mapped = MAP_FAILED;
    if (pread(pages->own_page_file.number, &page, sizeof page, HETERO_PAGE_BYTES - sizeof page) == (ssize_t)sizeof page)
        mapped = mmap(NULL, HETERO_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pages->own_page_file.number, 0);
    if (mapped == MAP_FAILED)
        descriptor_close(&pages->own_page_file);
    else
        pages->own_page = mapped;
}

static void open_board(struct pages *pages)
{
    char path[PATH_MAX + 8];
    struct descriptor file;
    snprintf(path, sizeof path, "%s/board", pages->board_path);
    if (!descriptor_open(&file, path, O_RDONLY)) {
        if (errno != ENOENT)
            log_line(LOG_ERROR, "board %s: %s", path, strerror(errno));
        return;
    }
    void *mapped = mmap(NULL, sizeof *pages->board, PROT_READ, MAP_SHARED, file.number, 0);
    descriptor_close(&file);
    const struct hetero_board *board = mapped;
    if (mapped == MAP_FAILED)
        return;
    if (board->magic == HETERO_BOARD_MAGIC && board->version == HETERO_BOARD_VERSION) {
        pages->board = board;
        return;
    }
    log_line(LOG_ERROR, "board %s: not a board of this version", path);
    munmap(mapped, sizeof *pages->board);
}

void pages_open(struct pages *pages, const char *directory, unsigned device)
{
    *pages = (struct pages){.own_page_file = {.number = -1}};
    snprintf(pages->board_path, sizeof pages->board_path, "%s/board.%u", directory, device);
    snprintf(pages->own_path, sizeof pages->own_path, "%s/page.%u", directory, device);
    open_board(pages);
    if (pages->board != NULL)
        open_own(pages);
}

void pages_close(struct pages *pages)
{
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        descriptor_close(&pages->neighbours[neighbour_index].page_file);
    free(pages->neighbours);
    descriptor_close(&pages->own_page_file);
    if (pages->own_page != NULL)
        munmap(pages->own_page, HETERO_PAGE_BYTES);
    if (pages->board != NULL)
        munmap((void *)pages->board, sizeof *pages->board);
    *pages = (struct pages){.own_page_file = {.number = -1}};
}

/* -------------------------------------------------------------------------------------------------------- the board */

static bool same_row(const struct hetero_board_row *one, const struct hetero_board_row *other)
{
    return one->inode == other->inode && strcmp(one->id, other->id) == 0;
}

/* The neighbour of before that this row is about, or a new one. */
static struct neighbour neighbour_of(struct pages *pages, const struct hetero_board_row *row)
{
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        if (same_row(&pages->neighbours[neighbour_index].row, row)) {
            struct neighbour known = pages->neighbours[neighbour_index];
            pages->neighbours[neighbour_index].page_file.number = -1;
            known.row = *row;
            return known;
        }
    return (struct neighbour){.row = *row, .page_file = {.number = -1}};
}

static void take_rows(struct pages *pages, const struct hetero_board_row *rows, unsigned count)
{
    struct neighbour *neighbours = calloc(count + 1, sizeof *neighbours);
    if (neighbours == NULL)
        return;
    unsigned found = 0;
    pages->own_row_index = count;
    pages->own_core = HETERO_CORE_FULL;
    pages->own_row = (struct hetero_board_row){0};
    for (unsigned r = 0; r < count; r++) {
        if (rows[r].inode == pages->own_page_file.inode && pages->own_page_file.number >= 0) {
            pages->own_row_index = found;
            pages->own_core = rows[r].core;
            pages->own_row = rows[r];
        } else {
            neighbours[found++] = neighbour_of(pages, &rows[r]);
        }
    }
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count;
         neighbour_index++) /* whoever is gone */
        descriptor_close(&pages->neighbours[neighbour_index].page_file);
    free(pages->neighbours);
    pages->neighbours = neighbours;
    pages->neighbour_count = found;
}

/* Read the board if it has changed, and was not being changed meanwhile. */
static void follow_board(struct pages *pages)
{
    const struct hetero_board *board = pages->board;
    uint64_t generation = atomic_load_explicit(&board->generation, memory_order_acquire);
    if (generation == pages->generation || generation % 2 == 1)
        return;
    unsigned count = atomic_load_explicit(&board->row_count, memory_order_relaxed);
    count = count < HETERO_BOARD_ROWS ? count : HETERO_BOARD_ROWS;
    struct hetero_board_row *rows = calloc(count + 1, sizeof *rows);
    if (rows == NULL)
        return;
    memcpy(rows, board->rows, count * sizeof *rows);
    __sync_synchronize(); /* a fence that a sanitizer of threads takes, too */
    if (atomic_load_explicit(&board->generation, memory_order_relaxed) == generation) {
        for (unsigned r = 0; r < count; r++)
            rows[r].id[sizeof rows[r].id - 1] = '\0';
        take_rows(pages, rows, count);
        pages->generation = generation;
    }
    free(rows);
}

/* --------------------------------------------------------------------------------------------------- others' pages */

static bool open_page(const struct pages *pages, struct neighbour *neighbour, int64_t now_ns)
{
    char path[PATH_MAX + sizeof neighbour->row.id];
    if (neighbour->open_tried_at_ns != 0 && now_ns - neighbour->open_tried_at_ns < AGAIN_NS &&
        now_ns >= neighbour->open_tried_at_ns)
        return false;
    neighbour->open_tried_at_ns = now_ns;
    snprintf(path, sizeof path, "%s/%s", pages->board_path, neighbour->row.id);
    if (!descriptor_open(&neighbour->page_file, path, O_RDONLY))
        return false;
    if (neighbour->page_file.inode == neighbour->row.inode)
        return true;
    descriptor_close(&neighbour->page_file);
    return false;
}

static bool read_page(const struct pages *pages, struct neighbour *neighbour, struct hetero_page *page, int64_t now_ns)
{
    if (neighbour->page_file.number < 0 && !open_page(pages, neighbour, now_ns))
        return false;
    bool whole = pread(neighbour->page_file.number, page, sizeof *page, 0) == (ssize_t)sizeof *page;
    if (whole && page->magic == HETERO_PAGE_MAGIC && page->version == HETERO_BOARD_VERSION)
        return true;
    if (!descriptor_stands(&neighbour->page_file))
        neighbour->page_file.number = -1; /* not ours to close */
    return false;
}

/* The bytes of a page whose locks tell of its processes: one asks or runs; some have work in flight. */
enum { ASKS = 0, WORKS = 1 };

/* Ask for the lock of a page. `again_ns`: when the next may be asked for. */
static bool page_lock(int page, int byte, int command, short *type, int64_t *again_ns)
{
    struct flock range = {.l_type = *type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int64_t since_ns = clock_ns();
    bool answered = fcntl(page, command, &range) == 0;
    int64_t took_ns = clock_ns() - since_ns;
    *again_ns = took_ns < SLOW_NS ? 0 : since_ns + took_ns * SLOW_TIMES;
    *type = range.l_type;
    return answered;
}

/* Whether somebody has that lock on the page, as a process of its grant has that lives; or is too slow to ask. */
static bool lives(struct neighbour *neighbour, int byte, int64_t now_ns)
{
    short type = F_WRLCK;
    return now_ns < neighbour->locks_asked_from_ns ||
           (page_lock(neighbour->page_file.number, byte, F_OFD_GETLK, &type, &neighbour->locks_asked_from_ns) &&
            type != F_UNLCK);
}

/* For how long a counter has not changed. */
static int64_t stands_ns(uint32_t count, uint32_t *before, int64_t *since_ns, int64_t now_ns)
{
    if (count != *before || *since_ns > now_ns) {
        *before = count;
        *since_ns = now_ns;
    }
    return now_ns - *since_ns;
}

/* How many processes the page says are busy, while its counter moves; and a while longer if they are stopped. */
static unsigned believed_busy(struct neighbour *neighbour, const struct hetero_page *page, int64_t now_ns)
{
    int64_t busy_ns = stands_ns(page->busy_beat, &neighbour->beats.busy_beat, &neighbour->beats.busy_beat_at_ns,
                                now_ns);
    bool is_stopped = page->busy_process_count > 0 && busy_ns >= BUSY_LOOK_NS && lives(neighbour, WORKS, now_ns);
    if (busy_ns >= (is_stopped ? PAGES_STOPPED_NS : BUSY_LOOK_NS))
        return 0;
    return page->busy_process_count < BUSY_MOST ? page->busy_process_count : BUSY_MOST;
}

/* What the page says, as far as a counter that moves stands behind it. */
static void believe(struct neighbour *neighbour, const struct hetero_page *page, int64_t now_ns)
{
    if (!neighbour->beats.is_known) {
        neighbour->beats.is_known = true;
        neighbour->beats.look_beat_at_ns = now_ns;
        neighbour->beats.busy_beat_at_ns = neighbour->beats.recent_beat_at_ns =
            now_ns - RECENT_NS; /* it has to be seen to move */
        neighbour->beats.busy_beat = page->busy_beat;
        neighbour->beats.recent_beat = page->recent_beat;
    }
    uint32_t state = page->state <= PAGE_ENDS ? page->state : PAGE_IDLE;
    int64_t beat_ns = stands_ns(page->look_beat, &neighbour->beats.look_beat, &neighbour->beats.look_beat_at_ns,
                                now_ns);
    int64_t recent_ns = stands_ns(page->recent_beat, &neighbour->beats.recent_beat, &neighbour->beats.recent_beat_at_ns,
                                  now_ns);
    if (state != PAGE_IDLE && (beat_ns > SILENCE_NS || !lives(neighbour, ASKS, now_ns)))
        state = PAGE_IDLE;
    neighbour->state = (enum page_state)state;
    neighbour->busy_process_count = believed_busy(neighbour, page, now_ns);
    neighbour->is_recent = recent_ns < RECENT_NS;
    neighbour->is_measuring = state >= PAGE_RUNS && page->is_measuring != 0;
    neighbour->owed_steps = state == PAGE_IDLE && neighbour->busy_process_count == 0 ? 0 : page->owed_steps;
    neighbour->runs_since_ns = state < PAGE_ENTERS             ? 0
                               : neighbour->runs_since_ns == 0 ? now_ns
                                                               : neighbour->runs_since_ns;
    neighbour->overruns_slice = neighbour->busy_process_count > 0 &&
                                (neighbour->runs_since_ns == 0 || now_ns - neighbour->runs_since_ns > USUAL_NS);
    if (state >= PAGE_ENTERS)
        neighbour->absence_ns = neighbour->absent_until_ns = 0;
}

static bool is_high(const struct neighbour *neighbour)
{
    return neighbour->row.priority == HETERO_PRIORITY_HIGH;
}

static bool is_elastic(const struct neighbour *neighbour)
{
    return neighbour->row.policy == HETERO_POLICY_ELASTIC;
}

/* What a page may claim of the device. An elastic grant may have been lent, besides, what we, others that ask and the
 * shares of elastic ones leave: an equal part for each of those, however many of them lie. */
static int64_t claimable(const struct pages *pages, const struct neighbour *neighbour)
{
    int64_t core = neighbour->row.core, most_core = core * BOOK_QUARTERS / 4;
    int64_t left_core = (int64_t)HETERO_CORE_FULL - pages->own_core, sharers = 0;
    if (!is_elastic(neighbour))
        return most_core;
    for (const struct neighbour *other = pages->neighbours; other < pages->neighbours + pages->neighbour_count;
         other++) {
        sharers += is_elastic(other);
        if (is_elastic(other) || other->state != PAGE_IDLE || other->busy_process_count > 0)
            left_core -= other->row.core;
    }
    return core + left_core / sharers > most_core ? core + left_core / sharers : most_core;
}

/* Take what was claimed in the last step off the book, and see whether any more is believed. */
static void keep_book(const struct pages *pages, struct neighbour *neighbour, int64_t step_ns, bool somebody_runs)
{
    bool asks = neighbour->state != PAGE_IDLE;
    int64_t most_ns = asks ? BOOK_MOST : neighbour->book.run_claim_ns < 0 ? 0 : neighbour->book.run_claim_ns;
    int64_t grown_ns = neighbour->book.run_claim_ns + step_ns * claimable(pages, neighbour) / HETERO_CORE_FULL;
    neighbour->book.run_claim_ns = grown_ns < most_ns ? grown_ns : most_ns;
    bool claims = neighbour->state >= PAGE_ENTERS || (is_high(neighbour) && asks && !somebody_runs);
    if (claims && !neighbour->book.is_overdrawn)
        neighbour->book.run_claim_ns -= step_ns;
    else if (neighbour->book.run_claim_ns > -BOOK_OVERRUN) /* our charge is lowered by so much */
        neighbour->book.run_claim_ns -= step_ns * neighbour->busy_process_count / (1 + neighbour->busy_process_count);
    if (neighbour->book.run_claim_ns < -BOOK_OVERDRAFT)
        neighbour->book.is_overdrawn = true;
    else if (neighbour->book.run_claim_ns >= 0)
        neighbour->book.is_overdrawn = false;
    if (neighbour->book.is_overdrawn) {
        neighbour->state = PAGE_IDLE;
        neighbour->owed_steps = 0;
    }
    bool doubted = neighbour->book.run_claim_ns <= -BOOK_OVERRUN;
    neighbour->doubted_process_count = doubted ? neighbour->busy_process_count : 0;
    if (doubted) {
        neighbour->busy_process_count = 0;
        neighbour->overruns_slice = false;
    }
}

/* Device time that a neighbour says it used without a time slice is believed as far as its share goes. */
static void take_light(struct pages *pages, struct neighbour *neighbour, uint64_t light_ns, int64_t step_ns)
{
    int64_t used_ns = (int64_t)(light_ns - neighbour->light_ns);
    int64_t book_ns = neighbour->book.light_claim_ns + step_ns * claimable(pages, neighbour) / HETERO_CORE_FULL;
    neighbour->book.light_claim_ns = book_ns < LIGHT_MOST ? book_ns : LIGHT_MOST;
    neighbour->light_ns = light_ns;
    if (used_ns < 0)
        return;
    used_ns = used_ns < neighbour->book.light_claim_ns ? used_ns : neighbour->book.light_claim_ns;
    neighbour->book.light_claim_ns -= used_ns;
    pages->neighbours_light_ns += (uint64_t)used_ns;
    if (used_ns > 0)
        neighbour->book.light_at_ns = pages->looked_at_ns;
}

/* Whether another process of our grant has counted on our page since the last look. */
static void look_for_siblings(struct pages *pages, int64_t now_ns)
{
    uint32_t beats = pages->own_page == NULL ? 0
                                             : atomic_load_explicit(&pages->own_page->busy_beat, memory_order_relaxed);
    if (beats != pages->busy.seen_busy_beat)
        pages->busy.sibling_seen_at_ns = now_ns;
    pages->busy.seen_busy_beat = beats;
}

void pages_look(struct pages *pages, int64_t now_ns)
{
    if (pages->board == NULL)
        return;
    if (pages->own_page == NULL && now_ns - pages->open_tried_at_ns > AGAIN_NS) {
        pages->open_tried_at_ns = now_ns;
        open_own(pages);
        pages->generation = 0; /* our own row is known now */
    }
    follow_board(pages);
    if (pages->own_page != NULL && pages->advertised_state != PAGE_IDLE)
        atomic_fetch_add_explicit(&pages->own_page->look_beat, 1, memory_order_relaxed);
    look_for_siblings(pages, now_ns);
    int64_t step_ns = now_ns - pages->looked_at_ns;
    step_ns = step_ns < 0 ? 0 : step_ns < STEP_MOST_NS ? step_ns : STEP_MOST_NS;
    pages->looked_at_ns = now_ns;
    bool somebody_runs = pages->advertised_state >= PAGE_ENTERS;
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++) {
        struct neighbour *neighbour = &pages->neighbours[neighbour_index];
        struct hetero_page page;
        if (read_page(pages, neighbour, &page, now_ns))
            take_light(pages, neighbour, page.light_ns, step_ns);
        else
            page = (struct hetero_page){0};
        believe(neighbour, &page, now_ns);
        somebody_runs = somebody_runs || (neighbour->state >= PAGE_ENTERS && is_high(neighbour));
    }
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        keep_book(pages, &pages->neighbours[neighbour_index], pages->is_asking ? step_ns : 0, somebody_runs);
}

void pages_glance(struct pages *pages, int64_t now_ns)
{
    if (now_ns - pages->looked_at_ns > FRESH_NS || now_ns < pages->looked_at_ns)
        pages_look(pages, now_ns);
}

void pages_note_absent(struct pages *pages, int64_t now_ns)
{
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++) {
        struct neighbour *neighbour = &pages->neighbours[neighbour_index];
        if (neighbour->state != PAGE_WANTS || now_ns < neighbour->absent_until_ns)
            continue;
        int64_t twice_ns = neighbour->absence_ns * 2;
        neighbour->absence_ns = twice_ns < ABSENT_NS        ? ABSENT_NS
                                : twice_ns < ABSENT_MOST_NS ? twice_ns
                                                            : ABSENT_MOST_NS;
        neighbour->absent_until_ns = now_ns + neighbour->absence_ns;
    }
}

unsigned pages_lit(const struct pages *pages)
{
    unsigned count = 0;
    for (const struct neighbour *it = pages->neighbours; it < pages->neighbours + pages->neighbour_count; it++)
        count += it->book.light_at_ns != 0 && pages->looked_at_ns - it->book.light_at_ns < LIT_NS;
    return count;
}

/* ----------------------------------------------------------------------------------------------------- our own page */

/* Others of our grant, as our own page has them. One that was killed stays in the count until the next
 * that looks has counted who lives; alone it moves nothing. */
unsigned pages_siblings(const struct pages *pages)
{
    uint32_t busy = pages->own_page == NULL
                        ? 0
                        : atomic_load(&pages->own_page->busy_process_count) - pages->busy.is_counted;
    bool moves = pages->busy.sibling_seen_at_ns != 0 && pages->looked_at_ns - pages->busy.sibling_seen_at_ns < BUSY_NS;
    return !moves || busy > INT32_MAX ? 0 : busy < BUSY_MOST ? busy : BUSY_MOST;
}

static void show_by_lock(struct pages *pages, int byte, bool alive)
{
    bool *shown = byte == ASKS ? &pages->holds_state_lock : &pages->holds_work_lock;
    short type = alive ? F_RDLCK : F_UNLCK;
    if (*shown == alive || (!alive && clock_ns() < pages->unlock_from_ns) || !descriptor_stands(&pages->own_page_file))
        return;
    page_lock(pages->own_page_file.number, byte, F_OFD_SETLK, &type, &pages->unlock_from_ns);
    *shown = alive;
}

void pages_renew(struct pages *pages)
{
    struct descriptor file;
    if (pages->own_page == NULL || descriptor_stands(&pages->own_page_file) ||
        !descriptor_open(&file, pages->own_path, O_RDWR))
        return;
    if (file.inode != pages->own_page_file.inode || file.device != pages->own_page_file.device) {
        descriptor_close(&file);
        return;
    }
    pages->own_page_file = file;
    pages->holds_state_lock = pages->holds_work_lock = false;
    if (pages->advertised_state != PAGE_IDLE)
        show_by_lock(pages, ASKS, true);
    show_by_lock(pages, WORKS, pages->busy.is_advertised);
}

void pages_say(struct pages *pages, enum page_state state)
{
    if (pages->own_page == NULL)
        return;
    if (pages->advertised_state == PAGE_IDLE && state != PAGE_IDLE && pages_siblings(pages) == 0)
        atomic_store(&pages->own_page->busy_process_count, pages->busy.is_counted); /* some may have been killed */
    if (atomic_load_explicit(&pages->own_page->state, memory_order_relaxed) != (uint32_t)state)
        atomic_store(&pages->own_page->state, state);
    /* Last: the lock would make what a killed process of the grant left in `state` look alive. */
    if (pages->advertised_state == PAGE_IDLE && state != PAGE_IDLE)
        show_by_lock(pages, ASKS, true);
    if (state == PAGE_IDLE)
        pages_hush(pages);
    pages->advertised_state = state;
}

void pages_hush(struct pages *pages)
{
    if (pages->advertised_state != PAGE_IDLE)
        show_by_lock(pages, ASKS, false);
    pages->advertised_state = PAGE_IDLE;
}

void pages_say_busy(struct pages *pages, bool busy, bool counts)
{
    struct hetero_page *own = pages->own_page;
    if (own == NULL || (!busy && !pages->busy.is_advertised))
        return;
    if (counts && !pages->busy.is_counted)
        atomic_fetch_add(&own->busy_process_count, 1);
    uint32_t busy_process_count = atomic_load(&own->busy_process_count);
    while (!counts && pages->busy.is_counted && busy_process_count > 0 &&
           !atomic_compare_exchange_weak(&own->busy_process_count, &busy_process_count, busy_process_count - 1))
        ;
    pages->busy.is_counted = counts;
    pages->busy.is_advertised = busy;
    show_by_lock(pages, WORKS, busy);
    atomic_fetch_add_explicit(&own->busy_beat, 1, memory_order_relaxed);
    pages->busy.seen_busy_beat++;
}

void pages_count_busy(struct pages *pages, unsigned other_count)
{
    uint32_t busy_process_count = pages->own_page == NULL ? 0 : atomic_load(&pages->own_page->busy_process_count),
             is = other_count + pages->busy.is_counted;
    if (pages->own_page != NULL && busy_process_count != is)
        atomic_compare_exchange_strong(&pages->own_page->busy_process_count, &busy_process_count, is);
}

unsigned pages_others(const struct pages *pages)
{
    unsigned count = 0;
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        count += pages->neighbours[neighbour_index].busy_process_count;
    return count;
}

unsigned pages_doubted(const struct pages *pages)
{
    unsigned count = 0;
    for (unsigned neighbour_index = 0; neighbour_index < pages->neighbour_count; neighbour_index++)
        count += pages->neighbours[neighbour_index].doubted_process_count;
    return count;
}

void pages_say_recent(struct pages *pages)
{
    if (pages->own_page != NULL)
        atomic_fetch_add_explicit(&pages->own_page->recent_beat, 1, memory_order_relaxed);
}

void pages_say_measures(struct pages *pages, bool measures)
{
    if (pages->own_page != NULL)
        atomic_store(&pages->own_page->is_measuring, measures);
}

void pages_say_light(struct pages *pages, uint64_t used_ns)
{
    if (pages->own_page != NULL)
        atomic_fetch_add_explicit(&pages->own_page->light_ns, used_ns, memory_order_relaxed);
}

void pages_say_owed(struct pages *pages, unsigned owed_steps)
{
    if (pages->own_page != NULL)
        atomic_store_explicit(&pages->own_page->owed_steps, owed_steps, memory_order_relaxed);
}
