/* A machine in virtual time: tasks, sleeping, futexes and file locks as the kernel has them, a card and its programs.
 *
 * The core's sources are compiled once more with the names of what they ask of the system in virtual_'s place (see the
 * Makefile), so that whole tenants, their governors' threads included, run here one step at a time and
 * every run is the same. A task is one thread of one process; time passes only while all of them wait. Called by
 * nobody's task, the functions are the system's own.
 */
#ifndef HETERO_TESTS_VIRTUAL_H
#define HETERO_TESTS_VIRTUAL_H

#include "../../../limiters/timeshare/governor.h"

#include <stdbool.h>
#include <stdint.h>

#define TENANTS 8u
#define CARDS   4u
#define SECONDS 64u

/* A stream waits at a point of its work: for all processes of the gang to come as far in a communicator, and the card
 * spins; for the other stream of the process; for a word of memory; or for a function on the host. */
struct stop {
    uint64_t at_ns;
    bool meets, spins;     /* the card spins meanwhile */
    unsigned communicator; /* or the other stream */
    uint64_t until; /* which meeting it is, from 1; what the other stream has done; or what the word has become */
    const uint64_t *word;
    uint64_t host_ns, begun_ns; /* how long the function takes, and when it began; 0: it has not */
};

#define STREAMS 2u
#define STOPS   512u

/* A program under a grant, in a process of its own, on one card. */
struct tenant {
    /* What it is: written before tenant_start. */
    struct hetero_grant_device terms;
    uint64_t kernel_ns;         /* how long the card takes for one launch */
    uint64_t host_ns;           /* how long the program takes to make one */
    unsigned batch;             /* launches between two synchronisations; 0: it never synchronises */
    unsigned in_flight;         /* launches it keeps queued at most */
    uint64_t rest_ns;           /* what it does elsewhere after a batch */
    uint32_t draws_mw;          /* what the card draws above idle while it works for it */
    uint32_t clock;             /* what that lowers the clock to for all, of POWER_UNITY; 0: it does not */
    bool clocked;               /* whether its kernels are as fast as the clock */
    uint64_t warmup_ns;         /* how long it is slow to launch more once it was kept waiting */
    const uint16_t *pattern_us; /* how long the card takes for one launch after the other, in place of kernel_ns */
    unsigned pattern;           /* of so many, over and over */
    bool waits;                 /* each kernel is done once the next is launched, and not before */
    bool reads;                 /* the last of a batch is a copy to the host, in which the driver waits for the card */
    uint64_t handler_ns;        /* a signal handler interrupts each launch for so long, then launches, too; 0: none */
    uint64_t from_ns;           /* when it begins */
    int64_t skew_ns;            /* how far its clock is ahead of the others' */
    bool lies;                  /* says at every launch that as much is owed to it as can be */
    struct hetero_region_device *account;
    unsigned card;
    unsigned several;             /* of a gang on more or fewer than two cards: how many */
    struct hetero_region *region; /* of a gang, whose processes it tells from others; the account is in it */
    const void *meets;            /* what tells those that meet it, where they are of several nodes; NULL: the region */
    int64_t wall_skew_ns;         /* how far CLOCK_REALTIME of its node is ahead */
    struct hetero_board_row row;  /* of it, what the node says of its row */
    void (*body)(struct tenant *tenant); /* what the program does, in place of launching one kernel after the other */
    uint64_t each_ns, met_every;         /* for bodies */

    /* What became of it. */
    struct governor *governor;
    uint64_t launched, first_ns;          /* launches, and when the first was */
    uint64_t asked_ns, done_ns;           /* of the card: by all launches, and what it has done */
    uint64_t time_slices;                 /* how often its gate opened */
    uint32_t beside;                      /* bits: what others, in order of their starts, had the slice with it */
    bool ran;                             /* whether it was open at the last step */
    uint64_t busy_ns[SECONDS];            /* of the card, second by second */
    int64_t served_ns[SECONDS];           /* beyond its part while others had work, too: whom the driver served first */
    uint64_t side_asked_ns, side_done_ns; /* as asked_ns and done_ns, of the second stream */
    struct stop stops[STREAMS][STOPS];
    unsigned stop_at[STREAMS], stop_count[STREAMS];
    uint64_t met[STREAMS], arrived[STREAMS];  /* meetings launched, and those that it came to, by communicator */
    uint64_t spun_ns;                         /* for which the card did nothing but wait for others */
    uint64_t steps;                           /* for bodies */
    uint64_t calls, governor_calls;           /* of the driver for its share, by its threads and by its governor */
    uint64_t batches, batches_ns, longest_ns; /* how long batches took, from asking for the first launch on */
};

