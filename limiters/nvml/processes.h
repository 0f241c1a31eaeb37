/* What NVML lists by process, of which a grant is shown its own. */
#ifndef HETERO_NVML_PROCESSES_H
#define HETERO_NVML_PROCESSES_H

#include "abi.h"

#include "../core/region.h"

#include <stdbool.h>

enum { MOST_ROWS = 1024 }; /* that are asked of the library at once */

struct rows {
    char *at;       /* an array of structs, which the library fills */
    unsigned count; /* how many it may fill; then, how many there are */
    size_t size;    /* of each */
    size_t pid;     /* where in it the pid is */
    uint32_t devices;
    struct region_process *own; /* the grant's processes */
    unsigned own_count;
};

/* Room for what the library lists of a device. False: its own answer stands. */
bool rows_begin(struct rows *rows, nvmlDevice_t device, size_t size, size_t pid);

void rows_keep_own(struct rows *rows);

/* Hand out what the library answered, as it does: `count` is how many there is room for, then how many there are. */
nvmlReturn_t rows_end(struct rows *rows, nvmlReturn_t answer, unsigned *count, void *out);

void rows_free(struct rows *rows);

#endif
