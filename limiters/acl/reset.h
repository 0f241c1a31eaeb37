/* Memory that goes with its device: the runtime drops it when a device is reset, and frees none of it. */
#ifndef HETERO_ACL_RESET_H
#define HETERO_ACL_RESET_H

/* Before a function that may reset the current device, or others. */
void reset_may_come(void);

void reset_after_fork(void);

#endif
