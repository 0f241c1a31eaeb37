/* Whatever lies in a grant file or a usage region, the core neither crashes nor hangs nor lets anybody have more than
 * was granted.
 *
 * An input is 'G' and the bytes of a grant file, 'R' and a script of what a process and its enemy do to a region, or
 * 'T' and a script of what a tenant writes over its region while it shares a card with a neighbour, in virtual time.
 * Linked with libFuzzer it is a fuzzer; by itself it runs every file it is given and mutations of them, always the
 * same:
 *   fuzz COUNT FILE...
 */
#include "machine/virtual.h"

#include "../../limiters/timeshare/budget.h"
#include "../../limiters/core/ledger.h"
#include "../../limiters/core/tenant.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LIMIT UINT64_C(1000000)
#define MOST  8192u /* bytes of an input */

#include "mutate.h"

static void read_grant(const uint8_t *bytes, size_t size)
{
    struct hetero_grant *grant = calloc(1, sizeof *grant); /* of its size, so that reading past it is seen */
    uint8_t uuids[HETERO_MAX_DEVICES][16];
    memcpy(grant, bytes, size < sizeof *grant ? size : sizeof *grant);
    if (grant_problem(grant, uuids) == NULL) {
        REQUIRE(grant->device_count >= 1 && grant->device_count <= HETERO_MAX_DEVICES);
        for (unsigned device = 0; device < grant->device_count; device++) {
            REQUIRE(terms_core(&grant->devices[device]) >= 1 &&
                    terms_core(&grant->devices[device]) <= HETERO_CORE_FULL);
            REQUIRE(strnlen(grant->devices[device].uuid, 64) < 64);
        }
    }
    free(grant);
}

/* A region of its own in memory, which nobody else has. */
static struct region *fresh_region(void)
{
    static struct region region;
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = (int)memfd_create("region", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        REQUIRE(fd >= 0 && ftruncate(fd, sizeof(struct hetero_region)) == 0 && region_open(&region, path));
    }
    munmap(region.slot_mapping, 1); /* the process before it ends */
    region_forget(&region);
    memset((char *)region.shared + 16, 0, sizeof *region.shared - 16);
    return &region;
}

struct script {
    const uint8_t *cursor, *end;
};

static uint64_t next(struct script *script, unsigned byte_count)
{
    uint64_t value = 0;
    for (; byte_count > 0; byte_count--)
        value = value << 8 | (script->cursor < script->end ? *script->cursor++ : 0);
    return value;
}

/* What an enemy does to a region: write a word, paint over all that follows a place. */
static void write_word(struct hetero_region *shared, uint64_t offset, uint64_t word)
{
    memcpy((char *)shared + offset % (sizeof *shared / 8) * 8, &word, 8);
}

static void paint(struct hetero_region *shared, uint64_t offset, int colour)
{
    memset((char *)shared + offset % sizeof *shared, colour, sizeof *shared - offset % sizeof *shared);
}

static void play(const uint8_t *bytes, size_t size)
{
    struct region *region = fresh_region();
    struct script script = {bytes, bytes + size};
    uint64_t held_bytes[HETERO_MAX_DEVICES] = {0};
    for (unsigned step_count = 0; script.cursor < script.end && step_count < 64; step_count++) {
        unsigned verb = (unsigned)next(&script, 1) % 7, device = (unsigned)next(&script, 1) % HETERO_MAX_DEVICES;
        struct hetero_region_device *account = &region->shared->devices[device];
        uint64_t amount = next(&script, 3);
        switch (verb) {
        case 0:
        case 1:
            if (ledger_reserve(region, device, amount, LIMIT) == LEDGER_GRANTED)
                held_bytes[device] += amount;
            REQUIRE(held_bytes[device] <= LIMIT);
            break;
        case 2:
            if (amount <= held_bytes[device]) {
                ledger_release(region, device, amount);
                held_bytes[device] -= amount;
            }
            break;
        case 3: write_word(region->shared, amount, next(&script, 8)); break;
        case 4: paint(region->shared, amount, (int)next(&script, 1)); break;
        case 5: REQUIRE(ledger_used(region, device) >= held_bytes[device]); break;
        default:
            budget_settle(account, amount, amount * 2, 3000, amount % 1000);
            REQUIRE(budget_balance(account, amount, amount * 3, 3000) <= BUDGET_KEPT_NS);
            REQUIRE(budget_wait(budget_balance(account, amount, amount * 3, 1), 1) < UINT64_C(1) << 62);
        }
        REQUIRE(region->own_bytes[device] == held_bytes[device]);
    }
}

/* A tenant of a tenth and a neighbour of eight tenths, for three seconds. */
static void live(const uint8_t *bytes, size_t size)
{
    enum { TENTH_NS = 100000000, SECONDS_RUN = 3 };
    static struct hetero_region_device neighbours;
    static struct tenant tenant, neighbour;
    struct hetero_region *shared = fresh_region()->shared;
    struct script script = {bytes, bytes + size};
    tenant = neighbour = (struct tenant){.kernel_ns = 2000000, .host_ns = 20000, .in_flight = 2};
    tenant.terms = (struct hetero_grant_device){.core = 1000};
    tenant.account = &shared->devices[0];
    neighbour.terms = (struct hetero_grant_device){.core = 8000};
    neighbour.account = &neighbours;
    neighbours = (struct hetero_region_device){0};
    machine_begin(1);
    tenant_start(&tenant);
    tenant_start(&neighbour);
    uint64_t end_ns = machine_now() + SECONDS_RUN * 10ULL * TENTH_NS;
    while (script.cursor < script.end && machine_now() < end_ns) {
        unsigned verb = (unsigned)next(&script, 1) % 4;
        if (verb == 0)
            write_word(shared, next(&script, 3), next(&script, 8));
        else if (verb == 1)
            paint(shared, next(&script, 3), (int)next(&script, 1));
        else if (verb == 2) /* into the account */
            write_word(shared, 16 + next(&script, 1) % 8, next(&script, 8));
        else
            REQUIRE(machine_run(next(&script, 1) * (TENTH_NS / 100)));
    }
    REQUIRE(machine_now() >= end_ns || machine_run(end_ns - machine_now()));
    uint64_t served_ns = 0, neighbour_served_ns = 0;
    for (unsigned second = 1; second <= SECONDS_RUN; second++) {
        served_ns += tenant.busy_ns[second];
        neighbour_served_ns += neighbour.busy_ns[second];
    }
    /* Never more than a second ahead of its share, and that second is all that a neighbour can lose; and what is in
     * flight at the end, and a time slice. */
    REQUIRE(served_ns <= SECONDS_RUN * TENTH_NS + BUDGET_ARREARS_NS + TENTH_NS / 2);
    REQUIRE(neighbour_served_ns + BUDGET_ARREARS_NS + TENTH_NS / 2 >= SECONDS_RUN * 8ULL * TENTH_NS);
    machine_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size > 0 && bytes[0] == 'G')
        read_grant(bytes + 1, size - 1);
    else if (size > 0 && bytes[0] == 'R')
        play(bytes + 1, size - 1);
    else if (size > 0 && bytes[0] == 'T')
        live(bytes + 1, size - 1);
    return 0;
}
