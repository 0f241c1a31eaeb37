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
    uint16_t version, header_bytes; /* header_bytes: of this struct */
    uint64_t entries_bytes;         /* of all entries, which follow it */
};

enum { FATBIN_PTX = 1, FATBIN_ELF = 2 }; /* kinds of entries */

/* Flags of compressed entries: LZ4 (cricket, ZLUDA), zstd from CUDA 12.8 on, and another form in old ones. */
#define FATBIN_LZ4  UINT64_C(0x2000)
#define FATBIN_ZSTD UINT64_C(0x8000)
#define FATBIN_ANY  UINT64_C(0xb000)

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;     /* of the entry before its image */
    uint64_t image_bytes;      /* with padding up to the next entry */
    uint32_t compressed_bytes; /* of the image, if it is compressed */
    uint32_t options_offset;   /* of PTX's fatbin_options in the entry; the driver reads there without a check */
    uint16_t minor, major;
    uint32_t processor; /* compute capability as major * 10 + minor */
    uint32_t name_offset, name_bytes;
    uint64_t flags, zero;
    uint64_t expanded_bytes; /* of the image, if it is compressed */
};

/* The compiler's options for PTX: a text with a NUL, and its offset in bytes from the entry's start. */
struct fatbin_options {
    uint32_t text_offset, text_bytes;
};

#endif
