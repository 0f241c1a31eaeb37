/* The usage region: what the processes of one grant use, shared by them and read by the node.
 *
 * GRANT_DIR/usage is created by the node with sizeof(struct hetero_region) zero bytes; every process writes the same
 * form into it. It holds usage and nothing else: the limit is in the read-only grant. Fixed layout, little-endian, no
 * pointers; the Python reader is hetero/node.
 *
 * The tenant can write anything here at any time. So nothing read from it is followed, indexed with or waited for
 * without bound. Each process counts at least the bytes that it knows it holds (`own_bytes`), whatever the region has.
 *
 * The kernel knows which processes live: a slot is live exactly while its process holds an open-file-description
 * lock on the byte of the file with the slot's number. Kill -9 drops the lock; no PID is ever consulted. A mapping that
 * no child inherits keeps the description open. A descriptor would not do: the program could close it. Bytes past the
 * slots lock other things. The 32 bytes from slots + 1 + 32 * i on are for device i's time slices
 * (timeshare/time_slice.h). Past those, each member of a gang locks one, and past these each process that has loaded
 * the limiter (keeper.c).
 */
#ifndef HETERO_REGION_H
#define HETERO_REGION_H

#include "grant.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define HETERO_REGION_MAGIC       UINT64_C(0x3145474153555448) /* "HTUSAGE1" read as a little-endian integer */
#define HETERO_REGION_VERSION     3u
#define HETERO_REGION_SLOTS       1024u
#define HETERO_REGION_SLOT_OFFSET 0x10000 /* bytes between the offsets of the mappings that keep slots */

#define HETERO_REGION_LOCK_TIME_SLICE(i) ((int)HETERO_REGION_SLOTS + 1 + 32 * (int)(i))

#define HETERO_REGION_MEMBERS        128u
#define HETERO_REGION_LOCK_MEMBER(i) (HETERO_REGION_LOCK_TIME_SLICE(HETERO_MAX_DEVICES) + (int)(i))
#define HETERO_REGION_LOCK_PROCESSES HETERO_REGION_LOCK_MEMBER(HETERO_REGION_MEMBERS)

struct hetero_region_device {
    uint64_t used_bytes;              /* held by all slots, live or not yet swept; under the lock */
    uint64_t peak_bytes;              /* the largest used_bytes so far; under the lock */
    uint64_t denied_allocation_count; /* how many were refused; under the lock */
    /* The rest is written only by the holder of the device's time slice (timeshare/time_slice.h). */
    _Atomic uint64_t launches;  /* kernels, graphs, copies and fills let in while a core limit was on */
    _Atomic uint64_t gpu_ns;    /* device time charged, only ever growing */
    _Atomic int64_t balance_ns; /* device time this grant may still use; negative is debt */
    _Atomic uint64_t stamp_ns;  /* CLOCK_MONOTONIC up to which the balance has grown; 0 is never */
    _Atomic int64_t kept_ns;    /* of the balance, what neighbours in debt kept the grant from */
    /* All bytes that were ever reserved, only growing; under the lock. A reader of used_bytes at two times bounds by it
     * what used_bytes was in between. */
    uint64_t reserved_total_bytes;
    _Atomic uint64_t stopped_ns;  /* for which a launcher has waited for its gate, of each process */
    _Atomic uint64_t borrowed_ns; /* of gpu_ns, what others lent an elastic grant, which it does not owe */
    _Atomic int64_t owed_ns;      /* of the debt, what was used while another grant with work was there */
    uint64_t reserved[4];
}; /* 128 bytes */

/* What a process reports of itself, beside what it is charged. */
enum hetero_report {
    HETERO_REPORT_UNCHARGED, /* bytes that the driver counts for it and that are not charged: contexts and code */
    HETERO_REPORT_SHARED,    /* charged bytes that other processes may have open, too */
    HETERO_REPORT_OPENED,    /* count: openings of other processes' memory that it has not closed */
    HETERO_REPORT_KINDS,
};

