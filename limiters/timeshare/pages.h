/* What the tenants of a device tell each other: a board that root writes, and a page of each grant (docs/decisions/
 * arbiter.md).
 *
 * GRANT_DIR/board.<i> is a directory that all tenants of device i read and none can write: it holds the board, and each
 * grant's page under the grant's id. GRANT_DIR/page.<i> is the grant's own page, which it maps and writes. A page of
 * another is read by pread alone: whoever maps a file that its owner truncates is killed. Fixed layouts, little-endian,
 * no pointers. The Python writer is hetero/node/ledger/board.py; tests/limiters checks that both agree byte by byte.
 *
 * Nothing that a page says is followed, indexed with or waited for without bound, and no clock but one's own counts.
 */
#ifndef HETERO_PAGES_H
#define HETERO_PAGES_H

#include "../core/descriptor.h"
#include "../core/grant.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#define HETERO_BOARD_MAGIC   UINT64_C(0x314452414f425448) /* "HTBOARD1" read as a little-endian integer */
#define HETERO_BOARD_VERSION 1u
#define HETERO_BOARD_ROWS    128u
#define HETERO_PAGE_MAGIC    UINT64_C(0x3130454741505448) /* "HTPAGE01" */
#define HETERO_PAGE_BYTES    4096                         /* of the file, all of them allocated */

#define HETERO_GANG_BY_HAND 1u /* its user gave the row */

struct hetero_board_row {
    char id[48];       /* the grant's, NUL-padded: the name of its page */
    uint64_t inode;    /* of its page */
    uint32_t core;     /* as in the grant */
    uint32_t policy;   /* enum hetero_policy */
    uint32_t priority; /* enum hetero_priority */
    /* The row of a gang (rows.h): of each period of CLOCK_REALTIME the part that is its own, the same on all its
     * devices. Without one all are 0. */
    uint16_t gang_core;  /* what it runs at: the smallest of its shares */
    uint16_t gang_flags; /* HETERO_GANG_* */
    uint64_t begin_ns;
    uint64_t length_ns;
    uint64_t period_ns;
}; /* 96 bytes */

struct hetero_board {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t row_count;  /* rows in use */
    _Atomic uint64_t generation; /* odd while the node writes */
    uint64_t overrun_ns;         /* for how long a gang may run over the end of its row; 0: for a period */
    struct hetero_board_row rows[HETERO_BOARD_ROWS];
}; /* 32 + 128 * 96 = 12320 bytes */

/* In this order: from PAGE_WANTS on it asks, from PAGE_ENTERS on nobody else of its priority is to run. */
enum page_state { PAGE_IDLE = 0, PAGE_WANTS, PAGE_ENTERS, PAGE_RUNS, PAGE_ENDS };

struct hetero_page {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t state;              /* enum page_state, of whoever has the grant's lead */
    _Atomic uint32_t look_beat;          /* counts its looks */
    _Atomic uint32_t busy_process_count; /* how many processes of the grant have work in flight */
    _Atomic uint32_t busy_beat;          /* counts their looks */
    _Atomic uint32_t recent_beat;        /* counts rounds of a grant that wants short answers */
    _Atomic uint32_t owed_steps;         /* steps of device time (time_slice.h) */
    _Atomic uint32_t is_measuring; /* not 0: it runs, and those without a time slice are to keep away for a moment */
    _Atomic uint64_t light_ns;     /* device time of the grant without a time slice, beside whoever has one */
    uint64_t reserved[2];
}; /* 64 bytes */

_Static_assert(sizeof(struct hetero_board_row) == 96, "board row layout");
_Static_assert(sizeof(struct hetero_board) == 12320, "board layout");
_Static_assert(sizeof(struct hetero_page) == 64, "page layout");

/* A process was stopped with work in flight: nobody knows when that work is done. For so long it is charged to its
 * grant, and believed of it, which is what a grant may be owed for waiting (budget.h); a kernel that goes on for longer
 * is one that its neighbours pay for. */
#define PAGES_STOPPED_NS INT64_C(1000000000)

/* What another's counters were, and since when by our clock. */
struct neighbour_beats {
    bool is_known;
    uint32_t look_beat, busy_beat, recent_beat;
    int64_t look_beat_at_ns, busy_beat_at_ns, recent_beat_at_ns;
};

/* What another may still claim. */
struct neighbour_book {
    int64_t run_claim_ns;   /* of time that it runs, or says that it does */
    int64_t light_claim_ns; /* of time that it says it used without a time slice */
    int64_t light_at_ns;    /* when it was last believed that it used some so; 0: never */
    bool is_overdrawn;      /* until the book is even it is ignored */
};

