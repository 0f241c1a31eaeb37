# The bodies of ../shared that are chosen for CUDA's driver, by what it is like; MUSA's and HIP's say what differs.
# A body that no API chooses is every API's.

# Programs make contexts, and memory ends with them; a context has buffers, and green contexts are parts of it.
CUDA_FEATURES := device_by_context context green limits
# Libraries are loaded in a context when they are first used there.
CUDA_FEATURES += libraries_lazy local
# Pools are charged by what they reserve.
CUDA_FEATURES += pool pools_reservation_charged
# Graphs take memory when they are launched, and what the driver keeps of their nodes is known.
CUDA_FEATURES += graph nodes graph_nodes_charged graph_size
# An array takes its elements; sparse ones get their memory tile by tile.
CUDA_FEATURES += linear tiles
# Page tables are known.
CUDA_FEATURES += page_tables_charged
# The management library says what a process holds, also what nothing else tells.
CUDA_FEATURES += uncounted_measured early
# Programs ask for the driver's own tables of functions.
CUDA_FEATURES += tables
