/* Queues: each has a thread that reads the packets of the runtime, as a card's packet processor does.
 *
 * A doorbell is plain memory, so it is polled. Kernels are submitted to the card when they are read, and completed in
 * order when the card has done them. So a kernel that waits behind another of its queue leaves no gap on the card.
 */
#include "kfd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define QUEUES  256u
#define AHEAD   64u /* most kernels of a queue that are submitted at once */
#define SPINS   50u
#define SHORT   UINT64_C(30000) /* ns between polls of a doorbell; LONG after PATIENT idle polls */
#define LONG    UINT64_C(300000)
#define PATIENT 2000u

struct running {
    hsa_kernel_dispatch_packet_t *packet;
    struct kernel_call call;
    uint64_t fence;
};

struct queue {
    uint32_t node;
    HSA_QUEUE_TYPE type;
    const struct nvidia_device *card;
    struct account *account;
    unsigned compute_units; /* in its mask; 0: all of the card's */
    char *ring;
    uint64_t ring_bytes;
    volatile uint64_t doorbell, written_bytes, done_bytes; /* *_bytes: of DMA queues */
    amd_queue_tail_t *tail; /* of compute queues: the part that runtime and packet processor share */
    uint64_t read_packets;  /* of the ring, since its creation */
    struct running running[AHEAD];
    unsigned oldest_running, running_count;
    _Atomic bool is_stopping;
    pthread_t thread;
};

static struct queue *queues[QUEUES];

static hsa_kernel_dispatch_packet_t *packet_at(const struct queue *queue, uint64_t index)
{
    return (hsa_kernel_dispatch_packet_t *)(queue->ring +
                                            index * sizeof(hsa_kernel_dispatch_packet_t) % queue->ring_bytes);
}

static void retire(struct queue *queue, hsa_kernel_dispatch_packet_t *packet, uint64_t start_ns, uint64_t end_ns)
{
    amd_signal_t *signal = packet->completion_signal;
    __atomic_store_n(&packet->header, PACKET_INVALID, __ATOMIC_RELEASE);
    __atomic_store_n(&queue->tail->read_dispatch_id, queue->tail->read_dispatch_id + 1, __ATOMIC_RELEASE);
    complete(signal, start_ns, end_ns);
}

/* The queue stops until the runtime has handled a request; if it cannot, the queue never goes on. */
static bool is_stopped(struct queue *queue)
{
    return queue->tail->queue_inactive_signal && queue->tail->queue_inactive_signal->value != INACTIVE_NOT;
}

/* Scratch is the threads' private memory. If it is too small, the runtime is asked for more once the kernels before
 * this one have ended. */
static bool has_scratch(struct queue *queue, const hsa_kernel_dispatch_packet_t *packet)
{
    bool is_enough = packet->private_segment_size <= queue->tail->scratch_of_thread;
    if (!is_enough && queue->running_count == 0)
        raise_signal(queue->tail->queue_inactive_signal, INACTIVE_SCRATCH_TOO_SMALL);
    return is_enough;
}

/* Scratch that was granted for one kernel is released after it. */
static void use_scratch(struct queue *queue, const hsa_kernel_dispatch_packet_t *packet)
{
    if (packet->private_segment_size && queue->tail->queue_properties & QUEUE_USE_SCRATCH_ONCE)
        raise_signal(queue->tail->queue_inactive_signal, INACTIVE_SCRATCH_USED);
}

/* Submits a kernel to the card. A mask of compute units lengthens it in proportion. */
static void begin_kernel(struct queue *queue, hsa_kernel_dispatch_packet_t *packet)
{
    struct running *running = &queue->running[(queue->oldest_running + queue->running_count++) % AHEAD];
    running->packet = packet;
    kernel_look_up(packet, kfd.rack, &running->call);
    if (queue->compute_units)
        running->call.card_ns = running->call.card_ns * queue->card->multiprocessors / queue->compute_units;
    running->fence = engine_submit(queue->account, running->call.card_ns);
    queue->read_packets++;
}

static void end_kernel(struct queue *queue)
{
    struct running *running = &queue->running[queue->oldest_running];
    engine_wait(queue->account, running->fence);
    uint64_t end_ns = engine_when(queue->account, running->fence);
    if (running->call.is_runtime_kernel)
        kernel_run(running->packet, &running->call);
    use_scratch(queue, running->packet);
    retire(queue, running->packet, end_ns - running->call.card_ns, end_ns);
    queue->oldest_running = (queue->oldest_running + 1) % AHEAD;
    queue->running_count--;
}

static bool is_released(const hsa_barrier_packet_t *packet, bool is_any)
{
    unsigned dependency_count = 0, met_count = 0;
    for (unsigned i = 0; i < 5; i++)
        if (packet->dep_signal[i]) {
            dependency_count++;
            met_count += packet->dep_signal[i]->value <= 0;
        }
    return is_any && dependency_count ? met_count : met_count == dependency_count;
}

/* A packet that is no kernel waits for the kernels before it, then for its dependencies. */
static bool pass_other(struct queue *queue, hsa_kernel_dispatch_packet_t *packet, unsigned type)
{
    if (queue->running_count || ((type == PACKET_BARRIER_AND || type == PACKET_BARRIER_OR) &&
                                 !is_released((hsa_barrier_packet_t *)packet, type == PACKET_BARRIER_OR)))
        return false;
    uint64_t now_ns = engine_now();
    queue->read_packets++;
    retire(queue, packet, now_ns, now_ns);
    return true;
}

