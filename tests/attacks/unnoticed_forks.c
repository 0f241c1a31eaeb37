/* B, C5: children that libc does not tell of, each with all of the grant's memory. */
#include "attack.h"

#include <sched.h>
#include <sys/syscall.h>

extern pid_t _Fork(void) __attribute__((weak));

static pid_t child(unsigned number)
{
    if (number % 2 == 1 && _Fork != NULL)
        return _Fork();
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

int main(void)
{
    uint64_t limit = attack_number("ATTACK_MEMORY"), held;
    int answers[2], go[2];
    driver_by(dlsym);
    begin();
    must(cu.allocate(&held, 2 * MIB), "cuMemAlloc"); /* the slot is taken */
    must(pipe(answers) + pipe(go), "pipe");
    pid_t children[5];
    unsigned all = 2;
    for (unsigned i = 0; i < 5; i++) {
        children[i] = child(i);
        if (children[i] == 0) {
            uint64_t pointer;
            unsigned char mib = (unsigned char)(cu.allocate(&pointer, limit - 2 * MIB) == 0 ? limit / MIB - 2 : 0);
            if (write(answers[1], &mib, 1) == 1 && read(go[0], &mib, 1) == 1)
                _exit(0);
            _exit(1);
        }
        unsigned char mib;
        must(read(answers[0], &mib, 1) != 1, "child");
        all += mib;
    }
    for (unsigned i = 0; i < 5; i++)
        kill(children[i], SIGKILL);
    verdict(all <= limit / MIB, "%u of %u MiB by 6 processes at once", all, (unsigned)(limit / MIB));
}
