/* The rack's Iluvatar devices: CoreX has a driver that speaks CUDA and a libixml that speaks NVML. */
#define VENDOR         "iluvatar"
#define DRIVER_VERSION "4.3.0"
#include "nvidia.c"
