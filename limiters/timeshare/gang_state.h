/* What a gang's members know, and what the one with the lead counts (gang.h). */
#ifndef HETERO_GANG_STATE_H
#define HETERO_GANG_STATE_H

#include "engine.h"

#include "../core/region.h"

enum gang_phase { GANG_CLOSED = 0, GANG_OPEN, GANG_ENDS };

/* What a member says. */
enum {
    MEMBER_ACTIVE = 1,    /* it launches, has work in flight, or did a moment ago */
    MEMBER_BUSY = 2,      /* its device has work of it, or is about to */
    MEMBER_WAITS = 4,     /* launchers wait at its gate */
    MEMBER_HELD = 8,      /* another grant, not of high priority, runs on its device */
    MEMBER_INTRUDED = 16, /* one of high priority does */
    MEMBER_STAYS = 32,    /* it is not active, and will be: others of the gang are */
    MEMBER_BESIDE = 256,  /* times how many other grants have work in flight on its device; the bits from here on */
};

/* Where the time of a row went, for the log. */
struct row_trace {
    uint64_t opened_row, asked_row;             /* which row had its gates opened and closed by this lead */
    uint64_t asked_at_ns, looked_at_ns, passes; /* when it was to end, and what `passes` of the gang was then */
    uint64_t into_ns;                           /* how far into its row it was opened */
    bool held;                                  /* while others ran on a device of it */
    uint64_t charged_ns[HETERO_MAX_DEVICES];    /* when the gates were opened */
    uint64_t began_ns[HETERO_REGION_MEMBERS];   /* how long after that its device had work; 0: not yet */
    uint64_t idle_ns[HETERO_REGION_MEMBERS];    /* for which it had none from then on, the gates open */
    uint64_t stood_ns[HETERO_REGION_MEMBERS];   /* for which it came no further than for STOOD_NS already */
    uint64_t busy_ns[HETERO_REGION_MEMBERS];    /* of the end */
    int32_t behind[HETERO_REGION_MEMBERS];      /* by launches, when it was to end */
};

/* What was seen of a member, and since when. */
struct gang_seen {
    uint32_t signaled_fences; /* that the member has reported */
    uint64_t progress_at_ns;  /* when it last reported more, or was idle */
    bool is_waited_for;       /* in this end of a row another waited for it */
    uint32_t few_launches;    /* how many launches it may make at a time then */
    uint64_t few_at_ns;
};

/* The row that is, or was last. */
struct gang_row {
    uint64_t opened_at_ns;   /* when the gates were opened */
    bool has_begun;          /* a device had work since then */
    bool held_in_vain;       /* others were not idle by then, however long it had waited */
    bool is_intruded;        /* a grant of high priority ran at the last look */
    uint64_t extended_at_ns; /* since when one by hand goes on beyond its end; 0: it does not */
    uint64_t idle_at_ns;     /* since when its devices are idle then */
    bool is_miscounted;      /* in its end launches do not tell who is behind */
};

/* Whether its processes wait for each other, which is tried out now and then. */
struct gang_probe {
    unsigned doubt_score;       /* whether launches tell who is behind at all (gang.c) */
    bool is_on;                 /* this row shows it */
    uint64_t begun_at_ns;       /* when one did last */
    uint64_t due_at_ns;         /* from when on another may */
    uint32_t held_member_index; /* that was held back */
};

/* Launchers that were let through at the end of a row. */
struct gang_help {
    uint64_t any_at_ns;  /* when any was last */
    uint64_t let_at_ns;  /* when some of busy devices were */
    uint64_t crossed_ns; /* how long nothing moves before such are */
};

struct gang {
    struct hetero_region_gang *shared_state;       /* NULL: the grant cannot be a gang; constant */
    struct hetero_region_device *device_accounts;  /* the accounts of all devices of the grant; constant */
    uint32_t device_index, device_count;           /* ours, and how many the grant has; constant */
    struct hetero_region_member *own_member;       /* ours; NULL: it has none */
    uint32_t policy;                               /* enum hetero_policy */
    uint64_t recent_busy_ns, recent_busy_launches; /* recent busy time of our device, and launches made in it */

