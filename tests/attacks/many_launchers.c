/* Long kernels by 64 threads at once: how many start in the time that the share pays for. */
#include "attack.h"

#define THREADS   64
#define KERNEL_MS 100
#define SECONDS   4

static atomic_uint started;
static pthread_barrier_t all;

static void *launch(void *unused)
{
    void *stream;
    int (*create)(void **, unsigned);
    *(void **)&create = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamCreate");
    must(cu.set(cu.context), "cuCtxSetCurrent");
    must(create(&stream, 1), "cuStreamCreate");
    pthread_barrier_wait(&all);
    for (;;) {
        must(fill_the_card(stream, KERNEL_MS * 1000000), "cuLaunchKernel");
        atomic_fetch_add(&started, 1);
    }
    return unused;
}

int main(void)
{
    pthread_t threads[THREADS];
    double core = (double)attack_number("ATTACK_CORE");
    driver_by(dlsym);
    begin();
    must(pthread_barrier_init(&all, NULL, THREADS + 1), "pthread_barrier_init");
    for (unsigned i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, launch, NULL), "pthread_create");
    pthread_barrier_wait(&all);
    uint64_t since = now_ns();
    usleep(SECONDS * 1000000);
    double most = core / 100 * (double)(now_ns() - since) / 1e6 / KERNEL_MS + 2;
    unsigned count = atomic_load(&started);
    verdict(count <= most, "%u kernels of %u ms started in %u s, of %.0f", count, KERNEL_MS, SECONDS, most);
}
