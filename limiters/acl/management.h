/* Of a card the runtime tells the memory in use, and neither its power nor what a process has (view.c). */
#ifndef HETERO_ACL_MANAGEMENT_H
#define HETERO_ACL_MANAGEMENT_H

#define CARD_MEMORY_IS_KNOWN
#include "../shared/management_absent.h"

bool management_card_memory(const char *uuid, uint64_t *bytes);

#endif
