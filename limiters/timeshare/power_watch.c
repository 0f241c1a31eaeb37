/* The thread that asks for a device's power (power_watch.h). */
#include "power_watch.h"

#include "futex.h"
#include "gate.h"

/* What asks: the caller itself, where no thread could be started; a thread, which rests, is to ask, or has asked; or
 * nothing, because the card is neutral, the driver has never known its power, or the process exits. */
enum { NO_THREAD = 0, RESTS, ASKS, ASKED, NOTHING };

/* A process that exits waits so long for a driver that is being asked. */
#define EXIT_NS (1000 * MS)

void power_watch_make(struct power_watch *watch, const struct engine *engine, const char *uuid)
{
    watch->engine = engine;
    watch->uuid = uuid;
    watch->state = NOTHING;
}

void power_watch_begin(struct power_watch *watch)
{
    atomic_store(&watch->state, NO_THREAD);
}

static bool ask(struct power_watch *watch)
{
    bool known = watch->engine->power(watch->uuid, &watch->reading);
    watch->answered = watch->answered || known;
    return known;
}

static void *work(void *watch_)
{
    struct power_watch *watch = watch_;
    uint32_t seen = atomic_load(&watch->state);
    for (; seen != NOTHING && !atomic_load(&gates_retired); seen = atomic_load(&watch->state)) {
        if (seen != ASKS)
            futex_sleep(&watch->state, seen, UINT64_C(1000) * MS);
        else if (ask(watch))
            atomic_store(&watch->state, ASKED);
        else
            atomic_store(&watch->state, watch->answered ? RESTS : NOTHING);
    }
    atomic_store(&watch->state, NOTHING);
    futex_wake(&watch->state);
    return NULL;
}

void power_watch_start(struct power_watch *watch)
{
    pthread_t thread;
    if (atomic_load(&watch->state) == NOTHING || pthread_create(&thread, NULL, work, watch) != 0)
        return;
    pthread_detach(thread);
    atomic_store(&watch->state, RESTS);
}

const struct power_reading *power_watch_look(struct power_watch *watch)
{
    uint32_t state = atomic_load(&watch->state);
    if (state == NO_THREAD) {
        if (ask(watch))
            return &watch->reading;
        if (!watch->answered)
            atomic_store(&watch->state, NOTHING);
        return NULL;
    }
    if (state == RESTS && atomic_compare_exchange_strong(&watch->state, &state, ASKS))
        futex_wake(&watch->state);
    return state == ASKED ? &watch->reading : NULL;
}

void power_watch_done(struct power_watch *watch)
{
    uint32_t asked = ASKED;
    atomic_compare_exchange_strong(&watch->state, &asked, RESTS);
}

void power_watch_retire(struct power_watch *watch)
{
    uint64_t since_ns = watch->engine->now(), waited_ns = 0;
    for (; atomic_load(&watch->state) == ASKS && waited_ns < EXIT_NS; waited_ns = watch->engine->now() - since_ns)
        futex_sleep(&watch->state, ASKS, EXIT_NS - waited_ns);
}
