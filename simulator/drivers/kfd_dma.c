/* Packets of DMA queues, as the HSA runtime writes them for SDMA 4. */
#include "kfd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DMA_NOP = 0,
    DMA_COPY = 1,
    DMA_FENCE = 5,
    DMA_TRAP = 6,
    DMA_POLL = 8,
    DMA_ATOMIC = 10,
    DMA_FILL = 11,
    DMA_TIME = 13
};

static uint64_t pair(const uint32_t *words)
{
    return words[0] | (uint64_t)words[1] << 32;
}

static uint32_t bits(uint32_t value, unsigned first_bit, unsigned bit_count)
{
    return value >> first_bit & ((UINT32_C(1) << bit_count) - 1);
}

static void copy_line(const uint32_t *packet)
{
    memmove(memory_at(pair(packet + 5)), memory_at(pair(packet + 3)), bits(packet[1], 0, 22) + 1);
}

struct side { /* a window: its start, pitch and slice in elements */
    char *start;
    uint64_t pitch, slice;
};

static struct side side_of(const uint32_t *words, unsigned log_size)
{
    struct side side = {memory_at(pair(words)), bits(words[3], 13, 19) + UINT64_C(1),
                        bits(words[4], 0, 28) + UINT64_C(1)};
    uint64_t x = bits(words[2], 0, 14), y = bits(words[2], 16, 14), z = bits(words[3], 0, 11);
    side.start += (z * side.slice + y * side.pitch + x) << log_size;
    return side;
}

/* Counts are stored less one. */
static void copy_window(const uint32_t *packet)
{
    unsigned log_size = packet[0] >> 29;
    struct side from = side_of(packet + 1, log_size), to = side_of(packet + 6, log_size);
    uint64_t width = bits(packet[11], 0, 14) + 1, height = bits(packet[11], 16, 14) + 1,
             depth = bits(packet[12], 0, 11) + 1;
    for (uint64_t z = 0; z < depth; z++)
        for (uint64_t y = 0; y < height; y++)
            memmove(to.start + ((z * to.slice + y * to.pitch) << log_size),
                    from.start + ((z * from.slice + y * from.pitch) << log_size), width << log_size);
}

static void fill(const uint32_t *packet)
{
    uint32_t *start = memory_at(pair(packet + 1));
    for (uint32_t i = 0; i < (bits(packet[4], 0, 22) + 4) / 4; i++)
        start[i] = packet[3];
}

/* Bit 31: a poll of memory; else a flush of caches. */
static bool is_met(const uint32_t *packet)
{
    const volatile uint32_t *polled_word = (const uint32_t *)(uintptr_t)pair(packet + 1);
    return !(packet[0] >> 31) || (*polled_word & packet[4]) == packet[3];
}

static size_t copy(const uint32_t *packet)
{
    bool is_window = bits(packet[0], 8, 8);
    if (is_window)
        copy_window(packet);
    else
        copy_line(packet);
    return is_window ? 13 : 7;
}

uint64_t dma_bytes(const uint32_t *packet)
{
    return bits(packet[0], 0, 8) == DMA_COPY && !bits(packet[0], 8, 8) ? bits(packet[1], 0, 22) + UINT64_C(1) : 0;
}

size_t dma_step(const uint32_t *packet)
{
    switch (bits(packet[0], 0, 8)) {
    case DMA_NOP: return 4;
    case DMA_COPY: return copy(packet) * 4;
    case DMA_FENCE: __atomic_store_n((uint32_t *)(uintptr_t)pair(packet + 1), packet[3], __ATOMIC_SEQ_CST); return 16;
    case DMA_TRAP: interrupt_mailboxes(); return 8;
    case DMA_POLL: return is_met(packet) ? 24 : 0;
    case DMA_ATOMIC:
        __atomic_add_fetch((uint64_t *)(uintptr_t)pair(packet + 1), pair(packet + 3), __ATOMIC_SEQ_CST);
        return 32;
    case DMA_FILL: fill(packet); return 20;
    case DMA_TIME: *(volatile uint64_t *)(uintptr_t)pair(packet + 1) = engine_now(); return 12;
    default: fprintf(stderr, "simulated card: no such DMA packet: %#x\n", packet[0]); abort();
    }
}
