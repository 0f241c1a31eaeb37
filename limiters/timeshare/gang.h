/* A gang: a grant of several devices, which has all of them at the same time (docs/decisions/gangs.md).
 *
 * Kernels of its processes wait for each other (collectives), so a process that runs while another is kept spins. Its
 * members are its governors, one for each process and device. Each says in the grant's usage region whether its device
 * has work and whether launchers wait. One of them at a time has the lead: it decides for all when the gates are open,
 * by the row that root wrote on the board, by what was used, and by what members see of others on their devices.
 *
 * At the end of a row all gates close, and the devices become idle. Where one does not, it may wait for a launch that
 * another's gate keeps back. So launchers are let through, for one operation each, until all are idle: first those of
 * idle devices. Nothing is known of what they launch. After a time the gang is taken to be what will not be idle, and
 * the time until it is becomes its debt.
 *
 * The region is the tenant's to write: what is read here decides only what processes of the same grant do to each
 * other; none is kept from holding its own share (governor.h).
 */
#ifndef HETERO_GANG_H
#define HETERO_GANG_H

#include "rows.h"

#include "../core/descriptor.h"
#include "../core/region.h"

enum gang_phase { GANG_CLOSED = 0, GANG_OPEN, GANG_ENDS };

/* What a member says. */
enum {
    MEMBER_ACTIVE = 1, /* it launches, has work in flight, or did a moment ago */
    MEMBER_BUSY = 2,   /* its device has work of it, or is about to */
    MEMBER_WAITS = 4,  /* launchers wait at its gate */
    MEMBER_HELD = 8,   /* another grant, not of high priority, runs on its device */
};

struct gang {
    struct hetero_region_gang *shared;    /* NULL: the grant cannot be a gang; constant */
    struct hetero_region_device *devices; /* the accounts of all devices of the grant; constant */
    uint32_t device;                      /* ours; constant */
    struct hetero_region_member *member;  /* ours; NULL: it has none */
    uint32_t policy;                      /* enum hetero_policy */

    /* With the lead: what was seen of each member, and since when. */
    struct {
        uint32_t moved;
        uint64_t moved_ns;
        bool behind; /* in this end of a row another waited for it */
    } seen[HETERO_REGION_MEMBERS];
    bool begun;          /* a device had work since the gates were opened */
    uint64_t led_ns;     /* when it had the lead last */
    uint64_t used_ns;    /* when a member was last busy or had launchers waiting */
    bool miscounted;     /* in this end of a row launches do not tell who is behind */
    uint64_t moves_ns;   /* within so long work comes further that waits for nothing */
    uint64_t helped_ns;  /* when any launcher was let through last */
    uint64_t crossed_ns; /* how long nothing moves before launchers of busy devices are let through */
    uint64_t let_ns;     /* when some were let through last */
};

/* Become a member, by a lock on the grant's usage file; again after that was opened anew. Without a place it is led,
 * and not waited for. */
void gang_join(struct gang *gang, const struct descriptor *usage);

/* Say what is so of our device at this moment, once the phase of this epoch was followed. */
void gang_say(struct gang *gang, uint64_t now_ns, uint32_t says, uint32_t epoch);

/* Say that we are no longer active. Whether no other member of the same device is. */
bool gang_rest(struct gang *gang, uint64_t now_ns);

/* Take or keep the lead, if it is to be had, and decide. */
void gang_lead(struct gang *gang, const struct descriptor *usage, const struct hetero_board_row *row,
               uint64_t overrun_ns, uint64_t now_ns, uint64_t wall_ns);

#endif
