/* No stream is held for a moment. Not tried on a runtime. */
#ifndef HETERO_HIP_HOLDS_H
#define HETERO_HIP_HOLDS_H

#define ENGINE_HOLDS

#endif
