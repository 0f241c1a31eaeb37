/* No stream is held for a moment. No public header says what the function that waits for a word is like. */
#ifndef HETERO_MUSA_HOLDS_H
#define HETERO_MUSA_HOLDS_H

#define ENGINE_HOLDS

#endif
