/* NVML's lists of processes: a grant is shown its own. */
#ifndef HETERO_NVML_PROCESSES_H
#define HETERO_NVML_PROCESSES_H

#include "abi.h"

#include "../core/region.h"

#include <stdbool.h>

enum { MAX_ROWS = 1024 }; /* that the library may write in one call */

/* A list that NVML writes: an array of structs, one for each process. */

struct process_rows {
    char *structs;      /* of row_bytes each, which the library writes */
    unsigned row_count; /* how many it may write; then, how many there are */
    size_t row_bytes;
    size_t pid_offset;                    /* of the pid in a struct */
    uint32_t device_bits;                 /* of the grant's devices, as from device_limits() */
    struct region_process *own_processes; /* the grant's, own_count of them */
    unsigned own_count;
};

/* Allocate memory for a list of a device. False: NVML's own answer is passed on. */
bool rows_begin(struct process_rows *rows, nvmlDevice_t handle, size_t row_bytes, size_t pid_offset);

/* Remove the structs of other grants' processes. */
void rows_keep_own(struct process_rows *rows);

/* Copy the list to the program as NVML does. `*out_count` is how many structs fit, then how many there are. */
nvmlReturn_t rows_end(struct process_rows *rows, nvmlReturn_t answer, unsigned *out_count, void *out_structs);

void rows_free(struct process_rows *rows);

#endif
