/* The entry points: one exported function for every line of api.def, of two libraries. */
#include "../shared/bodies.h"
#include "../shared/stubs.h"
#define USED(name, ...)
#define NOTED(name) EXPORT void name(void); /* jumps.c */
/* A stub hides the program's first argument behind a copy of its own, with the same name, from the body. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "api.def"
#pragma GCC diagnostic pop

static void *const answers[ROWS] = {
#define OWN(name, ...)      [ROW_##name] = (void *)name,
#define OWN_IN(name, ...)   [ROW_##name] = (void *)name,
#define GATED_IN(name, ...) [ROW_##name] = (void *)name,
#define NOTED(name)         [ROW_##name] = (void *)name,
#define USED(name, ...)
#include "api.def"
};

SYMBOLS(driver, &driver_library, answers);
SYMBOLS(runtime, &runtime_library, answers + FIRST_OF_OTHERS);
