/* NVML lists the grant's own processes only, as the region has them. If the driver does not report a process's
 * memory, or lists it under a pid of another namespace, the charged bytes are shown. */
#include "processes.h"

#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/tenant.h"

#include <stdlib.h>
#include <string.h>

bool rows_begin(struct process_rows *rows, nvmlDevice_t handle, size_t row_bytes, size_t pid_offset)
{
    *rows = (struct process_rows){
        .row_count = MAX_ROWS, .row_bytes = row_bytes, .pid_offset = pid_offset, .device_bits = device_limits(handle)};
    if (rows->device_bits == 0)
        return false;
    rows->structs = malloc((MAX_ROWS + HETERO_REGION_SLOTS) * row_bytes);
    rows->own_processes = malloc(HETERO_REGION_SLOTS * sizeof *rows->own_processes);
    if (rows->structs == NULL || rows->own_processes == NULL) {
        rows_free(rows);
        return false;
    }
    rows->own_count = region_processes(tenant_region(), rows->own_processes);
    return true;
}

void rows_free(struct process_rows *rows)
{
    free(rows->structs);
    free(rows->own_processes);
}

static char *row_of(const struct process_rows *rows, unsigned row)
{
    return rows->structs + row * rows->row_bytes;
}

static unsigned pid_of(const struct process_rows *rows, unsigned row)
{
    unsigned pid;
    memcpy(&pid, row_of(rows, row) + rows->pid_offset, sizeof pid);
    return pid;
}

static const struct region_process *find_own_process(const struct process_rows *rows, unsigned pid)
{
    for (unsigned index = 0; index < rows->own_count; index++)
        if (rows->own_processes[index].pid == pid)
            return &rows->own_processes[index];
    return NULL;
}

void rows_keep_own(struct process_rows *rows)
{
    unsigned kept_count = 0;
    for (unsigned row = 0; row < rows->row_count; row++)
        if (find_own_process(rows, pid_of(rows, row)) != NULL)
            memmove(row_of(rows, kept_count++), row_of(rows, row), rows->row_bytes);
    rows->row_count = kept_count;
}

nvmlReturn_t rows_end(struct process_rows *rows, nvmlReturn_t result, unsigned *out_count, void *out_structs)
{
    if (result == NVML_SUCCESS && out_count == NULL)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        rows_keep_own(rows);
        if (rows->row_count > *out_count || (rows->row_count != 0 && out_structs == NULL))
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        else if (rows->row_count != 0)
            memcpy(out_structs, rows->structs, rows->row_count * rows->row_bytes);
        *out_count = rows->row_count;
    }
    rows_free(rows);
    return result;
}

/* --------------------------------------------------------------------------------------------------- memory in use */

/* Each version of a process's struct begins as the one before it. */
_Static_assert(offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) &&
                   offsetof(nvmlProcessDetail_v1_t, usedGpuMemory) == offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) &&
                   offsetof(nvmlProcessDetail_v1_t, computeInstanceId) ==
                       offsetof(nvmlProcessInfo_v2_t, computeInstanceId),
               "rows of processes");

static uint64_t charged_bytes_of(const struct process_rows *rows, const struct region_process *own_process)
{
    uint64_t used_bytes = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        used_bytes += rows->device_bits >> device & 1 ? own_process->used_bytes[device] : 0;
    return used_bytes;
}

/* Some drivers list a process of a container with 0 (github.com/NVIDIA/open-gpu-kernel-modules/pull/614). */
static void fill_memory(struct process_rows *rows)
{
    for (unsigned row = 0; row < rows->row_count; row++) {
        nvmlProcessInfo_v1_t *info = (nvmlProcessInfo_v1_t *)row_of(rows, row);
        if (info->usedGpuMemory == NVML_VALUE_NOT_AVAILABLE || info->usedGpuMemory == 0)
            info->usedGpuMemory = charged_bytes_of(rows, find_own_process(rows, info->pid));
    }
}

/* Add processes that hold memory and that the driver does not list under their pid. */
static void add_unlisted(struct process_rows *rows, nvmlDevice_t handle)
{
    nvmlProcessDetail_v1_t unlisted = {.gpuInstanceId = ~0u, .computeInstanceId = ~0u};
    typeof(&nvmlDeviceGetGpuInstanceId) get_gpu_instance = REAL(nvmlDeviceGetGpuInstanceId);
    typeof(&nvmlDeviceGetComputeInstanceId) get_compute_instance = REAL(nvmlDeviceGetComputeInstanceId);
    if (get_gpu_instance != NULL && get_gpu_instance(handle, &unlisted.gpuInstanceId) == NVML_SUCCESS &&
        get_compute_instance != NULL)
        get_compute_instance(handle, &unlisted.computeInstanceId);
    unsigned listed_count = rows->row_count;
    for (unsigned index = 0; index < rows->own_count; index++) {
        unsigned row = 0;
        while (row < listed_count && pid_of(rows, row) != rows->own_processes[index].pid)
            row++;
        unlisted.pid = rows->own_processes[index].pid;
        unlisted.usedGpuMemory = charged_bytes_of(rows, &rows->own_processes[index]);
        if (row == listed_count && unlisted.usedGpuMemory != 0)
            memcpy(row_of(rows, rows->row_count++), &unlisted, rows->row_bytes);
    }
}

