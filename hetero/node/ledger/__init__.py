"""The records of standing grants: their directories, locks, grant files and usage regions.

Imports `hetero.model`, and nothing else of `hetero.node`. Start with `ledger`, whose docstring
draws the directory of a grant; `grant_file` and `usage_region` are the layouts that the limiters
share.
"""
