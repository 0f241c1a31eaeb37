/* Has the limiter's threads sleep late, behind an open gate. It runs beside an honest program, which is to have its
 * share all the same. */
#include "attack.h"

#include <dirent.h>

/* Sleeps of all threads of this process but the one that asks end up to so many nanoseconds late. */
static void sleep_late(const char *ns)
{
    DIR *tasks = opendir("/proc/self/task");
    must(tasks == NULL, "/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[64];
        pid_t thread = atoi(task->d_name);
        snprintf(path, sizeof path, "/proc/%d/timerslack_ns", thread);
        int file = thread <= 0 || thread == gettid() ? -1 : open(path, O_WRONLY);
        if (file < 0)
            continue;
        must(write(file, ns, strlen(ns)) < 0, path);
        close(file);
    }
    closedir(tasks);
}

int main(void)
{
    driver_by(dlsym);
    begin();
    share_in(0.3, 2);
    sleep_late("200000000");
    for (;;)
        share_in(1, 2);
}
