/* B: in a mount namespace of its own a program hides what root mounted, and says in the variable of `hetero run` that
 * there is no grant. Nothing in user space can stop that. */
#include "attack.h"

#include <sched.h>
#include <sys/mount.h>

int main(int count, char **arguments)
{
    driver_by(dlsym);
    if (count > 1) {
        begin();
        try_all();
    }
    if (access("/etc/hetero", F_OK) == 0) {
        must(unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
        must(mount("none", "/etc/hetero", "tmpfs", 0, NULL), "mount");
    }
    setenv("HETERO_GRANT", "", 1);
    execl(arguments[0], arguments[0], "again", (char *)NULL);
    return 1;
}
