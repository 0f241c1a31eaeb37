/* AMD's librocm_smi64.so.7: what runs on the cards is what its runtimes run on kfd.h's. */
#include "amd.h"

#include "management_fake.h"

#include <stddef.h>

#define VENDOR    "amd"
#define VENDOR_ID 0x1002 /* PCI's */
#define DRIVER    "6.12.12"

/* The cards as the other library sees them, opened once. */
static struct nvidia *cards(void)
{
    static struct nvidia *opened;
    struct nvidia *known = __atomic_load_n(&opened, __ATOMIC_ACQUIRE), *none = NULL;
    if (!known && (known = nvidia_open()))
        __atomic_compare_exchange_n(&opened, &none, known, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return opened;
}

static uint64_t unique_id_of(const struct fake_card *card)
{
    for (unsigned i = 0; cards() && i < cards()->device_count; i++)
        if (fake_card(i) == card)
            return amd_unique_id(&cards()->devices[i]);
    return 0;
}

static unsigned running(unsigned index, struct fake_process *processes, unsigned room)
{
    static struct engine_tenant tenants[ENGINE_TENANTS];
    if (!cards() || index >= cards()->device_count)
        return 0;
    unsigned count = engine_tenants(cards()->engine, cards()->devices[index].first_card, tenants);
    unsigned seen = 0;
    for (unsigned i = 0; i < count && seen < room; i++)
        if (tenants[i].pid)
            processes[seen++] = (struct fake_process){(unsigned)tenants[i].pid, tenants[i].memory};
    return seen;
}

#include "rocm_smi.c"
