/* libmtml.so for Moore Threads cards that are not there.
 *
 * The word for MtLinks is MTLINK<how many>. A card that is not well has memory errors that could not be corrected, and
 * pages to retire.
 */
#include "mtml_card.h"

#include <stdio.h>

const char fake_vendor[] = "mthreads";

static struct MtmlLibrary library;
static struct MtmlSystem computer;
struct MtmlDevice devices[FAKE_CARDS]; /* by position, as the two below */
struct MtmlMemory memories[FAKE_CARDS];
struct MtmlGpu gpus[FAKE_CARDS];

#define LIBRARY(handle, out)                                                                                           \
    FAULTS(NULL, (out), sizeof *(out));                                                                                \
    if (!fake_opened())                                                                                                \
        return MTML_ERROR_DRIVER_NOT_LOADED;                                                                           \
    if ((handle) != &library || is_null(out))                                                                          \
    return MTML_ERROR_INVALID_ARGUMENT

EXPORT MtmlReturn mtmlLibraryInit(MtmlLibrary **lib)
{
    FAULTS(NULL, NULL, 0);
    if (!lib)
        return MTML_ERROR_INVALID_ARGUMENT;
    *lib = &library;
    return fake_open() ? MTML_SUCCESS : MTML_ERROR_DRIVER_NOT_LOADED;
}

EXPORT MtmlReturn mtmlLibraryShutDown(MtmlLibrary *lib)
{
    LIBRARY(lib, lib);
    fake_close();
    return MTML_SUCCESS;
}

EXPORT const char *mtmlErrorString(MtmlReturn result)
{
    static const char *const names[] = {"Success",       "Driver not loaded", "Driver failure",    "Invalid argument",
                                        "Not supported", "No permission",     "Insufficient size", "Not found"};
    return (unsigned)result < sizeof names / sizeof *names ? names[result] : "Unknown error";
}

