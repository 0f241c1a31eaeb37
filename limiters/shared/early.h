/* What is charged before the device has it, or after. */
#ifndef HETERO_SHARED_EARLY_H
#define HETERO_SHARED_EARLY_H

/* Have it taken into account where the driver's figure is compared with what is charged (uncounted.h). */
void early_prepare(void);

#endif