    /* With the lead. */
    struct gang_seen seen[HETERO_REGION_MEMBERS];
    struct gang_row row;
    struct gang_probe probe;
    struct gang_help help;
    uint64_t led_at_ns;                    /* when it had the lead last */
    uint64_t used_at_ns;                   /* when a member was last busy or had launchers waiting */
    uint64_t progress_interval_ns;         /* within so long work comes further that waits for nothing */
    int64_t waited_ns[HETERO_MAX_DEVICES]; /* what was charged while work stood for a process that may come */
    uint64_t died_at_ns;                   /* when it was seen that a process had been killed */
    struct row_trace trace;
};

/* A member that says nothing for longer is stopped, or gets no processor: nothing is known of its device. */
#define STALE_NS (20 * MS)

/* While no work of a member has come further for so long, and twice as long as it takes it to, it may wait for
 * another's launch. What a kernel takes is not known before fences have passed. */
#define STUCK_NS (200 * US)

/* For the log: what comes no further for so long spins, or is long. */
#define STOOD_NS (2 * MS)

/* Where launches tell who is behind, it takes so much longer until one that is not counts as behind: what stands still
 * may be a long kernel. */
#define PATIENCE_NS (8 * MS)

/* How much a row whose launches did not tell who is behind counts against those in which they did, and the most. */
#define DOUBT      4u
#define DOUBT_MOST 16u

/* What the members say. */
struct census {
    bool active, busy, waits, held, intruded, died, stopped;
    bool idle_waits;                     /* a launcher waits whose device has nothing to do */
    bool waited_for;                     /* a busy member is not known to be behind others */
    bool stuck;                          /* a busy member has come no further for a while */
    bool late;                           /* one has not followed the phase yet */
    uint32_t front;                      /* the position of the busy one that is furthest */
    uint64_t claimed_at_ns;              /* when another grant last wanted one of the devices */
    uint32_t devices;                    /* bits: where there are members */
    uint32_t busy_devices;               /* bits */
    uint32_t waiting_devices;            /* bits: where launchers wait */
    uint64_t progress_at_ns;             /* when work of a busy one last came further */
    uint64_t any_progress_at_ns;         /* when it last came further, in or out of this phase */
    unsigned beside[HETERO_MAX_DEVICES]; /* how many other grants have work in flight there */
    uint64_t others_progress_at_ns;      /* when work of one that is not known to be behind last came further */
};

/* How long work of a member does not come further before it is taken to wait for another's. */
static inline uint64_t stuck_ns(const struct gang *gang)
{
    return STUCK_NS + 2 * gang->progress_interval_ns;
}

static inline uint64_t later(uint64_t one_ns, uint64_t other_ns)
{
    return one_ns > other_ns ? one_ns : other_ns;
}

/* How many more launches one at `from` would have made at `to`; negative: fewer. Counters wrap around. */
static inline int32_t ahead_of(uint32_t from, uint32_t to)
{
    return (int32_t)(to - from);
}

/* What a member launched, as far as others make the same. */
static inline uint32_t position(const struct hetero_region_member *member)
{
    return member->launches - member->settled;
}

/* Launches tell who is behind where all make the same; how far that is so shows where one is waited for. */
static inline bool launches_count(const struct gang *gang)
{
    return !gang->row.is_miscounted && !gang->probe.is_on && gang->probe.doubt_score < DOUBT_MOST / 2;
}

/* How much longer it takes until one that by its launches is not behind counts as behind. */
static inline uint64_t patience_ns(const struct gang *gang)
{
    return launches_count(gang) ? PATIENCE_NS : gang->probe.is_on && !gang->row.is_miscounted ? PATIENCE_NS / 4 : 0;
}

#endif
