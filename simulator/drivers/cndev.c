/* A simulated libcndev.so for Cambricon cards.
 *
 * [driver] cndev = 5 is a library that knows only the structs of version 5.
 */
#include "cndev_card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char fake_vendor[] = "cambricon";

EXPORT cndevRet_t cndevInit(int32_t reserved)
{
    FAULTS(NULL, NULL, 0);
    return reserved ? CNDEV_ERROR_INVALID_ARGUMENT : fake_open() ? CNDEV_SUCCESS : CNDEV_ERROR_NO_DRIVER;
}

EXPORT cndevRet_t cndevRelease(void)
{
    FAULTS(NULL, NULL, 0);
    fake_close();
    return CNDEV_SUCCESS;
}

EXPORT const char *cndevGetErrorString(cndevRet_t errorId)
{
    static const char *const names[] = {"success",
                                        "no driver",
                                        "low driver version",
                                        "unsupported API version",
                                        "uninitialized",
                                        "invalid argument",
                                        "invalid device ID",
                                        "unknown error",
                                        "malloc failed",
                                        "insufficient space",
                                        "not supported",
                                        "invalid link",
                                        "no devices",
                                        "no permission",
                                        "not found",
                                        "in use",
                                        "duplicate",
                                        "timeout",
                                        "in problem"};
    return (unsigned)errorId < sizeof names / sizeof *names ? names[errorId] : "unknown error";
}

