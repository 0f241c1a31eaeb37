/* libmxsml.so for MetaX cards that are not there: their slices, called sGPUs.
 *
 * Further keys of a [device]: sgpu = on (the card is sliced when the machine starts), or sgpu = never (its driver
 * cannot).
 */
#include "mxsml_card.h"

enum { SGPU };                              /* kinds of slices */
enum { TOGGLE, SCHED_CLASS, TIMESLICE };    /* switches of a card */
enum { SW_QUEUE_PRIORITY, QUEUE_PRIORITY }; /* settings of a slice */
#define SGPUS 16u                           /* on one card */
#define STEP  128u                          /* MB */

static unsigned mebibytes(uint64_t bytes)
{
    return (unsigned)(bytes >> 20);
}

static bool can_slice(const struct fake_card *card)
{
    return strcmp(rack_text(card->section, "sgpu", "off"), "never");
}

#define SLICED(out)                                                                                                    \
    CARD(out);                                                                                                         \
    if (!can_slice(card))                                                                                              \
    return MXSML_OperationNotSupport

/* A card's settings for all of its slices. */

static bool sliced_at_start(const struct fake_card *card)
{
    return !strcmp(rack_text(card->section, "sgpu", "off"), "on");
}

static unsigned setting(const struct fake_card *card, unsigned setting_number, unsigned fallback)
{
    fake_lock();
    unsigned value = fake_switch(card, setting_number, fallback);
    fake_unlock();
    return value;
}

static mxSmlReturn_t set(const struct fake_card *card, unsigned setting_number, unsigned value, bool legal)
{
    fake_lock();
    if (legal)
        fake_set_switch(card, setting_number, value);
    fake_unlock();
    return legal ? MXSML_Success : MXSML_SysfsWriteError;
}

