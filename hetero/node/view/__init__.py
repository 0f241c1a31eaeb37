"""What people see of a node: its devices, grants, processes, and what runs outside a limiter.

Imports `hetero.model`, `hetero.registry` and the rest of `hetero.node`. Start with `observe`
(`hetero ps`, `inventory`, `top`), then `doctor` and `bypass`.
"""
