"""Every value of the model is the same value after JSON."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero import model
from hetero.model import (
    CORE,
    MEMORY,
    Ask,
    CoTenancy,
    Device,
    Gang,
    Inventory,
    Ladder,
    Refusal,
    Request,
    Selector,
    Step,
    Template,
    Usage,
    codec,
)
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.model.request import MOST_ROWS
from hetero.model.units import GiB
from hetero.testing import rack

#: Every class of the model, found rather than listed: a new one is tested from its first day.
CLASSES: list[type[Any]] = [
    cls for name, cls in vars(model).items() if name in model.__all__ and attrs.has(cls)
]

amounts = st.integers(0, 2**53)
asks = st.builds(
    Ask,
    memory=st.none() | st.integers(1, 2**53),
    core=st.none() | st.integers(1, 100),
    device=st.none() | st.text(),
) | st.builds(
    Ask,
    memory_percent=st.integers(1, 100),
    shape=st.none() | st.text(),
    open=st.booleans(),
    sm_percent=st.none() | st.integers(1, 99),
)
st.register_type_strategy(Step, st.builds(Step, st.integers(1, 2**53)))
st.register_type_strategy(
    Ladder,
    st.lists(st.integers(1, 2**53), min_size=1).map(lambda sizes: Ladder(tuple(sizes))),
)
st.register_type_strategy(
    Template,
    st.builds(
        Template,
        name=st.text(),
        takes=st.fixed_dictionaries({CORE: amounts, MEMORY: amounts, "aicpu": amounts}),
        part=st.none() | st.text(),
    ),
)
st.register_type_strategy(Usage, st.builds(Usage, memory=..., core=st.none() | st.floats(0, 1)))
st.register_type_strategy(Ask, asks)
st.register_type_strategy(
    Gang,
    st.builds(Gang, off=st.booleans())
    | st.integers(1, MOST_ROWS).flatmap(
        lambda rows: st.builds(
            Gang, name=st.text(), row=st.integers(1, rows), rows=st.just(rows), off=st.just(False)
        )
    ),
)
st.register_type_strategy(
    Request,
    st.builds(
        Request,
        asks=st.lists(asks, min_size=1, max_size=3).map(tuple),
        policy=...,
        priority=...,
        vendor=st.from_type(Selector),
        model=st.from_type(Selector),
        uuid=st.from_type(Selector),
        enforcement=st.from_type(Selector),
        co_tenancy=st.lists(st.from_type(CoTenancy), max_size=2).map(tuple),
        gang=st.none() | st.from_type(Gang),
    ),
)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: str(cls.__name__))
@given(data=st.data())
def test_every_value_of_the_model_survives_json(cls: type[Any], data: st.DataObject) -> None:
    value = data.draw(st.from_type(cls))

    assert value == codec.loads(codec.dumps(value), cls, source="test")


def test_a_key_from_a_newer_writer_is_passed_over() -> None:
    (device,) = rack(GiB)
    document = json.loads(codec.dumps(device)) | {"colour": "green"}

    assert device == codec.loads(json.dumps(document), Device, source="test")


def test_a_newer_schema_is_refused_and_named() -> None:
    document = {"version": codec.VERSION + 1, "devices": []}

    with pytest.raises(BadInput, match=r"node\.json: written by a newer hetero \(schema 2\)"):
        codec.loads(json.dumps(document), Inventory, source="node.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '{"devices": 3}',
        '{"devices": [{"uuid": "x"}]}',
        '{"version": []}',
    ],
)
def test_what_is_no_document_of_ours_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(BadInput, match=r"node\.json: not a valid Inventory: ."):
        codec.loads(text, Inventory, source="node.json")


def test_a_value_its_own_rules_forbid_is_refused_when_read_too() -> None:
    with pytest.raises(BadInput, match="core 110 is out of range"):
        codec.loads('{"asks": [{"core": 110}]}', Request, source="test")


def test_a_list_is_written_as_items_beside_the_version() -> None:
    document = json.loads(codec.dumps(rack(GiB, GiB)))

    assert {"version", "items"} == set(document)
    assert 2 == len(document["items"])


def test_the_order_of_verdicts_is_kept() -> None:
    refusal = Refusal(wanted=1, verdicts={"b": "too small", "a": "fits"})
    again = codec.loads(codec.dumps(refusal), Refusal, source="test")

    assert ["b", "a"] == list(again.verdicts)


@frozen(kw_only=True)
class Wait:
    duration_s: float = attrs.field(metadata=json_key("duration"))


def test_a_field_whose_name_has_its_unit_is_read_and_written_by_the_documents_key() -> None:
    assert {"duration": 1.5} == codec.to_plain(Wait(duration_s=1.5))
    assert Wait(duration_s=1.5) == codec.loads('{"duration": 1.5}', Wait, source="test")
    with pytest.raises(BadInput, match="test: not a valid Wait"):
        codec.loads('{"duration": "long"}', Wait, source="test")
    with pytest.raises(BadInput):
        codec.loads('{"duration_s": 1.5}', Wait, source="test")
