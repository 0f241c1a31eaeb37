# The bodies of ../shared that serve Ascend's runtime: those of time, and of charges. Its memory is in ../hal, since the
# runtime has one pair of functions for it below. No graph brings memory, and no image is read.

ACL_BODIES := calls capture capturing card_use charge counted driver engine events governors known launch ordinals
ACL_BODIES += physical recording start
# No management library says what a process holds.
ACL_BODIES += uncounted_unknown
