/* The cards that NVML shows under a grant: the grant's alone, in its order. */
#ifndef HETERO_NVML_DEVICE_H
#define HETERO_NVML_DEVICE_H

#include "abi.h"

#include <stdint.h>

/* The grant's devices that a handle stands for and that are held to something, as bits by their number in the grant: a
 * card, a MIG instance, or those instances of a card that are granted. 0: the library's own answer stands. */
uint32_t device_limits(nvmlDevice_t handle);

/* What the library knows of the whole card alone is not said of a part of it. */
#define of_whole_card(...) OF_WHOLE_CARD(__VA_ARGS__)
#define OF_WHOLE_CARD(real, device, ...)                                                                               \
    (device_limits(device) != 0 ? NVML_ERROR_NOT_SUPPORTED : real(device, __VA_ARGS__))

#endif
