"""Shows devices to containers with admin access to them: by a CDI device alone, without a grant.

A claim with `adminAccess` consumes nothing, neither in the API nor in the ledger. Its CDI spec is
the checkpoint, so it names the claim.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from attrs import evolve, frozen

from hetero.container.cdi import Specs
from hetero.container.pin import shown
from hetero.kube.dra.offers import DRIVER
from hetero.model import Allocation, Edits
from hetero.node.node import Node
from hetero.registry.registry import Discovery

#: Where the CDI devices of such claims are named.
KIND = f"{DRIVER}/admin"
#: The variable of a container with the namespace and name of its claim.
VARIABLE = "HETERO_ADMIN_CLAIM"
_Claim = tuple[str, str]  # its namespace and its name


@frozen
class AdminAccess:
    """The claims of a node that have admin access; `cdi` is where their specs are."""

    cdi: Path

    @property
    def _specs(self) -> Specs:
        return Specs((self.cdi,), kind=KIND, hooked=False)

    def show(
        self,
        node: Node,
        allocation: Allocation,
        claim: _Claim,
        cdi_device: str,
        *,
        discovery: Discovery,
        injection: Callable[[Edits], Edits],
    ) -> tuple[str, ...]:
        """Have a CDI device bring the devices of an allocation; return the CDI names to give."""
        edits = shown(node, allocation, discovery=discovery, injection=injection)
        env = {**edits.env, VARIABLE: "/".join(claim)}
        self._specs.replace(cdi_device, evolve(edits, env=env, cdi=()))
        return (f"{KIND}={cdi_device}", *edits.cdi)

    def hide(self, cdi_device: str) -> None:
        """Remove the CDI device of a claim, if it is there."""
        self._specs.remove(cdi_device)

    def standing(self) -> dict[str, _Claim]:
        """Return the claims that have admin access, by their CDI device."""
        claims: dict[str, _Claim] = {}
        for path in sorted(self.cdi.glob(self._specs.path("*").name)):
            (device,) = json.loads(path.read_text())["devices"]
            env = dict(variable.split("=", 1) for variable in device["containerEdits"]["env"])
            namespace, _, claim_name = env[VARIABLE].partition("/")
            claims[device["name"]] = namespace, claim_name
        return claims
