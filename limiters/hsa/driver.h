/* The HSA runtime's own functions, as the limiter calls them. */
#ifndef HETERO_HSA_DRIVER_H
#define HETERO_HSA_DRIVER_H

#include "abi.h"

#include "../core/symbols.h"

enum {
#define OWN(name, ...)  ROW_##name,
#define USED(name, ...) ROW_##name,
#include "api.def"
    ROWS
};

extern struct symbol hsa_rows[ROWS];
extern struct library hsa_library;

/* The runtime's own function; NULL: the runtime is too old to have it. */
#define REAL(name) ((typeof(&name))symbol_real(&hsa_library, &hsa_rows[ROW_##name]))

/* The grant's device of an agent, by its unique id; agents have no ordinal. */
int device_of_agent(hsa_agent_t agent);

#endif
