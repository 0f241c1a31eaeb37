"""What a cluster would do: its own scheduler, run on a copy of what the API says.

Imports `hetero.kube.scheduler`, `hetero.kube.client` and `hetero.kube.words`. Start with
`simulation`.
"""
