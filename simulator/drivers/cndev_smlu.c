/* libcndev.so's sMLU calls: slices of a card by quota.
 *
 * A profile is a quota that instances are created with. It reserves nothing; the quotas of instances count. A [device]
 * has smlu = on if its sMLU mode is on when the machine starts.
 */
#include "cndev_card.h"

#include <stdio.h>
#include <string.h>

enum { INSTANCE, PROFILE }; /* kinds of slices */
enum { SMLU_MODE };         /* switches */
#define INSTANCES 16u       /* on one card */

static bool smlu(const struct fake_card *card)
{
    return fake_switch(card, SMLU_MODE, !strcmp(rack_text(card->section, "smlu", "off"), "on"));
}

/* Whether the card has this much left without the instances, of which one may be excepted. Under the lock. */
static bool fits(const struct fake_card *card, uint32_t core, uint64_t memory, const struct fake_slice *excluded)
{
    unsigned count = 1;
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, INSTANCE, slice));)
        if (slice != excluded) {
            core += slice->core_units;
            memory += slice->memory_size;
            count++;
        }
    return core <= 100 && memory <= card->memory_bytes && count <= INSTANCES;
}

/* The instance that a handle names: its id, then its card's slot. Under the lock. */
static struct fake_slice *instance_of(cndevMluInstance_t handle)
{
    const struct fake_card *card = fake_at((unsigned)(handle & 0xff));
    return card ? fake_find(card, INSTANCE, (uint32_t)handle >> 8) : NULL;
}

static struct fake_slice *named(const struct fake_card *card, uint32_t kind, const char *name)
{
    struct fake_slice *slice = NULL;
    while ((slice = fake_next(card, kind, slice)) && strcmp(slice->name, name))
        ;
    return slice;
}

static uint32_t free_id(const struct fake_card *card, uint32_t kind, uint32_t id)
{
    while (fake_find(card, kind, id))
        id++;
    return id;
}

static void describe(cndevSMluInfo_t *info, const struct fake_card *card, const struct fake_slice *slice)
{
    const struct fake_slice *profile = fake_find(card, PROFILE, slice->parent);
    *info = (cndevSMluInfo_t){.version = 6,
                              .profileId = (int32_t)slice->parent,
                              .instanceId = (int32_t)slice->id,
                              .domain = (int32_t)card->domain,
                              .bus = (int32_t)card->bus,
                              .device = (int32_t)card->device,
                              .function = (int32_t)card->function,
                              .mluQuota = {slice->core_units},
                              .memorySize = {slice->memory_size}};
    snprintf((char *)info->uuid, sizeof info->uuid, "%.24s%012x", card->uuid, slice->id);
    snprintf(info->profileName, sizeof info->profileName, "%s", profile ? profile->name : "");
    snprintf(info->instanceName, sizeof info->instanceName, "%s", slice->name);
    snprintf(info->devNodeName, sizeof info->devNodeName, "/dev/cambricon-caps/cap_dev%u_mi%u", card->position,
             slice->id);
}

