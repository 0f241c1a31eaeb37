/* Time and memory of the simulated cards, shared by every process that uses the rack.
 *
 * Memory is a count per process. Time: each process has, on each card, GPU work submitted and GPU work served, both in
 * nanoseconds since it joined. Its operations run one after another in the order of submission, so that "done" is a
 * fence on the served scale. Processes with pending work get time slices of `slice_ns`. Each change between two
 * processes that both have work loses `swap_ns`. A driver without MPS shares a card between contexts in this way. There
 * is no thread: the next process that asks computes what happened until now.
 *
 * Blocks that processes share (exported ones, and those that IPC handles name) are counted on their own. The card has
 * such a block as long as its maker, a process that opened it, or a descriptor of it exists.
 *
 * A process holds an OFD byte lock for each card it joined. When it dies, the kernel drops the lock, and the next
 * process that looks releases its memory and its queue. A descriptor of a shared block is an open file with a lock of
 * its own. The kernel drops this lock with the last duplicate, also with one in transit through a socket. Nothing is
 * decided by a PID.
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

struct engine_tenant { /* one process on one card, as the management library reports it */
    int pid;           /* in the caller's namespace; 0: of a namespace that the caller cannot see */
    uint64_t memory_bytes;
    double busy_share; /* of the last sample period, 0..1 */
};

struct engine;
struct account; /* this process on one card */

/* The state of the rack of this name (its fingerprint included), created if there is none. NULL: with a message on
 * stderr. */
struct engine *engine_open(uint64_t name, uint64_t fingerprint, const struct engine_card *cards, unsigned count);
/* In a forked child: closes what it inherited, without an effect on the parent. */
void engine_forget(struct engine *engine);

struct account *engine_join(struct engine *engine, unsigned card); /* NULL: the card has as many processes as it can */
void engine_leave(struct account *account);

bool engine_charge(struct account *account, uint64_t bytes); /* false: it does not fit */
void engine_release(struct account *account, uint64_t bytes);
/* The same for managed memory. The card gives it to a process in batches, and does not report whose it is. */
bool engine_charge_managed(struct account *account, uint64_t bytes);
void engine_release_managed(struct account *account, uint64_t bytes);

/* The same for page tables; bytes may be negative. */
bool engine_change_tables(struct account *account, int64_t bytes);
uint64_t engine_used(struct engine *engine, unsigned card);
unsigned engine_tenants(struct engine *engine, unsigned card, struct engine_tenant tenants[ENGINE_TENANTS]);

/* Shared blocks, by number. Each names the account of its card. */
struct engine_share {
    uint64_t id, length_bytes; /* id: never reused */
    int number;
    unsigned card;
};
/* Creates a block of `bytes` bytes, with length_bytes of addresses at engine_share_offset of engine_file.
 * is_charged: the account is charged for them already. False: the block does not fit. */
bool engine_share(struct account *account, uint64_t bytes, uint64_t length_bytes, bool is_charged,
                  struct engine_share *handle);
bool engine_unshare(struct account *account,
                    int share_number); /* the maker frees it; whether another process still has it open */
bool engine_share_open(struct account *account,
                       const struct engine_share *handle);          /* false: it does not exist any more */
void engine_share_again(struct account *account, int share_number); /* opens again what this process has open */
bool engine_share_close(struct account *account, int share_number); /* whether another process still has it open */
/* Resizes the block. Bytes that it loses stay charged while other processes have it open. False: it does not fit. */
bool engine_share_resize(struct account *account, int share_number, uint64_t bytes);
int engine_share_export(int share_number);                     /* a file descriptor; -1: see errno */
bool engine_share_import(int fd, struct engine_share *handle); /* the block of a file descriptor */
int engine_file(void);
uint64_t engine_share_offset(int share_number);

uint64_t engine_now(void);                                         /* ns, CLOCK_MONOTONIC */
uint64_t engine_submit(struct account *account, uint64_t work_ns); /* the fence at which the work is done */
bool engine_done(struct account *account, uint64_t fence);
void engine_wait(struct account *account, uint64_t fence);
uint64_t engine_when(struct account *account,
                     uint64_t fence); /* CLOCK_MONOTONIC ns at which a fence, already done, was reached */

#endif
