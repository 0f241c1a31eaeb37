"""Finds the processes that hold a grant without using its card: a service left behind, say."""

from __future__ import annotations

from datetime import datetime, timezone

from hetero.model import Policy
from hetero.node.view.observe import GrantView, Process

#: Seconds for which a program may get ready.
IDLE_AFTER_S = 60.0


def idle_holders(grant: GrantView, *, now_utc: datetime | None = None) -> tuple[Process, ...]:
    """Return the processes of a grant of which none has come to its card for a while.

    There are none where no limiter would tell. What processes of other users use is in the sums.
    """
    now_utc = now_utc or datetime.now(timezone.utc)
    held_s = (now_utc - datetime.fromisoformat(grant.since_utc)).total_seconds()
    is_told = grant.policy is not Policy.OFF and all(
        share.enforcement is not None and share.enforcement.by_limiter for share in grant.shares
    )
    is_used = any(share.memory_used_bytes for share in grant.shares) or any(
        process.memory_bytes for process in grant.running
    )
    return grant.running if is_told and not is_used and held_s >= IDLE_AFTER_S else ()
