"""Dynamic Resource Allocation: offers a node's devices in ResourceSlices and prepares claims.

Imports `hetero.model`, `hetero.node`, `hetero.container` and `hetero.kube.api`. Start with
`offers`, which says how devices look to kube-scheduler, then `driver`.
"""
