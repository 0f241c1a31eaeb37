/* The calls of a process, of an API whose functions call each other (calls.h). */
#include "types.h"

__thread unsigned calls_within;
atomic_bool first_call_made;
void (*at_first_call)(void);
