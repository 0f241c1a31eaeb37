/* Keeps the limiter in programs that this one executes with another environment: one made anew, or with another
 * LD_PRELOAD. Both of its variables are put back. Not where the new environment says itself that there is no grant
 * (HETERO_GRANT is there and empty), nor in containers, where a file has the limiter loaded. A system call past libc is
 * not seen (docs/isolation.md).
 *
 * A child of vfork has its parent's memory. So nothing is allocated or locked here, and the new environment is on the
 * stack. Calls go to the next function of their name, which may be of another preloaded library.
 */
#include "libc.h"

#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#define PRELOAD "LD_PRELOAD="
#define GRANT   "HETERO_GRANT="

/* The most of an environment that is put on the stack: threads may have one of 64 KiB. */
#define MAX_STACK_BYTES 16384

/* Written by the constructor, and read then. */
static char preload_variable[sizeof PRELOAD + 2 * PATH_MAX]; /* the limiters of this process; empty: none is kept */
static char grant_variable[sizeof GRANT + PATH_MAX];
static struct {
    typeof(&execve) execve;
    typeof(&execvpe) execvpe;
    typeof(&fexecve) fexecve;
    typeof(&posix_spawn) spawn, spawn_by_path;
} next;
static char ***environment_of_libc; /* `environ`, which libc and the program have in common */

/* ------------------------------------------------------------------------------------------------------- at the load
 */

static bool is_separator(char character)
{
    return character == ':' || character == ' ' || character == '\0';
}

static size_t length_of_entry(const char *entry)
{
    size_t length = 0;
    while (!is_separator(entry[length]))
        length++;
    return length;
}

static bool is_limiter(const char *entry, size_t length)
{
    static const char name[] = "/libhetero-";
    const char *file = entry;
    for (size_t position = 0; position < length; position++)
        if (entry[position] == '/')
            file = entry + position;
    return (size_t)(entry + length - file) > sizeof name - 1 && strncmp(file, name, sizeof name - 1) == 0;
}

/* Append the limiters in a list of libraries to the variable. */
static void keep_limiters(const char *list)
{
    size_t used_bytes = sizeof PRELOAD - 1;
    for (size_t length; *list != '\0'; list += length + (list[length] != '\0')) {
        length = length_of_entry(list);
        if (!is_limiter(list, length) || used_bytes + length + 2 > sizeof preload_variable)
            continue;
        if (used_bytes == sizeof PRELOAD - 1)
            memcpy(preload_variable, PRELOAD, used_bytes);
        else
            preload_variable[used_bytes++] = ':';
        memcpy(preload_variable + used_bytes, list, length);
        used_bytes += length;
    }
}

__attribute__((constructor)) static void prepare(void)
{
    const char *preload = getenv("LD_PRELOAD"), *grant = getenv("HETERO_GRANT");
    environment_of_libc = libc_dlsym(RTLD_DEFAULT, "environ");
    next.execve = libc_dlsym(RTLD_NEXT, "execve");
    next.execvpe = libc_dlsym(RTLD_NEXT, "execvpe");
    next.fexecve = libc_dlsym(RTLD_NEXT, "fexecve");
    next.spawn = libc_dlsym(RTLD_NEXT, "posix_spawn");
    next.spawn_by_path = libc_dlsym(RTLD_NEXT, "posix_spawnp");
    if (preload == NULL || grant == NULL || *grant == '\0' || strlen(grant) >= PATH_MAX)
        return;
    stpcpy(stpcpy(grant_variable, GRANT), grant);
    keep_limiters(preload);
}

/* -------------------------------------------------------------------------------------------- the new environment */

/* Where an environment has the two variables; -1: nowhere. */
struct places {
    int preload_index, grant_index, count;
};

static struct places places_in(char *const environment[])
{
    struct places places = {-1, -1, 0};
    for (; environment != NULL && environment[places.count] != NULL; places.count++) {
        if (strncmp(environment[places.count], PRELOAD, sizeof PRELOAD - 1) == 0)
            places.preload_index = places.count;
        else if (strncmp(environment[places.count], GRANT, sizeof GRANT - 1) == 0)
            places.grant_index = places.count;
    }
    return places;
}

static bool list_has(const char *list, const char *entry, size_t length)
{
    for (size_t own_length; *list != '\0'; list += own_length + (list[own_length] != '\0')) {
        own_length = length_of_entry(list);
        if (own_length == length && strncmp(list, entry, length) == 0)
            return true;
    }
    return false;
}

/* Whether a list of libraries has all limiters of this process. */
static bool has_limiters(const char *list)
{
    const char *own_list = preload_variable + sizeof PRELOAD - 1;
    for (size_t length; *own_list != '\0'; own_list += length + (own_list[length] != '\0')) {
        length = length_of_entry(own_list);
        if (!list_has(list, own_list, length))
            return false;
    }
    return true;
}

static bool needs_variables(char *const environment[], const struct places *places)
{
    if (*preload_variable == '\0' ||
        (places->grant_index >= 0 && environment[places->grant_index][sizeof GRANT - 1] == '\0'))
        return false;
    return places->grant_index < 0 || places->preload_index < 0 ||
           !has_limiters(environment[places->preload_index] + sizeof PRELOAD - 1);
}

/* Room for two more entries, their end, and the text of a longer LD_PRELOAD. */
static size_t bytes_of_environment(char *const environment[], const struct places *places)
{
    size_t text_bytes = places->preload_index < 0 ? 0 : strlen(environment[places->preload_index]);
    return ((size_t)places->count + 3) * sizeof *environment + sizeof preload_variable + text_bytes;
}

