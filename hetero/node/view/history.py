"""What was in use in the last minutes: means over a window, and samples for a picture of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, evolve, field

from hetero.node.view.observe import DeviceView, GrantView, NodeView

#: Samples that are kept of each device and grant.
_SAMPLE_COUNT = 120


@define
class History:
    """Samples of how busy devices are, 0 to 1, and of the core that grants use, in percent.

    A device's time in use becomes the mean over the last `window_s` seconds, as a grant's is.
    """

    window_s: float
    _busy_parts_by_uuid: dict[str, deque[tuple[float, float]]] = field(init=False, factory=dict)
    _core_percents_by_grant: dict[str, deque[float]] = field(init=False, factory=dict)

    def add(self, view: NodeView, now_s: float) -> NodeView:
        """Note a view at a time, and return it with means. What is gone is forgotten."""
        present = {row.device.uuid for row in view.devices} | {grant.id for grant in view.grants}
        self._busy_parts_by_uuid = {
            key: kept for key, kept in self._busy_parts_by_uuid.items() if key in present
        }
        self._core_percents_by_grant = {
            key: kept for key, kept in self._core_percents_by_grant.items() if key in present
        }
        for grant in view.grants:
            used = [
                share.core_used_percent
                for share in grant.shares
                if share.core_used_percent is not None
            ]
            if used:
                self._core_percents_by_grant.setdefault(
                    grant.id, deque(maxlen=_SAMPLE_COUNT)
                ).append(sum(used))
        return evolve(view, devices=tuple(self._meaned(row, now_s) for row in view.devices))

    def of_device(self, row: DeviceView) -> list[float]:
        """Return how busy a device was at each sample, 0 to 1, the last one last."""
        return [busy for _, busy in self._busy_parts_by_uuid.get(row.device.uuid, ())]

    def of_grant(self, grant: GrantView) -> list[float]:
        """Return the part of its limits that a grant used at each sample; above 1 it borrowed."""
        limit_percent = _limit(grant)
        return [used / limit_percent for used in self._core_percents_by_grant.get(grant.id, ())]

    def _meaned(self, row: DeviceView, now_s: float) -> DeviceView:
        if row.usage.core is None:
            return row
        samples = self._busy_parts_by_uuid.setdefault(row.device.uuid, deque(maxlen=_SAMPLE_COUNT))
        samples.append((now_s, row.usage.core))
        recent = [busy for at_s, busy in samples if at_s > now_s - self.window_s]
        return evolve(row, usage=evolve(row.usage, core=_mean(recent)))


def _mean(values: Iterable[float]) -> float:
    value_list = [*values]
    return sum(value_list) / len(value_list)


def _limit(grant: GrantView) -> float:
    return sum(share.core_percent or 100 for share in grant.shares)
