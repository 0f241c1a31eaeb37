"""What a device is cut into: the templates of its menu, who has which, and which are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hetero.model import CORE, MEMORY, Counters, Device, DeviceAllocation, Template, Templated
from hetero.model.frozen import frozen


@frozen(kw_only=True)
class TemplateView:
    """A template of a device's menu, or one partition of a device that is partitioned already.

    `part` is the partition's id. `core` is in percent of the card, `memory` in bytes. `grants` have
    one each. `free` is how many more could be given if nothing else was.
    """

    name: str
    part: str | None
    core: float
    memory: int
    grants: tuple[str, ...]
    free: int


def template_views(
    device: Device, free: Counters, pieces: Iterable[tuple[str, DeviceAllocation]]
) -> tuple[TemplateView, ...]:
    """Return the templates of a device, none of one that is not cut by a menu.

    `free` is what is left of its counters, `pieces` who holds what of it.
    """
    if not isinstance(device.granularity, Templated):
        return ()
    held_pieces = [*pieces]
    return tuple(
        TemplateView(
            name=template.name,
            part=template.part,
            core=100 * template.takes[CORE] / device.of_card(CORE),
            memory=template.takes[MEMORY],
            grants=tuple(
                grant_id
                for grant_id, piece in held_pieces
                if (
                    piece.part == template.part
                    if template.part
                    else piece.template == template.name
                )
            ),
            free=min(free.get(counter, 0) // amount for counter, amount in _taken(template)),
        )
        for template in _distinct(device.granularity.menu)
    )


def _taken(template: Template) -> Iterator[tuple[str, int]]:
    return ((counter, amount) for counter, amount in template.takes.items() if amount)


def _distinct(menu: Iterable[Template]) -> Iterable[Template]:
    """Return each partition, and of templates with one name the first."""
    template_by_key: dict[tuple[str, str | None], Template] = {}
    for template in menu:
        template_by_key.setdefault((template.name, template.part), template)
    return template_by_key.values()
