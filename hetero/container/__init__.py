"""Containers on one machine: a grant as a CDI device, and as the edits of an OCI runtime.

Imports `hetero.model`, `hetero.registry` and `hetero.node`. Start with `edits`, which says what
goes into a container; `share` keeps named shares, `runtime` and `admit` are the OCI runtime, and
`pin` makes a grant for a container that somebody else starts.
"""
