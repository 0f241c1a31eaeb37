/* How busy a card is with the grant. Where the grant's core is limited that is the device time it is charged, and else
 * what the driver says of its processes. What the driver knows of the whole card alone is not said.
 */
#include "bodies.h"
#include "device.h"
#include "driver.h"
#include "processes.h"

#include "../core/tenant.h"

#include <pthread.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- what was charged */

/* NVML's own figure is of the last second or less, too. */
#define NEWER_NS  UINT64_C(500000000)  /* what is older is a beginning to measure from */
#define OLDEST_NS UINT64_C(3000000000) /* what is older says nothing of now: measured anew */
#define FIRST_NS  100000000            /* measured for so long: several time slices (timeshare/budget.h) */

struct reading {
    uint64_t at_ns;
    uint64_t charged_ns[HETERO_MAX_DEVICES];
};

static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct reading older, newer;

static void forget_parent(void)
{
    pthread_mutex_init(&measuring, NULL); /* a thread of the parent may have held it at the fork */
}

static struct reading read_now(void)
{
    struct reading now = {.at_ns = nvml_clock_ns(CLOCK_MONOTONIC)};
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        now.charged_ns[device] = atomic_load_explicit(&tenant_region()->shared->devices[device].gpu_ns,
                                                      memory_order_relaxed);
    return now;
}

/* The first to ask waits, since nothing was measured before. */
static unsigned charged_percent(unsigned device)
{
    tenancy_in_child(forget_parent);
    pthread_mutex_lock(&measuring);
    struct reading now = read_now();
    if (older.at_ns == 0 || now.at_ns - older.at_ns > OLDEST_NS) {
        older = newer = now;
        nanosleep(&(struct timespec){.tv_nsec = FIRST_NS}, NULL);
        now = read_now();
    } else if (now.at_ns - newer.at_ns >= NEWER_NS) {
        older = newer;
        newer = now;
    }
    uint64_t charged = now.charged_ns[device] - older.charged_ns[device], span = now.at_ns - older.at_ns;
    pthread_mutex_unlock(&measuring);
    return charged >= span ? 100 : (unsigned)(charged * 100 / span);
}

/* -------------------------------------------------------------------------------------------- what the driver sampled
 */

/* The newest sample of each process, of a second or less. */
#define SAMPLED_NS UINT64_C(1500000000)

/* The sum over the grant's processes. NOT_SUPPORTED: the driver does not say, or not under the pids that they have
 * here: drivers before r570 give those of the host in a container. */