EXPORT mxSmlReturn_t mxSmlGetSgpuToggle(unsigned int deviceId, unsigned int *toggle)
{
    SLICED(toggle);
    *toggle = setting(card, TOGGLE, sliced_at_start(card));
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlSetSgpuToggle(unsigned int deviceId, unsigned int toggle)
{
    SLICED(&toggle);
    fake_lock();
    bool refused = toggle > 1 || fake_next(card, SGPU, NULL);
    if (!refused)
        fake_set_switch(card, TOGGLE, toggle);
    fake_unlock();
    return refused ? MXSML_SysfsWriteError : MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceSchedClass(unsigned int deviceId, mxSmlSchedClass_t *schedClass)
{
    SLICED(schedClass);
    *schedClass = (mxSmlSchedClass_t)setting(card, SCHED_CLASS, BEST_EFFORT);
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlSetDeviceSchedClass(unsigned int deviceId, mxSmlSchedClass_t schedClass)
{
    SLICED(&schedClass);
    return set(card, SCHED_CLASS, schedClass, schedClass <= BURST_SHARE);
}

EXPORT mxSmlReturn_t mxSmlGetDeviceTimeslice(unsigned int deviceId, unsigned int *timeslice)
{
    SLICED(timeslice);
    *timeslice = setting(card, TIMESLICE, 10);
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlSetDeviceTimeslice(unsigned int deviceId, unsigned int timeslice)
{
    SLICED(&timeslice);
    return set(card, TIMESLICE, timeslice, timeslice > 0);
}

/* What the card has left without the slices, of which one may be excepted. Under the lock. */
static mxSmlSgpuAvailableQuota_t left_of(const struct fake_card *card, const struct fake_slice *excluded)
{
    mxSmlSgpuAvailableQuota_t remaining = {mebibytes(card->memory_bytes), mebibytes(card->memory_bytes), 100};
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, SGPU, slice));)
        if (slice != excluded) {
            remaining.vramQuota -= (unsigned)slice->memory_size;
            remaining.computeQuota -= slice->core_units;
        }
    return remaining;
}

EXPORT mxSmlReturn_t mxSmlCreateSgpu(unsigned int deviceId, unsigned int memory, unsigned int compute,
                                     unsigned int *sgpuId)
{
    SLICED(sgpuId);
    mxSmlReturn_t outcome = MXSML_OperationNotSupport;
    fake_lock();
    if (fake_switch(card, TOGGLE, sliced_at_start(card))) {
        mxSmlSgpuAvailableQuota_t remaining = left_of(card, NULL);
        unsigned id = 0;
        while (id < SGPUS && fake_find(card, SGPU, id))
            id++;
        struct fake_slice *slice = NULL;
        if (memory && memory % STEP == 0 && memory <= remaining.vramQuota && compute <= remaining.computeQuota &&
            id < SGPUS)
            slice = fake_cut(card, SGPU, id);
        outcome = slice ? MXSML_Success : MXSML_SysfsWriteError;
        if (slice) {
            slice->memory_size = memory;
            slice->core_units = compute;
            slice->settings[SW_QUEUE_PRIORITY] = 1;
            *sgpuId = id;
        }
    }
    fake_unlock();
    return outcome;
}

EXPORT mxSmlReturn_t mxSmlRemoveSgpu(unsigned int deviceId, unsigned int sgpuId)
{
    SLICED(&sgpuId);
    fake_lock();
    struct fake_slice *slice = fake_find(card, SGPU, sgpuId);
    bool is_used = slice && fake_in_use(slice);
    if (slice && !is_used)
        fake_drop(slice);
    fake_unlock();
    return !slice ? MXSML_OperationNotSupport : is_used ? MXSML_SysfsWriteError : MXSML_Success;
}

EXPORT unsigned int mxSmlGetSgpuCount(unsigned int deviceId)
{
    const struct fake_card *card = fake_card(deviceId);
    unsigned count = 0;
    int code;
    if (faults_answer(__func__, card, &count, sizeof count, &code))
        return code ? 0 : count;
    fake_lock();
    for (const struct fake_slice *slice = NULL; card && (slice = fake_next(card, SGPU, slice));)
        count++;
    fake_unlock();
    return count;
}

/* Finds a slice to read or to change, under the lock, or ends the call. */
#define SLICE(out)                                                                                                     \
    SLICED(out);                                                                                                       \
    fake_lock();                                                                                                       \
    struct fake_slice *slice = fake_find(card, SGPU, sgpuId);                                                          \
    if (!slice) {                                                                                                      \
        fake_unlock();                                                                                                 \
        return MXSML_OperationNotSupport;                                                                              \
    }

EXPORT mxSmlReturn_t mxSmlGetSgpuInfo(unsigned int deviceId, unsigned int sgpuId, mxSmlSgpuInfo_t *sgpuInfo)
{
    SLICE(sgpuInfo);
    *sgpuInfo = (mxSmlSgpuInfo_t){.parentDeviceId = deviceId,
                                  .sgpuId = sgpuId,
                                  .vramQuota = (unsigned)slice->memory_size,
                                  .computeQuota = slice->core_units,
                                  .minor = card->position * SGPUS + sgpuId,
                                  .swQueuePriority = slice->settings[SW_QUEUE_PRIORITY],
                                  .deviceQueuePriority = slice->settings[QUEUE_PRIORITY]};
    snprintf(sgpuInfo->uuid, sizeof sgpuInfo->uuid, "%s-%u", card->uuid, sgpuId);
    fake_unlock();
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetSgpuMemory(unsigned int deviceId, unsigned int sgpuId, mxSmlSgpuMemoryInfo_t *memory)
{
    SLICE(memory);
    *memory = (mxSmlSgpuMemoryInfo_t){.total = (long)slice->memory_size << 20, .free = (long)slice->memory_size << 20};
    fake_unlock();
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetSgpuAvailableQuota(unsigned int deviceId, mxSmlSgpuAvailableQuota_t *availableInfo)
{
    SLICED(availableInfo);
    fake_lock();
    *availableInfo = left_of(card, NULL);
    fake_unlock();
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlSetSgpuVramQuota(unsigned int deviceId, unsigned int sgpuId, unsigned int vram)
{
    SLICE(&vram);
    bool fits = vram && vram % STEP == 0 && vram <= left_of(card, slice).vramQuota;
    if (fits)
        slice->memory_size = vram;
    fake_unlock();
    return fits ? MXSML_Success : MXSML_SysfsWriteError;
}

EXPORT mxSmlReturn_t mxSmlSetSgpuComputeQuota(unsigned int deviceId, unsigned int sgpuId, unsigned int compute)
{
    SLICE(&compute);
    bool fits = compute <= left_of(card, slice).computeQuota;
    if (fits)
        slice->core_units = compute;
    fake_unlock();
    return fits ? MXSML_Success : MXSML_SysfsWriteError;
}

EXPORT mxSmlReturn_t mxSmlGetSgpuAlias(unsigned int deviceId, unsigned int sgpuId, char *alias, unsigned int *size)
{
    SLICE(size);
    mxSmlReturn_t outcome = text(alias, size, slice->name);
    fake_unlock();
    return outcome;
}

EXPORT mxSmlReturn_t mxSmlSetSgpuAlias(unsigned int deviceId, unsigned int sgpuId, char *alias)
{
    SLICE(alias);
    bool legal = strlen(alias) < 32;
    if (legal)
        strcpy(slice->name, alias);
    fake_unlock();
    return legal ? MXSML_Success : MXSML_SysfsWriteError;
}
