/* The two variables that keep the limiter in programs that this one starts: LD_PRELOAD, with the limiters that this
 * process has, and HETERO_GRANT. Not where an environment says itself that there is no grant (HETERO_GRANT is there and
 * empty), nor in containers, where a file has the limiter loaded.
 *
 * A child of vfork has its parent's memory. So nothing is allocated or locked here.
 */
#ifndef HETERO_CORE_VARIABLES_H
#define HETERO_CORE_VARIABLES_H

#include <alloca.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

/* Where an environment has the two variables; -1: nowhere. */
struct environment_places {
    int preload_index, grant_index, count;
};

/* Note the variables of this process. The first call counts: one of a constructor. */
void environment_prepare(void);

/* The environment that libc starts programs with where a call names none. */
char *const *environment_now(void);

struct environment_places environment_places_in(char *const environment[]);

/* Whether a program with this environment would not have the limiter and is to have it. */
bool environment_lacks_limiter(char *const environment[], const struct environment_places *places);

/* Room for two more entries, their end, and the text of a longer LD_PRELOAD. */
size_t environment_bytes(char *const environment[], const struct environment_places *places);

/* The environment with both variables, in `room`. The limiters come last, as where `hetero run` starts a program. */
char *const *environment_with_limiter(char *const environment[], const struct environment_places *places, void *room);

/* Room of so many bytes: of the caller's stack, or mapped, which ROOM_END gives back. Threads may have a stack of 64
 * KiB. MAP_FAILED: there is none. */
#define ROOM_ON_STACK_BYTES 16384
#define ROOM(bytes)                                                                                                    \
    ((bytes) > ROOM_ON_STACK_BYTES ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)     \
                                   : alloca(bytes))
#define ROOM_END(room, bytes) ((bytes) > ROOM_ON_STACK_BYTES ? munmap(room, bytes) : 0)

#endif
