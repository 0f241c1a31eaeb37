/* B, C4, C7: siblings that each take all of the memory and then close what the limiter has open. */
#include "attack.h"

int main(void)
{
    uint64_t limit = attack_number("ATTACK_MEMORY");
    unsigned all = 0, count = 0;
    pid_t children[6];
    driver_by(dlsym);
    for (unsigned i = 0; i < 6; i++) {
        int answers[2];
        must(pipe(answers), "pipe");
        children[i] = fork();
        if (children[i] == 0) {
            int files[64];
            uint64_t pointer;
            begin();
            unsigned char mib = (unsigned char)(cu.allocate(&pointer, limit - 4 * MIB) == 0 ? limit / MIB - 4 : 0);
            for (unsigned f = limiters_files(files); f > 0; f--, count++)
                close(files[f - 1]);
            if (write(answers[1], &mib, 1) == 1)
                pause();
            _exit(1);
        }
        unsigned char mib;
        must(read(answers[0], &mib, 1) != 1, "child");
        all += mib;
    }
    for (unsigned i = 0; i < 6; i++)
        kill(children[i], SIGKILL);
    verdict(all <= limit / MIB, "%u of %u MiB by 6 processes at once", all, (unsigned)(limit / MIB));
}
