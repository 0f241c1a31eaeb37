/* Log lines on stderr, where HETERO_LOG asks for them: the process belongs to its program. A notice is what its user
 * must know to understand the program's own error; HETERO_LOG=off silences those, too. */
#ifndef HETERO_LOG_H
#define HETERO_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_NOTICE = 0, LOG_ERROR = 1, LOG_INFO = 2, LOG_DEBUG = 3 };

/* Whatever is no printable ASCII is shown as its escape: names come from drivers and environments. */
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/* Whether a condition that lasts is to be logged now: at once, then once a minute. `logged_ns` is when it last was, 0
 * for never; it belongs to the caller, as its lock does. */
bool log_due(uint64_t *logged_ns, uint64_t now_ns);

#endif
