/* The rack's Iluvatar devices: CoreX has a driver that speaks CUDA and a libixml that speaks NVML. */
#define VENDOR "iluvatar"
#include "nvidia.c"