/* Reads one packet. False: there is none, or it must wait. */
static bool read_packet(struct queue *queue)
{
    hsa_kernel_dispatch_packet_t *packet = packet_at(queue, queue->read_packets);
    unsigned type = __atomic_load_n(&packet->header, __ATOMIC_ACQUIRE) & 0xff;
    /* The doorbell starts at -1 and then is the last packet's index. */
    if ((int64_t)queue->read_packets > (int64_t)queue->doorbell || type == PACKET_INVALID ||
        queue->running_count == AHEAD || is_stopped(queue))
        return false;
    if (type != PACKET_KERNEL_DISPATCH)
        return pass_other(queue, packet, type);
    if (!has_scratch(queue, packet))
        return false;
    begin_kernel(queue, packet);
    return true;
}

static bool compute_step(struct queue *queue)
{
    bool has_worked = false;
    while (read_packet(queue))
        has_worked = true;
    if (queue->running_count) {
        end_kernel(queue);
        has_worked = true;
    }
    return has_worked;
}

/* A copy occupies the link and no compute engine, so it takes none of the card's time slices. */
static void take_link(const struct queue *queue, uint64_t bytes)
{
    uint64_t end_ns = engine_now() + bytes * 1000000000 / queue->card->link_bytes_per_s;
    if (bytes < (1 << 16))
        return;
    struct timespec wake = {(time_t)(end_ns / 1000000000), (long)(end_ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
}

static bool copy_step(struct queue *queue)
{
    if (queue->done_bytes >= queue->doorbell)
        return false;
    const uint32_t *packet = (const uint32_t *)(queue->ring + queue->done_bytes % queue->ring_bytes);
    take_link(queue, dma_bytes(packet));
    size_t packet_bytes = dma_step(packet);
    queue->done_bytes += packet_bytes;
    return packet_bytes;
}

static void *serve(void *argument)
{
    struct queue *queue = argument;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (unsigned idle_steps = 0; !queue->is_stopping; idle_steps++) {
        if (queue->type == HSA_QUEUE_COMPUTE_AQL ? compute_step(queue) : copy_step(queue))
            idle_steps = 0;
        uint64_t sleep_ns = idle_steps < SPINS ? 0 : idle_steps < PATIENT ? SHORT : LONG;
        if (sleep_ns)
            nanosleep(&(struct timespec){.tv_nsec = (long)sleep_ns}, NULL);
    }
    return NULL;
}

static HSAKMT_STATUS start(struct queue *queue, uint32_t number, HsaQueueResource *resource)
{
    if (queue->type == HSA_QUEUE_COMPUTE_AQL) {
        queue->tail = (amd_queue_tail_t *)resource->Queue_read_ptr_aql;
        queue->doorbell = UINT64_MAX;
    } else {
        resource->Queue_write_ptr_aql = &queue->written_bytes;
        resource->Queue_read_ptr_aql = &queue->done_bytes;
    }
    resource->QueueId = number;
    resource->Queue_DoorBell_aql = &queue->doorbell;
    return pthread_create(&queue->thread, NULL, serve, queue) ? HSAKMT_STATUS_ERROR : OK;
}

EXPORT HSAKMT_STATUS hsaKmtCreateQueue(uint32_t node, HSA_QUEUE_TYPE type, uint32_t percentage UNUSED,
                                       int priority UNUSED, void *ring, uint64_t size, HsaEvent *event UNUSED,
                                       HsaQueueResource *resource)
{
    LOCKED;
    uint32_t number = 1;
    while (number < QUEUES && queues[number])
        number++;
    struct account *account = card_of(node) ? account_of(node) : NULL;
    struct queue *queue = account && number < QUEUES ? calloc(1, sizeof *queue) : NULL;
    if (!queue)
        return HSAKMT_STATUS_NO_MEMORY;
    *queue = (struct queue){
        .node = node, .type = type, .card = card_of(node), .account = account, .ring = ring, .ring_bytes = size};
    if (start(queue, number, resource) != OK) {
        free(queue);
        return HSAKMT_STATUS_ERROR;
    }
    queues[number] = queue;
    driver_create_queue(node);
    return OK;
}

static struct queue *queue_of(uint64_t number)
{
    LOCKED;
    return number < QUEUES ? queues[number] : NULL;
}

EXPORT HSAKMT_STATUS hsaKmtDestroyQueue(uint64_t number)
{
    struct queue *queue = queue_of(number);
    if (!queue)
        return HSAKMT_STATUS_INVALID_PARAMETER;
    queue->is_stopping = true;
    pthread_join(queue->thread, NULL);
    LOCKED;
    queues[number] = NULL;
    free(queue);
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtUpdateQueue(uint64_t number UNUSED, uint32_t percentage UNUSED, int priority UNUSED,
                                       void *ring UNUSED, uint64_t size UNUSED, HsaEvent *event UNUSED)
{
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtSetQueueCUMask(uint64_t number, uint32_t count, const uint32_t *mask)
{
    struct queue *queue = queue_of(number);
    if (!queue)
        return HSAKMT_STATUS_INVALID_PARAMETER;
    unsigned compute_units = 0;
    for (uint32_t i = 0; i < count && i < queue->card->multiprocessors; i++)
        compute_units += mask[i / 32] >> i % 32 & 1;
    queue->compute_units = compute_units;
    return OK;
}

/* Cooperative launches need it. */
EXPORT HSAKMT_STATUS hsaKmtAllocQueueGWS(uint64_t number UNUSED, uint32_t count UNUSED, uint32_t *first_resource)
{
    *first_resource = 0;
    return OK;
}
