/* Events, which threads sleep on, and the signals that packets complete. */
#include "kfd.h"

#include <errno.h>
#include <stdlib.h>

#define EVENTS 4096u

struct event {
    HsaEvent seen; /* first: handles point to it */
    uint64_t mailbox;
    bool set, manual;
};

static struct event *events[EVENTS];

static uint32_t free_number(void)
{
    uint32_t number = 1;
    while (number < EVENTS && events[number])
        number++;
    return number;
}

EXPORT HSAKMT_STATUS hsaKmtCreateEvent(const HsaEventDescriptor *descriptor, bool manual, bool set, HsaEvent **created)
{
    LOCKED;
    uint32_t number = free_number();
    struct event *event = number < EVENTS ? calloc(1, sizeof *event) : NULL;
    if (!event)
        return HSAKMT_STATUS_NO_MEMORY;
    events[number] = event;
    event->seen.EventId = number;
    event->seen.EventData.EventType = descriptor->EventType;
    event->seen.EventData.SyncVar = descriptor->SyncVar;
    event->seen.EventData.HWData1 = number;
    event->seen.EventData.HWData2 = descriptor->EventType == HSA_EVENTTYPE_SIGNAL ? (uintptr_t)&event->mailbox : 0;
    event->set = set;
    event->manual = manual;
    *created = &event->seen;
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
        events[number]->set = true;
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

/* Whether enough of them are set; those that reset themselves are, then. Lock held. */
static bool take(HsaEvent *const awaited[], uint32_t count, bool waits_for_all)
{
    uint32_t there = 0;
    for (uint32_t i = 0; i < count; i++)
        there += ((struct event *)awaited[i])->set;
    if (waits_for_all ? there < count : !there)
        return false;
    for (uint32_t i = 0; i < count; i++)
        ((struct event *)awaited[i])->set &= ((struct event *)awaited[i])->manual;
    return true;
}

EXPORT HSAKMT_STATUS hsaKmtWaitOnMultipleEvents(HsaEvent *awaited[], uint32_t count, bool waits_for_all,
                                                uint32_t milliseconds)
{
    LOCKED;
    uint64_t end = engine_now() + (milliseconds < 3600000 ? milliseconds : 3600000) * UINT64_C(1000000);
    struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    while (!take(awaited, count, waits_for_all))
        if (pthread_cond_timedwait(&kfd.changed, &kfd.lock, &until) == ETIMEDOUT)
            return HSAKMT_STATUS_WAIT_TIMEOUT;
    return OK;
}

EXPORT HSAKMT_STATUS hsaKmtWaitOnEvent(HsaEvent *event, uint32_t milliseconds)
{
    return hsaKmtWaitOnMultipleEvents(&event, 1, true, milliseconds);
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

void complete(amd_signal_t *signal, uint64_t start, uint64_t end)
{
    if (!signal)
        return;
    signal->start_ts = start;
    signal->end_ts = end;
    uint64_t *mailbox = (uint64_t *)(uintptr_t)signal->event_mailbox_ptr;
    uint32_t event = signal->event_id; /* read first: who sees the value may free the signal */
    __atomic_sub_fetch(&signal->value, 1, __ATOMIC_SEQ_CST);
    wake(mailbox, event);
}
