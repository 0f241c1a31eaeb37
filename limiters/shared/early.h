/* Bytes that are charged before the device has them, or after. */
#ifndef HETERO_SHARED_EARLY_H
#define HETERO_SHARED_EARLY_H

/* Have them counted where the driver's figure is compared with the charges (uncounted.h). */
void early_prepare(void);

#endif
