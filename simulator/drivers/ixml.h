/* What Iluvatar's libixml.so exports beyond NVML's calls, in our own declarations. The public reference is api.h
 * (Deep-Spark/go-ixml, pkg/ixml); the types and codes are NVML's.
 */
#ifndef HETERO_FAKE_IXML_H
#define HETERO_FAKE_IXML_H

#include "nvml/abi.h"

enum { /* bits of ixmlDeviceGetHealth; none: well */
       ixmlHealthSYSHUBError = 0x01,
       ixmlHealthMCError = 0x02,
       ixmlHealthOverTempError = 0x04,
       ixmlHealthOverVoltageError = 0x08,
       ixmlHealthECCError = 0x10,
       ixmlHealthMemoryError = 0x20,
       ixmlHealthPCIEError = 0x40,
};

nvmlReturn_t ixmlDeviceGetHealth(nvmlDevice_t device, unsigned long long *health);
nvmlReturn_t ixmlDeviceGetEccErros(nvmlDevice_t device, unsigned int *single_error, unsigned int *double_error);
nvmlReturn_t ixmlDeviceGetBoardPosition(nvmlDevice_t device, unsigned int *position);

#endif
