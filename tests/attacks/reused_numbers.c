/* C4: a program closes all that it does not know, as daemons do, has files of its own under the numbers, and forks:
 * they stay its own, no lock is set on them, and its limit is held. */
#include "attack.h"

static bool whole(const int *files, unsigned count)
{
    struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (unsigned i = 0; i < count; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", files[i]);
        int again = open(path, O_RDWR | O_CLOEXEC); /* a description of its own sees the locks of others */
        any.l_type = F_WRLCK;
        if (again < 0 || fcntl(again, F_OFD_GETLK, &any) != 0 || any.l_type != F_UNLCK)
            return false;
        close(again);
    }
    return true;
}

int main(void)
{
    int files[64];
    driver_by(dlsym);
    begin();
    must(spin(1000), "cuLaunchKernel");
    must(cu.synchronize(), "cuCtxSynchronize");
    unsigned count = limiters_files(files);
    FILE *own = tmpfile();
    for (unsigned i = 0; i < count; i++)
        must(dup2(fileno(own), files[i]) != files[i], "dup2");
    double share = share_in(1, 2);
    bool ours = whole(files, count);
    pid_t child = fork();
    if (child == 0)
        _exit(whole(files, count) ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    unsigned core = (unsigned)attack_number("ATTACK_CORE");
    verdict(ours && status == 0 && share <= core + 8, "its files %s, its child's %s, %.0f %% of the device of %u",
            ours ? "whole" : "locked", status == 0 ? "whole" : "closed", share, core);
}
