/* C6: memory is freed while a sibling is stopped inside the region's lock; when that goes on, it has to be there again.
 */
#include "attack.h"

int main(void)
{
    char path[4200];
    uint64_t limit = attack_number("ATTACK_MEMORY"), pointer, small;
    int answers[2];
    must(pipe(answers), "pipe");
    driver_by(dlsym);
    pid_t sibling = fork();
    if (sibling == 0) {
        begin();
        must(cu.allocate(&small, 2 * MIB), "cuMemAlloc"); /* it has the slot 0 */
        if (write(answers[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    char done;
    must(read(answers[0], &done, 1) != 1, "sibling");
    begin();
    must(cu.allocate(&pointer, limit - 4 * MIB), "cuMemAlloc");
    snprintf(path, sizeof path, "%s/usage", grant_directory());
    int file = open(path, O_RDWR | O_CLOEXEC);
    volatile uint32_t *region = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(region == MAP_FAILED, path);
    region[4] = 1; /* the lock's word: the slot 0 holds it (limiters/core/region.h) */
    must(cu.release(pointer), "cuMemFree");
    region[4] = 0; /* it goes on */
    int code = cu.allocate(&pointer, limit - 4 * MIB);
    kill(sibling, SIGKILL);
    verdict(code == 0, "cuMemAlloc of what was freed answers %d", code);
}
