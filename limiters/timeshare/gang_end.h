/* The end of a row (gang.h), for the member with the lead: who is behind is let through, until all are idle. Where the
 * time of a row went is a line of the log (HETERO_LOG=debug). */
#ifndef HETERO_GANG_END_H
#define HETERO_GANG_END_H

#include "gang_state.h"

/* The gates are opened; and from here on they are closed. */
void gang_end_opened(struct gang *gang, uint64_t now_ns);
void gang_end_looked(struct gang *gang, uint64_t now_ns); /* while they are open */
void gang_end_asked(struct gang *gang, const struct census *census, uint64_t now_ns);

/* In the last PROBE_NS of a row: where nobody was seen for long to wait for another, hold a member back, so that
 * whoever waits for it shows. */
#define PROBE_NS (2 * MS)
bool gang_end_probes(const struct gang *gang, const struct census *census, uint64_t now_ns); /* in this row */
void gang_end_probe(struct gang *gang, const struct census *census, uint64_t now_ns);

/* Whether the row is over. If not, let those through that others may wait for. */
bool gang_end_is_over(struct gang *gang, const struct census *census, uint64_t now_ns);

#endif
