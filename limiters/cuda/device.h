/* Which of the grant's devices a call means: its number in the grant, DEVICE_FOREIGN or DEVICE_NONE. */
#ifndef HETERO_CUDA_DEVICE_H
#define HETERO_CUDA_DEVICE_H

#include "abi.h"

#include "../core/tenant.h"

#include <stdbool.h>

int device_of(CUdevice device);
int device_current(void);
int device_of_stream(CUstream stream);

/* The device that every call means; DEVICE_NONE where there are several. */
int device_only(void);

/* The driver's number of one of the grant's devices that device_of() has met. */
CUdevice ordinal_of(int device);

/* How many threads one of the grant's devices can hold at once. */
uint64_t threads_of(int device);

/* Whether every device that this process sees is one of the grant's. */
bool devices_all_ours(void);

CUcontext context_current(void);
void device_after_fork(void);

#endif
