"""Kubernetes: the only package that imports its client, gRPC and HTTP servers.

`objects`, `client`, `words` and `server` are what the services share; `scheduler`, `agent` and
`webhook` are one service each and do not import each other; `service` starts them. `cluster_view`
reads a cluster for the CLI, `cluster_totals` sums up a large one, and `what_if` runs its scheduler
on a copy of it.

Imports everything below but `hetero.simulate`. Start with `scheduler.extender`.
"""
