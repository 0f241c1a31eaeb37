/* Puts the limiter in front of the driver's library where LD_PRELOAD has that before it: programs that are linked to
 * the driver would call it past the limiter. In a container all that LD_PRELOAD names comes before the limiter. The
 * order in which the loader searches cannot be changed, so the program is executed anew, with the limiter first in
 * LD_PRELOAD. Of the program itself nothing has run then, but constructors of its libraries may have.
 */
#include "fault.h"
#include "libc.h"
#include "log.h"
#include "symbols.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD"

/* The most that the kernel passes on of arguments (MAX_ARG_STRINGS aside, a quarter of its largest stack: 6 MiB). */
#define MAX_ARGUMENT_BYTES ((size_t)6 << 20)

#define HIDDEN __attribute__((visibility("hidden")))
extern const struct symbols *const __start_hetero_symbols[] HIDDEN;
extern const struct symbols *const __stop_hetero_symbols[] HIDDEN;

static bool is_drivers(const struct link_map *object)
{
    for (const struct symbols *const *table = __start_hetero_symbols; table < __stop_hetero_symbols; table++)
        for (unsigned name = 0; name < LIBRARY_NAMES && (*table)->library->names[name] != NULL; name++)
            if (object_is_called(object, (*table)->library->names[name]))
                return true;
    return false;
}

static bool driver_is_in_front(const struct link_map *own)
{
    for (const struct link_map *object = own == NULL ? NULL : own->l_prev; object != NULL; object = object->l_prev)
        if (is_drivers(object))
            return true;
    return false;
}

static bool begins_with(const char *list, const char *entry)
{
    size_t length = strlen(entry);
    return strncmp(list, entry, length) == 0 && (list[length] == ':' || list[length] == ' ' || list[length] == '\0');
}

/* False: there is no room for the list. */
static bool put_in_front(const char *own_path, const char *list)
{
    char *longer_list = malloc(strlen(own_path) + strlen(list) + 2);
    if (longer_list == NULL)
        return false;
    stpcpy(stpcpy(stpcpy(longer_list, own_path), ":"), list);
    setenv(PRELOAD, longer_list, true);
    free(longer_list);
    return true;
}

/* The program's arguments one after the other, as the kernel has them; their bytes. 0: they cannot be read. */
static size_t read_arguments(char *texts)
{
    size_t used_bytes = 0;
    ssize_t read_bytes;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    while ((read_bytes = pread(fd, texts + used_bytes, MAX_ARGUMENT_BYTES - used_bytes, (off_t)used_bytes)) > 0)
        used_bytes += (size_t)read_bytes;
    close(fd);
    return used_bytes;
}

/* Returns where that failed. */
static void execute_anew(char *const environment[])
{
    size_t count = 0;
    char *texts = mmap(NULL, MAX_ARGUMENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t used_bytes = texts == MAP_FAILED ? 0 : read_arguments(texts);
    char **arguments = used_bytes == 0 ? NULL : malloc((used_bytes + 1) * sizeof *arguments);
    if (arguments == NULL)
        return;
    for (size_t position = 0; position < used_bytes; position += strlen(texts + position) + 1)
        arguments[count++] = texts + position;
    arguments[count] = NULL;
    syscall(SYS_execve, "/proc/self/exe", arguments, environment);
}

__attribute__((constructor)) static void come_first(void)
{
    const char *list = getenv(PRELOAD);
    const struct link_map *own = list == NULL ? NULL : object_of((const void *)come_first);
    if (!driver_is_in_front(own) || FAULT(driver_in_front))
        return;
    if (!begins_with(list, own->l_name) && put_in_front(own->l_name, list))
        execute_anew(*(char ***)libc_dlsym(RTLD_DEFAULT, "environ"));
    log_line(LOG_ERROR, PRELOAD " has the driver's library before the limiter, which programs then call past it");
}
