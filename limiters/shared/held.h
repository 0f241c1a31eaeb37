/* Kinds of entries in the table of what this process holds (../core/table.h). `bytes` are charged bytes where no other
 * meaning is given; `device` is a device's number in the grant. */
#ifndef HETERO_SHARED_HELD_H
#define HETERO_SHARED_HELD_H

#include "../core/table.h"

enum {
    HELD_POINTER = 1, /* key: address; owner: context; link: a tag of blocks.c or charge.c, or NULL */
    HELD_SHARED,      /* key: address; other processes may have it open */
    HELD_BLOCK,       /* key: address / BLOCK_BYTES; count: sub-allocations in it; owner: context; link: a tag of
                         blocks.c if the block is charged, or NULL */
    CONTEXT_BLOCK,    /* key: context; key_or_address: key of its own HELD_BLOCK; UINT64_MAX: an allocation has it */
    CONTEXT_BYTES,    /* key: context; bytes: that it takes by itself, not charged */
    CONTEXT_CHARGE,   /* key: context; bytes: charged for it when it was made */
    CONTEXT_ATTACHED, /* key: context; count: attachments beyond its making */
    CONTEXT_LIMIT,    /* + one of the first three limits; key: context; second_bytes: the limit's built-in value */
    HELD_CHUNK = CONTEXT_LIMIT + 3, /* key: address; owner: pool; link: the tag of a sub-allocation, or NULL */
    HELD_FREED,                     /* a chunk that was freed, and that its pool may keep (pools.h) */
    HELD_MODULE,                    /* key: module or library; second_bytes: of code that it may have */
    HELD_READER,                    /* key: reader of an image; bytes: of the image's memory, not charged (../hsa) */
    HELD_LOADED,                    /* key: executable and device (../hsa) */
    HELD_SCRATCH,                   /* key: the kernel driver's handle (../hsa) */
    CARD_SCRATCH,     /* key: the kernel driver's number of a card; key_or_address: the first of scratch; second_bytes:
                         length of its addresses (../hsa) */
    HELD_LIBRARY,     /* key: library; bytes: of arrays in each context; link: a tag of libraries_lazy.c, or NULL */
    HELD_RESIDENCE,   /* key: library and context; owner: context; link: library */
    STANDING_CONTEXT, /* key, owner: a context that exists */
    HELD_NODES,    /* key, owner: context; bytes: charged for nodes of graphs; second_bytes: that the nodes take now */
    NODES_OF_EXEC, /* key: graphExec; bytes: that its nodes take; owner: context */
    HELD_LOCAL,    /* key, owner: context; bytes: for local memory of kernels */
    STACKS_OF_CALLS, /* key, owner: context; bytes: of stacks for images that call functions (module.c) */
    WAITING_KERNEL,  /* key: function or kernel; bytes: of local memory of a thread; device_bits: where it was not
                        launched (local.c) */
    HELD_ARRAY,      /* key: array or mipmappedArray; page_table_count */
    HELD_HANDLE,     /* key: VMM handle; count: references that it stands for; link: VMM block */
    HELD_MAPPING,    /* key: address; bytes: its length; link: VMM block */
    HELD_OPENED,     /* key: address; owner: context; count: how often it is open */
    HELD_IMPORTED,   /* key: a pool of another process's, or an address in one; count: 1 */
    HELD_TILES,      /* key: array and VMM block; owner: array; link: VMM block */
    HELD_GREEN,      /* key: greenCtx; owner: its device's primary context */
    GREEN_CONTEXT,   /* key: context of a greenCtx; owner: its device's primary context; link: greenCtx */
    HELD_TABLE,      /* key: of a page table (page_tables.h); count: mapped pages in its range */
    HELD_HOST,       /* key: address of host memory; bytes: its length; device_bits: where it has page tables */
    HELD_ACCESS,     /* the same for a mapped VMM block */
    STREAM_DEVICE,   /* key: stream; its device */
    CAPTURE,         /* key: capture_key() of its stream (capture.c) */
    OWN_EVENT,       /* key: an event of the limiter's own (events.c) */
    HELD_EXEC,       /* + device; key: graphExec; bytes: that a launch may take; link: a tag of graph.c, or NULL */
};

#endif
