"""What codec.py writes is read without cattrs, and what is in another form as cattrs reads it."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import Device, Fractional, Inventory, Request, Usage, codec, reader
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.testing import rack
from tests.model.test_codec import CLASSES


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: str(cls.__name__))
@given(data=st.data())
def test_every_value_of_the_model_is_read_in_the_form_it_is_written_in(
    cls: type[Any], data: st.DataObject
) -> None:
    value = data.draw(st.from_type(cls))

    assert value == reader.read(json.loads(json.dumps(codec.to_plain(value))), cls)


@pytest.mark.parametrize(
    ("plain", "cls"),
    [
        ("text", Usage),
        ([], Usage),
        ({"memory": "3"}, Usage),
        ({"memory": True}, Usage),
        ({"core": "0.5"}, Usage),
        ({"processes": []}, Usage),
        ({"devices": {}}, Inventory),
        ({"pods": [[["sidecar"]]]}, Inventory),
        ({"memory": {"of": 1}}, Fractional),
        ({"memory": "step"}, Fractional),
    ],
)
def test_another_form_is_not_read(plain: object, cls: type[Any]) -> None:
    with pytest.raises((reader.OtherForm, KeyError, ValueError)):
        reader.read(plain, cls)


def test_a_number_in_quotes_is_read_all_the_same() -> None:
    (device,) = rack(GiB)
    document = json.loads(codec.dumps(device)) | {"index": str(device.index)}

    assert device == codec.loads(json.dumps(document), Device, source="test")


def test_an_error_still_says_where_it_is() -> None:
    document = {"asks": [{"core": 10}, {"core": []}]}

    with pytest.raises(BadInput, match=r"invalid value.*@ \$\.asks\[1\]\.core"):
        codec.loads(json.dumps(document), Request, source="test")


def test_what_was_written_here_is_read_without_cattrs() -> None:
    program = """
import sys
from hetero.model import Inventory, codec
from hetero.testing import rack
inventory = Inventory(rack(1 << 30))
assert inventory == codec.loads(codec.dumps(inventory), Inventory, source="test")
sys.exit("cattrs" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
