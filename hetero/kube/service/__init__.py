"""How the services of a cluster run: certificates, HTTPS, and their command lines.

Imports `hetero.model`, `hetero.plugin`, `hetero.kube.api`, `hetero.kube.scheduler` and
`hetero.kube.webhook`. Start with `start`.
"""
