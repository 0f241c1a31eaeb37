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
    unsigned nvlinks;
};

struct nvidia_device {          /* what sits in a slot */
    const char *model, *health; /* health is "ok", or what is wrong */
    char uuid[48];
    uint64_t memory, reserved, context, bandwidth; /* `memory` is what programs may have */
    int numa;                                      /* -1: not said */
    unsigned pci_domain, pci_bus, pci_device;
    int major, minor; /* compute capability */
    unsigned multiprocessors;
    unsigned power, power_limit; /* W; 0: it does not tell */
    unsigned temperature;        /* degrees Celsius; 0: it does not tell */
    unsigned xid;                /* the last that the driver told; 0: none */
    struct nvidia_link links[ENGINE_CARDS];
    bool mig;
    unsigned first_card, cards; /* into nvidia.cards: itself, or its MIG instances */
};

struct nvidia_card { /* what memory and time belong to: a device, or a MIG instance of one */
    unsigned device;
    char uuid[48];
    uint64_t memory;
    unsigned slices;  /* of seven, for a MIG instance; 0 for a whole device */
    char profile[16]; /* "1g.18gb" */
};

struct nvidia_kernel {
    const char *name;
    uint64_t time, per_arg0; /* ns */
};

struct nvidia {
    const char *driver; /* "580.159.04" */
    int cuda;           /* 13000 */
    unsigned device_count, card_count, kernel_count;
    struct nvidia_device devices[ENGINE_CARDS];
    struct nvidia_card cards[ENGINE_CARDS];
    struct nvidia_kernel *kernels;
    struct engine *engine;
};

/* NULL where there is no rack, or with a message when it is no good. Allocated once, for good. */
struct nvidia *nvidia_open(void);

/* Read anew how the cards are, if the rack's text is another: health and xid. All else stays as it was read first. */
void nvidia_refresh(struct nvidia *this_nvidia);

#endif