static nvmlReturn_t infos_end(struct process_rows *rows, nvmlReturn_t result, nvmlDevice_t handle, bool is_compute,
                              unsigned *out_count, void *out_structs)
{
    if (result == NVML_SUCCESS) {
        rows_keep_own(rows);
        fill_memory(rows);
        if (is_compute)
            add_unlisted(rows, handle);
    }
    return rows_end(rows, result, out_count, out_structs);
}

/* A body for the functions that fill an array of one type of struct. */
#define LIST(name, row, end)                                                                                           \
    nvmlReturn_t name(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *, row *), nvmlDevice_t device, unsigned *count,     \
                      row *out)                                                                                        \
    {                                                                                                                  \
        struct process_rows rows;                                                                                      \
        if (!rows_begin(&rows, device, sizeof *out, offsetof(row, pid)))                                               \
            return real(device, count, out);                                                                           \
        nvmlReturn_t result = real(device, &rows.row_count, (row *)rows.structs);                                      \
        return end;                                                                                                    \
    }

LIST(compute_processes_v1, nvmlProcessInfo_v1_t, infos_end(&rows, result, device, true, count, out))
LIST(compute_processes, nvmlProcessInfo_v2_t, infos_end(&rows, result, device, true, count, out))
LIST(other_processes_v1, nvmlProcessInfo_v1_t, infos_end(&rows, result, device, false, count, out))
LIST(other_processes, nvmlProcessInfo_v2_t, infos_end(&rows, result, device, false, count, out))

nvmlReturn_t process_details(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessDetailList_v1_t *), nvmlDevice_t handle,
                             nvmlProcessDetailList_v1_t *list)
{
    struct process_rows rows;
    if (list == NULL || !rows_begin(&rows, handle, sizeof *list->procArray, offsetof(nvmlProcessDetail_v1_t, pid)))
        return real(handle, list);
    nvmlProcessDetailList_v1_t driver_list = *list;
    driver_list.numProcArrayEntries = rows.row_count;
    driver_list.procArray = (nvmlProcessDetail_v1_t *)rows.structs;
    nvmlReturn_t result = real(handle, &driver_list);
    rows.row_count = driver_list.numProcArrayEntries;
    return infos_end(&rows, result, handle, list->mode == 0, &list->numProcArrayEntries, list->procArray);
}

/* ------------------------------------------------------------------------------------------- accounting and sessions
 */

nvmlReturn_t accounting_pids(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *, unsigned *), nvmlDevice_t handle,
                             unsigned *count, unsigned *pids)
{
    struct process_rows rows;
    if (!rows_begin(&rows, handle, sizeof *pids, 0))
        return real(handle, count, pids);
    return rows_end(&rows, real(handle, &rows.row_count, (unsigned *)rows.structs), count, pids);
}

/* Whether a process's figures may be read: it is of the grant, or the card is not limited. */
static bool may_read_pid(nvmlDevice_t handle, unsigned pid)
{
    struct process_rows rows;
    if (!rows_begin(&rows, handle, sizeof pid, 0))
        return true;
    bool is_own = find_own_process(&rows, pid) != NULL;
    rows_free(&rows);
    return is_own;
}

nvmlReturn_t accounting_stats(nvmlReturn_t (*real)(nvmlDevice_t, unsigned, nvmlAccountingStats_t *),
                              nvmlDevice_t handle, unsigned pid, nvmlAccountingStats_t *stats)
{
    return may_read_pid(handle, pid) ? real(handle, pid, stats) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t accounting_stats_v2(nvmlReturn_t (*real)(nvmlDevice_t, nvmlAccountingStats_v2_t *), nvmlDevice_t handle,
                                 nvmlAccountingStats_v2_t *stats)
{
    return stats == NULL || may_read_pid(handle, stats->pid) ? real(handle, stats) : NVML_ERROR_NOT_FOUND;
}

/* If `*out_count` is 0, NVML sets it to the number of sessions and succeeds. */
static nvmlReturn_t sessions_end(struct process_rows *rows, nvmlReturn_t result, unsigned *out_count, void *out_structs)
{
    bool asks_count_only = out_count != NULL && *out_count == 0;
    result = rows_end(rows, result, out_count, out_structs);
    return asks_count_only && result == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : result;
}

LIST(encoder_sessions, nvmlEncoderSessionInfo_t, sessions_end(&rows, result, count, out))
LIST(capture_sessions, nvmlFBCSessionInfo_t, sessions_end(&rows, result, count, out))
