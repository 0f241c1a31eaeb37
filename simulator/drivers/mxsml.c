/* libmxsml.so for MetaX cards that are not there: the cards. Their slices are in mxsml_sgpu.c.
 *
 * The word for a MetaXLink is METAXLINK.
 */
#include "mxsml_card.h"

const char fake_vendor[] = "metax";

EXPORT mxSmlReturn_t mxSmlInit(void)
{
    FAULTS(NULL, NULL, 0);
    return fake_open() ? MXSML_Success : MXSML_NoDevice;
}

EXPORT const char *mxSmlGetErrorString(mxSmlReturn_t result)
{
    static const char *const names[] = {
        "success",           "failure",           "no device",         "operation not supported",
        "sysfs error",       "sysfs write error", "invalid device id", "invalid die id",
        "permission denied", "invalid input",     "insufficient size"};
    return (unsigned)result < sizeof names / sizeof *names ? names[result] : "unknown error";
}

EXPORT unsigned int mxSmlGetDeviceCount(void)
{
    unsigned noise = 0;
    int code;
    if (faults_answer(__func__, NULL, &noise, sizeof noise, &code))
        return code ? (unsigned)code : noise;
    return fake_count();
}

EXPORT mxSmlReturn_t mxSmlGetDeviceInfo(unsigned int deviceId, mxSmlDeviceInfo_t *deviceInfo)
{
    CARD(deviceInfo);
    *deviceInfo = (mxSmlDeviceInfo_t){
        .deviceId = deviceId, .gpuId = card->position, .nodeId = card->position, .brand = MXSML_Brand_C};
    snprintf(deviceInfo->bdfId, sizeof deviceInfo->bdfId, "%04x:%02x:%02x.%x", card->domain, card->bus, card->device,
             card->function);
    const char *kind = strncmp(card->uuid, "GPU-", 4) ? "GPU-" : "";
    snprintf(deviceInfo->uuid, sizeof deviceInfo->uuid, "%s%s", kind, card->uuid);
    snprintf(deviceInfo->deviceName, sizeof deviceInfo->deviceName, "%s", card->model);
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceVersion(unsigned int deviceId, mxSmlVersionUnit_t versionUnit, char *version,
                                           unsigned int *versionSize)
{
    CARD_NOISE(version, versionSize ? *versionSize : 0);
    if (!versionSize)
        return MXSML_InvalidInput;
    if (versionUnit != MXSML_Version_Driver)
        return MXSML_OperationNotSupport;
    return text(version, versionSize, fake_driver("metax", "3.6.11"));
}

EXPORT mxSmlReturn_t mxSmlGetMacaVersion(char *version, unsigned int *size)
{
    FAULTS(NULL, version, size ? *size : 0);
    return version && size ? text(version, size, fake_driver("maca", "3.3.0")) : MXSML_InvalidInput;
}

EXPORT mxSmlReturn_t mxSmlGetBoardSerial(unsigned int deviceId, char *boardSerial, unsigned int *size)
{
    CARD_NOISE(boardSerial, size ? *size : 0);
    return size ? text(boardSerial, size, card->serial) : MXSML_InvalidInput;
}

EXPORT mxSmlReturn_t mxSmlGetMemoryInfo(unsigned int deviceId, mxSmlMemoryInfo_t *memoryInfo)
{
    CARD(memoryInfo);
    *memoryInfo = (mxSmlMemoryInfo_t){.vramTotal = (long)(card->memory_bytes >> 10),
                                      .vramUse = (long)(card->used_bytes >> 10)};
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceIpUsage(unsigned int deviceId, mxSmlUsageIp_t usageIp, int *usage)
{
    CARD(usage);
    if (usageIp != MXSML_Usage_Xcore)
        return MXSML_OperationNotSupport;
    *usage = (int)card->busy_percent;
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetTemperatureInfo(unsigned int deviceId, mxSmlTemperatureSensors_t temperatureType,
                                             int *temperature)
{
    CARD(temperature);
    *temperature = (int)card->temperature_c * 100; /* hundredths of a degree */
    bool known = card->temperature_c && temperatureType == MXSML_Temperature_Hotspot;
    return known ? MXSML_Success : MXSML_OperationNotSupport;
}

/* A board of this class is fed three ways. */
EXPORT mxSmlReturn_t mxSmlGetBoardPowerInfo(unsigned int deviceId, unsigned int *infoSize,
                                            mxSmlBoardWayElectricInfo_t *boardInfo)
{
    CARD(infoSize);
    unsigned capacity = *infoSize;
    if (!card->power_w)
        return MXSML_OperationNotSupport;
    *infoSize = 3;
    if (!boardInfo || capacity < 3)
        return MXSML_InsufficientSize;
    for (unsigned i = 0; i < 3; i++)
        boardInfo[i] = (mxSmlBoardWayElectricInfo_t){
            .voltage = 12000, .power = (card->power_w * (i + 1) / 3 - card->power_w * i / 3) * 1000};
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetBoardPowerLimit(unsigned int deviceId, unsigned int *limit)
{
    CARD(limit);
    *limit = card->power_limit_w * 1000; /* mW */
    return card->power_limit_w ? MXSML_Success : MXSML_OperationNotSupport;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceState(unsigned int deviceId, int *deviceState)
{
    CARD(deviceState);
    *deviceState = !strcmp(card->health, "ok");
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceUnavailableReason(unsigned int deviceId, mxSmlDeviceUnavailableReasonInfo_t *reason)
{
    CARD(reason);
    *reason = (mxSmlDeviceUnavailableReasonInfo_t){.unavailableCode = strcmp(card->health, "ok") ? 1 : 0};
    if (reason->unavailableCode)
        snprintf(reason->unavailableReason, sizeof reason->unavailableReason, "%.63s", card->health);
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetTotalEccErrors(unsigned int deviceId, mxSmlEccErrorCount_t *eccCounts)
{
    CARD(eccCounts);
    *eccCounts = (mxSmlEccErrorCount_t){0};
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetNodeAffinity(unsigned int deviceId, unsigned int nodeSetSize, unsigned int *nodeSet)
{
    CARD_NOISE(nodeSet, nodeSetSize * sizeof *nodeSet);
    if (card->numa_node < 0)
        return MXSML_OperationNotSupport;
    if ((unsigned)card->numa_node >= nodeSetSize * 32)
        return MXSML_InsufficientSize;
    memset(nodeSet, 0, nodeSetSize * sizeof *nodeSet);
    nodeSet[card->numa_node / 32] = 1u << card->numa_node % 32;
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetDeviceTopology(unsigned int deviceId, unsigned int deviceDst,
                                            mxSmlGpuTopologyLevel_t *level)
{
    static const struct {
        const char *word;
        mxSmlGpuTopologyLevel_t level;
    } words[] = {{"METAXLINK", MXSML_TOPOLOGY_METAXLINK},
                 {"PIX", MXSML_TOPOLOGY_SINGLE},
                 {"PXB", MXSML_TOPOLOGY_MULTIPLE},
                 {"PHB", MXSML_TOPOLOGY_HOSTBRIDGE},
                 {"NODE", MXSML_TOPOLOGY_NODE}};
    CARD(level);
    const struct fake_card *peer = fake_card(deviceDst);
    char word[16];
    if (!peer)
        return MXSML_InvalidDeviceId;
    *level = peer == card ? MXSML_TOPOLOGY_INTERNAL : MXSML_TOPOLOGY_SYSTEM;
    fake_link(card, peer, word);
    for (unsigned i = 0; peer != card && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            *level = words[i].level;
    return MXSML_Success;
}

EXPORT mxSmlReturn_t mxSmlGetSingleGpuProcess(unsigned int deviceId, unsigned int *processNumber,
                                              mxSmlProcessInfo_t *processInfo)
{
    CARD(processNumber);
    struct fake_process processes[64];
    unsigned capacity = *processNumber;
    *processNumber = fake_processes(card, processes, 64);
    for (unsigned i = 0; processInfo && i < *processNumber && i < capacity; i++) {
        processInfo[i] = (mxSmlProcessInfo_t){.processId = processes[i].pid, .gpuNumber = 1};
        processInfo[i].processGpuInfo[0].gpuId = card->position;
        processInfo[i].processGpuInfo[0].gpuMemoryUsage = processes[i].memory_bytes;
    }
    return MXSML_Success;
}
