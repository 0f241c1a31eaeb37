"""Finds device time that was taken past a limiter: what drivers see of it, against the charges.

A driver's figure for one process among several is coarse: off by up to 15 points between two heavy
programs on an H100, and missing for light ones (docs/decisions/device-time.md). So a mean over most
of a minute is compared, and it has to be missing elsewhere, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import define, field

from hetero.model import Device, Policy, Usage
from hetero.model.frozen import frozen
from hetero.node.ledger.board import light_seconds
from hetero.node.ledger.grant_dir import board_of
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.usage_region import Region

#: Seconds of the past that are looked at, and those of them after which a mean is believed.
WINDOW, LEAST = 54.0, 20.0
#: Seconds of a device's time within the window that have to be beyond the charges. At these nobody
#: is named in windows drawn from what an H100's driver said of honest programs.
TAKEN = 13.5
#: The part of it that has to be missing elsewhere: with co-tenants, or in what the device did.
MISSING = 0.5
#: With this part of its charges without time slices, what the device did tells nothing of a grant.
LIGHT = 0.5
#: What a grant may be charged above its share, for credit of an earlier time.
SLACK = 0.05


@frozen(kw_only=True)
class Sample:
    """One look at a device: parts of its time from 0 to 1, and totals since each grant began.

    `worked` is what the driver saw of each process in its last sample, by grant and PID; `busy`
    what it saw of all. `charged` are seconds by grant, and `light` those of them that a grant says
    it used without a time slice.
    """

    at: float
    busy: float
    worked: Mapping[tuple[str, int], float]
    charged: Mapping[str, float]
    light: Mapping[str, float] = {}


@frozen(kw_only=True)
class Overuse:
    """The part of a device's time, 0 to 1, that a grant took past its limiter, mostly by `pid`."""

    grant: str
    pid: int
    part: float


def overuse(samples: Sequence[Sample], shares: Mapping[str, float]) -> tuple[Overuse, ...]:
    """Return who took more of a device than was charged, over samples from the oldest on.

    `shares` are the parts of the device, 0 to 1, that grants are held to: what is charged beyond is
    the tenant's own word, and not believed. A grant without one may take all.
    """
    span = samples[-1].at - samples[0].at if samples else 0.0
    if span < LEAST:
        return ()
    worked: dict[str, dict[int, float]] = {}
    for each in samples:
        for (grant, pid), part in each.worked.items():
            of_grant = worked.setdefault(grant, {})
            of_grant[pid] = of_grant.get(pid, 0.0) + part / len(samples)
    charged = _rates(samples[0].charged, samples[-1].charged, span)
    light = _rates(samples[0].light, samples[-1].light, span)
    beyond = {
        grant: sum(worked.get(grant, {}).values()) - min(part, shares.get(grant, 1.0) + SLACK)
        for grant, part in charged.items()
    }
    idle = max(sum(each.busy for each in samples) / len(samples) - sum(charged.values()), 0.0)
    bypasses = []
    for grant, part in beyond.items():
        # Of two loops that each need 13 % of an H100 its driver says that it is always busy.
        is_light = 0 < charged[grant] <= light.get(grant, 0.0) / LIGHT
        missing = (0.0 if is_light else idle) + sum(
            max(-other, 0.0) for name, other in beyond.items() if name != grant
        )
        if grant in shares and part * span >= TAKEN and missing >= MISSING * part:
            pid = max(worked[grant], key=lambda number: worked[grant][number])
            bypasses.append(Overuse(grant=grant, pid=pid, part=part))
    return tuple(bypasses)


def _rates(
    before: Mapping[str, float], after: Mapping[str, float], span: float
) -> dict[str, float]:
    return {name: max(total - before.get(name, 0.0), 0.0) / span for name, total in after.items()}


@define
class DeviceTime:
    """Samples devices again and again; each sample costs what the drivers' answers do."""

    _samples: dict[str, deque[Sample]] = field(init=False, factory=dict)

    def sample(
        self,
        grants: Iterable[Grant],
        usages: Iterable[tuple[Device, Usage]],
        owner: Mapping[int, str],
        regions: Mapping[str, Region],
        boards: Path,
    ) -> dict[str, tuple[Overuse, ...]]:
        """Return, by device, who took its time past a limiter until now.

        `owner` has the grant of each process that has one, `regions` what each grant counted;
        `boards` is the ledger's directory of that name.
        """
        limited = [entry for entry in grants if entry.allocation.policy is not Policy.OFF]
        times = {}
        for device, usage in usages:
            if usage.busy is not None:
                samples = self._samples.setdefault(device.uuid, deque())
                last = samples[-1] if samples else None
                samples.append(sample_of(limited, device, usage, owner, regions, boards, last))
                while samples[0].at < samples[-1].at - WINDOW:
                    samples.popleft()
                times[device.uuid] = overuse(samples, shares_of(limited, device))
        return times


def sample_of(
    grants: Iterable[Grant],
    device: Device,
    usage: Usage,
    owner: Mapping[int, str],
    regions: Mapping[str, Region],
    boards: Path,
    last: Sample | None = None,
) -> Sample:
    """Return one look at a device whose `usage` was asked just now; `last` is the look before.

    What a grant used without a time slice is part of its charges, and so as before with them.
    """
    charged = {}
    for entry in grants:
        for position, piece in enumerate(entry.allocation.pieces):
            if piece.device == device.uuid:
                region = regions.get(entry.id)  # none where its tenant scribbled on it
                counts = region.counts if region else ()
                charged[entry.id] = counts[position].device_ns / 1e9 if counts else 0.0
    worked = {
        (owner[pid], pid): part
        for pid, part in (usage.busy or {}).items()
        if owner.get(pid) in charged
    }
    board = board_of(boards, device.uuid)
    return Sample(
        at=time.monotonic(),
        busy=usage.core or 0.0,
        worked=worked,
        charged=charged,
        light={
            grant: last.light[grant]
            if last and last.charged.get(grant) == seconds
            else light_seconds(board / grant)
            for grant, seconds in charged.items()
        },
    )


def shares_of(grants: Iterable[Grant], device: Device) -> dict[str, float]:
    """Return the part of a device that each grant is held to; of elastic ones all may be lent."""
    return {
        entry.id: limit.percent / 100 if _is_fixed(entry, limit) else 1.0
        for entry in grants
        for piece, limit in zip(entry.allocation.pieces, entry.limits, strict=True)
        if piece.device == device.uuid and limit.percent is not None
    }


def _is_fixed(entry: Grant, limit: DeviceLimit) -> bool:
    return entry.allocation.policy is Policy.FIXED and not limit.rest
