/* The rack's Hygon devices, below AMD's runtime, which Hygon's is made of: their uuid has no "GPU-" in front. */
#define VENDOR      "hygon"
#define UUID_PREFIX ""
#include "amd.c"
