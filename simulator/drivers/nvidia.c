/* Reads the rack's NVIDIA devices, or those of a vendor whose driver speaks CUDA too. */
#include "nvidia.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VENDOR
#define VENDOR "nvidia"
#endif
#ifndef DRIVER_VERSION
#define DRIVER_VERSION "580.159.04"
#endif
#ifndef UUID_PREFIX
#define UUID_PREFIX "GPU-"
#endif

/* Measured on one H200 (driver 580.159.04): time slice between processes, loss at each change, memory bandwidth. */
#define SLICE     UINT64_C(2090000)
#define SWAP      UINT64_C(150000)
#define BANDWIDTH UINT64_C(4300000000000)

static const struct {
    int driver, cuda;
} cuda_versions[] = {{580, 13000}, {570, 12080}, {550, 12040}, {535, 12020}, {525, 12000}, {470, 11040}, {0, 10020}};

/* What is this vendor's on this rack. */
static uint64_t name_of(const struct rack *rack)
{
    return rack_hash(rack_hash(0, rack->path, strlen(rack->path)), VENDOR, strlen(VENDOR));
}

static void derive_uuid(char uuid[48], const char *kind, uint64_t seed, unsigned index)
{
    uint64_t high_bits = rack_hash(seed, &index, sizeof index), low_bits = rack_hash(high_bits, kind, strlen(kind));
    snprintf(uuid, 48, "%s-%08x-%04x-%04x-%04x-%012llx", kind, (unsigned)(high_bits >> 32),
             (unsigned)(high_bits >> 16) & 0xffff, 0x4000u | ((unsigned)high_bits & 0xfff),
             0x8000u | ((unsigned)(low_bits >> 48) & 0x3fff), (unsigned long long)low_bits & 0xffffffffffffULL);
}

/* "1g.18gb x3, 2g.35gb x1" */
static void read_mig(struct nvidia *nvidia, struct rack *rack, const struct rack_section *section, unsigned index)
{
    struct nvidia_device *device = &nvidia->devices[index];
    const char *cursor = rack_text(section, "mig", "");
    while (*cursor) {
        unsigned slices, size, count = 1;
        int parsed_length = 0;
        if (sscanf(cursor, " %ug.%ugb%n", &slices, &size, &parsed_length) != 2 || !parsed_length || slices < 1 ||
            slices > 7) {
            rack_fault(rack, section, "mig", "instances such as 1g.18gb x3, 2g.35gb x1");
            return;
        }
        cursor += parsed_length;
        if (sscanf(cursor, " x%u%n", &count, &parsed_length) == 1)
            cursor += parsed_length;
        for (; count && nvidia->card_count < ENGINE_CARDS; count--, device->card_count++) {
            struct nvidia_card *card = &nvidia->cards[nvidia->card_count++];
            *card = (struct nvidia_card){.device_index = index, .mig_slices = slices};
            card->memory_bytes = (uint64_t)size * 1000000000u >> 20 << 20;
            snprintf(card->profile, sizeof card->profile, "%ug.%ugb", slices, size);
            derive_uuid(card->uuid, "MIG", rack_hash(rack->fingerprint, &index, sizeof index), device->card_count);
        }
        cursor += strspn(cursor, ", ");
    }
}

/* "1:NV18 2:PIX"; either end may declare a link */
static void read_links(struct nvidia *nvidia, struct rack *rack, const struct rack_section *section, unsigned index)
{
    static const struct {
        const char *name;
        enum nvidia_path path;
    } paths[] = {{"XGMI", PATH_NODE}, {"PIX", PATH_PIX},   {"PXB", PATH_PXB},
                 {"PHB", PATH_PHB},   {"NODE", PATH_NODE}, {"SYS", PATH_SYS}};
    static const char mtlink[] = "MTLINK";
    const char *cursor = rack_text(section, "links", "");
    while (*cursor) {
        unsigned peer, nvlinks = 0;
        char word[8] = "";
        int parsed_length = 0;
        struct nvidia_link link = {0, 0};
        if (sscanf(cursor, "%u:%7[A-Z0-9]%n", &peer, word, &parsed_length) == 2 && peer < nvidia->device_count &&
            peer != index) {
            for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++)
                if (!strcmp(word, paths[i].name))
                    link.path = paths[i].path;
            if (!strncmp(word, mtlink, sizeof mtlink - 1))
                link.path = PATH_NODE;
            if (sscanf(word, "NV%u", &nvlinks) == 1)
                link = (struct nvidia_link){PATH_NODE, nvlinks};
        }
        if (!link.path) {
            rack_fault(rack, section, "links", "peers such as 1:NV18 2:PIX");
            return;
        }
        nvidia->devices[index].links[peer] = nvidia->devices[peer].links[index] = link;
        cursor += parsed_length;
        cursor += strspn(cursor, ", ");
    }
}

