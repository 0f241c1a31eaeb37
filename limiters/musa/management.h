/* MTML, Moore Threads' management library, has neither a power limit nor a process's memory. */
#ifndef HETERO_MUSA_MANAGEMENT_H
#define HETERO_MUSA_MANAGEMENT_H

#include "../shared/management_absent.h"

#endif
