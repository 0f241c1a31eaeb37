"""Which devices of a view are asked for: by vendor, model, name, NUMA node and health."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from hetero.model.device import AILMENTS
from hetero.model.errors import NotFound
from hetero.model.frozen import frozen
from hetero.model.names import did_you_mean
from hetero.node.view.observe import DeviceView, NodeView

#: What devices can be chosen by, beside the words of `Device.ailment`: well, not well, cordoned,
#: and of a driver that does not say.
OK, SICK, CORDONED, UNKNOWN = "ok", "sick", "cordoned", "unknown"
HEALTHS = (OK, SICK, *AILMENTS, CORDONED, UNKNOWN)


@frozen(kw_only=True)
class Choice:
    """Of which devices a view is; None: of all. Names of vendors and parts of models have no case.

    `device` is a number, `vendor:index`, or the beginning of a UUID. `health` is one of the words
    above, or an ailment. `user`: only this user's grants, and the devices that have some.
    """

    vendor: str | None = None
    model: str | None = None
    device: str | None = None
    numa: int | None = None
    health: str | None = None
    user: str | None = None

    @property
    def everything(self) -> bool:
        """Whether all devices are asked for."""
        return self == Choice()

    def of_node(self, view: NodeView) -> NodeView:
        """Return a node's view of these devices alone, with their grants.

        Raises `NotFound` for a name that is none of its devices'.
        """
        if self.everything:
            return view
        devices = self.of(view.devices)
        numbers = {row.device_number for row in devices}
        grants = tuple(
            grant
            for grant in view.grants
            if self.user in (None, grant.user)
            and any(share.device_number in numbers for share in grant.shares)
        )
        if self.user is not None:
            held_numbers = {share.device_number for grant in grants for share in grant.shares}
            devices = tuple(row for row in devices if row.device_number in held_numbers)
        return evolve(view, devices=devices, grants=grants)

    def of(self, rows: Sequence[DeviceView]) -> tuple[DeviceView, ...]:
        """Return those of these devices that are asked for. Raises `NotFound` as `of_node`."""
        for noun, asked_name, test, name_of in (
            ("vendor", self.vendor, self._is_vendor, _vendor),
            ("model", self.model, self._is_model, _model),
            ("card", self.device, self._is_device, _number),
            ("NUMA node", self.numa, self._is_near, _numa),
        ):
            if asked_name is not None and not any(map(test, rows)):
                names = [*filter(None, dict.fromkeys(map(name_of, rows)))]
                here_text = f" (here: {', '.join(names)})" if names else ""
                raise NotFound(
                    f"no {noun} {str(asked_name)!r} here{here_text}"
                    + did_you_mean(str(asked_name), names)
                )
        return tuple(row for row in rows if self._allows(row))

    def allows_model(self, vendor: str, model: str) -> bool:
        """Whether cards of a vendor's model may be asked for."""
        return (self.vendor is None or vendor.lower() == self.vendor.lower()) and (
            self.model is None or self.model.lower() in model.lower()
        )

    def _allows(self, row: DeviceView) -> bool:
        is_named = all(
            test(row) for test in (self._is_vendor, self._is_model, self._is_device, self._is_near)
        )
        return is_named and (self.health is None or self.health in _conditions(row))

    def _is_vendor(self, row: DeviceView) -> bool:
        return self.vendor is None or row.device.vendor.lower() == self.vendor.lower()

    def _is_model(self, row: DeviceView) -> bool:
        return self.model is None or self.model.lower() in row.device.model.lower()

    def _is_device(self, row: DeviceView) -> bool:
        if self.device is None:
            return True
        from hetero.placement.match import named  # here: only who names a card waits for it

        return bool(named([row.device], self.device, [row.device_number]))

    def _is_near(self, row: DeviceView) -> bool:
        return self.numa is None or row.device.numa == self.numa


def _vendor(row: DeviceView) -> str:
    return row.device.vendor


def _model(row: DeviceView) -> str:
    return row.device.short_model


def _number(row: DeviceView) -> str:
    return str(row.device_number)


def _numa(row: DeviceView) -> str:
    return "" if row.device.numa is None else str(row.device.numa)


def _conditions(row: DeviceView) -> Iterator[str]:
    """Yield the words by which the health of a device can be asked for."""
    device = row.device
    if device.ailment:
        yield from (SICK, device.ailment)
    else:
        yield OK if device.health else UNKNOWN
    if device.cordon is not None:
        yield CORDONED
