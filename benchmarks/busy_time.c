/* Compares ways to tell for how long a card works for a program that leaves it idle between its kernels.
 *
 *     cc -O2 -o /tmp/busy_time benchmarks/busy_time.c -ldl -pthread
 *     /tmp/busy_time KERNEL_US EVERY_US [SECONDS [beside]]
 *     /tmp/busy_time stamps
 *
 * A kernel of one thread, which spins for KERNEL_US, is launched each EVERY_US. "64 in a row" is the rate times the
 * length of a kernel of 64 behind a held stream, by events. Beside: a second process of kernels of 1 ms, one after the
 * other. Stamps: how long holds of so many kernels of some lengths take, with one event behind all of them and with one
 * behind each, so that what lies between can be fitted.
 */
#include "../tests/attacks/attack.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define RING          64
#define HELD_EVERY_NS 20000000u
#define HELD_MOST_NS  1000000u
#define HELD_KERNELS  16u

typedef void *stream_t;
typedef void *event_t;

static struct {
    int (*create)(event_t *, unsigned), (*record)(event_t, stream_t), (*query)(event_t), (*wait)(event_t);
    int (*elapsed)(float *, event_t, event_t), (*new_stream)(stream_t *, unsigned), (*drain)(stream_t);
    int (*hold)(stream_t, uint64_t, uint32_t, unsigned);
    int (*host)(void **, size_t, unsigned), (*address)(uint64_t *, void *, unsigned);
    int (*init)(void), (*card)(unsigned, void **), (*use)(void *, unsigned *);
} api;

static stream_t stream;
static event_t begun, ended, ring[RING];
static volatile uint32_t *word; /* what a held stream waits for */
static uint64_t word_address;
static uint32_t holds;
static atomic_uint newest; /* of the ring, from 1 */
static atomic_bool over;
static unsigned looks, not_passed;
static double empty_us; /* two events with nothing between them */