/* A machine with nothing on it, at one second past the start of its clock. */
void machine_begin(uint64_t seed);
void machine_end(void);

/* Start a tenant's program; `tenant` stays the caller's. */
void tenant_start(struct tenant *tenant);

/* What the node says of it is changed: its share, and its row. */
void tenant_resize(const struct tenant *tenant);

/* For bodies. Launch a kernel, or one in which all processes of the gang meet, through the gate; have a stream wait for
 * what the other one has by now, for a word of memory, or for a function that takes so long on the host; launch a
 * kernel that spins until a word is written, and takes so long then; write the word, by the host; wait until the card
 * has done all; sleep; start another thread of the process. */
void tenant_launch(struct tenant *tenant, unsigned stream, uint64_t ns);
void tenant_copy(struct tenant *tenant, unsigned stream, uint64_t ns); /* a small one, of that time */
void tenant_launch_graph(struct tenant *tenant, unsigned stream, const void *graph, uint64_t ns);
void tenant_meet(struct tenant *tenant, unsigned stream, unsigned communicator, uint64_t ns);
void tenant_meet_together(struct tenant *const *tenants, unsigned count, uint64_t ns); /* in one call of the driver */
void tenant_follow(struct tenant *tenant, unsigned stream);
void tenant_wait_word(struct tenant *tenant, unsigned stream, const uint64_t *word, uint64_t until);
void tenant_host(struct tenant *tenant, unsigned stream, uint64_t ns);
void tenant_spin_word(struct tenant *tenant, unsigned stream, const uint64_t *word, uint64_t until, uint64_t ns);
void tenant_write(uint64_t *word, uint64_t value);
void tenant_synchronise(struct tenant *tenant);
void tenant_wait(struct tenant *tenant, unsigned stream); /* for one of its streams */
void tenant_sleep(uint64_t ns);
void tenant_thread(struct tenant *tenant, void (*body)(struct tenant *tenant));

/* What CLOCK_REALTIME says is so much more from now on. */
void machine_jump(int64_t ns);

/* Let time pass. False: somebody ran for ever without letting it. */
bool machine_run(uint64_t ns);
uint64_t machine_now(void);

/* So many threads cannot be started, as in a container that has as many as it may. */
void machine_refuse_threads(unsigned count);

/* Sleeps last so much longer than asked from now on, as on a host of many virtual machines; 3 us otherwise. */
void machine_delay_timers(uint64_t ns);

/* What a governor reads off its clock is now and then up to so much older from now on when it goes on, and others have
 * written or stopped it meanwhile; 20 us otherwise. */
void machine_age_clocks(uint64_t ns);

/* From now on so many holds in a hundred, beside others, last a turn of theirs longer. */
void machine_meet_turns(unsigned percent);

/* A service of the vendor's runs the kernels of all programs at the same time, and none is slower for it. */
void machine_serve(void);

/* Who waits awake looks no more often than this from now on: a look is a switch between tasks. */
void machine_poll(uint64_t ns);

/* From now on one of so many reads and locks of files, and waits for words, takes a task its processor for 5 to 105 us,
 * and one of sixteen such for 20 times as long; 0: none does. */
void machine_preempt(unsigned one_of);

/* SIGKILL, SIGSTOP and SIGCONT; and a stop of all its threads but the governor's, as by a signal handler. */
void tenant_kill(struct tenant *tenant);
void tenant_stop(struct tenant *tenant);
void tenant_stop_launchers(struct tenant *tenant);
void tenant_continue(struct tenant *tenant);

/* What it says of itself, which it may write as it likes. */
struct hetero_page *tenant_page(const struct tenant *tenant);

/* Lock its page as a tenant that asks or runs does, until the machine ends. */
void tenant_lock_page(const struct tenant *tenant);

/* Whether its gate is open; and whether it waits for its time slice. */
bool tenant_runs(const struct tenant *tenant);
bool tenant_waits(const struct tenant *tenant);

/* Whether its card has nothing of it to do. */
bool tenant_is_idle(const struct tenant *tenant);

/* Whether a launch of it waits, out of debt and with nothing in flight. */
bool tenant_is_kept(const struct tenant *tenant);

/* What the card did for a tenant from the one second to the other, in percent of that time. */
double tenant_got(const struct tenant *tenant, unsigned from_s, unsigned to_s);

#endif
