"""heterod: root's process that keeps one ledger for all users of a machine.

Imports `hetero.model` and the rest of `hetero.node`. Start with `server`, which reads requests from
a socket; `actions` does what they ask. What heterod does by itself is in
`hetero.node.guard.monitor`.
"""
