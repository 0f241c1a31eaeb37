/* Checks a program's memory before the limiter follows a pointer or a size that the program wrote. */
#ifndef HETERO_SHARED_READABLE_H
#define HETERO_SHARED_READABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether `size_bytes` from `start` on can be read. False, too, for more bytes than an image can have. */
bool is_readable(const void *start, uint64_t size_bytes);

#endif
