/* Grants of one device as the node writes them, in real files, for real processes. */
#ifndef HETERO_TESTS_GRANTS_H
#define HETERO_TESTS_GRANTS_H

#include "../../../limiters/core/region.h"
#include "../../../limiters/timeshare/pages.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char grants_root[] = "/tmp/hetero-grants-XXXXXX";
static pid_t grants_owner;

static inline void grants_remove(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", grants_root);
    if (getpid() == grants_owner && system(command) != 0)
        _exit(1);
}

static inline void grants_expect(bool truth, const char *what)
{
    if (!truth) {
        printf("%s: %s\n", grants_root, what);
        exit(1);
    }
}

static inline void grants_write(const char *path, const void *bytes, size_t size, size_t whole)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    grants_expect(file >= 0 && pwrite(file, bytes, size, 0) == (ssize_t)size && ftruncate(file, (off_t)whole) == 0,
                  path);
    close(file);
}

/* The directory of grant `number`, made on first use, with a row on the device's board. */
static inline const char *grant_directory(unsigned number, uint32_t core, uint32_t priority)
{
    static char directories[8][64];
    static struct hetero_board board = {.magic = HETERO_BOARD_MAGIC, .version = HETERO_BOARD_VERSION};
    char path[128], page[128];
    char *grant_dir = directories[number];
    if (grants_owner == 0) {
        grants_expect(mkdtemp(grants_root) != NULL, "mkdtemp");
        grants_owner = getpid();
        atexit(grants_remove);
        snprintf(path, sizeof path, "%s/device", grants_root);
        grants_expect(mkdir(path, 0755) == 0, "mkdir");
    }
    if (*grant_dir != '\0')
        return grant_dir;
    snprintf(grant_dir, sizeof directories[0], "%s/%u", grants_root, number);
    grants_expect(mkdir(grant_dir, 0700) == 0, "mkdir");
    struct hetero_page empty = {.magic = HETERO_PAGE_MAGIC, .version = HETERO_BOARD_VERSION};
    snprintf(page, sizeof page, "%s/device/%u", grants_root, number);
    grants_write(page, &empty, sizeof empty, HETERO_PAGE_BYTES);
    struct stat found;
    grants_expect(stat(page, &found) == 0, "stat");
    struct hetero_board_row *row = &board.rows[board.row_count];
    snprintf(row->id, sizeof row->id, "%u", number);
    row->inode = found.st_ino;
    row->core = core;
    row->priority = priority;
    board.row_count++;
    board.generation += 2;
    snprintf(path, sizeof path, "%s/device/board", grants_root);
    grants_write(path, &board, sizeof board, sizeof board);
    snprintf(path, sizeof path, "%s/page.0", grant_dir);
    grants_expect(link(page, path) == 0, "link");
    snprintf(path, sizeof path, "%s/board.0", grant_dir);
    grants_expect(symlink("../device", path) == 0, "symlink");
    snprintf(path, sizeof path, "%s/usage", grant_dir);
    grants_write(path, "", 0, sizeof(struct hetero_region));
    return grant_dir;
}

#endif
