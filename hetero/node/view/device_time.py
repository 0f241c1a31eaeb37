"""Finds device time that was taken past a limiter: the driver's figures against the charges.

A driver's figure for one process among several is coarse: off by up to 15 points between two heavy
programs on an H100, and missing for light ones (docs/decisions/device-time.md). So a mean over most
of a minute is compared, and the same time has to be missing elsewhere, too.
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
WINDOW_S, SHORTEST_WINDOW_S = 54.0, 20.0
#: Seconds of a device's time within the window that have to be beyond the charges. At these nobody
#: is named in windows drawn from what an H100's driver said of honest programs.
UNCHARGED_S = 13.5
#: The part of it that has to be missing elsewhere: with co-tenants, or in what the device did.
MISSING_PART = 0.5
#: With this part of its charges without time slices, what the device did tells nothing of a grant.
LIGHT_PART = 0.5
#: What a grant may be charged above its share, for credit of an earlier time.
SLACK_PART = 0.05


@frozen(kw_only=True)
class Sample:
    """One sample of a device: parts of its time from 0 to 1, and totals since each grant began.

    `worked_parts` is the driver's figure for each process in its last sample, by grant and PID;
    `busy_part` is its figure for all. `charged_s` are seconds by grant, and `light_s` those of them
    that a grant reports as used without a time slice.
    """

    sampled_at_s: float
    busy_part: float
    worked_parts: Mapping[tuple[str, int], float]
    charged_s: Mapping[str, float]
    light_s: Mapping[str, float] = {}


@frozen(kw_only=True)
class Overuse:
    """The part of a device's time, 0 to 1, that a grant took past its limiter, mostly by `pid`."""

    grant: str
    pid: int
    part: float


def overuse(samples: Sequence[Sample], share_by_grant: Mapping[str, float]) -> tuple[Overuse, ...]:
    """Return the grants that took more of a device than they were charged, over all samples.

    `samples` begin with the oldest. `share_by_grant` has the part of the device, 0 to 1, that each
    grant is held to. What is charged beyond that is the tenant's own word, and not believed. A
    grant without a share may take all.
    """
    span_s = samples[-1].sampled_at_s - samples[0].sampled_at_s if samples else 0.0
    if span_s < SHORTEST_WINDOW_S:
        return ()
    parts_by_grant: dict[str, dict[int, float]] = {}
    for sample in samples:
        for (grant_id, pid), uncharged_part in sample.worked_parts.items():
            part_by_pid = parts_by_grant.setdefault(grant_id, {})
            part_by_pid[pid] = part_by_pid.get(pid, 0.0) + uncharged_part / len(samples)
    charged = _rates(samples[0].charged_s, samples[-1].charged_s, span_s)
    light_parts = _rates(samples[0].light_s, samples[-1].light_s, span_s)
    uncharged_parts = {
        grant_id: sum(parts_by_grant.get(grant_id, {}).values())
        - min(charged_part, share_by_grant.get(grant_id, 1.0) + SLACK_PART)
        for grant_id, charged_part in charged.items()
    }
    idle = max(
        sum(sample.busy_part for sample in samples) / len(samples) - sum(charged.values()), 0.0
    )
    overuses = []
    for grant_id, uncharged_part in uncharged_parts.items():
        # Of two loops that each need 13 % of an H100 its driver says that it is always busy.
        is_light = 0 < charged[grant_id] <= light_parts.get(grant_id, 0.0) / LIGHT_PART
        missing_part = (0.0 if is_light else idle) + sum(
            max(-other_part, 0.0)
            for other_id, other_part in uncharged_parts.items()
            if other_id != grant_id
        )
        if (
            grant_id in share_by_grant
            and uncharged_part * span_s >= UNCHARGED_S
            and missing_part >= MISSING_PART * uncharged_part
        ):
            pid = max(parts_by_grant[grant_id], key=lambda pid: parts_by_grant[grant_id][pid])
            overuses.append(Overuse(grant=grant_id, pid=pid, part=uncharged_part))
    return tuple(overuses)


