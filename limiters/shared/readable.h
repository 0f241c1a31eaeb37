/* Whether a program's memory is there before the limiter follows what the program says of it. */
#ifndef HETERO_SHARED_READABLE_H
#define HETERO_SHARED_READABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether so many bytes can be read. More than an image can have cannot. */
bool is_readable(const void *start, uint64_t size_bytes);

#endif
