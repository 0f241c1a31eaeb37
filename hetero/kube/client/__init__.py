"""The client of the API server, and what is done through it: Leases, events, access reviews.

Imports `hetero.model`; of `hetero.kube` nothing else. Start with `api`.
"""
