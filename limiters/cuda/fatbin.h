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

/* The wrapper points to a fat binary; from version 2 on also to others, which are linked with it. */
struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    const void *linked_data;
};

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t entries_bytes; /* of the entries */
};

enum { FATBIN_PTX = 1, FATBIN_ELF = 2 }; /* kinds of entries */

/* Flags of compressed entries: LZ4 (cricket, ZLUDA), zstd from CUDA 12.8 on, and another form in old ones. */
#define FATBIN_LZ4  UINT64_C(0x2000)
#define FATBIN_ZSTD UINT64_C(0x8000)
#define FATBIN_ANY  UINT64_C(0xb000)

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes; /* bytes of the entry before its image */
    uint64_t image_bytes;  /* to the next entry, with padding */
    uint32_t compressed_bytes;
    uint32_t
        options_offset; /* of PTX: where in the entry its fatbin_options are. The driver looks there without a check. */
    uint16_t minor, major;
    uint32_t processor, name_offset, name_bytes;
    uint64_t flags, zero, expanded_bytes;
};

/* The compiler's options for PTX: a text with a NUL, at so many bytes from the entry's start. */
struct fatbin_options {
    uint32_t text_offset, text_bytes;
};

#endif
