/* The simulated libascend_hal.so: devices and tasks. Memory is in ascend_memory.c and ascend_physical.c. */
#include "ascend_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hal hal = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A forked child has no card: what it inherited is its parent's. */
static void in_child(void)
{
    pthread_mutex_init(&hal.lock, NULL);
    ascend_forget();
    ranges_forget();
    handles_forget();
    memset(hal.devices, 0, sizeof hal.devices);
    hal.engine = NULL;
    hal.device_count = 0;
}

static void add_device(unsigned physical)
{
    const struct fake_card *card = fake_at(physical);
    if (card && hal.device_count < ENGINE_CARDS)
        hal.devices[hal.device_count++].card = card;
}

static void read_visible(const char *list)
{
    for (char *end; *list; list = *end ? end + 1 : end) {
        unsigned long physical = strtoul(list, &end, 10);
        if (end == list || (*end && *end != ','))
            return;
        add_device((unsigned)physical);
    }
}

void hal_open(void)
{
    static bool is_fork_seen;
    if (hal.engine || !fake_open() || !(hal.engine = ascend_engine()))
        return;
    const char *visible = getenv("ASCEND_VISIBLE_DEVICES");
    if (visible)
        read_visible(visible);
    for (unsigned i = 0; !visible && fake_at(i); i++)
        add_device(i);
    if (!is_fork_seen)
        pthread_atfork(NULL, NULL, in_child);
    is_fork_seen = true;
}

struct account *hal_account(unsigned device)
{
    if (device >= hal.device_count)
        return NULL;
    struct hal_device *opened = &hal.devices[device];
    if (opened->account || !(opened->account = engine_join(hal.engine, opened->card->position)))
        return opened->account;
    if (!engine_charge(opened->account, ascend_context_bytes(opened->card))) {
        engine_leave(opened->account);
        opened->account = NULL;
    }
    return opened->account;
}

const struct fake_card *hal_card(unsigned device)
{
    return device < hal.device_count ? hal.devices[device].card : NULL;
}

unsigned hal_device_of(unsigned card)
{
    unsigned device = 0;
    while (device < hal.device_count && hal.devices[device].card->position != card)
        device++;
    return device;
}

unsigned fake_hal_count(void)
{
    LOCKED;
    return hal.device_count;
}

bool fake_hal_device(unsigned device, struct fake_npu *npu)
{
    LOCKED;
    if (device >= hal.device_count)
        return false;
    const struct fake_card *card = hal.devices[device].card;
    *npu = (struct fake_npu){.bytes_per_s = ascend_bytes_per_s(card),
                             .physical_id = card->position,
                             .core_count = card->core_units,
                             .has_hbm = ascend_has_hbm(card)};
    snprintf(npu->model, sizeof npu->model, "%s", card->model);
    unsigned die[5];
    ascend_die(card, die);
    for (unsigned i = 0; i < sizeof npu->uuid; i++)
        npu->uuid[i] = (unsigned char)(die[i / 4] >> (24 - 8 * (i % 4)));
    return true;
}

bool fake_hal_open(unsigned device)
{
    LOCKED;
    return hal_account(device);
}

void fake_hal_close(unsigned device)
{
    LOCKED;
    if (device >= hal.device_count || !hal.devices[device].account)
        return;
    ranges_leave(device);
    handles_leave(device);
    engine_leave(hal.devices[device].account);
    hal.devices[device].account = NULL;
}

void fake_hal_memory(unsigned device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    LOCKED;
    *free_bytes = *total_bytes = 0;
    if (device >= hal.device_count)
        return;
    const struct fake_card *card = hal.devices[device].card;
    *total_bytes = card->memory_bytes;
    *free_bytes = card->memory_bytes - card->used_bytes - engine_used(hal.engine, card->position);
}

/* Time. */

EXPORT drvError_t halSqTaskSend(uint32_t device, void *task)
{
    struct fake_task_send *send = task;
    LOCKED;
    FAULTS(hal_card(device), NULL, 0);
    if (!send || !send->entries)
        return DRV_ERROR_INVALID_VALUE;
    struct account *account = hal_account(device);
    if (!account)
        return DRV_ERROR_INVALID_DEVICE;
    for (uint32_t i = 0; i < send->entry_count; i++)
        engine_submit(account, send->entries[i].length_ns);
    send->position = 0;
    return DRV_ERROR_NONE;
}

uint64_t fake_hal_kernel_ns(const char *name, const void *arguments)
{
    LOCKED;
    return hal.engine ? ascend_kernel_ns(name, arguments) : 0;
}

/* The account stays what it is while somebody waits: the runtime closes no device that has work. */
static struct account *account_of(unsigned device)
{
    LOCKED;
    return device < hal.device_count ? hal.devices[device].account : NULL;
}

uint64_t fake_hal_fence(unsigned device)
{
    struct account *account = account_of(device);
    return account ? engine_submit(account, 0) : 0;
}

bool fake_hal_done(unsigned device, uint64_t fence)
{
    struct account *account = account_of(device);
    return !account || engine_done(account, fence);
}

void fake_hal_wait(unsigned device, uint64_t fence)
{
    struct account *account = account_of(device);
    if (account)
        engine_wait(account, fence);
}

uint64_t fake_hal_when(unsigned device, uint64_t fence)
{
    struct account *account = account_of(device);
    return account ? engine_when(account, fence) : engine_now();
}
