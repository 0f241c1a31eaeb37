"""Replays workloads over cluster descriptions, to compare placement policies.

Imports `hetero.model` and `hetero.placement`. Start with `replay`; `trace` reads workloads and
`baselines` holds the published policies.
"""
