"""Gives a grant without a core limit the core that co-tenants with a limit leave.

Work outside time slices overlaps that of others and takes from their shares. So while a co-tenant's
core is limited, a grant without a limit runs in elastic time slices. It is entitled to what the
limited grants leave, shared evenly with others like it, and borrows idle time. Among grants without
a limit there are no time slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import evolve

from hetero.model import Policy
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit

#: The least share of a card, in hundredths of a percent: with less a program would stand still.
LEAST_CORE = 100


def with_rest(
    grants: Mapping[str, tuple[Policy, tuple[DeviceLimit, ...]]],
) -> dict[str, tuple[DeviceLimit, ...]]:
    """Return the limits in force for each grant, by its id, from those that were asked.

    Grants whose policy is off, and those limited to a part of the multiprocessors, are left out:
    they never run in time slices.
    """
    core_by_device, unlimited = Counter[str](), Counter[str]()
    for policy, limits in grants.values():
        for limit in limits if policy is not Policy.OFF else ():
            if limit.sm_percent is not None:
                continue
            if limit.core < CORE_FULL:
                core_by_device[limit.name] += limit.core
            else:
                unlimited[limit.name] += 1

    def limit_in_force(policy: Policy, limit: DeviceLimit) -> DeviceLimit:
        is_outside = policy is Policy.OFF or limit.sm_percent is not None
        if is_outside or limit.core < CORE_FULL or not core_by_device[limit.name]:
            return limit
        core_left = max(
            LEAST_CORE, (CORE_FULL - core_by_device[limit.name]) // unlimited[limit.name]
        )
        return evolve(limit, core=core_left, rest=True)

    return {
        grant_id: tuple(limit_in_force(policy, limit) for limit in limits)
        for grant_id, (policy, limits) in grants.items()
    }
