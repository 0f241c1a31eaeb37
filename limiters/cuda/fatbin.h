/* The layout of fat binaries, which the limiter, the simulated driver and the attacks read or write.
 *
 * The wrapper and the header are in fatBinaryCtl.h and fatbinary_section.h of the CUDA toolkit. That of the entries is
 * not documented: it is as public tools read it (cricket's cpu-elf2.c, ZLUDA's fatbin.rs) and as fatbinary of CUDA 13.0
 * writes it (docs/decisions/images.md).
 */
#ifndef HETERO_CUDA_FATBIN_H
#define HETERO_CUDA_FATBIN_H

#include <stdint.h>

#define FATBIN_WRAPPER_MAGIC UINT32_C(0x466243b1)
#define FATBIN_MAGIC         UINT32_C(0xba55ed50)

/* What points to a fat binary. From version 2 on it has more of them, which are linked with it. */
struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    const void *more;
};

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size; /* of the entries */
};

enum { FATBIN_PTX = 1, FATBIN_ELF = 2 };

/* How an entry is compressed: by LZ4 (cricket, ZLUDA), or otherwise: zstd from CUDA 12.8 on, and a form of old ones. */
#define FATBIN_LZ4  UINT64_C(0x2000)
#define FATBIN_ZSTD UINT64_C(0x8000)
#define FATBIN_ANY  UINT64_C(0xb000)

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header; /* bytes of the entry before its image */
    uint64_t size;   /* to the next entry, with padding */
    uint32_t compressed;
    uint32_t options; /* of PTX: where in the entry its fatbin_options are. The driver looks there without a check. */
    uint16_t minor, major;
    uint32_t processor, name, name_size;
    uint64_t flags, zero, expanded;
};

/* The compiler's options for PTX: a text with a NUL, at so many bytes from the entry's start. */
struct fatbin_options {
    uint32_t at, length;
};

#endif
