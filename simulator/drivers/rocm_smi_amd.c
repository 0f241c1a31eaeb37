/* AMD's librocm_smi64.so.7. */
#define VENDOR    "amd"
#define VENDOR_ID 0x1002 /* PCI's */
#define DRIVER    "6.12.12"
#include "rocm_smi.c"
