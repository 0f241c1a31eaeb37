"""What acts on what a node's views show: it charges excess, ends processes, restarts services.

Imports `hetero.model`, `hetero.registry`, `hetero.node.view` and what is below it. Start with
`monitor`.
"""
