/* The management library that the bodies of ../shared call: NVML. */
#ifndef HETERO_CUDA_MANAGEMENT_H
#define HETERO_CUDA_MANAGEMENT_H

#include "../nvml/shim.h"

#define management_prepare        nvml_prepare
#define management_power          nvml_power
#define management_process_memory nvml_process_memory
#define management_card_memory    nvml_card_memory

#endif
