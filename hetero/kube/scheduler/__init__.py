"""The extender of the stock kube-scheduler: it filters, scores, reserves and binds.

Imports `hetero.model`, `hetero.placement`, `hetero.kube.client` and `hetero.kube.words`. Start with
`verbs`, which answer kube-scheduler; `extender` puts the parts together. What is known of the
cluster is in `hetero.placement.cache`, what is known of pods in `pod_table`.
"""
