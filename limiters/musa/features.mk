# The bodies of ../shared that are chosen for MUSA's driver (../cuda/features.mk). It is like CUDA's, but nobody measured
# what it takes for the nodes of graphs and for page tables.
MUSA_FEATURES := device_by_context context green limits
MUSA_FEATURES += libraries_lazy local
MUSA_FEATURES += pool pools_reservation_charged
MUSA_FEATURES += graph nodes graph_nodes_uncharged
MUSA_FEATURES += linear tiles
MUSA_FEATURES += page_tables_uncharged
MUSA_FEATURES += uncounted_measured early
MUSA_FEATURES += tables