static void find(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *management = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    *(void **)&api.create = dlsym(driver, "cuEventCreate");
    *(void **)&api.record = dlsym(driver, "cuEventRecord");
    *(void **)&api.query = dlsym(driver, "cuEventQuery");
    *(void **)&api.wait = dlsym(driver, "cuEventSynchronize");
    *(void **)&api.elapsed = dlsym(driver, "cuEventElapsedTime");
    *(void **)&api.new_stream = dlsym(driver, "cuStreamCreate");
    *(void **)&api.drain = dlsym(driver, "cuStreamSynchronize");
    *(void **)&api.hold = dlsym(driver, "cuStreamWaitValue32_v2");
    *(void **)&api.host = dlsym(driver, "cuMemHostAlloc");
    *(void **)&api.address = dlsym(driver, "cuMemHostGetDevicePointer_v2");
    *(void **)&api.init = dlsym(management, "nvmlInit_v2");
    *(void **)&api.card = dlsym(management, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&api.use = dlsym(management, "nvmlDeviceGetUtilizationRates");
}

static void launch(unsigned ns)
{
    void *parameters[] = {&ns};
    must(cu.launch(cu.kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
}

static void hold(void)
{
    must(api.hold(stream, word_address, ++holds, 0), "cuStreamWaitValue32");
    api.record(begun, stream);
}

/* Let a held stream go on; the microseconds that what was launched meanwhile took. */
static double let_go(void)
{
    float ms = 0;
    api.record(ended, stream);
    *word = holds;
    must(api.wait(ended), "cuEventSynchronize");
    api.elapsed(&ms, begun, ended);
    return ms * 1000 - empty_us;
}

/* The mean of some holds of so many kernels. */
static double length_us(unsigned ns, unsigned kernels)
{
    double sum = 0;
    for (unsigned i = 0; i < 20; i++) {
        hold();
        for (unsigned k = 0; k < kernels; k++)
            launch(ns);
        sum += let_go() / 20;
    }
    return sum;
}

/* The same with an event behind each. */
static double stamped_us(unsigned ns, unsigned kernels)
{
    double sum = 0;
    for (unsigned i = 0; i < 20; i++) {
        hold();
        for (unsigned k = 0; k < kernels; k++) {
            launch(ns);
            if (k + 1 < kernels)
                api.record(ended, stream);
        }
        sum += let_go() / 20;
    }
    return sum;
}

static void begin_card(void);

static int print_stamps(void)
{
    static const unsigned lengths_ns[] = {2000, 5000, 20000}, kernels[] = {1, 4, 16, 64};
    begin_card();
    printf("an event behind another: %.2f us\n", length_us(0, 0));
    for (unsigned l = 0; l < sizeof lengths_ns / sizeof *lengths_ns; l++) {
        double many_us = length_us(lengths_ns[l], 1000) / 1000;
        printf("kernels of %u us, %.2f each of 1000 in a row:", lengths_ns[l] / 1000, many_us);
        for (unsigned k = 0; k < sizeof kernels / sizeof *kernels; k++)
            printf(" %u: %.2f each, %.2f with stamps;", kernels[k], length_us(lengths_ns[l], kernels[k]) / kernels[k],
                   stamped_us(lengths_ns[l], kernels[k]) / kernels[k]);
        printf("\n");
    }
    fflush(stdout);
    _exit(0);
}

static void *look(void *none)
{
    for (unsigned seed = 1; !over; usleep(150 + (unsigned)rand_r(&seed) % 400))
        if (newest > 0) {
            looks++;
            not_passed += api.query(ring[(newest - 1) % RING]) != 0;
        }
    return none;
}

static void begin_card(void)
{
    void *memory;
    driver_by(dlsym);
    begin();
    find();
    must(api.new_stream(&stream, 1), "cuStreamCreate");
    for (unsigned i = 0; i < RING; i++)
        api.create(&ring[i], 2);
    api.create(&begun, 0);
    api.create(&ended, 0);
    must(api.host(&memory, 4096, 3), "cuMemHostAlloc");
    must(api.address(&word_address, memory, 0), "cuMemHostGetDevicePointer");
    word = memory;
    *word = 0;
}

/* One kernel after the other, in a process of its own. */
static pid_t neighbour(void)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    begin_card();
    for (;;) {
        launch(1000000);
        api.drain(stream);
    }
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "stamps") == 0)
        return print_stamps();
    if (count < 3)
        return fprintf(stderr, "busy_time KERNEL_US EVERY_US [SECONDS [beside]]\n"), 2;
    pid_t other = count > 4 ? neighbour() : 0;
    unsigned ns = (unsigned)(1000 * atof(words[1])), every_ns = (unsigned)(1000 * atof(words[2]));
    uint64_t length = (uint64_t)(1e9 * (count > 3 ? atof(words[3]) : 2));
    begin_card();
    empty_us = length_us(ns, 0);
    double kernel_us = length_us(ns, 64) / 64, held_us = 0;
    unsigned launched = 0, held = 0, in_holds = 0, utilization[2] = {0};
    uint64_t since = now_ns(), next = since, held_since = 0, held_last = since, in_hold_ns = 0;
    pthread_t looker;
    must(pthread_create(&looker, NULL, look, NULL), "pthread_create");
    for (; now_ns() - since < length; launched++) {
        if (held_since == 0 && now_ns() - held_last > HELD_EVERY_NS) {
            hold();
            held_since = now_ns();
        }
        launch(ns);
        if (held_since == 0) {
            api.record(ring[newest % RING], stream);
            newest++;
        }
        if (held_since != 0 && (++held == HELD_KERNELS || now_ns() - held_since > HELD_MOST_NS)) {
            in_hold_ns += now_ns() - held_since;
            held_us += let_go();
            in_holds += held;
            held_last = now_ns();
            held_since = held = 0;
        }
        next = now_ns() > next + 1000000 ? now_ns() : next + every_ns;
        while (now_ns() < next)
            ;
    }
    double rate = launched / ((double)(now_ns() - since) / 1e6); /* a millisecond */
    void *card;
    if (api.init() == 0 && api.card(0, &card) == 0)
        api.use(card, utilization);
    over = true;
    pthread_join(looker, NULL);
    printf(
        "%g us each %g: 64 in a row %.1f %%; held %.1f %% (held %.2f %% of the time); looks %.1f %%; driver's figure %u %%\n",
        ns / 1e3, every_ns / 1e3, kernel_us * rate / 10, in_holds ? held_us / in_holds * rate / 10 : 0,
        100. * (double)in_hold_ns / (double)length, 100. * not_passed / looks, utilization[0]);
    fflush(stdout);
    if (other > 0)
        kill(other, 9);
    _exit(0);
}