EXPORT cndevRet_t cndevGetDeviceCount(cndevCardInfo_t *cardNum)
{
    FAULTS(NULL, cardNum, sizeof *cardNum);
    if (!fake_opened())
        return CNDEV_ERROR_UNINITIALIZED;
    if (!cardNum)
        return CNDEV_ERROR_INVALID_ARGUMENT;
    if (!knows(cardNum->version))
        return CNDEV_ERROR_UNSUPPORTED_API_VERSION;
    cardNum->number = fake_count();
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetDeviceHandleByIndex(int32_t index, cndevDevice_t *handle)
{
    const struct fake_card *card = fake_card((unsigned)index);
    FAULTS(card, handle, sizeof *handle);
    if (!fake_opened())
        return CNDEV_ERROR_UNINITIALIZED;
    if (!card)
        return CNDEV_ERROR_INVALID_DEVICE_ID;
    *handle = (int32_t)card->position;
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetDeviceHandleByUUID(const char *uuid, cndevDevice_t *handle)
{
    FAULTS(NULL, handle, sizeof *handle);
    const struct fake_card *card;
    if (!fake_opened())
        return CNDEV_ERROR_UNINITIALIZED;
    for (unsigned i = 0; (card = fake_card(i)); i++)
        if (!strcmp(card->uuid, uuid)) {
            *handle = (int32_t)card->position;
            return CNDEV_SUCCESS;
        }
    return CNDEV_ERROR_NOT_FOUND;
}

EXPORT const char *cndevGetCardNameStringByDevId(cndevDevice_t device)
{
    const struct fake_card *card = fake_at((unsigned)device);
    int code;
    char noise[8] = "";
    if (faults_answer(__func__, card, noise, 0, &code))
        return code ? NULL : "\xa5\xa5\xa5";
    return card ? card->model : NULL;
}

EXPORT cndevRet_t cndevGetUUID(cndevUUID_t *uuidInfo, cndevDevice_t device)
{
    VERSIONED(uuidInfo);
    snprintf((char *)uuidInfo->uuid, sizeof uuidInfo->uuid, "%.36s", card->uuid);
    uuidInfo->ncsUUID64 = card->key;
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetCardSN(cndevCardSN_t *cardSN, cndevDevice_t device)
{
    VERSIONED(cardSN);
    cardSN->sn = strtoull(card->serial, NULL, 16);
    cardSN->motherBoardSn = 0;
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetMemoryUsageV2(cndevMemoryInfoV2_t *memInfo, cndevDevice_t device)
{
    CARD(memInfo);
    *memInfo = (cndevMemoryInfoV2_t){.physicalMemoryTotal = (int64_t)(card->memory_bytes >> 20),
                                     .physicalMemoryUsed = (int64_t)(card->used_bytes >> 20),
                                     .virtualMemoryTotal = 1 << 20,
                                     .globalMemory = card->memory_bytes};
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetVersionInfo(cndevVersionInfo_t *versInfo, cndevDevice_t device)
{
    VERSIONED(versInfo);
    versInfo->mcuMajorVersion = versInfo->mcuMinorVersion = versInfo->mcuBuildVersion = 1;
    return sscanf(fake_driver("cambricon", "6.2.10"), "%u.%u.%u", &versInfo->driverMajorVersion,
                  &versInfo->driverMinorVersion, &versInfo->driverBuildVersion) == 3
               ? CNDEV_SUCCESS
               : CNDEV_ERROR_NOT_SUPPORTED;
}

EXPORT cndevRet_t cndevGetPCIeInfoV2(cndevPCIeInfoV2_t *deviceInfo, cndevDevice_t device)
{
    CARD(deviceInfo);
    *deviceInfo = (cndevPCIeInfoV2_t){.vendor = 0xcabc,
                                      .subsystemVendor = 0xcabc,
                                      .deviceId = 0x0370,
                                      .domain = card->domain,
                                      .bus = card->bus,
                                      .device = card->device,
                                      .function = card->function,
                                      .slotId = (uint16_t)card->position};
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetNUMANodeIdByDevId(cndevNUMANodeId_t *numaNodeId, cndevDevice_t device)
{
    VERSIONED(numaNodeId);
    numaNodeId->nodeId = card->numa_node; /* -1: the machine has no NUMA */
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetCardHealthState(cndevCardHealthState_t *cardHealthState, cndevDevice_t device)
{
    VERSIONED(cardHealthState);
    cardHealthState->health = !strcmp(card->health, "ok");
    cardHealthState->deviceState = cardHealthState->health ? CNDEV_HEALTH_STATE_DEVICE_GOOD
                                                           : CNDEV_HEALTH_STATE_DEVICE_IN_PROBLEM;
    cardHealthState->driverState = 6; /* running */
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetDeviceUtilizationInfo(cndevUtilizationInfo_t *utilInfo, cndevDevice_t device)
{
    VERSIONED(utilInfo);
    utilInfo->averageCoreUtilization = (int32_t)card->busy_percent;
    for (unsigned i = 0; i < 80; i++)
        utilInfo->coreUtilization[i] = i < card->core_units ? (int32_t)card->busy_percent : 0;
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevGetTemperatureInfo(cndevTemperatureInfo_t *tempInfo, cndevDevice_t device)
{
    VERSIONED(tempInfo);
    tempInfo->chip = tempInfo->board = (int32_t)card->temperature_c;
    return card->temperature_c ? CNDEV_SUCCESS : CNDEV_ERROR_NOT_SUPPORTED;
}

EXPORT cndevRet_t cndevGetDevicePowerInfo(cndevDevicePowerInfo_t *powerInfo, cndevDevice_t device)
{
    CARD(powerInfo);
    *powerInfo = (cndevDevicePowerInfo_t){.usage = (int32_t)card->power_w, .cap = (int32_t)card->power_limit_w};
    return card->power_w ? CNDEV_SUCCESS : CNDEV_ERROR_NOT_SUPPORTED;
}

EXPORT cndevRet_t cndevGetProcessInfo(uint32_t *infoCount, cndevProcessInfo_t *procInfo, cndevDevice_t device)
{
    CARD(infoCount);
    struct fake_process processes[64];
    uint32_t capacity = *infoCount;
    *infoCount = fake_processes(card, processes, 64);
    if (*infoCount > capacity)
        return CNDEV_ERROR_INSUFFICIENT_SPACE;
    for (uint32_t i = 0; i < *infoCount; i++)
        procInfo[i] = (cndevProcessInfo_t){6, processes[i].pid, processes[i].memory_bytes >> 10,
                                           processes[i].memory_bytes >> 10};
    return CNDEV_SUCCESS;
}

EXPORT cndevRet_t cndevTopologyGetRelationship(cndevTopologyRelationship_t *relationship, cndevDevice_t device,
                                               cndevDevice_t device2)
{
    static const struct {
        const char *word;
        cndevTopologyRelationshipEnum_t relation;
    } words[] = {{"PIX", SINGLE}, {"PXB", MULTIPLE}, {"PHB", HOST_BRIDGE}, {"NODE", CPU}};
    VERSIONED(relationship);
    const struct fake_card *peer = fake_at((unsigned)device2);
    char word[16];
    if (!peer)
        return CNDEV_ERROR_INVALID_DEVICE_ID;
    relationship->relation = peer == card ? SELF : SYSTEM;
    fake_link(card, peer, word);
    for (unsigned i = 0; peer != card && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            relationship->relation = words[i].relation;
    return CNDEV_SUCCESS;
}