static void default_links(struct nvidia *nvidia)
{
    for (unsigned i = 0; i < nvidia->device_count; i++)
        for (unsigned j = 0; j < nvidia->device_count; j++)
            if (i != j && !nvidia->devices[i].links[j].path) {
                int first_numa = nvidia->devices[i].numa_node, second_numa = nvidia->devices[j].numa_node;
                nvidia->devices[i].links[j].path = first_numa >= 0 && first_numa == second_numa ? PATH_NODE : PATH_SYS;
            }
}

static void read_health(struct nvidia_device *device, struct rack *rack, const struct rack_section *section)
{
    device->health = rack_text(section, "health", "ok");
    device->recovery_action = rack_text(section, "recovery", NULL)
                                  ? (int)rack_number(rack, section, "recovery", RACK_COUNT, 0)
                                  : -1;
    device->last_xid = (unsigned)rack_number(rack, section, "xid", RACK_COUNT, 0);
}

static void read_device(struct nvidia *nvidia, struct rack *rack, const struct rack_section *section, unsigned index)
{
    struct nvidia_device *device = &nvidia->devices[index];
    const char *uuid = rack_text(section, "uuid", NULL), *pci = rack_text(section, "pci", NULL);
    const char *compute = rack_text(section, "compute", "8.0");
    device->model = rack_text(section, "model", NULL);
    if (!device->model)
        rack_fault(rack, section, "model", "the name the driver tells");
    read_health(device, rack, section);
    device->memory_bytes = rack_number(rack, section, "memory", RACK_BYTES, 0);
    if (!rack_text(section, "memory", NULL))
        rack_fault(rack, section, "memory", "a size such as 80 GiB");
    device->reserved_bytes = rack_number(rack, section, "reserved", RACK_BYTES, 0);
    if (device->reserved_bytes > device->memory_bytes)
        rack_fault(rack, section, "reserved", "no more than the memory");
    device->memory_bytes -= device->reserved_bytes;
    device->context_bytes = rack_number(rack, section, "context", RACK_BYTES, 0);
    device->link_bytes_per_s = rack_number(rack, section, "bandwidth", RACK_BYTES_PER_SECOND, BANDWIDTH);
    if (!device->link_bytes_per_s)
        rack_fault(rack, section, "bandwidth", "more than nothing");
    device->numa_node = rack_text(section, "numa", NULL) ? (int)rack_number(rack, section, "numa", RACK_COUNT, 0) : -1;
    device->multiprocessors = (unsigned)rack_number(rack, section, "multiprocessors", RACK_COUNT, 132);
    device->power_w = (unsigned)rack_number(rack, section, "power", RACK_COUNT, 0);
    device->temperature_c = (unsigned)rack_number(rack, section, "temperature", RACK_COUNT, 0);
    device->power_limit_w = (unsigned)rack_number(rack, section, "power_limit", RACK_COUNT, 0);
    if (sscanf(compute, "%d.%d", &device->major, &device->minor) != 2)
        rack_fault(rack, section, "compute", "a capability such as 9.0");
    device->pci_bus = 0x18 + index;
    if (pci && sscanf(pci, "%x:%x:%x.0", &device->pci_domain, &device->pci_bus, &device->pci_device) != 3)
        rack_fault(rack, section, "pci", "an address such as 0000:18:00.0");
    if (uuid && (strncmp(uuid, UUID_PREFIX, strlen(UUID_PREFIX)) || strlen(uuid) >= sizeof device->uuid))
        rack_fault(rack, section, "uuid", UUID_PREFIX " and a UUID");
    if (uuid)
        snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    else
        derive_uuid(device->uuid, "GPU", name_of(rack), index);
    device->is_mig = rack_text(section, "mig", NULL);
    device->first_card = nvidia->card_count;
    if (device->is_mig) {
        read_mig(nvidia, rack, section, index);
    } else if (nvidia->card_count < ENGINE_CARDS) {
        struct nvidia_card *card = &nvidia->cards[nvidia->card_count++];
        *card = (struct nvidia_card){.device_index = index, .memory_bytes = device->memory_bytes};
        memcpy(card->uuid, device->uuid, sizeof card->uuid);
        device->card_count = 1;
    }
    read_links(nvidia, rack, section, index);
}

