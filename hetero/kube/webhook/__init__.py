"""The admission webhook: fills in what a pod leaves out, and refuses nonsense in one sentence.

Imports `hetero.model` and `hetero.kube.api`. Start with `admission`.
"""
