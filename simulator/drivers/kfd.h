/* Inside the fake libhsakmt.so.1. AMD's own HIP and HSA runtimes run on it unchanged, on a machine without cards.
 *
 * The real library is a thin layer between AMD's HSA runtime and its kernel driver. Below the fake are the cards of the
 * rack (nvidia.h, engine.h). Above it are AMD's own queues, signals, allocators and compilers. A card reads queues of
 * packets that the runtime writes, takes the rack's time for each kernel, and sets signals. No GPU code is run. The
 * runtimes' own copies and fills are done on the host.
 *
 * One lock guards all of this process's state. No thread waits for a card while it holds the lock.
 */
#ifndef HETERO_FAKE_KFD_H
#define HETERO_FAKE_KFD_H

#include "kfd_abi.h"
#include "nvidia.h"

#include <pthread.h>
#include <stddef.h>

#define EXPORT   __attribute__((visibility("default")))
#define OK       HSAKMT_STATUS_SUCCESS
#define UNUSED   __attribute__((unused))
#define NODE_CPU 0u /* cards are the nodes from 1 on */

struct kfd {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an event was set */
    struct nvidia *rack;    /* NULL until opened */
    struct account *accounts[ENGINE_CARDS];
};
extern struct kfd kfd __attribute__((visibility("hidden")));

static inline void unlock_kfd(char *guard UNUSED)
{
    pthread_mutex_unlock(&kfd.lock);
}

/* Holds the lock until the function returns. */
#define LOCKED                                                                                                         \
    pthread_mutex_lock(&kfd.lock);                                                                                     \
    char guard UNUSED __attribute__((cleanup(unlock_kfd))) = 0

const struct nvidia_device *card_of(uint32_t node); /* NULL: no card's node */
struct account *account_of(uint32_t node);          /* joins the card; NULL: the card accepts no more processes. */

/* Requests to the kernel driver. A handle; 0: refused. */
void driver_open(void);
uint64_t driver_allocate(uint32_t node, const void *address, uint64_t size);
void driver_free(uint64_t handle);
void driver_set_scratch(uint32_t node, const void *address);
void driver_create_queue(uint32_t node);

void *memory_at(uint64_t address);     /* host address of a card's address */
bool memory_is_host(uint64_t address); /* not a card's */
void interrupt(uint32_t event);        /* sets an event */
void interrupt_mailboxes(void);        /* sets the events whose mailbox was written */
void complete(amd_signal_t *signal, uint64_t start, uint64_t end);
void raise_signal(amd_signal_t *signal, int64_t value); /* to the value */

/* A kernel's name and duration. */
struct kernel_call {
    uint64_t card_ns;       /* duration with all of the card's compute units */
    bool is_runtime_kernel; /* a copy or fill of the HIP runtime, which kernel_run does on the host */
    char name[256];         /* without ".kd"; "": a copy or fill of the HSA runtime */
};
void kernel_look_up(const hsa_kernel_dispatch_packet_t *packet, const struct nvidia *rack, struct kernel_call *call);
void kernel_forget(void); /* memory with code was freed: forgets all cached names */
void kernel_run(const hsa_kernel_dispatch_packet_t *packet, const struct kernel_call *call);

/* A packet of a DMA queue: the bytes that it copies, and its execution, which returns the packet's length in bytes.
 * 0: the packet must wait. */
uint64_t dma_bytes(const uint32_t *packet);
size_t dma_step(const uint32_t *packet);

#endif
