/* Runs LLVMFuzzerTestOneInput() without libFuzzer: on every file that it is given and on mutations of them, always the
 * same: COUNT FILE... An input has at most MOST bytes.
 */
#ifndef HETERO_MUTATE_H
#define HETERO_MUTATE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(truth)                                                                                                 \
    do {                                                                                                               \
        if (!(truth)) {                                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #truth);                                        \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#ifndef HETERO_LIBFUZZER

static uint64_t rng = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t roll(uint64_t sides)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % sides;
}

/* Change a few places after the first byte. */
static size_t mutate(uint8_t *bytes, size_t size)
{
    for (uint64_t changes = 1 + roll(8); changes > 0 && size > 1; changes--) {
        size_t offset = 1 + roll(size - 1), source_offset = 1 + roll(size - 1),
               max_length = size - (offset > source_offset ? offset : source_offset);
        switch (roll(6)) {
        case 0: bytes[offset] ^= (uint8_t)(1u << roll(8)); break;
        case 1: bytes[offset] = (uint8_t)roll(256); break;
        case 2: bytes[offset] = roll(2) ? 0xff : 0; break;
        case 3: memmove(bytes + offset, bytes + source_offset, roll(max_length + 1)); break;
        case 4:
            if (roll(8) == 0)
                size = offset;
            break;
        default:
            if (size + 16 <= MOST) {
                memmove(bytes + offset + 16, bytes + offset, size - offset);
                for (unsigned i = 0; i < 16; i++)
                    bytes[offset + i] = (uint8_t)roll(256);
                size += 16;
            }
        }
    }
    return size;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    for (int i = 2; i < count; i++) {
        uint8_t original[MOST], bytes[MOST];
        FILE *file = fopen(arguments[i], "rb");
        REQUIRE(file != NULL);
        size_t size = fread(original, 1, sizeof original, file);
        fclose(file);
        LLVMFuzzerTestOneInput(original, size);
        for (long round_count = atol(arguments[1]) / (count - 2); round_count > 0; round_count--) {
            memcpy(bytes, original, size);
            LLVMFuzzerTestOneInput(bytes, mutate(bytes, size));
        }
    }
    return 0;
}

#endif
#endif
