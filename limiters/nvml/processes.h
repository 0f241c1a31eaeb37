/* What NVML lists by process, of which a grant is shown its own. */
#ifndef HETERO_NVML_PROCESSES_H
#define HETERO_NVML_PROCESSES_H

#include "abi.h"

#include "../core/region.h"

#include <stdbool.h>

enum { MAX_ROWS = 1024 }; /* that are asked of the library at once */

struct process_rows {
    char *structs;      /* an array of structs, which the library fills */
    unsigned row_count; /* how many it may fill; then, how many there are */
    size_t row_bytes;   /* of each */
    size_t pid_offset;  /* where in it the pid is */
    uint32_t device_bits;
    struct region_process *own_processes; /* the grant's processes */
    unsigned own_count;
};

/* Room for what the library lists of a device. False: its own answer stands. */
bool rows_begin(struct process_rows *rows, nvmlDevice_t handle, size_t row_bytes, size_t pid_offset);

void rows_keep_own(struct process_rows *rows);

/* Hand out what the library answered, as it does: `count` is how many there is room for, then how many there are. */
nvmlReturn_t rows_end(struct process_rows *rows, nvmlReturn_t answer, unsigned *out_count, void *out_structs);

void rows_free(struct process_rows *rows);

#endif
