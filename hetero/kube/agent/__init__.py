"""The node agent: offers a node's devices to its kubelet and gives each container its share.

Imports `hetero.model`, `hetero.plugin`, `hetero.registry`, `hetero.node`, `hetero.container`,
`hetero.kube.client`, `hetero.kube.words` and `hetero.kube.server`. Start with `agent`, then
`allocator`, which finds out whom the kubelet is asking for.
"""