EXPORT cndevRet_t cndevGetSMLUMode(cndevSMLUMode_t *mode, cndevDevice_t device)
{
    VERSIONED(mode);
    fake_lock();
    mode->smluMode = smlu(card);
    fake_unlock();
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevSetSMLUMode(cndevSMLUMode_t *mode, cndevDevice_t device)
{
    VERSIONED(mode);
    fake_lock();
    bool is_used = fake_next(card, INSTANCE, NULL);
    if (!is_used)
        fake_set_switch(card, SMLU_MODE, mode->smluMode);
    fake_unlock();
    return is_used ? CNDEV_ERROR_IN_USE : CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetSMluProfileIdInfo(cndevSMluProfileIdInfo_t *profileId, cndevDevice_t device)
{
    VERSIONED(profileId);
    fake_lock();
    profileId->count = 0;
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, PROFILE, slice)) && profileId->count < 128;)
        profileId->profileId[profileId->count++] = (int32_t)slice->id;
    fake_unlock();
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetSMluProfileInfo(cndevSMluProfileInfo_t *profileInfo, int32_t profile, cndevDevice_t device)
{
    VERSIONED(profileInfo);
    fake_lock();
    const struct fake_slice *slice = fake_find(card, PROFILE, (uint32_t)profile);
    if (slice) {
        uint32_t instance_count = 0;
        for (const struct fake_slice *instance = NULL; (instance = fake_next(card, INSTANCE, instance));)
            instance_count += instance->parent == slice->id;
        *profileInfo = (cndevSMluProfileInfo_t){.version = profileInfo->version,
                                                .profileId = profile,
                                                .totalCapacity = 100 / slice->core_units,
                                                .mluQuota = {slice->core_units},
                                                .memorySize = {slice->memory_size}};
        profileInfo->remainCapacity = profileInfo->totalCapacity > instance_count
                                          ? profileInfo->totalCapacity - instance_count
                                          : 0;
        snprintf(profileInfo->name, sizeof profileInfo->name, "%s", slice->name);
    }
    fake_unlock();
    return slice ? CNDEV_SUCCESS : CNDEV_ERROR_INVALID_ARGUMENT;
}

EXPORT cndevRet_t cndevCreateSMluProfileInfo(cndevSMluSet_t *profileInfo, int32_t *profileId, cndevDevice_t device)
{
    VERSIONED(profileInfo);
    cndevRet_t outcome = CNDEV_ERROR_NOT_SUPPORTED;
    if (!profileId || !profileInfo->mluQuota || profileInfo->mluQuota > 100 || !profileInfo->memorySize ||
        profileInfo->memorySize > card->memory_bytes)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    fake_lock();
    if (smlu(card)) {
        struct fake_slice *slice = fake_cut(card, PROFILE, free_id(card, PROFILE, 0));
        outcome = slice ? CNDEV_SUCCESS : CNDEV_ERROR_INSUFFICIENT_SPACE;
        if (slice) {
            slice->core_units = profileInfo->mluQuota;
            slice->memory_size = profileInfo->memorySize;
            snprintf(slice->name, sizeof slice->name, "%u.smlu.%llumb", slice->core_units,
                     (unsigned long long)slice->memory_size >> 20);
            *profileId = (int32_t)slice->id;
        }
    }
    fake_unlock();
    return outcome;
}

