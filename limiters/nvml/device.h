/* NVML shows the grant's cards only, in the grant's order. */
#ifndef HETERO_NVML_DEVICE_H
#define HETERO_NVML_DEVICE_H

#include "abi.h"

#include <stdint.h>

/* A bit for each of the grant's devices that a handle stands for and that is limited, by its number in the grant. The
 * handle is of a card, of a MIG instance, or of a card with granted instances. 0: NVML's own answer is passed on. */
uint32_t device_limits(nvmlDevice_t handle);

/* A function that only knows the whole card is not supported for a limited one. */
#define of_whole_card(...) OF_WHOLE_CARD(__VA_ARGS__)
#define OF_WHOLE_CARD(real, device, ...)                                                                               \
    (device_limits(device) != 0 ? NVML_ERROR_NOT_SUPPORTED : real(device, __VA_ARGS__))

#endif
