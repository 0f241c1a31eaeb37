/* HIP reports neither a power limit nor a process's memory. */
#ifndef HETERO_HIP_MANAGEMENT_H
#define HETERO_HIP_MANAGEMENT_H

#include "../shared/management_absent.h"

#endif
