/* B: libc's own dlsym, asked of dlsym, leads past the limiter. */
#include "attack.h"

int main(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    lookup found = (lookup)dlsym(libc, "dlsym");
    driver_by(found);
    begin();
    try_all();
}
