/* Queues: a thread each reads what the runtime wrote, as a card's packet processor does.
 *
 * A doorbell is plain memory, so it is polled. Kernels are given to the card as soon as they are read, and completed
 * in order when the card has come past them: a kernel that waits behind another of its queue is no gap on the card.
 */
#include "kfd.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define QUEUES  256u
#define AHEAD   64u /* kernels of a queue that the card has at once */
#define SPINS   50u
#define SHORT   UINT64_C(30000) /* ns between looks at a doorbell, and after a while */
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
    unsigned units; /* of the card's compute units; 0: all */
    char *ring;
    uint64_t size;
    volatile uint64_t doorbell, written, done; /* written and done: of DMA queues */
    amd_queue_tail_t *seen;                    /* of compute queues, what the runtime and its processor see */
    uint64_t begun;                            /* packets that were read */
    struct running running[AHEAD];
    unsigned oldest, count;
    _Atomic bool stop;
    pthread_t thread;
};

static struct queue *queues[QUEUES];

static hsa_kernel_dispatch_packet_t *packet_at(const struct queue *queue, uint64_t index)
{
    return (hsa_kernel_dispatch_packet_t *)(queue->ring + index * sizeof(hsa_kernel_dispatch_packet_t) % queue->size);
}

static void retire(struct queue *queue, hsa_kernel_dispatch_packet_t *packet, uint64_t start, uint64_t end)
{
    amd_signal_t *signal = packet->completion_signal;
    __atomic_store_n(&packet->header, PACKET_INVALID, __ATOMIC_RELEASE);
    __atomic_store_n(&queue->seen->read_dispatch_id, queue->seen->read_dispatch_id + 1, __ATOMIC_RELEASE);
    complete(signal, start, end);
}

/* Until the runtime did what was wanted; for good where it could not. */
static bool is_stopped(struct queue *queue)
{
    return queue->seen->queue_inactive_signal && queue->seen->queue_inactive_signal->value != INACTIVE_NOT;
}

/* Has what a kernel's threads have of their own: else, once all before it is over, the runtime is asked for it. */
static bool has_scratch(struct queue *queue, const hsa_kernel_dispatch_packet_t *packet)
{
    bool enough = packet->private_segment_size <= queue->seen->scratch_of_thread;
    if (!enough && queue->count == 0)
        raise_signal(queue->seen->queue_inactive_signal, INACTIVE_SCRATCH_TOO_SMALL);
    return enough;
}

/* What was had for one kernel is given back after it. */
static void use_scratch(struct queue *queue, const hsa_kernel_dispatch_packet_t *packet)
{
    if (packet->private_segment_size && queue->seen->queue_properties & QUEUE_USE_SCRATCH_ONCE)
        raise_signal(queue->seen->queue_inactive_signal, INACTIVE_SCRATCH_USED);
}

/* Gives a kernel to the card. A mask of compute units makes it take longer by as much. */
static void begin_kernel(struct queue *queue, hsa_kernel_dispatch_packet_t *packet)
{
    struct running *running = &queue->running[(queue->oldest + queue->count++) % AHEAD];
    running->packet = packet;
    kernel_look_up(packet, kfd.rack, &running->call);
    if (queue->units)
        running->call.ns = running->call.ns * queue->card->multiprocessors / queue->units;
    running->fence = engine_submit(queue->account, running->call.ns);
    queue->begun++;
}

static void end_kernel(struct queue *queue)
{
    struct running *running = &queue->running[queue->oldest];
    engine_wait(queue->account, running->fence);
    uint64_t end = engine_when(queue->account, running->fence);
    if (running->call.ours)
        kernel_run(running->packet, &running->call);
    use_scratch(queue, running->packet);
    retire(queue, running->packet, end - running->call.ns, end);
    queue->oldest = (queue->oldest + 1) % AHEAD;
    queue->count--;
}

static bool is_released(const hsa_barrier_packet_t *packet, bool any)
{
    unsigned waits = 0, met = 0;
    for (unsigned i = 0; i < 5; i++)
        if (packet->dep_signal[i]) {
            waits++;
            met += packet->dep_signal[i]->value <= 0;
        }
    return any && waits ? met : met == waits;
}

/* What is no kernel waits for the kernels before it, then for what it names. */
static bool pass_other(struct queue *queue, hsa_kernel_dispatch_packet_t *packet, unsigned type)
{
    if (queue->count || ((type == PACKET_BARRIER_AND || type == PACKET_BARRIER_OR) &&
                         !is_released((hsa_barrier_packet_t *)packet, type == PACKET_BARRIER_OR)))
        return false;
    uint64_t now = engine_now();
    queue->begun++;
    retire(queue, packet, now, now);
    return true;
}

/* Reads one packet; whether there was one to go on with. */
static bool read_packet(struct queue *queue)
{
    hsa_kernel_dispatch_packet_t *packet = packet_at(queue, queue->begun);
    unsigned type = __atomic_load_n(&packet->header, __ATOMIC_ACQUIRE) & 0xff;
    /* The doorbell begins at -1 and then is the last packet's index. */
    if ((int64_t)queue->begun > (int64_t)queue->doorbell || type == PACKET_INVALID || queue->count == AHEAD ||
        is_stopped(queue))
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
    bool some = false;
    while (read_packet(queue))
        some = true;
    if (queue->count) {
        end_kernel(queue);
        some = true;
    }
    return some;
}

/* Copies take the link, which is no engine's: they share the card's time with nobody. */
static void take_link(const struct queue *queue, uint64_t bytes)
{
    uint64_t until = engine_now() + bytes * 1000000000 / queue->card->bandwidth;
    if (bytes < (1 << 16))
        return;
    struct timespec wake = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
}

static bool copy_step(struct queue *queue)
{
    if (queue->done >= queue->doorbell)
        return false;
    const uint32_t *packet = (const uint32_t *)(queue->ring + queue->done % queue->size);
    take_link(queue, dma_bytes(packet));
    size_t length = dma_step(packet);
    queue->done += length;
    return length;
}

static void *serve(void *argument)
{
    struct queue *queue = argument;
    prctl(PR_SET_TIMERSLACK, 1000);
    for (unsigned idle = 0; !queue->stop; idle++) {
        if (queue->type == HSA_QUEUE_COMPUTE_AQL ? compute_step(queue) : copy_step(queue))
            idle = 0;
        uint64_t rest = idle < SPINS ? 0 : idle < PATIENT ? SHORT : LONG;
        if (rest)
            nanosleep(&(struct timespec){.tv_nsec = (long)rest}, NULL);
    }
    return NULL;
}

static HSAKMT_STATUS start(struct queue *queue, uint32_t number, HsaQueueResource *resource)
{
    if (queue->type == HSA_QUEUE_COMPUTE_AQL) {
        queue->seen = (amd_queue_tail_t *)resource->Queue_read_ptr_aql;
        queue->doorbell = UINT64_MAX;
    } else {
        resource->Queue_write_ptr_aql = &queue->written;
        resource->Queue_read_ptr_aql = &queue->done;
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
        .node = node, .type = type, .card = card_of(node), .account = account, .ring = ring, .size = size};
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
    queue->stop = true;
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
    unsigned units = 0;
    for (uint32_t i = 0; i < count && i < queue->card->multiprocessors; i++)
        units += mask[i / 32] >> i % 32 & 1;
    queue->units = units;
    return OK;
}

/* Cooperative launches take it. */
EXPORT HSAKMT_STATUS hsaKmtAllocQueueGWS(uint64_t number UNUSED, uint32_t count UNUSED, uint32_t *first)
{
    *first = 0;
    return OK;
}