/* Another grant, and what it is believed. */
struct neighbour {
    struct hetero_board_row row;
    struct descriptor page_file;
    int64_t open_tried_at_ns;    /* when it was last tried to open its page */
    int64_t locks_asked_from_ns; /* what locks it has is not asked before */

    /* As the last look found it. */
    enum page_state state;       /* idle where it is silent, dead, or not believed */
    unsigned busy_process_count; /* so many of its processes have work in flight */
    bool is_recent;
    bool is_measuring;
    bool overruns_slice;            /* it is busy, and not in a time slice of usual length */
    unsigned doubted_process_count; /* so many more processes it says are busy than its book has room for */
    unsigned owed_steps;
    uint64_t light_ns; /* what the page says */

    int64_t runs_since_ns; /* since when it runs; 0: it does not */

    struct neighbour_beats beats;
    struct neighbour_book book;
    int64_t absent_until_ns, absence_ns; /* it did not come when it could: until when, for how long */
};

/* What we say of work in flight, and which siblings do. */
struct pages_busy {
    bool is_advertised;         /* we say that work of ours is in flight */
    bool is_counted;            /* and are counted in our page */
    uint32_t seen_busy_beat;    /* what its `busy_beat` was when we looked last */
    int64_t sibling_seen_at_ns; /* when another process of the grant was last seen to have counted there; 0: never */
};

struct pages {
    const struct hetero_board *board; /* NULL: no neighbour is ever there */
    struct hetero_page *own_page;     /* NULL: it could not be opened yet */
    struct descriptor own_page_file;  /* of the own page */
    int64_t open_tried_at_ns;
    int64_t unlock_from_ns; /* our lock is not taken off it before */
    bool holds_state_lock;  /* it has our lock that says that we ask or run */
    bool holds_work_lock;   /* and the one that says that work of ours is in flight */
    char board_path[PATH_MAX], own_path[PATH_MAX];
    uint64_t generation;             /* of the board that `neighbours` was made from */
    unsigned own_row_index;          /* of our own row */
    uint32_t own_core;               /* in it; all of the device where it is not known */
    struct hetero_board_row own_row; /* and all of it; zero where it is not known */
    unsigned neighbour_count;
    struct neighbour *neighbours;
    int64_t looked_at_ns;
    uint64_t neighbours_light_ns; /* what neighbours were believed to have used without a time slice since the start */
    bool is_asking;               /* we wait for a time slice, or have one: neighbours' books count */
    enum page_state advertised_state; /* the last that we said; our siblings may have said something since */
    struct pages_busy busy;
};

/* The clock of looks. */
static inline int64_t clock_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* Open what GRANT_DIR has for its device `device`; without a board there are no neighbours. */
void pages_open(struct pages *pages, const char *directory, unsigned device);
void pages_close(struct pages *pages);

/* Open again what the program closed meanwhile, and show by a lock that we live if we did. */
void pages_renew(struct pages *pages);

/* Look at all pages. What is older than that and a moment is looked at anew by pages_glance. */
void pages_look(struct pages *pages, int64_t now_ns);
void pages_glance(struct pages *pages, int64_t now_ns);

/* For the process with the lead: say what state the grant is in, and show by a lock that we live. Without the lead: no
 * longer do so. */
void pages_say(struct pages *pages, enum page_state state);
void pages_hush(struct pages *pages);

/* Say at a look whether our work is in flight, and whether we count. */
void pages_say_busy(struct pages *pages, bool busy, bool counts);

/* So many other processes of our grant that count live: ones that were killed no longer do. */
void pages_count_busy(struct pages *pages, unsigned other_count);

void pages_say_recent(struct pages *pages);
void pages_say_light(struct pages *pages, uint64_t used_ns); /* so much more */
void pages_say_measures(struct pages *pages, bool measures);
void pages_say_owed(struct pages *pages, unsigned owed_steps);

/* Whoever wants the device now, and does not have it, has not come when it could. */
void pages_note_absent(struct pages *pages, int64_t now_ns);

/* How many other processes have work in flight: of other grants; and of ours, as far as our own page can be believed,
 * which any of them may write. */
unsigned pages_others(const struct pages *pages);
unsigned pages_siblings(const struct pages *pages);

/* How many more other grants say that they have, beyond what they are believed. */
unsigned pages_doubted(const struct pages *pages);

/* How many other grants used the device without a time slice of late. */
unsigned pages_lit(const struct pages *pages);

#endif
