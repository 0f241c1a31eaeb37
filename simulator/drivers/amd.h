/* The rack's AMD devices, as both of AMD's libraries see them. */
#ifndef HETERO_FAKE_AMD_H
#define HETERO_FAKE_AMD_H

#include "nvidia.h"

/* The card's unique id: from a [device]'s uuid such as GPU-423592d2d74e6a1b, or derived from the uuid. */
uint64_t amd_unique_id(const struct nvidia_device *device);

#endif
