/* What makes the parts of the fake NVML libnvidia-ml.so.1. */
#include "nvml.h"

const char fake_vendor[] = "nvidia";

bool nvml_lost(const char *health)
{
    return strcmp(health, "ok") && strcmp(health, "ecc") && strcmp(health, "hot");
}
