/* NVML's utilization is the grant's. If the grant's core is limited it is the charged device time; otherwise it is the
 * driver's figure for the grant's processes. Figures that the driver only has for the whole card are not supported.
 */
#include "bodies.h"
#include "device.h"
#include "driver.h"
#include "processes.h"

#include "../core/tenant.h"

#include <pthread.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------- charged device time */

/* NVML's own figure is of the last second or less, too. */
#define NEWER_AGE_NS  UINT64_C(500000000)  /* an older reading becomes the beginning of the measured span */
#define MAX_AGE_NS    UINT64_C(3000000000) /* an older beginning is too old: a new span is measured */
#define FIRST_SPAN_NS 100000000            /* of a new span: several time slices (timeshare/budget.h) */

struct charge_reading {
    uint64_t time_ns;
    uint64_t charged_ns[HETERO_MAX_DEVICES];
};

static pthread_mutex_t readings_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct charge_reading older_reading, newer_reading;

static void forget_parent(void)
{
    pthread_mutex_init(&readings_mutex, NULL); /* a thread of the parent may have held it at the fork */
}

static struct charge_reading read_now(void)
{
    struct charge_reading reading = {.time_ns = nvml_clock_ns(CLOCK_MONOTONIC)};
    for (unsigned device = 0; device < HETERO_MAX_DEVICES; device++)
        reading.charged_ns[device] = atomic_load_explicit(&tenant_region()->shared->devices[device].gpu_ns,
                                                          memory_order_relaxed);
    return reading;
}

/* The share of time that was charged. The first call waits for FIRST_SPAN_NS, since nothing was measured before. */
static unsigned charged_percent(unsigned device)
{
    tenancy_in_child(forget_parent);
    pthread_mutex_lock(&readings_mutex);
    struct charge_reading current_reading = read_now();
    if (older_reading.time_ns == 0 || current_reading.time_ns - older_reading.time_ns > MAX_AGE_NS) {
        older_reading = newer_reading = current_reading;
        nanosleep(&(struct timespec){.tv_nsec = FIRST_SPAN_NS}, NULL);
        current_reading = read_now();
    } else if (current_reading.time_ns - newer_reading.time_ns >= NEWER_AGE_NS) {
        older_reading = newer_reading;
        newer_reading = current_reading;
    }
    uint64_t charged_ns = current_reading.charged_ns[device] - older_reading.charged_ns[device],
             span_ns = current_reading.time_ns - older_reading.time_ns;
    pthread_mutex_unlock(&readings_mutex);
    return charged_ns >= span_ns ? 100 : (unsigned)(charged_ns * 100 / span_ns);
}

/* ------------------------------------------------------------------------------------------------- driver's samples */

/* How old samples may be; each is of a second or less. */
#define SAMPLE_AGE_NS UINT64_C(1500000000)

/* The sum over the grant's processes. NOT_SUPPORTED: the driver has no samples, or not under the pids of this
 * namespace: in a container, drivers before r570 return the host's pids. */
static nvmlReturn_t read_sampled_rates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    struct process_rows rows;
    typeof(&nvmlDeviceGetProcessUtilization) get_utilization = REAL(nvmlDeviceGetProcessUtilization);
    *rates = (nvmlUtilization_t){0, 0};
    if (get_utilization == NULL || !rows_begin(&rows, handle, sizeof(nvmlProcessUtilizationSample_t), 0))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlProcessUtilizationSample_t *samples = (nvmlProcessUtilizationSample_t *)rows.structs;
    unsigned long long since_us = (nvml_clock_ns(CLOCK_REALTIME) - SAMPLE_AGE_NS) / 1000;
    nvmlReturn_t answer = get_utilization(handle, samples, &rows.row_count, since_us);
    unsigned driver_count = rows.row_count;
    if (answer == NVML_SUCCESS)
        rows_keep_own(&rows);
    for (unsigned index = 0; answer == NVML_SUCCESS && index < rows.row_count; index++) {
        rates->gpu += samples[index].smUtil;
        rates->memory += samples[index].memUtil;
    }
    bool is_known = answer == NVML_ERROR_NOT_FOUND ||
                    (answer == NVML_SUCCESS && (driver_count == 0 || rows.row_count != 0));
    rows_free(&rows);
    return is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static unsigned at_most_100(unsigned percent)
{
    return percent < 100 ? percent : 100;
}

