/* What the limiter has to say, on stderr and only when HETERO_LOG asks: it is a guest in somebody's process. */
#ifndef HETERO_LOG_H
#define HETERO_LOG_H

enum log_level { LOG_ERROR = 1, LOG_INFO = 2, LOG_DEBUG = 3 };

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#endif
