/* Events, which threads sleep on, and the signals that packets complete. */
#include "kfd.h"

#include <errno.h>
#include <stdlib.h>

#define EVENTS 4096u

struct event {
    HsaEvent handle; /* first: handles point to it */
    uint64_t mailbox;
    bool is_set, is_manual;
};

static struct event *events[EVENTS];

static uint32_t free_number(void)
{
    uint32_t number = 1;
    while (number < EVENTS && events[number])
        number++;
    return number;
}

EXPORT HSAKMT_STATUS hsaKmtCreateEvent(const HsaEventDescriptor *descriptor, bool is_manual, bool is_set,
                                       HsaEvent **created)
{
    LOCKED;
    uint32_t number = free_number();
    struct event *event = number < EVENTS ? calloc(1, sizeof *event) : NULL;
    if (!event)
        return HSAKMT_STATUS_NO_MEMORY;
    events[number] = event;
    event->handle.EventId = number;
    event->handle.EventData.EventType = descriptor->EventType;
    event->handle.EventData.SyncVar = descriptor->SyncVar;
    event->handle.EventData.HWData1 = number;
    event->handle.EventData.HWData2 = descriptor->EventType == HSA_EVENTTYPE_SIGNAL ? (uintptr_t)&event->mailbox : 0;
    event->is_set = is_set;
    event->is_manual = is_manual;
    *created = &event->handle;
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtDestroyEvent(HsaEvent *event)
{
    LOCKED;
    events[event->EventId] = NULL;
    free(event);
    return OK;
}

/* Lock held. */
static void set(uint32_t number)
{
    if (number < EVENTS && events[number])
        events[number]->is_set = true;
    pthread_cond_broadcast(&kfd.changed);
}

void interrupt(uint32_t number)
{
    LOCKED;
    set(number);
}

void interrupt_mailboxes(void)
{
    LOCKED;
    for (uint32_t i = 1; i < EVENTS; i++)
        if (events[i] && __atomic_exchange_n(&events[i]->mailbox, 0, __ATOMIC_ACQ_REL))
            set(i);
}

EXPORT HSAKMT_STATUS hsaKmtSetEvent(HsaEvent *event)
{
    interrupt(event->EventId);
    return OK;
}

/* Whether enough of the events are set. Then those that reset themselves are reset. Lock held. */
static bool take(HsaEvent *const events[], uint32_t event_count, bool waits_for_all)
{
    uint32_t set_count = 0;
    for (uint32_t i = 0; i < event_count; i++)
        set_count += ((struct event *)events[i])->is_set;
    if (waits_for_all ? set_count < event_count : !set_count)
        return false;
    for (uint32_t i = 0; i < event_count; i++)
        ((struct event *)events[i])->is_set &= ((struct event *)events[i])->is_manual;
    return true;
}

EXPORT HSAKMT_STATUS hsaKmtWaitOnMultipleEvents(HsaEvent *events[], uint32_t event_count, bool waits_for_all,
                                                uint32_t timeout_ms)
{
    LOCKED;
    uint64_t end_ns = engine_now() + (timeout_ms < 3600000 ? timeout_ms : 3600000) * UINT64_C(1000000);
    struct timespec deadline = {(time_t)(end_ns / 1000000000), (long)(end_ns % 1000000000)};
    while (!take(events, event_count, waits_for_all))
        if (pthread_cond_timedwait(&kfd.changed, &kfd.lock, &deadline) == ETIMEDOUT)
            return HSAKMT_STATUS_WAIT_TIMEOUT;
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtWaitOnEvent(HsaEvent *event, uint32_t timeout_ms)
{
    return hsaKmtWaitOnMultipleEvents(&event, 1, true, timeout_ms);
}

/* As a card's packet processor does: the value, then the event that threads sleep on. */
static void wake(uint64_t *mailbox, uint32_t event)
{
    if (mailbox) {
        __atomic_store_n(mailbox, event, __ATOMIC_RELEASE);
        interrupt(event);
    }
}

void raise_signal(amd_signal_t *signal, int64_t value)
{
    uint64_t *mailbox = (uint64_t *)(uintptr_t)signal->event_mailbox_ptr;
    __atomic_store_n(&signal->value, value, __ATOMIC_SEQ_CST);
    wake(mailbox, signal->event_id);
}

void complete(amd_signal_t *signal, uint64_t start_ns, uint64_t end_ns)
{
    if (!signal)
        return;
    signal->start_ts = start_ns;
    signal->end_ts = end_ns;
    uint64_t *mailbox = (uint64_t *)(uintptr_t)signal->event_mailbox_ptr;
    uint32_t event =
        signal->event_id; /* read before the value is set: a thread that sees the value may free the signal */
    __atomic_sub_fetch(&signal->value, 1, __ATOMIC_SEQ_CST);
    wake(mailbox, event);
}