static nvmlReturn_t sampled(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    struct rows rows;
    typeof(&nvmlDeviceGetProcessUtilization) real = REAL(nvmlDeviceGetProcessUtilization);
    *rates = (nvmlUtilization_t){0, 0};
    if (real == NULL || !rows_begin(&rows, device, sizeof(nvmlProcessUtilizationSample_t), 0))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlProcessUtilizationSample_t *samples = (nvmlProcessUtilizationSample_t *)rows.at;
    unsigned long long since = (nvml_clock_ns(CLOCK_REALTIME) - SAMPLED_NS) / 1000;
    nvmlReturn_t answer = real(device, samples, &rows.count, since);
    unsigned all = rows.count;
    if (answer == NVML_SUCCESS)
        rows_keep_own(&rows);
    for (unsigned i = 0; answer == NVML_SUCCESS && i < rows.count; i++) {
        rates->gpu += samples[i].smUtil;
        rates->memory += samples[i].memUtil;
    }
    bool known = answer == NVML_ERROR_NOT_FOUND || (answer == NVML_SUCCESS && (all == 0 || rows.count != 0));
    rows_free(&rows);
    return known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static unsigned at_most_100(unsigned percent)
{
    return percent < 100 ? percent : 100;
}

nvmlReturn_t utilization_rates(nvmlReturn_t (*real)(nvmlDevice_t, nvmlUtilization_t *), nvmlDevice_t device,
                               nvmlUtilization_t *rates)
{
    uint32_t devices = device_limits(device);
    nvmlReturn_t answer = real(device, rates);
    if (answer != NVML_SUCCESS || devices == 0)
        return answer;
    nvmlUtilization_t own;
    unsigned first = (unsigned)__builtin_ctz(devices); /* a card in parts has no figure (MIG) */
    answer = sampled(device, &own);
    bool charged = terms_limit_core(tenant_terms((int)first));
    rates->gpu = charged ? charged_percent(first) : at_most_100(own.gpu);
    rates->memory = at_most_100(own.memory);
    return charged ? NVML_SUCCESS : answer;
}

/* ---------------------------------------------------------------------------------------------------------- samples */

static bool is_utilization(nvmlSamplingType_t type)
{
    return type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES ||
           type == NVML_ENC_UTILIZATION_SAMPLES || type == NVML_DEC_UTILIZATION_SAMPLES ||
           type == NVML_JPG_UTILIZATION_SAMPLES || type == NVML_OFA_UTILIZATION_SAMPLES;
}

/* Of the grant's utilization there is one sample: now. */
nvmlReturn_t recent_samples(nvmlReturn_t (*real)(nvmlDevice_t, nvmlSamplingType_t, unsigned long long,
                                                 nvmlValueType_t *, unsigned *, nvmlSample_t *),
                            nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                            nvmlValueType_t *value_type, unsigned *count, nvmlSample_t *samples)
{
    nvmlUtilization_t rates;
    typeof(&nvmlDeviceGetUtilizationRates) get_rates = REAL(nvmlDeviceGetUtilizationRates);
    if (!is_utilization(type) || device_limits(device) == 0)
        return real(device, type, since, value_type, count, samples);
    if (value_type == NULL || count == NULL || (samples != NULL && *count == 0))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t answer = type != NVML_GPU_UTILIZATION_SAMPLES || get_rates == NULL
                              ? NVML_ERROR_NOT_SUPPORTED
                              : utilization_rates(get_rates, device, &rates);
    if (answer != NVML_SUCCESS)
        return answer;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    if (samples != NULL)
        *samples = (nvmlSample_t){nvml_clock_ns(CLOCK_REALTIME) / 1000, {.uiVal = rates.gpu}};
    return answer;
}

/* Where nobody has a sample, NVML finds none. */
static nvmlReturn_t samples_end(struct rows *rows, nvmlReturn_t answer, unsigned *count, void *out)
{
    if (answer == NVML_SUCCESS)
        rows_keep_own(rows);
    if (answer == NVML_SUCCESS && rows->count == 0)
        answer = NVML_ERROR_NOT_FOUND;
    return rows_end(rows, answer, count, out);
}

nvmlReturn_t process_utilization(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *,
                                                      unsigned long long),
                                 nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                 unsigned long long since)
{
    struct rows rows;
    if (!rows_begin(&rows, device, sizeof *samples, offsetof(nvmlProcessUtilizationSample_t, pid)))
        return real(device, samples, count, since);
    nvmlReturn_t answer = real(device, (nvmlProcessUtilizationSample_t *)rows.at, &rows.count, since);
    return samples_end(&rows, answer, count, samples);
}

nvmlReturn_t processes_utilization(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *),
                                   nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    struct rows rows;
    size_t pid = offsetof(nvmlProcessUtilizationInfo_v1_t, pid);
    if (info == NULL || !rows_begin(&rows, device, sizeof *info->procUtilArray, pid))
        return real(device, info);
    nvmlProcessesUtilizationInfo_v1_t all = *info;
    all.processSamplesCount = rows.count;
    all.procUtilArray = (nvmlProcessUtilizationInfo_v1_t *)rows.at;
    nvmlReturn_t answer = real(device, &all);
    rows.count = all.processSamplesCount;
    return samples_end(&rows, answer, &info->processSamplesCount, info->procUtilArray);
}

/* Clients then ask for utilization. */
nvmlReturn_t sampler_support(nvmlReturn_t (*real)(nvmlDevice_t, nvmlGpmSupport_t *), nvmlDevice_t device,
                             nvmlGpmSupport_t *support)
{
    nvmlReturn_t answer = real(device, support);
    if (answer == NVML_SUCCESS && device_limits(device) != 0)
        support->isSupportedDevice = 0;
    return answer;
}
