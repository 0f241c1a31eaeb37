"""Says what a grant without a core limit may have beside grants that have one: what they leave.

Work outside time slices runs into those of others and takes from what they were promised. So a
grant whose core is not limited runs in elastic time slices while a neighbour's core is limited: it
is owed what the limited ones leave, shared evenly with its like, and borrows what nobody wants.
Among grants without a limit nobody is promised anything, and there are no time slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import evolve

from hetero.model import Policy
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit

#: Never less than this of a card, in hundredths of a percent, or it would stand still.
LEAST = 100


def with_rest(
    grants: Mapping[str, tuple[Policy, tuple[DeviceLimit, ...]]],
) -> dict[str, tuple[DeviceLimit, ...]]:
    """Return the limits each grant is to be held to, by its id, from those that were asked.

    Grants whose policy is off, and those that have a part of the multiprocessors, are left out of
    it: they never run in time slices.
    """
    taken, unlimited_count = Counter[str](), Counter[str]()
    for policy, limits in grants.values():
        for limit in limits if policy is not Policy.OFF else ():
            if limit.sm is not None:
                continue
            if limit.core < CORE_FULL:
                taken[limit.name] += limit.core
            else:
                unlimited_count[limit.name] += 1

    def held(policy: Policy, limit: DeviceLimit) -> DeviceLimit:
        outside = policy is Policy.OFF or limit.sm is not None
        if outside or limit.core < CORE_FULL or not taken[limit.name]:
            return limit
        left = max(LEAST, (CORE_FULL - taken[limit.name]) // unlimited_count[limit.name])
        return evolve(limit, core=left, rest=True)

    return {
        identity: tuple(held(policy, limit) for limit in limits)
        for identity, (policy, limits) in grants.items()
    }
