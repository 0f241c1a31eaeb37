/* Events of the limiter's own: a program that finds their handles in its memory cannot name them. */
#ifndef HETERO_SHARED_EVENTS_H
#define HETERO_SHARED_EVENTS_H

#include "types.h"

#include <stdbool.h>

/* Make and destroy one, in the current context; and forget one that went with its context. */
result_t create_own_event(event_t *event, unsigned flags);
void destroy_own_event(event_t event);
void forget_own_event(event_t event);

/* Whether the handle is of one: costs one load where it cannot be. */
bool is_own_event(event_t event);

#endif
