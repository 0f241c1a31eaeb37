/* The table of the HSA runtime's functions (driver.h). */
#include "driver.h"

struct symbol hsa_rows[ROWS] = {
#define OWN(name_, ...)  [ROW_##name_] = {.name = #name_},
#define USED(name_, ...) [ROW_##name_] = {.name = #name_},
#include "api.def"
};

struct library hsa_library = {.names = {"libhsa-runtime64.so.1"}, .rows = hsa_rows, .row_count = ROWS};
