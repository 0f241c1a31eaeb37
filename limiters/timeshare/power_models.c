/* The table of card models (power_models.h). Each row says what it was fitted by, and when. */
#include "power_models.h"

#include <stddef.h>
#include <string.h>

const struct power_model power_model_neutral = {.device = ""};

static const struct power_model models[] = {
    /* Fitted by hand on two cards, 2026-11-21, driver 580.159.04, with `hetero bench isolation` (docs/notes/limiter.md
     * names no options): gemm at 10, 20, 30, 45, 60, 75 and 90 with its mean power (version 1), and at 30, 60 and 90
     * with a log of each time slice (version 9). Versions 2 to 12 tell the rest. Idle: between time slices it drew 0.17
     * to 0.185 of its limit. Held: 679 to 690 W of 700. Samples: 20 ms apart, 1 - exp(-1 ms / 12.5 ms). Slowdown:
     * 8192^3 bf16 products had 1.23 and 1.47 of the power there was and ran 1.080 and 1.183 times as fast in time
     * slices as alone; 2048^3 ones on four streams and 16384^3 ones agree to two points. Power grows with the 2.7th
     * power of the clock. Copies are not slowed down by the clock, one warp's arithmetic by its 1.5th power. Switching:
     * four processes made 1872 kernels a second where one made 2004. */
    {
        .device = "NVIDIA H200",
        .idle_least = 170,
        .idle_most = 185,
        .held = 0.98,
        .period_ms = 20,
        .forgotten = 0.0769,
        .memory_ms = 100,
        .late_step_ms = 2,
        .slowdown = {0.317, 0.148},
        .at_limit = 3,
        .unknown = 4,
        .least = 12,
        .switching = 14,
    },
    /* benchmarks/power.py, 2026-11-22, driver 580.159.04: the meter to 7 W, the slowdown to 0.009 (root mean square) at
     * 16 points from 1.09 to 1.51 of the power there is. The same command on an H200 that day finds 1.054 and 1.175
     * for 1.13 and 1.47. Held is by hand: the command's three seconds say 1.00 and a meter says 0.992 over 90 s of
     * products, but with 1.00 `hetero bench isolation` gave gemm 61.4 of 60, and with 0.98 60.5. */
    {
        .device = "NVIDIA H100 80GB HBM3",
        .idle_least = 169,
        .idle_most = 185,
        .held = 0.98,
        .period_ms = 20,
        .forgotten = 0.0748,
        .memory_ms = 110,
        .late_step_ms = 2,
        .slowdown = {0.250, 0.112},
        .at_limit = 2,
        .unknown = 3,
        .least = 9,
        .switching = 18,
    },
};

const struct power_model *power_model_of(const char *device)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].device, device) == 0)
            return &models[i];
    return &power_model_neutral;
}