/* The environment with both variables, in `room`. The limiters come first, as where `hetero run` starts a program. */
static char *const *with_variables(char *const environment[], const struct places *places, void *room)
{
    char **entries = room, *text = (char *)(entries + places->count + 3);
    int count = places->count;
    if (count > 0)
        memcpy(entries, environment, (size_t)count * sizeof *entries);
    if (places->preload_index < 0) {
        entries[count++] = preload_variable;
    } else if (!has_limiters(environment[places->preload_index] + sizeof PRELOAD - 1)) {
        entries[places->preload_index] = text;
        text = stpcpy(text, preload_variable);
        stpcpy(stpcpy(text, ":"), environment[places->preload_index] + sizeof PRELOAD - 1);
    }
    if (places->grant_index < 0)
        entries[count++] = grant_variable;
    entries[count] = NULL;
    return entries;
}

/* ------------------------------------------------------------------------------------------------------- the calls */

enum call { EXECVE, EXECVPE, FEXECVE, EXECVEAT, SPAWN, SPAWN_BY_PATH };

/* The arguments of a call, but for the environment; which of them it has is `call`'s. */
struct start {
    enum call call;
    int descriptor, flags;
    const char *path;
    char *const *arguments;
    pid_t *pid;
    const posix_spawn_file_actions_t *actions;
    const posix_spawnattr_t *attributes;
};

static int call_with(const struct start *start, char *const environment[])
{
    switch (start->call) {
    case EXECVE: return next.execve(start->path, start->arguments, environment);
    case EXECVPE: return next.execvpe(start->path, start->arguments, environment);
    case FEXECVE: return next.fexecve(start->descriptor, start->arguments, environment);
    case SPAWN:
        return next.spawn(start->pid, start->path, start->actions, start->attributes, start->arguments, environment);
    case SPAWN_BY_PATH:
        return next.spawn_by_path(start->pid, start->path, start->actions, start->attributes, start->arguments,
                                  environment);
    default: /* EXECVEAT, which libc has since 2.34 */
        return (int)syscall(SYS_execveat, start->descriptor, start->path, start->arguments, environment, start->flags);
    }
}

static int start(const struct start *started, char *const environment[])
{
    if (next.execve == NULL) /* a library's constructor, before ours */
        prepare();
    struct places places = places_in(environment);
    if (!needs_variables(environment, &places))
        return call_with(started, environment);
    size_t bytes = bytes_of_environment(environment, &places);
    bool is_mapped = bytes > MAX_STACK_BYTES;
    void *room = is_mapped ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                           : alloca(bytes);
    if (room == MAP_FAILED) {
        errno = ENOMEM;
        return started->call == SPAWN || started->call == SPAWN_BY_PATH ? ENOMEM : -1;
    }
    int answer = call_with(started, with_variables(environment, &places, room));
    if (is_mapped)
        munmap(room, bytes);
    return answer;
}

EXPORT int execve(const char *path, char *const arguments[], char *const environment[])
{
    return start(&(struct start){.call = EXECVE, .path = path, .arguments = arguments}, environment);
}

EXPORT int execv(const char *path, char *const arguments[])
{
    return execve(path, arguments, *environment_of_libc);
}

EXPORT int execvpe(const char *path, char *const arguments[], char *const environment[])
{
    return start(&(struct start){.call = EXECVPE, .path = path, .arguments = arguments}, environment);
}

EXPORT int execvp(const char *path, char *const arguments[])
{
    return execvpe(path, arguments, *environment_of_libc);
}

EXPORT int fexecve(int descriptor, char *const arguments[], char *const environment[])
{
    return start(&(struct start){.call = FEXECVE, .descriptor = descriptor, .arguments = arguments}, environment);
}

EXPORT int execveat(int descriptor, const char *path, char *const arguments[], char *const environment[], int flags)
{
    struct start started = {
        .call = EXECVEAT, .descriptor = descriptor, .path = path, .arguments = arguments, .flags = flags};
    return start(&started, environment);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    struct start started = {
        .call = SPAWN, .pid = pid, .path = path, .actions = actions, .attributes = attributes, .arguments = arguments};
    return start(&started, environment);
}

EXPORT int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    struct start started = {.call = SPAWN_BY_PATH,
                            .pid = pid,
                            .path = path,
                            .actions = actions,
                            .attributes = attributes,
                            .arguments = arguments};
    return start(&started, environment);
}

/* The arguments that follow `first` up to a null pointer, as an array on the caller's stack; `list` is after that. */
#define ARGUMENTS(arguments, list, first)                                                                              \
    size_t count = 1;                                                                                                  \
    va_start(list, first);                                                                                             \
    while (va_arg(list, char *) != NULL)                                                                               \
        count++;                                                                                                       \
    va_end(list);                                                                                                      \
    char *arguments[count + 1];                                                                                        \
    arguments[0] = (char *)(uintptr_t)first;                                                                           \
    va_start(list, first);                                                                                             \
    for (size_t index = 1; index <= count; index++)                                                                    \
    arguments[index] = va_arg(list, char *)

EXPORT int execl(const char *path, const char *first, ...)
{
    va_list list;
    ARGUMENTS(arguments, list, first);
    va_end(list);
    return execve(path, arguments, *environment_of_libc);
}

EXPORT int execlp(const char *path, const char *first, ...)
{
    va_list list;
    ARGUMENTS(arguments, list, first);
    va_end(list);
    return execvpe(path, arguments, *environment_of_libc);
}

EXPORT int execle(const char *path, const char *first, ...)
{
    va_list list;
    ARGUMENTS(arguments, list, first);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, arguments, environment);
}
