/* libc's own functions, whatever else of their names is loaded in front of them. */
#ifndef HETERO_LIBC_H
#define HETERO_LIBC_H

#include <link.h>
#include <stdbool.h>

/* Those that are answered here under their own names (symbols.c). */
void *libc_dlsym(void *handle, const char *name);
void *libc_dlvsym(void *handle, const char *name, const char *version);
void *libc_dlopen(const char *file, int flags);

/* The library or program that an address lies in; NULL: none. */
const struct link_map *object_of(const void *address);

/* Whether a library calls itself so (its DT_SONAME). */
bool object_is_called(const struct link_map *object, const char *name);

/* strcmp without libc. */
bool same_text(const char *one, const char *other);

#endif
