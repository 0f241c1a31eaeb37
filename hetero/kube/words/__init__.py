"""What pods, nodes and settings say: resources, annotations, quantities, quotas and signatures.

Imports `hetero.model`, `hetero.plugin`, `hetero.registry`, `hetero.placement`, the settings of
`hetero.node` and `hetero.kube.client`. Start with `pod_request` (what a pod asks for) and
`annotations` (what agent and scheduler tell each other).
"""
