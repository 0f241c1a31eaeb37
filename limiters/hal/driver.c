/* The table of the functions of libascend_hal.so (driver.h). */
#include "driver.h"

struct symbol hal_rows[ROWS] = {
#define OWN(name_, ...) [ROW_##name_] = {.name = #name_},
#include "api.def"
};

struct library hal_library = {.names = {"libascend_hal.so"}, .rows = hal_rows, .row_count = ROWS};
