/* A descriptor in a process that is not ours: it may be closed at any time, and its number be another file's. */
#ifndef HETERO_DESCRIPTOR_H
#define HETERO_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

struct descriptor {
    int number; /* -1: none */
    dev_t device;
    ino_t inode;
};

/* Open a regular file with these flags of open(2), under a number that programs rarely have. False, with errno: it
 * cannot be. Never waits: somebody may have a lease on what it can read. */
bool descriptor_open(struct descriptor *descriptor, const char *path, int flags);

/* Whether the number still is that file's: before each use that changes something. */
bool descriptor_stands(const struct descriptor *descriptor);

/* Close it if it is still ours to close. */
void descriptor_close(struct descriptor *descriptor);

#endif
