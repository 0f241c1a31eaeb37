/* B: and by its version. */
#include "attack.h"

int main(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17"};
    lookup found = NULL;
    for (unsigned i = 0; i < 3 && found == NULL; i++)
        found = (lookup)dlvsym(libc, "dlsym", versions[i]);
    driver_by(found);
    begin();
    try_all();
}