EXPORT cndevRet_t cndevDestroySMluProfileInfo(int32_t profileId, cndevDevice_t device)
{
    CARD(&profileId);
    fake_lock();
    struct fake_slice *profile = fake_find(card, PROFILE, (uint32_t)profileId), *slice = NULL;
    while ((slice = fake_next(card, INSTANCE, slice)) && slice->parent != (uint32_t)profileId)
        ;
    if (profile && !slice)
        fake_drop(profile);
    fake_unlock();
    return !profile ? CNDEV_ERROR_INVALID_ARGUMENT : slice ? CNDEV_ERROR_IN_USE : CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevCreateSMluInstanceByProfileId(cndevMluInstance_t *miHandle, uint32_t profileId,
                                                     cndevDevice_t device, char *instanceName)
{
    CARD(miHandle);
    cndevRet_t outcome = CNDEV_ERROR_INSUFFICIENT_SPACE;
    fake_lock();
    const struct fake_slice *profile = fake_find(card, PROFILE, profileId);
    struct fake_slice *slice = NULL;
    if (!smlu(card))
        outcome = CNDEV_ERROR_NOT_SUPPORTED;
    else if (!profile || (instanceName && strlen(instanceName) >= sizeof profile->name))
        outcome = CNDEV_ERROR_INVALID_ARGUMENT;
    else if (instanceName && *instanceName && named(card, INSTANCE, instanceName))
        outcome = CNDEV_ERROR_DUPLICATE;
    else if (fits(card, profile->core_units, profile->memory_size, NULL) &&
             (slice = fake_cut(card, INSTANCE, free_id(card, INSTANCE, 1)))) {
        slice->parent = profileId;
        slice->core_units = profile->core_units;
        slice->memory_size = profile->memory_size;
        if (instanceName && *instanceName)
            strcpy(slice->name, instanceName);
        else
            snprintf(slice->name, sizeof slice->name, "mi%u", slice->id);
        *miHandle = (cndevMluInstance_t)(slice->id << 8 | card->position);
        outcome = CNDEV_SUCCESS;
    }
    fake_unlock();
    return outcome;
}

/* An instance in use cannot be destroyed. Under the lock. */
static cndevRet_t destroy(struct fake_slice *slice)
{
    if (!slice)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    if (fake_in_use(slice))
        return CNDEV_ERROR_IN_USE;
    fake_drop(slice);
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevDestroySMluInstanceByHandle(cndevMluInstance_t miHandle)
{
    cndevDevice_t device = miHandle & 0xff;
    CARD(&device);
    fake_lock();
    cndevRet_t outcome = destroy(instance_of(miHandle));
    fake_unlock();
    return outcome;
}

EXPORT cndevRet_t cndevDestroySMluInstanceByInstanceName(cndevDevice_t device, char *instanceName)
{
    CARD(instanceName);
    fake_lock();
    cndevRet_t outcome = destroy(named(card, INSTANCE, instanceName));
    fake_unlock();
    return outcome;
}

/* Under the lock. */
static cndevRet_t update(const struct fake_card *card, struct fake_slice *slice, const cndevSMluSet_t *quota)
{
    if (!slice)
        return CNDEV_ERROR_NOT_FOUND;
    if (!quota->mluQuota || !quota->memorySize)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    if (!fits(card, quota->mluQuota, quota->memorySize, slice))
        return CNDEV_ERROR_INSUFFICIENT_SPACE;
    slice->core_units = quota->mluQuota;
    slice->memory_size = quota->memorySize;
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevUpdateSMluInstanceQuotaByHandle(cndevMluInstance_t miHandle, cndevSMluSet_t *instance_quota)
{
    cndevDevice_t device = miHandle & 0xff;
    VERSIONED(instance_quota);
    fake_lock();
    cndevRet_t outcome = update(card, instance_of(miHandle), instance_quota);
    fake_unlock();
    return outcome;
}

EXPORT cndevRet_t cndevUpdateSMluInstanceQuotaByInstanceName(cndevDevice_t device, char *instanceName,
                                                             cndevSMluSet_t *instance_quota)
{
    VERSIONED(instance_quota);
    if (!instanceName)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    fake_lock();
    cndevRet_t outcome = update(card, named(card, INSTANCE, instanceName), instance_quota);
    fake_unlock();
    return outcome;
}

EXPORT cndevRet_t cndevGetSMluInstanceInfo(cndevSMluInfo_t *miInfo, cndevMluInstance_t miHandle)
{
    cndevDevice_t device = miHandle & 0xff;
    VERSIONED(miInfo);
    fake_lock();
    const struct fake_slice *slice = instance_of(miHandle);
    if (slice)
        describe(miInfo, card, slice);
    fake_unlock();
    return slice ? CNDEV_SUCCESS : CNDEV_ERROR_INVALID_ARGUMENT;
}

/* The first info carries the version for all. */
EXPORT cndevRet_t cndevGetAllSMluInstanceInfo(int32_t *count, cndevSMluInfo_t *miInfo, cndevDevice_t device)
{
    VERSIONED(miInfo);
    if (!count)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    int32_t capacity = *count;
    fake_lock();
    *count = 0;
    for (const struct fake_slice *slice = NULL; (slice = fake_next(card, INSTANCE, slice)); ++*count)
        if (*count < capacity)
            describe(&miInfo[*count], card, slice);
    fake_unlock();
    return *count > capacity ? CNDEV_ERROR_INSUFFICIENT_SPACE : CNDEV_SUCCESS;
}
