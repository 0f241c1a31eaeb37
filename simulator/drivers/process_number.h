/* The PID of a process in the caller's namespace: a driver tells each PID namespace its own. */
#ifndef HETERO_FAKE_PROCESS_NUMBER_H
#define HETERO_FAKE_PROCESS_NUMBER_H

#include <stdint.h>
#include <sys/types.h>

struct process_number {
    uint64_t space; /* inode of the PID namespace; 0: unknown */
    pid_t pid;      /* in that namespace */
};

struct process_number process_number_own(void);

/* The same process's number here; 0: it is none that this process sees. */
pid_t process_number_here(struct process_number process);

#endif
