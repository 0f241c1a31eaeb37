"""What a cluster would do: its own scheduler, run on a copy of what the API says.

Imports `hetero.kube.scheduler` and `hetero.kube.api`. Start with `simulation`.
"""
