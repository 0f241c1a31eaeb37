/* The rack's Moore Threads devices: MUSA is a driver in the shape of CUDA, under names of its own (musa/names.sed). */
#define VENDOR "mthreads"
#include "nvidia.c"
