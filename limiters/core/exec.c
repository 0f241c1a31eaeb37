/* Keeps the limiter in programs that this one executes with another environment: one made anew, or with another
 * LD_PRELOAD. Both of its variables are put back (variables.h). A system call past libc is not seen
 * (docs/isolation.md).
 *
 * A child of vfork has its parent's memory, so the new environment is on the stack. Calls go to the next function of
 * their name, which may be of another preloaded library.
 */
#include "fault.h"
#include "libc.h"
#include "variables.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static struct {
    typeof(&execve) execve;
    typeof(&execvpe) execvpe;
    typeof(&fexecve) fexecve;
    typeof(&posix_spawn) spawn, spawn_by_path;
} next; /* written by the constructor, and read then */

__attribute__((constructor)) static void prepare(void)
{
    environment_prepare();
    next.execve = libc_dlsym(RTLD_NEXT, "execve");
    next.execvpe = libc_dlsym(RTLD_NEXT, "execvpe");
    next.fexecve = libc_dlsym(RTLD_NEXT, "fexecve");
    next.spawn = libc_dlsym(RTLD_NEXT, "posix_spawn");
    next.spawn_by_path = libc_dlsym(RTLD_NEXT, "posix_spawnp");
}

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
    struct environment_places places = environment_places_in(environment);
    if (!environment_lacks_limiter(environment, &places) || FAULT(executed_as_told))
        return call_with(started, environment);
    size_t bytes = environment_bytes(environment, &places);
    void *room = ROOM(bytes);
    if (room == MAP_FAILED) {
        errno = ENOMEM;
        return started->call == SPAWN || started->call == SPAWN_BY_PATH ? ENOMEM : -1;
    }
    int answer = call_with(started, environment_with_limiter(environment, &places, room));
    ROOM_END(room, bytes);
    return answer;
}

EXPORT int execve(const char *path, char *const arguments[], char *const environment[])
{
    return start(&(struct start){.call = EXECVE, .path = path, .arguments = arguments}, environment);
}

EXPORT int execv(const char *path, char *const arguments[])
{
    return execve(path, arguments, environment_now());
}

EXPORT int execvpe(const char *path, char *const arguments[], char *const environment[])
{
    return start(&(struct start){.call = EXECVPE, .path = path, .arguments = arguments}, environment);
}

EXPORT int execvp(const char *path, char *const arguments[])
{
    return execvpe(path, arguments, environment_now());
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
    return execve(path, arguments, environment_now());
}

EXPORT int execlp(const char *path, const char *first, ...)
{
    va_list list;
    ARGUMENTS(arguments, list, first);
    va_end(list);
    return execvpe(path, arguments, environment_now());
}

EXPORT int execle(const char *path, const char *first, ...)
{
    va_list list;
    ARGUMENTS(arguments, list, first);
    char *const *environment = va_arg(list, char *const *);
    va_end(list);
    return execve(path, arguments, environment);
}
