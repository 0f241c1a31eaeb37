/* Trainings that gangs do, on the machine of virtual.h. */
#ifndef HETERO_TESTS_TRAININGS_H
#define HETERO_TESTS_TRAININGS_H

#include "programs.h"

/* A step of data-parallel training: 600 kernels, and beside the later half an all-reduce of each 40 in a stream of its
 * own; the optimizer's wait for those. */
static inline void data_parallel(struct tenant *tenant)
{
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 600; kernel++) {
            tenant_launch(tenant, 0, 85 * US);
            tenant_sleep(8 * US);
            if (kernel >= 200 && kernel % 40 == 39 && kernel < 560) {
                tenant_follow(tenant, 1);
                tenant_meet(tenant, 1, 0, 500 * US);
            }
            if (kernel == 560)
                tenant_follow(tenant, 0);
        }
        tenant_synchronise(tenant);
        tenant_sleep(200 * US);
    }
}

/* The same of a transformer, as PyTorch launches it: kernels of many lengths, far ahead of the card; all-reduces beside
 * the gradients' kernels; an optimizer that waits for all of them, before which the host is busy for `host_ns`; and a
 * loss that is read. The second card takes `slower` per cent longer, and the second process launches `more` kernels a
 * step that the first does not. Three times a step a host is elsewhere for up to `gap_us`, and one that was kept at its
 * gate comes up to `late_us` after that is open, as logs of rows on cards show it. */
static struct {
    unsigned slower, more, gap_us, late_us;
    uint64_t host_ns;
    uint64_t rng[TENANTS];
    unsigned cold[TENANTS]; /* launches that a thread will be slow to make */
} transformer;

/* Who passes the gate so much later was kept there, and did not wait for its card alone. */
#define KEPT_NS (5 * MS)

/* Its first launches are slow. */
#define COLD 20u

static inline unsigned roll(const struct tenant *tenant, unsigned most)
{
    uint64_t *rng = &transformer.rng[tenant - tenants];
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)(*rng >> 33) % most;
}

static inline void transformer_kernel(struct tenant *tenant, uint64_t ns)
{
    uint64_t came_ns = machine_now();
    tenant_launch(tenant, 0, tenant->card == 1 ? ns + ns * transformer.slower / 100 : ns);
    unsigned *cold = &transformer.cold[tenant - tenants];
    if (transformer.late_us > 0 && tenant->row.length_ns > 0 && machine_now() - came_ns > KEPT_NS)
        *cold = COLD;
    if (*cold > 0)
        tenant_sleep(roll(tenant, 2 * transformer.late_us / COLD) * US);
    *cold -= *cold > 0;
    tenant_sleep((4 + roll(tenant, 9)) * US + (roll(tenant, 400) == 0 ? roll(tenant, 300) * US : 0));
}

static inline void train_transformer(struct tenant *tenant)
{
    static const uint64_t lengths_us[] = {8, 10, 60, 8, 20, 30, 9, 12, 8, 70, 35, 9};
    transformer.rng[tenant - tenants] = 77 + tenant->card;
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 500; kernel++)
            transformer_kernel(tenant, lengths_us[kernel % 12] * US);
        for (unsigned kernel = 0; kernel < 6; kernel++)
            transformer_kernel(tenant, 900 * US);
        for (unsigned kernel = 0; kernel < 1000; kernel++) {
            transformer_kernel(tenant, lengths_us[kernel % 12] * US);
            if (transformer.gap_us > 0 && roll(tenant, 333) == 0)
                tenant_sleep(roll(tenant, transformer.gap_us) * US);
            if (kernel % 125 != 124)
                continue;
            tenant_follow(tenant, 1);
            tenant_meet(tenant, 1, 0, kernel == 999 ? 700 * US : 150 * US);
            tenant_sleep(20 * US);
        }
        tenant_follow(tenant, 0);
        if (transformer.host_ns > 0)
            tenant_sleep(transformer.host_ns);
        for (unsigned kernel = 0; kernel < 80; kernel++)
            transformer_kernel(tenant, 150 * US);
        tenant_synchronise(tenant);
        tenant_sleep(300 * US);
        for (unsigned kernel = 0; tenant->card == 1 && kernel < transformer.more; kernel++)
            transformer_kernel(tenant, 5 * US);
    }
}

/* The same with lengths as on an H100, which change in the midst of a step: small kernels between products of 200 us,
 * and an optimizer of nothing but small ones. */
static inline void train_in_phases(struct tenant *tenant)
{
    transformer.rng[tenant - tenants] = 77 + tenant->card;
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < 240; kernel++)
            transformer_kernel(tenant, kernel % 4 == 0 ? 180 * US : 12 * US);
        for (unsigned kernel = 0; kernel < 3; kernel++)
            transformer_kernel(tenant, 900 * US);
        for (unsigned kernel = 0; kernel < 360; kernel++) {
            transformer_kernel(tenant, kernel % 3 == 0 ? 210 * US : 14 * US);
            if (transformer.gap_us > 0 && roll(tenant, 120) == 0)
                tenant_sleep(roll(tenant, transformer.gap_us) * US);
            if (kernel % 45 != 44)
                continue;
            tenant_follow(tenant, 1);
            tenant_meet(tenant, 1, 0, kernel == 359 ? 700 * US : 150 * US);
            tenant_sleep(20 * US);
        }
        tenant_follow(tenant, 0);
        for (unsigned kernel = 0; kernel < 450; kernel++)
            transformer_kernel(tenant, 5 * US);
        tenant_synchronise(tenant);
        tenant_sleep(300 * US);
    }
}

