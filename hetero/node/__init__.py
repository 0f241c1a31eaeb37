"""One machine: which grants stand on its devices, who is admitted, and how each is confined.

Imports `hetero.model`, `hetero.plugin`, `hetero.registry` and `hetero.placement`;
`hetero.node.ledger`, `hetero.node.tenants`, `hetero.node.view` and `hetero.node.guard` are inside.
Start with `node`, which reads; `grants` makes, changes and ends grants, each in a `transaction`.
"""
