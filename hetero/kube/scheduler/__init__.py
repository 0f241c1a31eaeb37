"""The extender of the stock kube-scheduler: it filters, scores, reserves and binds.

Imports `hetero.model`, `hetero.placement` and `hetero.kube.api`. Start with `extender`; what it
knows of the cluster is `cache`.
"""
