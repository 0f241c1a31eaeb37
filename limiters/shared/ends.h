/* What goes with a context. */
#ifndef HETERO_SHARED_ENDS_H
#define HETERO_SHARED_ENDS_H

#include "borrowed.h"

/* A context is about to end: its fences are waited for. It ended: what lived in it is given back, but for what others
 * have, too; `before` is what the first answered. NULL is none. */
struct card_use before_context_ends(context_t context);
void after_context_ended(context_t context, struct card_use before);

#endif
