/* Log lines on stderr. Errors and details are off unless HETERO_LOG turns them on, since stderr is the program's. A
 * notice explains the program's own error to its user; HETERO_LOG=off silences notices, too. */
#ifndef HETERO_LOG_H
#define HETERO_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_NOTICE = 0, LOG_ERROR = 1, LOG_INFO = 2, LOG_DEBUG = 3 };

/* Bytes that are not printable ASCII are escaped, because names come from drivers and environments. */
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/* Whether a lasting condition is to be logged now: the first time, then once a minute. `logged_ns` is the time of the
 * last line, 0 for never. The caller guards it. */
bool log_due(uint64_t *logged_ns, uint64_t now_ns);

#endif
