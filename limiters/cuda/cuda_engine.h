/* What the time sharing needs of the CUDA driver (../timeshare/engine.h). */
#ifndef HETERO_CUDA_ENGINE_H
#define HETERO_CUDA_ENGINE_H

#include "../timeshare/engine.h"

extern const struct engine cuda_engine;

#endif
