/* What number a process has for whoever asks: a driver tells each namespace of processes its own. */
#ifndef HETERO_FAKE_PROCESS_NUMBER_H
#define HETERO_FAKE_PROCESS_NUMBER_H

#include <stdint.h>
#include <sys/types.h>

struct process_number {
    uint64_t space; /* the inode of the namespace; 0: not known */
    pid_t pid;      /* in it */
};

struct process_number process_number_own(void);

/* The same process's number here; 0: it is none that this process sees. */
pid_t process_number_here(struct process_number process);

#endif
