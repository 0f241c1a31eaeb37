"""Who runs on the node: containers, and the grants of processes.

Imports `hetero.node.node` and what is below it. Start with `owners`.
"""
