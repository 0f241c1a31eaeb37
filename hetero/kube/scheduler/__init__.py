"""The extender of the stock kube-scheduler: it filters, scores, reserves and binds.

Imports `hetero.model`, `hetero.placement`, `hetero.kube.client` and `hetero.kube.words`. Start with
`extender`; what it knows of the cluster is in `hetero.placement.cache`.
"""
