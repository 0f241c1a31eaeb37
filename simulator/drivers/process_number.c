/* PIDs of processes in other namespaces, from /proc of the processes that are visible here. */
#include "process_number.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t space_of(const char *process)
{
    char path[sizeof "/proc//ns/pid" + NAME_MAX];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* The PID that a process has in its own namespace: the last one that the kernel lists. */
static pid_t innermost(const char *process)
{
    char path[sizeof "/proc//status" + NAME_MAX], line[256];
    pid_t pid = 0;
    snprintf(path, sizeof path, "/proc/%s/status", process);
    FILE *file = fopen(path, "re");
    while (file && !pid && fgets(line, sizeof line, file))
        if (strncmp(line, "NSpid:", 6) == 0)
            pid = atoi(strrchr(line, '\t') + 1);
    if (file)
        fclose(file);
    return pid;
}

struct process_number process_number_own(void)
{
    return (struct process_number){space_of("self"), getpid()};
}

pid_t process_number_here(struct process_number process)
{
    if (process.space == space_of("self"))
        return process.pid;
    DIR *processes = opendir("/proc");
    pid_t own_pid = 0;
    for (struct dirent *entry; processes && !own_pid && (entry = readdir(processes));) {
        pid_t pid = atoi(entry->d_name);
        if (pid > 0 && space_of(entry->d_name) == process.space && innermost(entry->d_name) == process.pid)
            own_pid = pid;
    }
    if (processes)
        closedir(processes);
    return own_pid;
}