nvmlReturn_t utilization_rates(nvmlReturn_t (*real)(nvmlDevice_t, nvmlUtilization_t *), nvmlDevice_t handle,
                               nvmlUtilization_t *rates)
{
    uint32_t device_bits = device_limits(handle);
    nvmlReturn_t answer = real(handle, rates);
    if (answer != NVML_SUCCESS || device_bits == 0)
        return answer;
    nvmlUtilization_t own_rates;
    unsigned first_device = (unsigned)__builtin_ctz(device_bits); /* a card in parts has no figure (MIG) */
    answer = read_sampled_rates(handle, &own_rates);
    bool is_charged = terms_limit_core(tenant_terms((int)first_device));
    rates->gpu = is_charged ? charged_percent(first_device) : at_most_100(own_rates.gpu);
    rates->memory = at_most_100(own_rates.memory);
    return is_charged ? NVML_SUCCESS : answer;
}

/* ---------------------------------------------------------------------------------------------------------- samples */

static bool is_utilization(nvmlSamplingType_t type)
{
    return type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES ||
           type == NVML_ENC_UTILIZATION_SAMPLES || type == NVML_DEC_UTILIZATION_SAMPLES ||
           type == NVML_JPG_UTILIZATION_SAMPLES || type == NVML_OFA_UTILIZATION_SAMPLES;
}

/* The grant's utilization has one sample: the current one. */
nvmlReturn_t recent_samples(nvmlReturn_t (*real)(nvmlDevice_t, nvmlSamplingType_t, unsigned long long,
                                                 nvmlValueType_t *, unsigned *, nvmlSample_t *),
                            nvmlDevice_t handle, nvmlSamplingType_t type, unsigned long long since_us,
                            nvmlValueType_t *value_type, unsigned *count, nvmlSample_t *samples)
{
    nvmlUtilization_t rates;
    typeof(&nvmlDeviceGetUtilizationRates) get_rates = REAL(nvmlDeviceGetUtilizationRates);
    if (!is_utilization(type) || device_limits(handle) == 0)
        return real(handle, type, since_us, value_type, count, samples);
    if (value_type == NULL || count == NULL || (samples != NULL && *count == 0))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t answer = type != NVML_GPU_UTILIZATION_SAMPLES || get_rates == NULL
                              ? NVML_ERROR_NOT_SUPPORTED
                              : utilization_rates(get_rates, handle, &rates);
    if (answer != NVML_SUCCESS)
        return answer;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    *count = 1;
    if (samples != NULL)
        *samples = (nvmlSample_t){nvml_clock_ns(CLOCK_REALTIME) / 1000, {.uiVal = rates.gpu}};
    return answer;
}

/* Without samples NVML returns NOT_FOUND. */
static nvmlReturn_t samples_end(struct process_rows *rows, nvmlReturn_t answer, unsigned *out_count, void *out_structs)
{
    if (answer == NVML_SUCCESS)
        rows_keep_own(rows);
    if (answer == NVML_SUCCESS && rows->row_count == 0)
        answer = NVML_ERROR_NOT_FOUND;
    return rows_end(rows, answer, out_count, out_structs);
}

nvmlReturn_t process_utilization(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *,
                                                      unsigned long long),
                                 nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                 unsigned long long since_us)
{
    struct process_rows rows;
    if (!rows_begin(&rows, handle, sizeof *samples, offsetof(nvmlProcessUtilizationSample_t, pid)))
        return real(handle, samples, count, since_us);
    nvmlReturn_t answer = real(handle, (nvmlProcessUtilizationSample_t *)rows.structs, &rows.row_count, since_us);
    return samples_end(&rows, answer, count, samples);
}

nvmlReturn_t processes_utilization(nvmlReturn_t (*real)(nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *),
                                   nvmlDevice_t handle, nvmlProcessesUtilizationInfo_v1_t *info)
{
    struct process_rows rows;
    size_t pid_offset = offsetof(nvmlProcessUtilizationInfo_v1_t, pid);
    if (info == NULL || !rows_begin(&rows, handle, sizeof *info->procUtilArray, pid_offset))
        return real(handle, info);
    nvmlProcessesUtilizationInfo_v1_t driver_info = *info;
    driver_info.processSamplesCount = rows.row_count;
    driver_info.procUtilArray = (nvmlProcessUtilizationInfo_v1_t *)rows.structs;
    nvmlReturn_t answer = real(handle, &driver_info);
    rows.row_count = driver_info.processSamplesCount;
    return samples_end(&rows, answer, &info->processSamplesCount, info->procUtilArray);
}

/* GPM's samples are of the whole card. Without them clients read the utilization. */
nvmlReturn_t sampler_support(nvmlReturn_t (*real)(nvmlDevice_t, nvmlGpmSupport_t *), nvmlDevice_t handle,
                             nvmlGpmSupport_t *support)
{
    nvmlReturn_t answer = real(handle, support);
    if (answer == NVML_SUCCESS && device_limits(handle) != 0)
        support->isSupportedDevice = 0;
    return answer;
}
