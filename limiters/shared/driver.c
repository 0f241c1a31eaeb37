/* The table of the driver's functions (driver.h). */
#include "driver.h"

#include "known.h"

struct symbol driver_rows[ROWS] = {
#define OWN(name_, ...)      [ROW_##name_] = {.name = #name_},
#define OWN_IN(name_, ...)   [ROW_##name_] = {.name = #name_},
#define GATED_IN(name_, ...) [ROW_##name_] = {.name = #name_},
#define USED(name_, ...)     [ROW_##name_] = {.name = #name_},
#include "api.def"
};

struct library driver_library = {.names = {DRIVER_NAMES},
                                 .rows = driver_rows,
                                 .row_count = FIRST_OF_OTHERS,
                                 .has_folder = HAS_FOLDER,
                                 .is_hidden = function_hidden};
