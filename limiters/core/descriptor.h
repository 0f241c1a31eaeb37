/* A descriptor of the limiter's in the program's process. The program may close it at any time, and its number may then
 * be another file's. */
#ifndef HETERO_DESCRIPTOR_H
#define HETERO_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

struct descriptor {
    int number;   /* of the descriptor; -1: none */
    dev_t device; /* of the file, like inode: whether the descriptor still names this file */
    ino_t inode;
};

/* Open a regular file with these flags of open(2), under a number that programs rarely have. False, with errno: it
 * cannot be opened. The call never waits, also not for a lease that a process has on the file. */
bool descriptor_open(struct descriptor *descriptor, const char *path, int flags);

/* Note which file a descriptor of the program's names now; none, if it is closed. */
void descriptor_note(struct descriptor *descriptor, int number);

/* Whether the number still is that file's. Checked before each use that changes something. */
bool descriptor_stands(const struct descriptor *descriptor);

/* Close it if the number still is that file's. */
void descriptor_close(struct descriptor *descriptor);

#endif
