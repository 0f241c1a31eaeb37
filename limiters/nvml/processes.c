/* The processes that NVML lists: the grant's own, as the region knows them. Of those a driver may not say the memory,
 * or lists them under the pids of another namespace; then the ledger's figure is shown.
 */
#include "processes.h"

#include "bodies.h"
#include "device.h"
#include "driver.h"

#include "../core/tenant.h"

#include <stdlib.h>
#include <string.h>

bool rows_begin(struct rows *rows, nvmlDevice_t device, size_t size, size_t pid)
{
    *rows = (struct rows){.count = MOST_ROWS, .size = size, .pid = pid, .devices = device_limits(device)};
    if (rows->devices == 0)
        return false;
    rows->at = malloc((MOST_ROWS + HETERO_REGION_SLOTS) * size);
    rows->own = malloc(HETERO_REGION_SLOTS * sizeof *rows->own);
    if (rows->at == NULL || rows->own == NULL) {
        rows_free(rows);
        return false;
    }
    rows->own_count = region_processes(tenant_region(), rows->own);
    return true;
}

void rows_free(struct rows *rows)
{
    free(rows->at);
    free(rows->own);
}

static char *row_at(const struct rows *rows, unsigned row)
{
    return rows->at + row * rows->size;
}

static unsigned pid_of(const struct rows *rows, unsigned row)
{
    unsigned pid;
    memcpy(&pid, row_at(rows, row) + rows->pid, sizeof pid);
    return pid;
}

static const struct region_process *own_process(const struct rows *rows, unsigned pid)
{
    for (unsigned i = 0; i < rows->own_count; i++)
        if (rows->own[i].pid == pid)
            return &rows->own[i];
    return NULL;
}

void rows_keep_own(struct rows *rows)
{
    unsigned kept = 0;
    for (unsigned row = 0; row < rows->count; row++)
        if (own_process(rows, pid_of(rows, row)) != NULL)
            memmove(row_at(rows, kept++), row_at(rows, row), rows->size);
    rows->count = kept;
}

nvmlReturn_t rows_end(struct rows *rows, nvmlReturn_t answer, unsigned *count, void *out)
{
    if (answer == NVML_SUCCESS && count == NULL)
        answer = NVML_ERROR_INVALID_ARGUMENT;
    if (answer == NVML_SUCCESS) {
        rows_keep_own(rows);
        if (rows->count > *count || (rows->count != 0 && out == NULL))
            answer = NVML_ERROR_INSUFFICIENT_SIZE;
        else if (rows->count != 0)
            memcpy(out, rows->at, rows->count * rows->size);
        *count = rows->count;
    }
    rows_free(rows);
    return answer;
}

/* --------------------------------------------------------------------------------------------------- memory in use */

/* Each form of a process's row begins as the one before it. */
_Static_assert(offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) &&
                   offsetof(nvmlProcessDetail_v1_t, usedGpuMemory) == offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) &&
                   offsetof(nvmlProcessDetail_v1_t, computeInstanceId) ==
                       offsetof(nvmlProcessInfo_v2_t, computeInstanceId),
               "rows of processes");

static uint64_t charged(const struct rows *rows, const struct region_process *process)
{
    uint64_t used = 0;
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        used += rows->devices >> device & 1 ? process->used_bytes[device] : 0;
    return used;
}

/* Some drivers list a process of a container with 0 (github.com/NVIDIA/open-gpu-kernel-modules/pull/614). */
static void fill_memory(struct rows *rows)
{
    for (unsigned row = 0; row < rows->count; row++) {
        nvmlProcessInfo_v1_t *info = (nvmlProcessInfo_v1_t *)row_at(rows, row);
        if (info->usedGpuMemory == NVML_VALUE_NOT_AVAILABLE || info->usedGpuMemory == 0)
            info->usedGpuMemory = charged(rows, own_process(rows, info->pid));
    }
}

/* Those that hold memory and that the driver lists under no pid of theirs. */
static void add_unlisted(struct rows *rows, nvmlDevice_t device)
{
    nvmlProcessDetail_v1_t unlisted = {.gpuInstanceId = ~0u, .computeInstanceId = ~0u};
    typeof(&nvmlDeviceGetGpuInstanceId) gpu_instance = REAL(nvmlDeviceGetGpuInstanceId);
    typeof(&nvmlDeviceGetComputeInstanceId) compute_instance = REAL(nvmlDeviceGetComputeInstanceId);
    if (gpu_instance != NULL && gpu_instance(device, &unlisted.gpuInstanceId) == NVML_SUCCESS &&
        compute_instance != NULL)
        compute_instance(device, &unlisted.computeInstanceId);
    unsigned listed = rows->count;
    for (unsigned i = 0; i < rows->own_count; i++) {
        unsigned row = 0;
        while (row < listed && pid_of(rows, row) != rows->own[i].pid)
            row++;
        unlisted.pid = rows->own[i].pid;
        unlisted.usedGpuMemory = charged(rows, &rows->own[i]);
        if (row == listed && unlisted.usedGpuMemory != 0)
            memcpy(row_at(rows, rows->count++), &unlisted, rows->size);
    }
}

