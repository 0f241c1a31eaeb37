/* Declares the bodies: the limiter's functions that answer in place of NVML's under a grant. A body's first argument is
 * the library's own function (`real`). They are in the files that api.def names.
 */
#ifndef HETERO_NVML_BODIES_H
#define HETERO_NVML_BODIES_H

#include "abi.h"

nvmlReturn_t device_count(nvmlReturn_t (*)(unsigned *), unsigned *);
nvmlReturn_t handle_by_index(nvmlReturn_t (*)(unsigned, nvmlDevice_t *), unsigned, nvmlDevice_t *);
nvmlReturn_t handle_by_name(nvmlReturn_t (*)(const char *, nvmlDevice_t *), const char *, nvmlDevice_t *);
nvmlReturn_t handle_by_uuid(nvmlReturn_t (*)(const nvmlUUID_v1_t *, nvmlDevice_t *), const nvmlUUID_v1_t *,
                            nvmlDevice_t *);
nvmlReturn_t part_by_index(nvmlReturn_t (*)(nvmlDevice_t, unsigned, nvmlDevice_t *), nvmlDevice_t, unsigned,
                           nvmlDevice_t *);
nvmlReturn_t device_index(nvmlReturn_t (*)(nvmlDevice_t, unsigned *), nvmlDevice_t, unsigned *);
nvmlReturn_t nearest_devices(nvmlReturn_t (*)(nvmlDevice_t, nvmlGpuTopologyLevel_t, unsigned *, nvmlDevice_t *),
                             nvmlDevice_t, nvmlGpuTopologyLevel_t, unsigned *, nvmlDevice_t *);
nvmlReturn_t devices_of_cpu(nvmlReturn_t (*)(unsigned, unsigned *, nvmlDevice_t *), unsigned, unsigned *,
                            nvmlDevice_t *);
nvmlReturn_t devices_of_unit(nvmlReturn_t (*)(nvmlUnit_t, unsigned *, nvmlDevice_t *), nvmlUnit_t, unsigned *,
                             nvmlDevice_t *);
nvmlReturn_t excluded_count(nvmlReturn_t (*)(unsigned *), unsigned *);
nvmlReturn_t excluded_by_index(nvmlReturn_t (*)(unsigned, nvmlExcludedDeviceInfo_t *), unsigned,
                               nvmlExcludedDeviceInfo_t *);
nvmlReturn_t drain_state(nvmlReturn_t (*)(nvmlPciInfo_t *, nvmlEnableState_t *), nvmlPciInfo_t *, nvmlEnableState_t *);

nvmlReturn_t granted_memory(nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_t *), nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t granted_memory_v2(nvmlReturn_t (*)(nvmlDevice_t, nvmlMemory_v2_t *), nvmlDevice_t, nvmlMemory_v2_t *);

nvmlReturn_t compute_processes_v1(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *), nvmlDevice_t,
                                  unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t compute_processes(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *), nvmlDevice_t,
                               unsigned *, nvmlProcessInfo_v2_t *);
nvmlReturn_t other_processes_v1(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *), nvmlDevice_t,
                                unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t other_processes(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *), nvmlDevice_t,
                             unsigned *, nvmlProcessInfo_v2_t *);
nvmlReturn_t process_details(nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessDetailList_v1_t *), nvmlDevice_t,
                             nvmlProcessDetailList_v1_t *);
nvmlReturn_t accounting_pids(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, unsigned *), nvmlDevice_t, unsigned *,
                             unsigned *);
nvmlReturn_t accounting_stats(nvmlReturn_t (*)(nvmlDevice_t, unsigned, nvmlAccountingStats_t *), nvmlDevice_t, unsigned,
                              nvmlAccountingStats_t *);
nvmlReturn_t accounting_stats_v2(nvmlReturn_t (*)(nvmlDevice_t, nvmlAccountingStats_v2_t *), nvmlDevice_t,
                                 nvmlAccountingStats_v2_t *);
nvmlReturn_t encoder_sessions(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlEncoderSessionInfo_t *), nvmlDevice_t,
                              unsigned *, nvmlEncoderSessionInfo_t *);
nvmlReturn_t capture_sessions(nvmlReturn_t (*)(nvmlDevice_t, unsigned *, nvmlFBCSessionInfo_t *), nvmlDevice_t,
                              unsigned *, nvmlFBCSessionInfo_t *);

nvmlReturn_t utilization_rates(nvmlReturn_t (*)(nvmlDevice_t, nvmlUtilization_t *), nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t recent_samples(nvmlReturn_t (*)(nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *,
                                             unsigned *, nvmlSample_t *),
                            nvmlDevice_t, nvmlSamplingType_t, unsigned long long, nvmlValueType_t *, unsigned *,
                            nvmlSample_t *);
nvmlReturn_t process_utilization(nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *,
                                                  unsigned long long),
                                 nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long);
nvmlReturn_t processes_utilization(nvmlReturn_t (*)(nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *), nvmlDevice_t,
                                   nvmlProcessesUtilizationInfo_v1_t *);
nvmlReturn_t sampler_support(nvmlReturn_t (*)(nvmlDevice_t, nvmlGpmSupport_t *), nvmlDevice_t, nvmlGpmSupport_t *);

nvmlReturn_t session_begins(nvmlReturn_t (*)(void));
nvmlReturn_t session_begins_with(nvmlReturn_t (*)(unsigned), unsigned);
nvmlReturn_t session_ends(nvmlReturn_t (*)(void));

#endif
