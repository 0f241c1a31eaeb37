/* Keeps the limiter in what libc's `system` and `popen` start. libc passes on the program's own environment there,
 * which may have lost it: the shell is told the variables in front of its command then (variables.h).
 */
#include "fault.h"
#include "libc.h"
#include "variables.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#define SET "export "
#define END "; "

static struct {
    typeof(&system) system;
    typeof(&popen) popen;
} next; /* written by the constructor, and read then */

__attribute__((constructor)) static void prepare(void)
{
    environment_prepare();
    next.system = libc_dlsym(RTLD_NEXT, "system");
    next.popen = libc_dlsym(RTLD_NEXT, "popen");
}

/* Append a text as one word of a shell's command, and a space. */
static char *append_word(char *end, const char *text)
{
    for (*end++ = '\''; *text != '\0'; text++)
        if (*text == '\'')
            end = stpcpy(end, "'\\''");
        else
            *end++ = *text;
    return stpcpy(end, "' ");
}

/* A call of `popen`, or of `system` where there is no mode; and its answer. */
struct shell {
    const char *command, *mode;
    char *const *environment;
    struct environment_places places;
    int status;
    FILE *stream;
};

static void call_with(struct shell *shell, const char *command)
{
    if (shell->mode == NULL)
        shell->status = next.system(command);
    else
        shell->stream = next.popen(command, shell->mode);
}

/* Room for the environment, and for the command: each character of a word may take four. */
static size_t bytes_of(const struct shell *shell)
{
    size_t text_bytes = environment_bytes(shell->environment, &shell->places);
    if (shell->places.grant_index >= 0)
        text_bytes += strlen(shell->environment[shell->places.grant_index]);
    return 5 * text_bytes + sizeof SET + sizeof END + strlen(shell->command);
}

/* The command with the variables in front, in `room`. */
static const char *with_variables(const struct shell *shell, void *room)
{
    char *const *kept = environment_with_limiter(shell->environment, &shell->places, room);
    struct environment_places places = environment_places_in(kept);
    char *text = (char *)room + environment_bytes(shell->environment, &shell->places);
    char *end = append_word(append_word(stpcpy(text, SET), kept[places.preload_index]), kept[places.grant_index]);
    stpcpy(stpcpy(end, END), shell->command);
    return text;
}

static void start(struct shell *shell)
{
    if (next.system == NULL) /* a library's constructor, before ours */
        prepare();
    shell->environment = environment_now();
    shell->places = environment_places_in(shell->environment);
    if (shell->command == NULL || !environment_lacks_limiter(shell->environment, &shell->places) ||
        FAULT(shells_as_told)) {
        call_with(shell, shell->command);
        return;
    }
    size_t bytes = bytes_of(shell);
    void *room = ROOM(bytes);
    if (room == MAP_FAILED) {
        errno = ENOMEM;
        return;
    }
    call_with(shell, with_variables(shell, room));
    ROOM_END(room, bytes);
}

EXPORT int system(const char *command)
{
    struct shell shell = {.command = command, .status = -1};
    start(&shell);
    return shell.status;
}

EXPORT FILE *popen(const char *command, const char *mode)
{
    struct shell shell = {.command = command, .mode = mode};
    start(&shell);
    return shell.stream;
}
