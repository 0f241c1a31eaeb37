# The bodies of ../shared that are chosen for HIP's runtime, by what it is like (../cuda/features.mk).

# A thread has a current device and no contexts; memory ends when a device is reset.
HIP_FEATURES := device_by_ordinal ends_by_reset
# Modules and libraries are loaded at once.
HIP_FEATURES += libraries_eager
# Pools keep what is freed into them, and are charged by what they gave.
HIP_FEATURES += pools_allocation_charged
# No graph may take memory when it is launched.
HIP_FEATURES += graph_memory_refused
# Nobody measured page tables.
HIP_FEATURES += page_tables_uncharged
# No management library says what a process holds.
HIP_FEATURES += uncounted_unknown
