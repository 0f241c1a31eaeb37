/* Floods of calls that pass no gate, a thread for each kind: words that streams write, batches of them, waits for
 * events, events, functions on the host, maps of memory, allocations, and memory of the host that is registered. */
#include "memory.h"

#define QUEUED      64 /* of a stream, before it is waited for */
#define WRITE_VALUE 2  /* CU_STREAM_MEM_OP_WRITE_VALUE_32 of cuda.h */

static CUdeviceptr word;
static CUevent event;
static char page[1 << 16] __attribute__((aligned(1 << 16)));

static CUresult write_word(CUstream stream)
{
    return CU(cuStreamWriteValue32_v2)(stream, word, 1, 0);
}

/* Each of the union of cuda.h is six words: what it does, the address, the value. */
static CUresult write_words(CUstream stream)
{
    uint64_t writes[4][6] = {{0}};
    for (unsigned write = 0; write < 4; write++) {
        writes[write][0] = WRITE_VALUE;
        writes[write][1] = word;
        writes[write][2] = 1;
    }
    return CU(cuStreamBatchMemOp_v2)(stream, 4, (CUstreamBatchMemOpParams *)writes, 0);
}

static CUresult wait_for_event(CUstream stream)
{
    return CU(cuStreamWaitEvent)(stream, event, 0);
}

static CUresult record_event(CUstream stream)
{
    return CU(cuEventRecord)(event, stream);
}

static void nothing(void *argument)
{
    (void)argument;
}

static CUresult call_host(CUstream stream)
{
    return CU(cuLaunchHostFunc)(stream, nothing, NULL);
}

static CUresult map_block(CUstream stream)
{
    CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle block;
    CUdeviceptr at;
    (void)stream;
    CUresult answer = CU(cuMemAddressReserve)(&at, 2 * MIB, 0, 0, 0);
    if (answer != CUDA_SUCCESS)
        return answer;
    answer = CU(cuMemCreate)(&block, 2 * MIB, &of, 0);
    if (answer == CUDA_SUCCESS) {
        if (CU(cuMemMap)(at, 2 * MIB, 0, block, 0) == CUDA_SUCCESS)
            CU(cuMemUnmap)(at, 2 * MIB);
        CU(cuMemRelease)(block);
    }
    CU(cuMemAddressFree)(at, 2 * MIB);
    return answer;
}

static CUresult allocate(CUstream stream)
{
    uint64_t pointer;
    (void)stream;
    return cu.allocate(&pointer, MIB) == 0 ? (CUresult)cu.release(pointer) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult register_host(CUstream stream)
{
    (void)stream;
    CUresult answer = CU(cuMemHostRegister_v2)(page, sizeof page, 0);
    return answer == CUDA_SUCCESS ? CU(cuMemHostUnregister)(page) : answer;
}

static CUresult (*const KINDS[])(CUstream) = {write_word, write_words, wait_for_event, record_event,
                                              call_host,  map_block,   allocate,       register_host};

static void *flood(void *kind)
{
    CUresult (*call)(CUstream) = *(CUresult(*const *)(CUstream))kind;
    CUstream stream;
    must(cu.set(cu.context), "cuCtxSetCurrent");
    must((int)CU(cuStreamCreate)(&stream, 1), "cuStreamCreate");
    for (unsigned calls = 0;; calls++) {
        call(stream);
        if (calls % QUEUED == 0)
            CU(cuStreamSynchronize)(stream);
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    open_card();
    must(cu.allocate((uint64_t *)&word, MIB), "cuMemAlloc");
    must((int)CU(cuEventCreate)(&event, 2), "cuEventCreate");
    for (unsigned kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++)
        must((int)KINDS[kind](NULL), "a call of a flood");
    for (unsigned kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++)
        must(pthread_create(&thread, NULL, flood, (void *)&KINDS[kind]), "pthread_create");
    for (;;)
        pause();
}