static nvmlReturn_t infos_end(struct rows *rows, nvmlReturn_t answer, nvmlDevice_t device, bool compute,
                              unsigned *count, void *out)
{
    if (answer == NVML_SUCCESS) {
        rows_keep_own(rows);
        fill_memory(rows);
        if (compute)
            add_unlisted(rows, device);
    }
    return rows_end(rows, answer, count, out);
}

/* A body for the functions that fill an array with rows of one struct. */
#define LIST(name, row, end)                                                                                           \
    nvmlReturn_t name(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *, row *), nvmlDevice_t device, unsigned *count,     \
                      row *out)                                                                                        \
    {                                                                                                                  \
        struct rows rows;                                                                                              \
        if (!rows_begin(&rows, device, sizeof *out, offsetof(row, pid)))                                               \
            return real(device, count, out);                                                                           \
        nvmlReturn_t answer = real(device, &rows.count, (row *)rows.at);                                               \
        return end;                                                                                                    \
    }

LIST(compute_processes_v1, nvmlProcessInfo_v1_t, infos_end(&rows, answer, device, true, count, out))
LIST(compute_processes, nvmlProcessInfo_v2_t, infos_end(&rows, answer, device, true, count, out))
LIST(other_processes_v1, nvmlProcessInfo_v1_t, infos_end(&rows, answer, device, false, count, out))
LIST(other_processes, nvmlProcessInfo_v2_t, infos_end(&rows, answer, device, false, count, out))

nvmlReturn_t process_details(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessDetailList_v1_t *), nvmlDevice_t device,
                             nvmlProcessDetailList_v1_t *list)
{
    struct rows rows;
    if (list == NULL || !rows_begin(&rows, device, sizeof *list->procArray, offsetof(nvmlProcessDetail_v1_t, pid)))
        return real(device, list);
    nvmlProcessDetailList_v1_t all = *list;
    all.numProcArrayEntries = rows.count;
    all.procArray = (nvmlProcessDetail_v1_t *)rows.at;
    nvmlReturn_t answer = real(device, &all);
    rows.count = all.numProcArrayEntries;
    return infos_end(&rows, answer, device, list->mode == 0, &list->numProcArrayEntries, list->procArray);
}

/* ------------------------------------------------------------------------------------------- accounting and sessions
 */

nvmlReturn_t accounting_pids(nvmlReturn_t (*real)(nvmlDevice_t, unsigned *, unsigned *), nvmlDevice_t device,
                             unsigned *count, unsigned *pids)
{
    struct rows rows;
    if (!rows_begin(&rows, device, sizeof *pids, 0))
        return real(device, count, pids);
    return rows_end(&rows, real(device, &rows.count, (unsigned *)rows.at), count, pids);
}

/* Whether what is asked of this process may be told: it is of the grant, or the whole card is not limited. */
static bool may_ask(nvmlDevice_t device, unsigned pid)
{
    struct rows rows;
    if (!rows_begin(&rows, device, sizeof pid, 0))
        return true;
    bool own = own_process(&rows, pid) != NULL;
    rows_free(&rows);
    return own;
}

nvmlReturn_t accounting_stats(nvmlReturn_t (*real)(nvmlDevice_t, unsigned, nvmlAccountingStats_t *),
                              nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
{
    return may_ask(device, pid) ? real(device, pid, stats) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t accounting_stats_v2(nvmlReturn_t (*real)(nvmlDevice_t, nvmlAccountingStats_v2_t *), nvmlDevice_t device,
                                 nvmlAccountingStats_v2_t *stats)
{
    return stats == NULL || may_ask(device, stats->pid) ? real(device, stats) : NVML_ERROR_NOT_FOUND;
}

/* Asked without room, NVML tells the number of sessions and succeeds. */
static nvmlReturn_t sessions_end(struct rows *rows, nvmlReturn_t answer, unsigned *count, void *out)
{
    bool asked = count != NULL && *count == 0;
    answer = rows_end(rows, answer, count, out);
    return asked && answer == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : answer;
}

LIST(encoder_sessions, nvmlEncoderSessionInfo_t, sessions_end(&rows, answer, count, out))
LIST(capture_sessions, nvmlFBCSessionInfo_t, sessions_end(&rows, answer, count, out))
