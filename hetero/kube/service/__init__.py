"""How the services of a cluster run: certificates, HTTPS, and their command lines.

Imports `hetero.model`, `hetero.plugin`, `hetero.kube.client`, `hetero.kube.words`,
`hetero.kube.server`, `hetero.kube.scheduler` and `hetero.kube.webhook`. Start with `start`.
"""