def _rates(
    seconds_before: Mapping[str, float], seconds_after: Mapping[str, float], span_s: float
) -> dict[str, float]:
    return {
        grant_id: max(total_s - seconds_before.get(grant_id, 0.0), 0.0) / span_s
        for grant_id, total_s in seconds_after.items()
    }


@define
class DeviceTime:
    """Samples devices periodically; a sample costs what the driver's answers cost."""

    _samples: dict[str, deque[Sample]] = field(init=False, factory=dict)

    def sample(
        self,
        grants: Iterable[Grant],
        usages: Iterable[tuple[Device, Usage]],
        grant_by_pid: Mapping[int, str],
        regions: Mapping[str, Region],
        boards_directory: Path,
    ) -> dict[str, tuple[Overuse, ...]]:
        """Return, by device, the grants that took its time past a limiter until now.

        `grant_by_pid` has the grant of each process in one, `regions` what each grant counted.
        `boards_directory` holds the ledger's boards.
        """
        limited_grants = [grant for grant in grants if grant.allocation.policy is not Policy.OFF]
        overuse_by_device = {}
        for device, usage in usages:
            if usage.busy is not None:
                samples = self._samples.setdefault(device.uuid, deque())
                last_sample = samples[-1] if samples else None
                samples.append(
                    sample_of(
                        limited_grants,
                        device,
                        usage,
                        grant_by_pid,
                        regions,
                        boards_directory,
                        last_sample,
                    )
                )
                while samples[0].sampled_at_s < samples[-1].sampled_at_s - WINDOW_S:
                    samples.popleft()
                overuse_by_device[device.uuid] = overuse(samples, shares_of(limited_grants, device))
        return overuse_by_device


def sample_of(
    grants: Iterable[Grant],
    device: Device,
    usage: Usage,
    grant_by_pid: Mapping[int, str],
    regions: Mapping[str, Region],
    boards_directory: Path,
    last_sample: Sample | None = None,
) -> Sample:
    """Return a sample of a device whose `usage` was asked just now; `last_sample` came before it.

    What a grant used without a time slice is part of its charges, and so as before with them.
    """
    charged_s = {}
    for grant in grants:
        for position, piece in enumerate(grant.allocation.pieces):
            if piece.device == device.uuid:
                region = regions.get(grant.id)  # none where its tenant scribbled on it
                counts = region.counts if region else ()
                charged_s[grant.id] = counts[position].device_ns / 1e9 if counts else 0.0
    part_by_process = {
        (grant_by_pid[pid], pid): busy_part
        for pid, busy_part in (usage.busy or {}).items()
        if grant_by_pid.get(pid) in charged_s
    }
    board_directory = board_of(boards_directory, device.uuid)
    return Sample(
        sampled_at_s=time.monotonic(),
        busy_part=usage.core or 0.0,
        worked_parts=part_by_process,
        charged_s=charged_s,
        light_s={
            grant_id: last_sample.light_s[grant_id]
            if last_sample and last_sample.charged_s.get(grant_id) == charged_seconds
            else light_seconds(board_directory / grant_id)
            for grant_id, charged_seconds in charged_s.items()
        },
    )


def shares_of(grants: Iterable[Grant], device: Device) -> dict[str, float]:
    """Return the part of a device that each grant is held to; of elastic ones all may be lent."""
    return {
        grant.id: limit.percent / 100 if _is_fixed(grant, limit) else 1.0
        for grant in grants
        for piece, limit in zip(grant.allocation.pieces, grant.limits, strict=True)
        if piece.device == device.uuid and limit.percent is not None
    }


def _is_fixed(grant: Grant, limit: DeviceLimit) -> bool:
    return grant.allocation.policy is Policy.FIXED and not limit.rest
