/* HETERO_LOG=off|error|info|debug: one line each on stderr, in a single write so that threads do not mix. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_NS UINT64_C(60000000000)

#define UNREAD (-2)
#define SILENT (-1)

static atomic_int threshold = UNREAD; /* every thread that reads it finds the same */

static int read_threshold(void)
{
    const char *asked = getenv("HETERO_LOG");
    if (asked == NULL)
        return LOG_NOTICE;
    if (strcmp(asked, "off") == 0)
        return SILENT;
    if (strcmp(asked, "error") == 0)
        return LOG_ERROR;
    if (strcmp(asked, "info") == 0)
        return LOG_INFO;
    return strcmp(asked, "debug") == 0 ? LOG_DEBUG : LOG_NOTICE;
}

bool log_due(uint64_t *logged_ns, uint64_t now_ns)
{
    if (*logged_ns != 0 && now_ns - *logged_ns < AGAIN_NS)
        return false;
    *logged_ns = now_ns;
    return true;
}

/* Write one byte as itself or as four characters; return how many. */
static size_t put_escaped(char *to, unsigned char byte)
{
    static const char digits[] = "0123456789abcdef";
    if (byte >= ' ' && byte <= '~') {
        to[0] = (char)byte;
        return 1;
    }
    to[0] = '\\';
    to[1] = 'x';
    to[2] = digits[byte >> 4];
    to[3] = digits[byte & 15];
    return 4;
}

void log_line(enum log_level level, const char *format, ...)
{
    int allowed = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (allowed == UNREAD) {
        allowed = read_threshold();
        atomic_store_explicit(&threshold, allowed, memory_order_relaxed);
    }
    if ((int)level > allowed)
        return;
    char said[480], line[512];
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    size_t length = (size_t)snprintf(line, sizeof line, "hetero[%d]: ", (int)getpid());
    for (const char *next = said; body > 0 && *next != '\0' && length < sizeof line - 5; next++)
        length += put_escaped(line + length, (unsigned char)*next);
    line[length] = '\n';
    if (write(STDERR_FILENO, line, length + 1) < 0)
        return; /* stderr is closed */
}
