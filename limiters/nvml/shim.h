/* The NVML table, for the list of all doors (../cuda/shim.c). */
#ifndef HETERO_NVML_SHIM_H
#define HETERO_NVML_SHIM_H

#include "../core/symbols.h"

extern const struct symbols nvml_symbols;

#endif
