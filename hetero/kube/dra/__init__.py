"""Dynamic Resource Allocation: offers a node's devices in ResourceSlices and prepares claims.

Imports `hetero.model`, `hetero.plugin`, `hetero.registry`, `hetero.node`, `hetero.container`,
`hetero.kube.client`, `hetero.kube.words` and `hetero.kube.server`. Start with `offers`, which says
how devices look to kube-scheduler, then `driver`.
"""
