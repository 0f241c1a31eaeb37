/* Kinds of entries in the table of what this process holds (../core/table.h). */
#ifndef HETERO_CUDA_HELD_H
#define HETERO_CUDA_HELD_H

#include "../core/table.h"

enum {
    HELD_POINTER = 1, /* key: address; owner: context; link: &spilled, or NULL */
    HELD_POOLED,      /* key: address; link: its pool */
    HELD_ARRAY,       /* key: CUarray or CUmipmappedArray */
    HELD_HANDLE,      /* key: VMM handle; bytes: references it stands for; link: block */
    HELD_MAPPING,     /* key: address; bytes: length; link: block */
    STREAM_DEVICE,    /* key: stream */
    CAPTURE,          /* key: what it is known by (capture.c) */
    HELD_EXEC,        /* + device; key: CUgraphExec */
};

#endif
