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

#include "gang_state.h"
#include "rows.h"

#include "../core/descriptor.h"

/* Become a member, by a lock on the grant's usage file; again after that was opened anew. Without a place it is led,
 * and not waited for. */
void gang_join(struct gang *gang, const struct descriptor *usage);

/* Say what is so of our device at this moment, once the phase of this epoch was followed. */
void gang_say(struct gang *gang, uint64_t now_ns, uint32_t member_flags, uint32_t epoch);

/* Whether another member is active, on any device. */
bool gang_goes_on(const struct gang *gang, uint64_t now_ns);

/* Say that we are no longer active. Whether no other member of the same device is. */
bool gang_rest(struct gang *gang, uint64_t now_ns);

/* Take or keep the lead, if it is to be had, and decide. */
void gang_lead(struct gang *gang, const struct descriptor *usage, const struct hetero_board_row *row,
               uint64_t overrun_ns, uint64_t now_ns, uint64_t wall_ns);

#endif
