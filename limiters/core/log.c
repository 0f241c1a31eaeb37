/* HETERO_LOG=error|info|debug: one line each on stderr, in a single write so that threads do not mix. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_NS UINT64_C(60000000000)

static atomic_int threshold = -1; /* -1: not read yet; every thread that reads it finds the same */

static int read_threshold(void)
{
    const char *asked = getenv("HETERO_LOG");
    if (asked == NULL)
        return 0;
    if (strcmp(asked, "error") == 0)
        return LOG_ERROR;
    if (strcmp(asked, "info") == 0)
        return LOG_INFO;
    return strcmp(asked, "debug") == 0 ? LOG_DEBUG : 0;
}

bool log_due(uint64_t *logged_ns, uint64_t now_ns)
{
    if (*logged_ns != 0 && now_ns - *logged_ns < AGAIN_NS)
        return false;
    *logged_ns = now_ns;
    return true;
}

void log_line(enum log_level level, const char *format, ...)
{
    int allowed = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (allowed < 0) {
        allowed = read_threshold();
        atomic_store_explicit(&threshold, allowed, memory_order_relaxed);
    }
    if ((int)level > allowed)
        return;
    char line[512];
    int head = snprintf(line, sizeof line, "hetero[%d]: ", (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
    va_end(arguments);
    size_t length = (size_t)head + (body > 0 ? (size_t)body : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length] = '\n';
    if (write(STDERR_FILENO, line, length + 1) < 0)
        return; /* stderr is closed */
}
