/* Long kernels whose fences are named: the limiter's events are sought in this process's memory, as pairs of a handle
 * and the context, and are destroyed, or recorded anew in an idle stream. Nothing of the limiter's is written. */
#include "attack.h"

#define KERNEL_NS 100000000u
#define SECONDS   6.0
#define MOST      4096u

static int (*destroy_event)(void *), (*record_event)(void *, void *), (*query_stream)(void *);
static int (*make_stream)(void **, unsigned);
static unsigned named, answered;

/* Whether a word may be a handle of the driver's. */
static bool is_handle(uintptr_t word)
{
    return word > 0x10000 && word < 0x7fffffffffff && word % 8 == 0 && word != (uintptr_t)cu.context;
}

static unsigned search(const uintptr_t *from, const uintptr_t *to, void *events[MOST])
{
    unsigned count = 0;
    for (const uintptr_t *at = from; at + 1 < to && count < MOST; at++)
        if (at[1] == (uintptr_t)cu.context && is_handle(at[0]))
            events[count++] = (void *)at[0];
    return count;
}

/* What may be events in the heap. */
static unsigned find_events(void *events[MOST])
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned count = 0;
    while (maps != NULL && count == 0 && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t from, to;
        if (strstr(line, "[heap]") != NULL && sscanf(line, "%lx-%lx", &from, &to) == 2)
            count = search((const uintptr_t *)from, (const uintptr_t *)to, events);
    }
    if (maps != NULL)
        fclose(maps);
    return count;
}

static void name_them(bool destroys, void *idle)
{
    static void *events[MOST];
    unsigned count = find_events(events);
    for (unsigned event = 0; event < count; event++) {
        named++;
        answered += (destroys ? destroy_event(events[event]) : record_event(events[event], idle)) == 0;
    }
}

/* The share of such kernels, one after the other, in percent of the time. */
static double share_with(bool destroys, void *idle)
{
    uint64_t since = now_ns(), now = since;
    unsigned done = 0;
    for (; (double)(now - since) < SECONDS / 2 * 1e9; now = now_ns(), done++) {
        must(fill_the_card(NULL, KERNEL_NS), "cuLaunchKernel");
        while (query_stream(NULL) != 0) {
            name_them(destroys, idle);
            usleep(1000);
        }
    }
    return 100.0 * KERNEL_NS * done / (double)(now - since);
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *idle;
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    driver_by((lookup)dlsym);
    *(void **)&destroy_event = dlsym(driver, "cuEventDestroy_v2");
    *(void **)&record_event = dlsym(driver, "cuEventRecord");
    *(void **)&query_stream = dlsym(driver, "cuStreamQuery");
    *(void **)&make_stream = dlsym(driver, "cuStreamCreate");
    begin();
    must(make_stream(&idle, 1), "cuStreamCreate");
    double recorded = share_with(false, idle), destroyed = share_with(true, idle);
    double most = recorded > destroyed ? recorded : destroyed;
    /* One kernel more or less in three seconds is three points, and the first is there at once. */
    verdict(most <= core + 8 && answered == 0,
            "%.1f %% recorded anew, %.1f destroyed, of %u; %u handles named, %u answered", recorded, destroyed, core,
            named, answered);
}
