/* What a simulated card does with time and memory, shared by every process that uses the rack.
 *
 * Memory is a count per process. Time: each process has, on each card, GPU work submitted and GPU work served, both in
 * nanoseconds since it joined; its operations run one after another in the order they came, so "done" is a fence on the
 * served scale. Processes with pending work get time slices of `slice`, and lose `swap` whenever the card changes
 * between two that both have work: the way a driver without MPS shares a card between contexts. There is no thread:
 * whoever asks first works out what happened until now.
 *
 * Blocks that processes share (exported ones, and those that IPC handles name) are counted on their own: the card's as
 * long as their maker, a process that opened them, or a descriptor of them is there.
 *
 * A process holds an OFD byte lock for each card it joined. When it dies, the kernel drops the lock, and the next to
 * look finds its memory and its queue gone. A descriptor of a shared block is an open file with a lock of its own,
 * which the kernel drops with the last duplicate, also one on its way through a socket. Nothing is decided by a PID.
 */
#ifndef HETERO_FAKE_ENGINE_H
#define HETERO_FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_CARDS   64u
#define ENGINE_TENANTS 512u /* processes on one card */

struct engine_card {
    uint64_t memory_bytes;      /* bytes */
    uint64_t slice_ns, swap_ns; /* ns */
};

struct engine_tenant { /* one process on one card, as told to others */
    int pid;           /* its number here; 0: it is of a namespace that this process does not see into */
    uint64_t memory_bytes;
    double busy_share; /* share of the last sample period, 0..1 */
};

struct engine;
struct account; /* this process on one card */

/* The state of the rack called name (its fingerprint included), created if need be; NULL with a message on stderr. */
struct engine *engine_open(uint64_t name, uint64_t fingerprint, const struct engine_card *cards, unsigned count);
/* In a child after fork: lets go of what the parent shared without disturbing the parent. */
void engine_forget(struct engine *engine);

struct account *engine_join(struct engine *engine, unsigned card); /* NULL when the card has no room for one more */
void engine_leave(struct account *account);

bool engine_charge(struct account *account, uint64_t bytes); /* false: it does not fit */
void engine_release(struct account *account, uint64_t bytes);
/* The same of managed memory: the card gives it to a process in batches, and tells nobody whose it is. */
bool engine_charge_managed(struct account *account, uint64_t bytes);
void engine_release_managed(struct account *account, uint64_t bytes);

/* The same of page tables: so many bytes more, or fewer. */
bool engine_change_tables(struct account *account, int64_t bytes);
uint64_t engine_used(struct engine *engine, unsigned card);
unsigned engine_tenants(struct engine *engine, unsigned card, struct engine_tenant tenants[ENGINE_TENANTS]);

/* Shared blocks, by number. Each names the account of its card. */
struct engine_share {
    uint64_t id, length_bytes; /* id: never given twice */
    int number;
    unsigned card;
};
/* A block of so many bytes (already charged to the account: of them), and room for length bytes at engine_share_offset
 * of engine_file. False: it does not fit. */
bool engine_share(struct account *account, uint64_t bytes, uint64_t length_bytes, bool is_charged,
                  struct engine_share *handle);
bool engine_unshare(struct account *account,
                    int share_number); /* its maker lets go; whether somebody still has it open */
bool engine_share_open(struct account *account, const struct engine_share *handle); /* false: it is gone */
void engine_share_again(struct account *account, int share_number);                 /* what is open, once more */
bool engine_share_close(struct account *account, int share_number);                 /* whether somebody still has it */
/* Make it so many bytes; what it loses stays while others have it open. False: it does not fit. */
bool engine_share_resize(struct account *account, int share_number, uint64_t bytes);
int engine_share_export(int share_number);                     /* a descriptor; -1: errno */
bool engine_share_import(int fd, struct engine_share *handle); /* what a descriptor is of */
int engine_file(void);
uint64_t engine_share_offset(int share_number);

uint64_t engine_now(void);                                         /* ns, CLOCK_MONOTONIC */
uint64_t engine_submit(struct account *account, uint64_t work_ns); /* the fence at which this work is done */
bool engine_done(struct account *account, uint64_t fence);
void engine_wait(struct account *account, uint64_t fence);
uint64_t engine_when(struct account *account, uint64_t fence); /* the time a fence already done was reached */

#endif
