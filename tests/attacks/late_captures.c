/* Work in the legacy stream, behind which another stream that blocks is captured: no fence can be set there any more.
 */
#include "memory.h"

enum { KERNEL_MS = 30, SECONDS = 2 };

static atomic_bool over;

static void capture_for(CUstream stream, unsigned us)
{
    CUgraph graph;
    if (CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS)
        return;
    usleep(us);
    if (CU(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS)
        CU(cuGraphDestroy)(graph);
}

static void *capture_often(void *stream)
{
    must(cu.set(cu.context), "cuCtxSetCurrent");
    while (!over) {
        capture_for(stream, 1000);
        usleep(100);
    }
    return NULL;
}

/* What the kernels get that are launched while no capture is going: percent. */
static double share_beside(CUstream captured)
{
    uint64_t since = now_ns();
    unsigned done = 0;
    while (now_ns() - since < SECONDS * UINT64_C(1000000000)) {
        done += spin(KERNEL_MS * 1000000) == 0;
        if (captured != NULL)
            capture_for(captured, KERNEL_MS * 1000);
        while (cu.synchronize() != 0) /* refused beside a capture */
            usleep(100);
    }
    return 100e6 * KERNEL_MS * done / (double)(now_ns() - since);
}

int main(void)
{
    pthread_t thread;
    CUstream stream;
    double core = (double)attack_number("ATTACK_CORE");
    open_card();
    must((int)CU(cuStreamCreate)(&stream, CU_STREAM_DEFAULT), "cuStreamCreate");
    double behind = share_beside(stream);
    must(pthread_create(&thread, NULL, capture_often, stream), "pthread_create");
    double beside = share_beside(NULL);
    over = true;
    pthread_join(thread, NULL);
    verdict(behind <= core + 8 && beside <= core + 8, "%.0f %% behind, %.0f %% beside captures, of %.0f", behind,
            beside, core);
}
