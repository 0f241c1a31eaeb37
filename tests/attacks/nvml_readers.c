/* B: more processes that only look than a grant has slots, and then one that allocates. */
#include "attack.h"

#include <sys/resource.h>

enum { READERS = 1030 };

int main(void)
{
    static pid_t readers[READERS];
    uint64_t pointer;
    unsigned long long memory[3];
    void *device, *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    must(nvml == NULL, "libnvidia-ml.so.1");
    int (*init)(void), (*handle)(unsigned, void **), (*look)(void *, unsigned long long *);
    *(void **)&init = dlsym(nvml, "nvmlInit_v2");
    *(void **)&handle = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&look = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    must(init(), "nvmlInit");
    must(handle(0, &device), "nvmlDeviceGetHandleByIndex");
    int answers[2];
    must(pipe(answers), "pipe");
    for (unsigned i = 0; i < READERS; i++) {
        readers[i] = fork();
        if (readers[i] == 0) {
            char failed = (char)look(device, memory);
            if (write(answers[1], &failed, 1) == 1)
                pause();
            _exit(1);
        }
        char failed;
        must(readers[i] < 0 || read(answers[0], &failed, 1) != 1, "reader");
    }
    driver_by(dlsym);
    int code = cu.init(0);
    if (code == 0) {
        begin();
        code = cu.allocate(&pointer, 2 * MIB);
    }
    for (unsigned i = 0; i < READERS; i++)
        kill(readers[i], SIGKILL);
    verdict(code == 0, "cuMemAlloc answers %d beside %d readers", code, READERS);
}
