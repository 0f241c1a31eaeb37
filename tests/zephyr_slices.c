/* The slices of libzephyr.so, for the guide's example: a card in eighths, kept in the file $ZEPHYR_SLICES. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, FULL = 4, NO_SLICE = 3 };
static struct slice { char name[32]; unsigned eighths, card; } all[MOST]; /* no eighths: none */

static void load(void)
{
    int file = open(getenv("ZEPHYR_SLICES"), O_RDONLY | O_CLOEXEC);
    memset(all, 0, sizeof(all));
    if (file >= 0 && read(file, all, sizeof(all)) < 0)
        abort();
    close(file);
}

static int save(void)
{
    int file = open(getenv("ZEPHYR_SLICES"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    int written = write(file, all, sizeof(all)) == sizeof(all);
    close(file);
    return written ? 0 : FULL;
}

int zephyr_make(unsigned card, const char *name, unsigned eighths)
{
    struct slice *unused = 0;
    load();
    unsigned used = eighths;
    for (int i = 0; i < MOST; i++) {
        used += all[i].card == card ? all[i].eighths : 0;
        unused = all[i].eighths ? unused : &all[i];
    }
    if (used > 8 || !unused || strlen(name) >= sizeof(unused->name))
        return FULL;
    *unused = (struct slice){.card = card, .eighths = eighths};
    strcpy(unused->name, name);
    return save();
}

int zephyr_destroy(unsigned card, const char *name)
{
    load();
    for (int i = 0; i < MOST; i++)
        if (all[i].eighths && all[i].card == card && !strcmp(all[i].name, name)) {
            all[i].eighths = 0;
            return save();
        }
    return NO_SLICE;
}

int zephyr_slice_count(unsigned card, unsigned *count)
{
    load();
    *count = 0;
    for (int i = 0; i < MOST; i++)
        *count += all[i].eighths && all[i].card == card;
    return 0;
}

int zephyr_slice(unsigned card, unsigned number, void *slice)
{
    load();
    for (int i = 0; i < MOST; i++)
        if (all[i].eighths && all[i].card == card && number-- == 0) {
            memcpy(slice, &all[i], sizeof(all[i].name) + sizeof(all[i].eighths));
            return 0;
        }
    return NO_SLICE;
}