/* Training whose host takes some 28 us to launch what takes the device 40: it is ahead by a few milliseconds only, and
 * has nothing in flight whenever it was kept at its gate. So logs of rows on H200s show it. */
static inline void train_with_a_slow_host(struct tenant *tenant)
{
    static const uint64_t forward_us[] = {15, 5, 5, 5, 150, 30, 100, 5, 5,   60, 15,
                                          15, 5, 5, 5, 180, 40, 5,   5, 180, 15, 5};
    enum { LAYERS = 12, FORWARD = 22, BACKWARD = 48 };
    transformer.rng[tenant - tenants] = 77 + tenant->card;
    for (;; tenant->steps++) {
        for (unsigned kernel = 0; kernel < LAYERS * FORWARD; kernel++) {
            transformer_kernel(tenant, forward_us[kernel % FORWARD] * US);
            tenant_sleep((7 + roll(tenant, 31)) * US);
        }
        for (unsigned kernel = 0; kernel < 7; kernel++)
            transformer_kernel(tenant, 1300 * US);
        for (unsigned kernel = 0; kernel < LAYERS * BACKWARD; kernel++) {
            transformer_kernel(tenant, (kernel % 8 == 0 ? 200 : kernel % 8 == 4 ? 60 : 8) * US);
            tenant_sleep((5 + roll(tenant, 27)) * US);
            if (transformer.gap_us > 0 && roll(tenant, 300) == 0)
                tenant_sleep(roll(tenant, transformer.gap_us) * US);
            if (kernel % BACKWARD != BACKWARD - 1)
                continue;
            tenant_follow(tenant, 1);
            tenant_meet(tenant, 1, 0, kernel == LAYERS * BACKWARD - 1 ? 700 * US : 200 * US);
            tenant_sleep(20 * US);
        }
        tenant_follow(tenant, 0);
        tenant_sleep(6 * MS);
        for (unsigned kernel = 0; kernel < 100; kernel++)
            transformer_kernel(tenant, 35 * US);
        tenant_synchronise(tenant);
        tenant_sleep(600 * US);
    }
}

/* Training of a transformer of GPT-2's size: some 500 kernels of 8 to 900 us forward and backward, beside them
 * all-reduces of the gradients, the largest first; then an optimizer of 1,000 small kernels. A launch takes the host 5
 * us, one of twenty 20 to 60 us more, and one of 200 up to 3 ms. So fences are set among large kernels by which the
 * host is ahead of small ones. */
static inline void gpt2_kernels(struct tenant *tenant, const uint16_t *lengths_us, unsigned count)
{
    for (unsigned kernel = 0; kernel < count; kernel++) {
        tenant_launch(tenant, 0, lengths_us[kernel] * US);
        uint64_t slow_us = roll(tenant, 20) == 0 ? 20 + roll(tenant, 41) : 0;
        tenant_sleep((5 + slow_us + (roll(tenant, 200) == 0 ? roll(tenant, 3000) : 0)) * US);
    }
}

static inline void train_gpt2(struct tenant *tenant)
{
    static const uint16_t forward_us[] = {20, 8, 60, 8, 110, 8, 25, 20, 20, 8, 75, 35, 8, 80, 20};
    static const uint16_t loss_us[] = {900, 900, 900, 900, 400, 900, 900, 900, 900};
    static const uint16_t backward_us[] = {20,  8,  75, 8,  75, 40, 8,  80, 80, 8, 40, 25, 8, 30,
                                           260, 25, 8,  60, 55, 8,  45, 12, 8,  8, 8,  8,  8, 8};
    static const uint16_t optimizer_us[] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    enum { LAYERS = 12, OPTIMIZER = 100 };
    transformer.rng[tenant - tenants] = 77 + tenant->card;
    for (;; tenant->steps++) {
        for (unsigned layer = 0; layer < LAYERS; layer++)
            gpt2_kernels(tenant, forward_us, sizeof forward_us / sizeof *forward_us);
        gpt2_kernels(tenant, loss_us, sizeof loss_us / sizeof *loss_us);
        for (unsigned layer = 0; layer <= LAYERS; layer++) {
            tenant_follow(tenant, 1);
            tenant_meet(tenant, 1, 0, layer == 0 || layer == LAYERS ? 800 * US : 180 * US);
            tenant_sleep(20 * US);
            if (layer < LAYERS)
                gpt2_kernels(tenant, backward_us, sizeof backward_us / sizeof *backward_us);
        }
        tenant_follow(tenant, 0);
        for (unsigned part = 0; part < OPTIMIZER; part++)
            gpt2_kernels(tenant, optimizer_us, sizeof optimizer_us / sizeof *optimizer_us);
        tenant_synchronise(tenant);
        tenant_sleep(300 * US);
    }
}

#endif
