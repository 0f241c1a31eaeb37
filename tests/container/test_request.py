"""What people write is read as they mean it, or refused with what to write."""

import pytest

from hetero.container.request import request_in
from hetero.model import Ask, Policy, Request
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB


def test_devices_are_named_each_with_its_share() -> None:
    expected = Request(
        asks=(
            Ask(device="0", memory=3276 * MiB, core=10),
            Ask(device="1", memory=8 * GiB, core=50),
        )
    )

    assert expected == request_in({"HETERO": "0:mem=3276Mi,core=10;1:mem=8Gi,core=50"})


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("count=1,mem=3Gi,core=30", (Ask(memory=3 * GiB, core=30),)),
        ("mem=3Gi", (Ask(memory=3 * GiB),)),
        ("count=2,mem=50%", (Ask(memory_percent=50),) * 2),
        ("core=30", (Ask(core=30),)),
        ("2", (Ask(device="2"),)),
        ("GPU-5e:core=30", (Ask(device="GPU-5e", core=30),)),
    ],
)
def test_a_request_is_read(text: str, asks: tuple[Ask, ...]) -> None:
    assert Request(asks=asks) == request_in({"HETERO": f" {text} "})


def test_the_older_form_is_read() -> None:
    text = "POLICY=1,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=8192"
    expected = Request(
        asks=(
            Ask(device="0", memory=3276 * MiB, core=10),
            Ask(device="1", memory=8192 * MiB),
        ),
        policy=Policy.ELASTIC,
    )

    assert expected == request_in({"EGPU": text})
    assert Request(asks=(Ask(core=5),)) == request_in({"EGPU": text, "HETERO": "core=5"})


@pytest.mark.parametrize("environ", [{}, {"HETERO": ""}, {"HETERO": " ", "EGPU": ""}])
def test_nothing_said_is_nothing_asked(environ: dict[str, str]) -> None:
    assert request_in(environ) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"HETERO": "0:mem=lots"}, "memory 'lots' is not a size"),
        ({"HETERO": "0:core=110"}, "core '110' is not a percentage"),
        ({"HETERO": "0:mme=1Gi"}, "'mme=1Gi' is not mem=… or core=…: write 0:mem=3276Mi,core=10"),
        ({"HETERO": "0:mem=1Gi,mem=2Gi"}, "mem is given twice"),
        ({"HETERO": ":mem=1Gi"}, "names no device"),
        ({"HETERO": "count=0,mem=1Gi"}, "count '0' is not a number of devices"),
        ({"HETERO": "count=two"}, "count 'two' is not a number"),
        ({"HETERO": ";"}, "at least one device"),
        ({"EGPU": "POLICY=0"}, "write POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0"),
        ({"EGPU": "POLICY=7:PGPU=0,MEM=1"}, "write POLICY=0"),
        ({"EGPU": "POLICY=0:MEM=1"}, "lacks PGPU or MEM"),
        ({"EGPU": "POLICY=0:PGPU=0,MEM=1,WEIGHT=110"}, "WEIGHT '110' is not a percentage"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(
    environ: dict[str, str], says: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        request_in(environ)

    assert says in str(refusal.value)
