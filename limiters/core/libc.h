/* libc's own functions, also where other functions of their names are loaded in front of them. */
#ifndef HETERO_LIBC_H
#define HETERO_LIBC_H

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>

/* libc's functions whose names the limiter answers itself (symbols.c). */
void *libc_dlsym(void *handle, const char *name);
void *libc_dlvsym(void *handle, const char *name, const char *version);
void *libc_dlopen(const char *file, int flags);
int libc_dladdr(const void *address, Dl_info *info);
int libc_dladdr1(const void *address, Dl_info *info, void **extra, int flags);

/* The loaded library or program that contains an address; NULL: none. */
const struct link_map *object_of(const void *address);

/* Whether this is a library's DT_SONAME. */
bool object_is_called(const struct link_map *object, const char *name);

/* Whether two texts are equal, without libc. */
bool same_text(const char *left, const char *right);

#endif
