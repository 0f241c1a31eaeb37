/* Kinds of entries in the table of what this process holds (../core/table.h). */
#ifndef HETERO_SHARED_HELD_H
#define HETERO_SHARED_HELD_H

#include "../core/table.h"

enum {
    HELD_POINTER = 1, /* key: address; owner: context; link: &spilled, &piece (blocks.c), or NULL */
    HELD_SHARED,      /* key: address; other processes may have it open */
    HELD_BLOCK,    /* key: address / BLOCK; bytes: pieces in it; owner: context; link: &charged (blocks.c), or NULL */
    CONTEXT_BLOCK, /* key: context; bytes: the key of the block that is part of it */
    CONTEXT_BYTES, /* key: context; bytes: what it takes by itself */
    CONTEXT_ATTACHED, /* key: context; bytes: how often beyond its making */
    CONTEXT_LIMIT,    /* + one of the first three limit; key: context; bytes: charged; link: what it had by itself */
    HELD_CHUNK = CONTEXT_LIMIT + 3, /* key: address; owner: pool; link: &piece, or NULL */
    HELD_FREED,                     /* the same of one that was freed, and may be kept (pools.h) */
    HELD_MODULE,      /* key: module or library; bytes: what is charged for it; link: bytes of code that it may have */
    HELD_READER,      /* key: reader of an image; bytes: what that takes (../hsa) */
    HELD_LOADED,      /* key: executable and device; bytes: what is charged for its images (../hsa) */
    HELD_SCRATCH,     /* key: the kernel driver's handle (../hsa) */
    CARD_SCRATCH,     /* key: the kernel driver's number of a card; bytes: where addresses of scratch begin (../hsa) */
    HELD_LIBRARY,     /* key: library; bytes: of arrays in each context; link: &unread_one, &used_one (libraries.h) */
    HELD_RESIDENCE,   /* key: library and context; owner: context; link: library */
    STANDING_CONTEXT, /* key, owner: context */
    HELD_NODES,       /* key, owner: context; bytes: charged for nodes of graphs; link: what they take now */
    NODES_OF_EXEC,    /* key: graphExec; bytes: what its nodes take; owner: context */
    HELD_LOCAL,       /* key, owner: context; bytes: for local memory of kernels */
    STACKS_OF_CALLS,  /* key, owner: context; bytes: that it has taken by images that call functions (module.c) */
    WAITING_KERNEL,   /* key: function or kernel; bytes: of a thread; link: devices it was not launched on (local.c) */
    HELD_ARRAY,       /* key: array or mipmappedArray; link: how many page tables it has */
    HELD_HANDLE,      /* key: VMM handle; bytes: references it stands for; link: block */
    HELD_MAPPING,     /* key: address; bytes: length; link: block */
    HELD_OPENED,      /* key: address; owner: context; bytes: how often it is open */
    HELD_IMPORTED,    /* key: a pool of another process's, or an address in one; bytes: 1 */
    HELD_TILES,       /* key: array and block; owner: array; link: block */
    HELD_GREEN,       /* key: greenCtx; owner: its device's primary context */
    GREEN_CONTEXT,    /* key: the context of one; owner: as that one's; link: greenCtx */
    HELD_TABLE,       /* key: of a page table (page_tables.h); bytes: pages that it is for */
    HELD_HOST,        /* key: address of memory of the host; link: bits of the devices that have page tables of it */
    HELD_ACCESS,      /* the same of a mapped block */
    STREAM_DEVICE,    /* key: stream */
    CAPTURE,          /* key: what it is known by (capture.c) */
    HELD_EXEC,        /* + device; key: graphExec; bytes: what a launch may take; link: &prepaid (graph.c), or NULL */
};

#endif