static MtmlReturn text(char *out, unsigned int length, const char *value)
{
    return (unsigned)snprintf(out, length, "%s", value) < length ? MTML_SUCCESS : MTML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT MtmlReturn mtmlLibraryGetVersion(const MtmlLibrary *lib, char *version, unsigned int length)
{
    LIBRARY(lib, version);
    return text(version, length, "2.2.0");
}

EXPORT MtmlReturn mtmlLibraryInitSystem(const MtmlLibrary *lib, MtmlSystem **sys)
{
    LIBRARY(lib, sys);
    *sys = &computer;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlLibraryFreeSystem(MtmlSystem *sys)
{
    return sys == &computer ? MTML_SUCCESS : MTML_ERROR_INVALID_ARGUMENT;
}

EXPORT MtmlReturn mtmlSystemGetDriverVersion(const MtmlSystem *sys, char *version, unsigned int length)
{
    FAULTS(NULL, version, length);
    if (sys != &computer || !version)
        return MTML_ERROR_INVALID_ARGUMENT;
    return text(version, length, fake_driver("mthreads", "2.7.0"));
}

EXPORT MtmlReturn mtmlLibraryCountDevice(const MtmlLibrary *lib, unsigned int *count)
{
    LIBRARY(lib, count);
    *count = fake_count();
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlLibraryInitDeviceByIndex(const MtmlLibrary *lib, unsigned int index, MtmlDevice **dev)
{
    LIBRARY(lib, dev);
    const struct fake_card *card = fake_card(index);
    if (!card)
        return MTML_ERROR_NOT_FOUND;
    *dev = &devices[card->position];
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlLibraryInitDeviceByUuid(const MtmlLibrary *lib, const char *uuid, MtmlDevice **dev)
{
    LIBRARY(lib, dev);
    const struct fake_card *card;
    for (unsigned i = 0; uuid && (card = fake_card(i)); i++)
        if (!strcmp(card->uuid, uuid)) {
            *dev = &devices[card->position];
            return MTML_SUCCESS;
        }
    return uuid ? MTML_ERROR_NOT_FOUND : MTML_ERROR_INVALID_ARGUMENT;
}

EXPORT MtmlReturn mtmlLibraryFreeDevice(MtmlDevice *dev)
{
    HANDLE(devices, dev, dev);
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetIndex(const MtmlDevice *dev, unsigned int *index)
{
    HANDLE(devices, dev, index);
    for (*index = 0; fake_card(*index) != card; ++*index)
        ;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetUUID(const MtmlDevice *dev, char *uuid, unsigned int length)
{
    HANDLE_NOISE(devices, dev, uuid, length);
    return text(uuid, length, card->uuid);
}

EXPORT MtmlReturn mtmlDeviceGetName(const MtmlDevice *dev, char *name, unsigned int length)
{
    HANDLE_NOISE(devices, dev, name, length);
    return text(name, length, card->model);
}

EXPORT MtmlReturn mtmlDeviceGetBrand(const MtmlDevice *dev, MtmlBrandType *type)
{
    HANDLE(devices, dev, type);
    *type = MTML_BRAND_MTT;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetSerialNumber(const MtmlDevice *dev, unsigned int length, char *serial)
{
    HANDLE_NOISE(devices, dev, serial, length);
    return text(serial, length, card->serial);
}

EXPORT MtmlReturn mtmlDeviceGetPciInfo(const MtmlDevice *dev, MtmlPciInfo *pci)
{
    HANDLE(devices, dev, pci);
    *pci = (MtmlPciInfo){.segment = card->domain,
                         .bus = card->bus,
                         .device = card->device,
                         .pciDeviceId = 0x03271ed5,
                         .busWidth = 16,
                         .pciMaxSpeed = 32,
                         .pciCurSpeed = 32,
                         .pciMaxWidth = 16,
                         .pciCurWidth = 16,
                         .pciMaxGen = 5,
                         .pciCurGen = 5};
    snprintf(pci->sbdf, sizeof pci->sbdf, "%08x:%02x:%02x.%x", card->domain, card->bus, card->device, card->function);
    return MTML_SUCCESS;
}

static MtmlReturn path(const struct fake_card *card, const char *format, unsigned first_number, char *out,
                       unsigned int length)
{
    char name[64];
    snprintf(name, sizeof name, format, first_number + card->position);
    return text(out, length, name);
}

EXPORT MtmlReturn mtmlDeviceGetGpuPath(const MtmlDevice *dev, char *out, unsigned int length)
{
    HANDLE_NOISE(devices, dev, out, length);
    return path(card, "/dev/mtgpu.%u", 0, out, length);
}

EXPORT MtmlReturn mtmlDeviceGetPrimaryPath(const MtmlDevice *dev, char *out, unsigned int length)
{
    HANDLE_NOISE(devices, dev, out, length);
    return path(card, "/dev/dri/card%u", 0, out, length);
}

EXPORT MtmlReturn mtmlDeviceGetRenderPath(const MtmlDevice *dev, char *out, unsigned int length)
{
    HANDLE_NOISE(devices, dev, out, length);
    return path(card, "/dev/dri/renderD%u", 128, out, length);
}

EXPORT MtmlReturn mtmlDeviceGetProperty(const MtmlDevice *dev, MtmlDeviceProperty *prop)
{
    HANDLE(devices, dev, prop);
    *prop = (MtmlDeviceProperty){.mtLinkCap = strstr(rack_text(card->section, "links", ""), "MTLINK") != NULL};
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceCountGpuCores(const MtmlDevice *dev, unsigned int *count)
{
    HANDLE(devices, dev, count);
    *count = card->core_units;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetMemoryAffinityWithinNode(const MtmlDevice *dev, unsigned int size, unsigned long *nodes)
{
    HANDLE_NOISE(devices, dev, nodes, size * sizeof *nodes);
    if (card->numa_node < 0)
        return MTML_ERROR_NOT_SUPPORTED;
    if ((unsigned)card->numa_node >= 64 * size)
        return MTML_ERROR_INSUFFICIENT_SIZE;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[card->numa_node / 64] = 1ul << card->numa_node % 64;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetMpcMode(const MtmlDevice *dev, MtmlMpcMode *mode)
{
    HANDLE(devices, dev, mode);
    return MTML_ERROR_NOT_SUPPORTED;
}

/* Links. */

static const struct fake_card *far_end(const struct fake_card *card, unsigned *link)
{
    const struct fake_card *peer;
    for (unsigned i = 0, count; (peer = fake_card(i)); i++) { /* links are numbered peer by peer */
        char word[16];
        fake_link(card, peer, word);
        if (peer == card || sscanf(word, "MTLINK%u", &count) != 1)
            continue;
        if (*link < count)
            return peer;
        *link -= count;
    }
    return NULL;
}

EXPORT MtmlReturn mtmlDeviceGetTopologyLevel(const MtmlDevice *dev, const MtmlDevice *dev2,
                                             MtmlDeviceTopologyLevel *level)
{
    static const struct {
        const char *word;
        MtmlDeviceTopologyLevel level;
    } words[] = {{"PIX", MTML_TOPOLOGY_SINGLE},
                 {"PXB", MTML_TOPOLOGY_MULTIPLE},
                 {"PHB", MTML_TOPOLOGY_HOSTBRIDGE},
                 {"NODE", MTML_TOPOLOGY_NODE}};
    HANDLE(devices, dev, level);
    const struct fake_card *peer = fake_at((unsigned)(dev2 - devices));
    char word[16];
    if (!peer)
        return MTML_ERROR_INVALID_ARGUMENT;
    *level = peer == card ? MTML_TOPOLOGY_INTERNAL : MTML_TOPOLOGY_SYSTEM;
    fake_link(card, peer, word);
    for (unsigned i = 0; peer != card && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word))
            *level = words[i].level;
    return MTML_SUCCESS;
}

EXPORT MtmlReturn mtmlDeviceGetMtLinkSpec(const MtmlDevice *dev, MtmlMtLinkSpec *spec)
{
    HANDLE(devices, dev, spec);
    *spec = (MtmlMtLinkSpec){.version = 10, .bandWidth = 56};
    for (unsigned link = 0; far_end(card, &link); link = ++spec->linkNum)
        ;
    return spec->linkNum ? MTML_SUCCESS : MTML_ERROR_NOT_SUPPORTED;
}

EXPORT MtmlReturn mtmlDeviceGetMtLinkState(const MtmlDevice *dev, unsigned int link, MtmlMtLinkState *state)
{
    HANDLE(devices, dev, state);
    *state = MTML_MTLINK_STATE_UP;
    return far_end(card, &link) ? MTML_SUCCESS : MTML_ERROR_INVALID_ARGUMENT;
}

EXPORT MtmlReturn mtmlDeviceGetMtLinkRemoteDevice(const MtmlDevice *dev, unsigned int link, MtmlDevice **remote)
{
    HANDLE(devices, dev, remote);
    const struct fake_card *peer = far_end(card, &link);
    if (!peer)
        return MTML_ERROR_INVALID_ARGUMENT;
    *remote = &devices[peer->position];
    return MTML_SUCCESS;
}
