/* The table of NVML's functions (driver.h). */
#include "driver.h"

struct symbol nvml_rows[ROWS] = {
#define OWN(name_, ...) [ROW_##name_] = {.name = #name_},
#define USED(name_)     [ROW_##name_] = {.name = #name_},
#include "api.def"
};

struct library nvml_library = {.names = {"libnvidia-ml.so.1"}, .rows = nvml_rows, .row_count = ROWS};
