/* The table of the functions of libruntime: the second part of that of all (types.h). */
#include "../shared/driver.h"

/* In CANN 9 acl's functions are in libruntime, or in libraries of their own, with Impl at the end of their names. */
struct library runtime_library = {.names = {"libruntime.so", "libacl_rt_impl.so", "libascendcl_impl.so"},
                                  .rows = driver_rows + FIRST_OF_OTHERS,
                                  .row_count = ROWS - FIRST_OF_OTHERS};
