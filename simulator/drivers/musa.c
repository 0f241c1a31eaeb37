/* The rack's Moore Threads devices: MUSA is a driver in the shape of CUDA, under names of its own (musa/names.sed). A
 * uuid has no "GPU-" in front. */
#define VENDOR      "mthreads"
#define UUID_PREFIX ""
#include "nvidia.c"
