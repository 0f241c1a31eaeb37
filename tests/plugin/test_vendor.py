"""What a declaration stamps on a card: its menu, and its parts where it has been partitioned."""

import pytest

from hetero.model.units import GiB, MiB
from hetero.plugin import (
    CORE,
    MEMORY,
    SLOTS,
    Enforcement,
    Fractional,
    Link,
    Model,
    Template,
    Templated,
    Vendor,
    Whole,
    menus,
)

TABLE = """
M2  24/6  small 8192/3/1, large 16384/6/2
M1  30    small 2184/2, large 4369/4
"""


def test_a_row_of_a_table_is_a_model_and_its_menu() -> None:
    both, without_helpers = menus(TABLE, counters=(CORE, "helpers"))

    small = Template("small", {MEMORY: 8 * GiB, CORE: 3, "helpers": 1})
    large = Template("large", {MEMORY: 16 * GiB, CORE: 6, "helpers": 2})
    menu = Templated((small, large))
    assert Model(match="M2", granularity=menu, core=24, slots=6, extra={"helpers": 6}) == both
    assert ("M1", 30, 15) == (without_helpers.match, without_helpers.core, without_helpers.slots)
    assert {} == without_helpers.extra
    assert isinstance(without_helpers.granularity, Templated)
    assert {MEMORY: 2184 * MiB, CORE: 2} == without_helpers.granularity.menu[0].takes


VENDOR = Vendor(
    api=2, name="zephyr", title="Zephyr", models=(Model(match="*", granularity=Whole(), slots=3),)
)


def test_the_parts_of_a_card_are_counted_by_kind_and_singly_smallest_first() -> None:
    sizes = {"b": ("half", 8), "a": ("half", 8), "c": ("quarter", 4)}
    parts = tuple(
        Template(kind, {MEMORY: size * GiB, CORE: size}, part=name)
        for name, (kind, size) in sizes.items()
    )
    card = VENDOR.device(
        uuid="Z-1",
        model="Z",
        index=0,
        memory=24 * GiB,
        enforcement=Enforcement.PARTITION,
        granularity=Templated(parts, whole=False),
    )

    counted = {"half": 2, "quarter": 1, "a": 1, "b": 1, "c": 1, SLOTS: 3}
    assert {CORE: 100, MEMORY: 24 * GiB, **counted} == card.capacity
    assert isinstance(card.granularity, Templated)
    assert ["c", "a", "b"] == [template.part for template in card.granularity.menu]
    assert {MEMORY: 8 * GiB, CORE: 8, "half": 1, "a": 1} == card.granularity.menu[1].takes


def test_what_a_driver_does_not_name_is_unknown_and_without_a_uuid_there_is_no_card() -> None:
    facts = {"index": 0, "memory": GiB, "enforcement": Enforcement.NONE}
    assert "unknown" == VENDOR.device(uuid="Z-1", model=None, **facts).model  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the driver gave None as a UUID"):
        VENDOR.device(uuid=None, model="Z", **facts)  # type: ignore[arg-type]


def test_the_first_model_that_matches_decides_whatever_the_case() -> None:
    vendor = Vendor(
        api=2,
        name="v",
        title="V",
        models=(
            Model(match="big*", granularity=Whole(), core=7, slots=1, extra={"dsp": 3}),
            Model(match="*", granularity=Fractional(), slots=4),
        ),
    )
    link = Link("x-1", "fabric", 9)

    big = vendor.device(
        uuid="x-0", model="BIG-1", index=0, memory=GiB, enforcement=Enforcement.NONE, links=(link,)
    )
    small = vendor.device(
        uuid="x-1", model="S", index=1, memory=GiB, enforcement=Enforcement.PRELOAD, numa=1
    )

    assert ({CORE: 7, MEMORY: GiB, SLOTS: 1, "dsp": 3}, Whole(), (link,)) == (
        big.capacity,
        big.granularity,
        big.links,
    )
    assert ({CORE: 100, MEMORY: GiB, SLOTS: 4}, Fractional(), 1) == (
        small.capacity,
        small.granularity,
        small.numa,
    )


def test_visible_devices_are_listed_by_uuid_index_or_number_and_nothing_else() -> None:
    with pytest.raises(ValueError, match=r"'visible_by' must be in \('uuid', 'index', 'number'\)"):
        Vendor(api=2, name="v", title="V", models=(), visible_by="serial")
