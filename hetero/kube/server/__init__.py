"""What every HTTP server of a cluster needs: its key pair, its callers, limits and answers.

Imports `hetero.model` and `hetero.kube.client`. Start with `serving`.
"""
