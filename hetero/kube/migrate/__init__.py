"""What another product's configuration says, as values of the chart and settings of a cluster.

Imports `hetero.kube.words`. Start with `hami`.
"""
