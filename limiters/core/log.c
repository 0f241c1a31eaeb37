/* HETERO_LOG=off|error|info|debug: one line each on stderr, in a single write so that threads do not mix. Standard
 * error is the file that was found when the limiter was loaded: a program may close it and have a file of its own under
 * that number.
 */
#include "log.h"

#include "descriptor.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPEAT_NS UINT64_C(60000000000)

#define UNREAD (-2)
#define SILENT (-1)

static struct descriptor standard_error; /* written at the load, or by an earlier line's thread, with one value */
static atomic_bool standard_error_is_noted;

static atomic_int threshold = UNREAD; /* the highest level that is logged; each thread that writes it writes the same */

static int read_threshold(void)
{
    const char *setting = getenv("HETERO_LOG");
    if (setting == NULL)
        return LOG_NOTICE;
    if (strcmp(setting, "off") == 0)
        return SILENT;
    if (strcmp(setting, "error") == 0)
        return LOG_ERROR;
    if (strcmp(setting, "info") == 0)
        return LOG_INFO;
    return strcmp(setting, "debug") == 0 ? LOG_DEBUG : LOG_NOTICE;
}

bool log_due(uint64_t *logged_ns, uint64_t now_ns)
{
    if (*logged_ns != 0 && now_ns - *logged_ns < REPEAT_NS)
        return false;
    *logged_ns = now_ns;
    return true;
}

/* Write one byte as itself or as four characters. Returns the number of characters. */
static size_t put_escaped(char *output, unsigned char byte)
{
    static const char digits[] = "0123456789abcdef";
    if (byte >= ' ' && byte <= '~') {
        output[0] = (char)byte;
        return 1;
    }
    output[0] = '\\';
    output[1] = 'x';
    output[2] = digits[byte >> 4];
    output[3] = digits[byte & 15];
    return 4;
}

/* At the load, or before a line of another library's constructor. */
__attribute__((constructor)) static void note_standard_error(void)
{
    if (atomic_load_explicit(&standard_error_is_noted, memory_order_acquire))
        return;
    descriptor_note(&standard_error, STDERR_FILENO);
    atomic_store_explicit(&standard_error_is_noted, true, memory_order_release);
}

void log_line(enum log_level level, const char *format, ...)
{
    int max_level = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (max_level == UNREAD) {
        max_level = read_threshold();
        atomic_store_explicit(&threshold, max_level, memory_order_relaxed);
    }
    note_standard_error();
    if ((int)level > max_level || !descriptor_stands(&standard_error))
        return;
    char message[480], line[512];
    va_list arguments;
    va_start(arguments, format);
    int message_length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    size_t line_length = (size_t)snprintf(line, sizeof line, "hetero[%d]: ", (int)getpid());
    for (const char *character = message; message_length > 0 && *character != '\0' && line_length < sizeof line - 5;
         character++)
        line_length += put_escaped(line + line_length, (unsigned char)*character);
    line[line_length] = '\n';
    if (write(STDERR_FILENO, line, line_length + 1) < 0)
        return; /* nobody reads it */
}
