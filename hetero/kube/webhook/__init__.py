"""The admission webhook: fills in what a pod leaves out, and refuses nonsense in one sentence.

Imports `hetero.model`, `hetero.kube.client`, `hetero.kube.words` and `hetero.kube.server`. Start
with `admission`.
"""
