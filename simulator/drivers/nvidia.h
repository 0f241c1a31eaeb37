/* The rack's NVIDIA devices, as both of NVIDIA's libraries see them. */
#ifndef HETERO_FAKE_NVIDIA_H
#define HETERO_FAKE_NVIDIA_H

#include "engine.h"
#include "rack.h"

enum nvidia_path { /* between two devices, nearest first; in NVML's numbers */
                   PATH_SELF = 0,
                   PATH_PIX = 10,
                   PATH_PXB = 20,
                   PATH_PHB = 30,
                   PATH_NODE = 40,
                   PATH_SYS = 50,
};

struct nvidia_link {
    enum nvidia_path path;
    unsigned nvlink_count;
};

struct nvidia_device {          /* a physical card */
    const char *model, *health; /* health is "ok", or what is wrong */
    char uuid[48];
    uint64_t memory_bytes, reserved_bytes, context_bytes,
        link_bytes_per_s; /* memory_bytes: without the reserved ones */
    int numa_node;        /* -1: unknown */
    unsigned pci_domain, pci_bus, pci_device;
    int major, minor; /* compute capability */
    unsigned multiprocessors;
    unsigned power_w, power_limit_w; /* 0: not reported */
    unsigned temperature_c;          /* 0: not reported */
    int recovery_action;             /* nvmlDeviceGpuRecoveryAction_t; -1: the driver has no word of it */
    unsigned last_xid;               /* error code that the driver last reported; 0: none */
    struct nvidia_link links[ENGINE_CARDS];
    bool is_mig;
    unsigned first_card, card_count; /* range of nvidia.cards: the device itself, or its MIG instances */
};

struct nvidia_card { /* owner of memory and time: a device, or a MIG instance */
    unsigned device_index;
    char uuid[48];
    uint64_t memory_bytes;
    unsigned mig_slices; /* of seven, for a MIG instance; 0 for a whole device */
    char profile[16];    /* "1g.18gb" */
};

struct nvidia_kernel {
    const char *name;
    uint64_t base_ns, ns_per_arg0; /* the duration is base_ns + first argument * ns_per_arg0 */
};

struct nvidia {
    const char *driver_version; /* "580.159.04" */
    int cuda_version;           /* 13000 */
    unsigned device_count, card_count, kernel_count;
    struct nvidia_device devices[ENGINE_CARDS];
    struct nvidia_card cards[ENGINE_CARDS];
    struct nvidia_kernel *kernels;
    struct engine *engine;
};

/* NULL: there is no rack, or it is malformed (with a message). Allocated once and never freed. */
struct nvidia *nvidia_open(void);

/* Reads health and xid again if the rack's text has changed. All else stays as first read. */
void nvidia_refresh(struct nvidia *nvidia);

#endif