static void read_driver(struct nvidia *nvidia, const struct rack_section *section)
{
    nvidia->driver_version = rack_text(section, VENDOR, nvidia->driver_version);
    for (unsigned i = sizeof cuda_versions / sizeof *cuda_versions; i-- > 0;)
        if (atoi(nvidia->driver_version) >= cuda_versions[i].driver)
            nvidia->cuda_version = cuda_versions[i].cuda;
}

static void read_kernel(struct nvidia *nvidia, struct rack *rack, const struct rack_section *section)
{
    nvidia->kernels = realloc(nvidia->kernels, (nvidia->kernel_count + 1) * sizeof *nvidia->kernels);
    nvidia->kernels[nvidia->kernel_count++] = (struct nvidia_kernel){
        section->name,
        rack_number(rack, section, "time", RACK_NANOSECONDS, 2000),
        rack_number(rack, section, "per_arg0", RACK_NANOSECONDS, 0),
    };
}

static bool ours(const struct rack_section *section)
{
    return !strcmp(section->kind, "device") && !strcmp(rack_text(section, "vendor", ""), VENDOR);
}

struct nvidia *nvidia_open(void)
{
    struct rack *rack = rack_open();
    struct nvidia *nvidia = rack ? calloc(1, sizeof *nvidia) : NULL;
    if (!nvidia)
        return NULL;
    nvidia->driver_version = DRIVER_VERSION;
    nvidia->cuda_version = 13000;
    for (unsigned i = 0; i < rack->section_count; i++) /* links name devices that come later */
        nvidia->device_count += ours(&rack->sections[i]);
    if (nvidia->device_count > ENGINE_CARDS) {
        fprintf(stderr, "%s: more than %u devices\n", rack->path, ENGINE_CARDS);
        return NULL;
    }
    struct engine_card cards[ENGINE_CARDS];
    for (unsigned i = 0, index = 0; i < rack->section_count; i++) {
        const struct rack_section *section = &rack->sections[i];
        if (ours(section)) {
            unsigned from = nvidia->card_count;
            uint64_t slice = rack_number(rack, section, "slice", RACK_NANOSECONDS, SLICE);
            uint64_t swap = rack_number(rack, section, "switch", RACK_NANOSECONDS, SWAP);
            if (!slice)
                rack_fault(rack, section, "slice", "more than nothing");
            read_device(nvidia, rack, section, index++);
            for (; from < nvidia->card_count; from++)
                cards[from] = (struct engine_card){nvidia->cards[from].memory_bytes, slice, swap};
        } else if (!strcmp(section->kind, "kernel")) {
            read_kernel(nvidia, rack, section);
        } else if (!strcmp(section->kind, "driver")) {
            read_driver(nvidia, section);
        }
    }
    default_links(nvidia);
    if (rack->fault_count)
        return NULL;
    nvidia->engine = engine_open(name_of(rack), rack->fingerprint, cards, nvidia->card_count);
    return nvidia->engine ? nvidia : NULL;
}

void nvidia_refresh(struct nvidia *nvidia)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next */
    static uint64_t last_fingerprint;                        /* of the rack when it was last read */
    struct rack *rack = rack_open();
    if (!rack)
        return;
    pthread_mutex_lock(&lock);
    const struct rack_section *sections[ENGINE_CARDS];
    unsigned count = 0;
    for (unsigned i = 0; rack->fingerprint != last_fingerprint && i < rack->section_count; i++)
        if (ours(&rack->sections[i]) && count < ENGINE_CARDS)
            sections[count++] = &rack->sections[i];
    if (count && count == nvidia->device_count) { /* else it is the same, or half written */
        for (unsigned i = 0; i < count; i++)
            read_health(&nvidia->devices[i], rack, sections[i]);
        last_fingerprint = rack->fingerprint; /* the text is kept, because `health` points into it */
    } else {
        rack_close(rack);
    }
    pthread_mutex_unlock(&lock);
}
