"""What the services of a cluster share: the API's client, annotations, quantities and quotas.

Imports `hetero.model`, `hetero.plugin`, `hetero.placement` and the settings of `hetero.node`; of
`hetero.kube` nothing else. Start with `pod_request` (what a pod asks for) and `annotations` (what
agent and scheduler tell each other).
"""
