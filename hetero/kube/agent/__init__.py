"""The node agent: offers a node's devices to its kubelet and gives each container its share.

Imports `hetero.model`, `hetero.plugin`, `hetero.node`, `hetero.container` and `hetero.kube.api`.
Start with `agent`, then `allocator`, which finds out whom the kubelet is asking for.
"""
