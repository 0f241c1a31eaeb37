/* Contexts and streams, which end with what lived in them. */
#ifndef HETERO_CUDA_CONTEXT_H
#define HETERO_CUDA_CONTEXT_H

void context_after_fork(void);
void limits_after_fork(void);

#endif