/* Instead of a PID: the process ended while others had its shared memory open. The slot stays charged until no process
 * of the grant has foreign memory open. */
#define HETERO_REGION_ORPHANED UINT32_MAX

struct hetero_region_slot {
    uint64_t used_bytes[HETERO_MAX_DEVICES];                   /* held by this process; under the lock */
    uint64_t reports[HETERO_REPORT_KINDS][HETERO_MAX_DEVICES]; /* bytes or counts, by kind; under the lock */
    uint32_t pid;                                              /* only shown to users; 0 is a free slot */
    uint32_t reserved32;
    uint64_t reserved[7];
}; /* 576 bytes */

/* A member of a gang (timeshare/gang.h): the governor of one process on one device. It writes its own; but for what it
 * says, whoever has the gang's lead. */
struct hetero_region_member {
    _Atomic uint32_t taken;           /* 0: free */
    _Atomic uint32_t device;          /* of the grant */
    _Atomic uint32_t says;            /* MEMBER_* of timeshare/gang.h */
    _Atomic uint32_t epoch;           /* which change of the gang's phase it has followed */
    _Atomic uint32_t signaled_fences; /* fences that have passed; it wraps around */
    _Atomic uint32_t launches;        /* made so far; it wraps around */
    _Atomic uint32_t passes;     /* how often its waiting launchers may make an operation each; written by the lead */
    _Atomic uint32_t depth;      /* what is in flight in a row may take so many ms; written by the lead */
    _Atomic uint64_t stamp_ns;   /* when it said so; CLOCK_MONOTONIC, as all here */
    _Atomic uint64_t claimed_ns; /* when another grant was last seen that wants the device or runs */
    _Atomic uint32_t passed;     /* the last of `passes` that it has followed */
    _Atomic uint32_t settled;    /* of `launches`, what others did not make; it tells who is behind; by the lead */
    _Atomic uint32_t allowed;    /* at the end of a row it may make so many of `launches`; written by the lead */
    _Atomic uint32_t held_back;  /* its gate closes a little before the end of this row; written by the lead */
}; /* 64 bytes */

/* What the processes of a grant of several devices agree on, written by the member that has the lead. */
struct hetero_region_gang {
    _Atomic uint64_t lead;     /* which member, and until when (timeshare/gang.c) */
    _Atomic uint32_t phase;    /* enum gang_phase */
    _Atomic uint32_t epoch;    /* counts its changes */
    _Atomic uint64_t opens_ns; /* closed: when the gates are opened next, as far as is known; 0: it is not */
    _Atomic uint64_t
        until_ns; /* open: when they are closed, as far as is known; ending: when at the latest that is over */
    _Atomic uint64_t since_ns;    /* when the phase began */
    _Atomic uint64_t charged_ns;  /* up to when its time is charged */
    _Atomic uint64_t asked_ns;    /* since when any member wants its device */
    _Atomic uint64_t rows;        /* how often the gates were opened */
    _Atomic uint64_t overruns;    /* how often a member was not idle when they had to be closed */
    _Atomic uint64_t overrun_ns;  /* how long it took from the end of rows until all were idle, together */
    _Atomic uint64_t passes;      /* how many launches were let through then */
    _Atomic uint32_t reached;     /* members from here on were never taken; only ever growing */
    _Atomic uint32_t intrusions;  /* how often a grant of high priority ran in a row */
    _Atomic uint64_t rescue_ns;   /* open in debt until then; 0: it is not */
    _Atomic uint64_t ends_ns;     /* how long the end of a row takes, of late */
    _Atomic uint64_t intruded_ns; /* for how long such a grant did, which is charged to nobody */
    _Atomic uint64_t met_ns;      /* when one device was last seen to wait for a launch on another; 0: never */
    struct hetero_region_member members[HETERO_REGION_MEMBERS];
}; /* 128 + 128 * 64 = 8320 bytes */

struct hetero_region {
    _Atomic uint64_t magic; /* written last */
    uint32_t version;
    uint32_t slot_count;
    _Atomic uint32_t
        lock_word; /* futex: the slot + 1 of the process that changes the memory counts, with flags (region.c) */
    uint32_t reached_slot_count; /* slots from this one on were never taken; only ever growing; under the lock */
    _Atomic uint32_t
        search_start_index; /* where the next process starts its search once it found the first few slots taken */
    uint32_t reserved32[13];
    _Atomic uint64_t unknown_lookup_count; /* driver functions and tables that a process looked up and the limiter does
                                         not know */
    uint64_t reserved[5];
    struct hetero_region_device devices[HETERO_MAX_DEVICES];
    struct hetero_region_slot slots[HETERO_REGION_SLOTS];
    struct hetero_region_gang gang;
}; /* 128 + 16 * 128 + 1024 * 576 + 8320 = 600320 bytes */

_Static_assert(sizeof(struct hetero_region_device) == 128, "region device layout");
_Static_assert(sizeof(struct hetero_region_slot) == 576, "region slot layout");
_Static_assert(sizeof(struct hetero_region_gang) == 8320, "region gang layout");
_Static_assert(sizeof(struct hetero_region) == 600320, "region layout");

/* One process's access to a region. */
struct region {
    char path[PATH_MAX];
    struct hetero_region *shared;     /* NULL: not opened; constant once it is */
    const struct hetero_grant *grant; /* whose excess counts as held; NULL: there is none; constant with `shared` */
    pthread_mutex_t process_mutex;    /* guards the rest; the thread that holds the shared lock holds it, too */
    _Atomic int slot_index;           /* of this process's slot; -1: it has none */
    void *slot_mapping;               /* the mapping that keeps the slot's byte locked */
    uint32_t pid;                     /* this process's, only shown to users; known with the slot */
    /* The process's private copies: unlike the slot, no other process can write them. */
    uint64_t own_bytes[HETERO_MAX_DEVICES];                    /* that it holds */
    uint64_t returned_bytes[HETERO_MAX_DEVICES];               /* that it has given back so far */
    uint64_t reports[HETERO_REPORT_KINDS][HETERO_MAX_DEVICES]; /* as in the slot */
    _Atomic uint64_t late_released_bytes[HETERO_MAX_DEVICES];  /* released when the lock could not be taken */
};

/* Map the region at `path`. The first process writes its header. False: it cannot be used. */
bool region_open(struct region *region, const char *path);

/* In a child after fork: forget the slot and the bytes, which are the parent's. The mapping stays. */
void region_forget(struct region *region);

/* Take the lock that guards the memory counts and the slots. The first call takes a slot for this process. Counts that
 * a killed holder left half written are repaired. False, and nothing is locked: live processes have all slots, or one
 * keeps the lock. */
bool region_lock(struct region *region);
void region_unlock(struct region *region);

/* With the lock held: this process's slot. */
struct hetero_region_slot *region_slot(struct region *region);

/* With the lock held, or before the slot is in use: copy the process's reports into its slot. */
void region_publish_report(struct region *region);

/* With the lock held: free the slots of dead processes. Memory that they shared stays charged while a process of the
 * grant has foreign memory open. */
void region_sweep(struct region *region);

/* A live process of the grant, as its slot has it. The tenant can have written anything there. */
struct region_process {
    uint32_t pid; /* in its own PID namespace */
    uint64_t used_bytes[HETERO_MAX_DEVICES];
};

/* Without the lock, and without a slot: the live processes. Returns how many there are. */
unsigned region_processes(const struct region *region, struct region_process processes[HETERO_REGION_SLOTS]);

/* Without the lock, and without a slot: the bytes that live processes hold on a device; UINT64_MAX if their sum
 * overflows. */
uint64_t region_sum(const struct region *region, unsigned device);

#endif
