"""A rack that no driver could mean is refused with file, line, section, key and what is allowed."""

from pathlib import Path

import pytest
from hetero_simulator import rack_keys, racks

from hetero.node.rack_check import cards_of_rack

CARD = "[device]\nvendor = {vendor}\nmodel = Card\nmemory = 24 GiB\n"
#: What a key of a section may not say; each key that there is has a row.
REFUSED = {
    "device": {
        "vendor": ("nvidea", "NVIDIA", ""),
        "model": ("", "Kärtchen", "x" * 64),
        "memory": ("", "23", "-4 GiB", "lots", "0 GiB", "99999999999 GiB", "17 TiB", "inf GiB"),
        "uuid": ("", "x" * 48, "GPU-\x7f"),
        "serial": ("", "two words", "x" * 32),
        "pci": ("", "zz", "18:00.0", "0000:18:00", "0000:18:20.0", "0000:18:00.8"),
        "numa": ("", "x", "-1", "32", "1.5", "0x1"),
        "health": ("",),
        "xid": ("", "lots", "1000"),
        "recovery": ("", "reset", "-1"),
        "links": ("", "NV18", "1", "1:", "x:PIX", "1:PIX 2", "-1:PIX"),
        "used": ("", "3", "much", "25 GiB"),
        "busy": ("", "inf", "nan", "101", "-1", "50 %"),
        "processes": ("", "4242", "x:1", "0:1", "4242:1:1", "4242:99999"),
        "core": ("", "0", "many", "-1"),
        "compute": ("", "9", "x.y", "9.0.1"),
        "multiprocessors": ("", "0", "all"),
        "bandwidth": ("", "300", "0 GB/s", "fast"),
        "context": ("", "500", "500 MB", "25 GiB"),
        "power": ("", "lots", "-1", "10000", "1e3"),
        "power_limit": ("", "none", "10000"),
        "temperature": ("", "hot", "-1", "200", "40 C"),
        "mig": ("9g.1gb x99", "1g.1gb x8", "4g.1gb x2", "1g.20gb x2", "1g", "none", "6g.1gb"),
        "slice": ("", "2", "0 ms", "soon"),
        "switch": ("", "2", "-1 us"),
        "aicpu": ("", "few", "100"),
        "card": ("", "x", "64"),
        "chip": ("", "x", "64"),
        "cpus": ("", "all", "0-", "0-23-24"),
        "sgpu": ("", "yes", "ON"),
        "smlu": ("", "never", "1"),
        "reserved": ("", "1", "25 GiB"),
    },
    "kernel": {"time": ("", "2", "fast", "-2 us"), "per_arg0": ("", "1")},
    "driver": {
        **dict.fromkeys((*rack_keys.VENDORS, "maca"), ("", "new", "1 2")),
        "cndev": ("", "x", "0", "10"),
    },
    "fault": {
        "call": ("", "two words"),
        "device": ("", "first", "64"),
        "vendor": ("", "nobody"),
        "does": ("", "crash", "error", "error x", "hang long", "vanish soon"),
    },
}
SECTIONS = {"kernel": "[kernel spin]\n", "driver": "[driver]\n"}
FAULT = {"call": "cuInit", "does": "missing"}


def section(kind: str, key: str, value: str, vendor: str) -> str:
    if kind == "device":
        facts = {"vendor": vendor, "model": "Card", "memory": "24 GiB", key: value}
    else:
        facts = {**(FAULT if kind == "fault" else {}), key: value}
    lines = "".join(f"{name} = {fact}\n" for name, fact in facts.items())
    return SECTIONS.get(kind, f"[{kind}]\n") + lines


def refusal(directory: Path, text: str) -> str:
    rack = directory / "x.rack"
    rack.write_text(text)
    with pytest.raises(ValueError, match=r"^line \d+: ") as refused:
        cards_of_rack(rack, rack_keys)
    return str(refused.value)


def test_every_key_of_a_rack_has_values_that_are_refused() -> None:
    assert {kind: set(forms) for kind, forms in rack_keys.KEYS.items()} == {
        kind: set(values) for kind, values in REFUSED.items()
    }


@pytest.mark.parametrize("vendor", rack_keys.VENDORS)
@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, values in REFUSED.items() for key in values]
)
def test_a_value_that_no_driver_could_mean_is_refused_with_its_line_and_key(
    tmp_path: Path, vendor: str, kind: str, key: str
) -> None:
    for value in REFUSED[kind][key]:
        text = CARD.format(vendor=vendor) + section(kind, key, value, vendor)
        line_number = next(
            number
            for number, line in enumerate(text.splitlines(), 1)
            if number > 4 and line.startswith(f"{key} =")
        )
        refused = refusal(tmp_path, text)

        assert refused.startswith(f"line {line_number}: "), (value, refused)
        assert key in refused or "vendor" == key, (value, refused)
        assert value in refused or not value.isascii(), (value, refused)
        assert "\n" not in refused


@pytest.mark.parametrize("vendor", rack_keys.VENDORS)
def test_a_link_to_the_card_itself_or_of_another_vendor_is_refused(
    tmp_path: Path, vendor: str
) -> None:
    word = rack_keys.LINKS[vendor].expected
    card = CARD.format(vendor=vendor)
    foreign = "HCCS" if vendor != "ascend" else "NV18"

    itself = refusal(tmp_path, card + card + f"links = 1:{word}\n")
    nobody = refusal(tmp_path, card + card + f"links = 2:{word}\n")
    other = refusal(tmp_path, card + card + f"links = 0:{foreign}\n")

    assert f"line 9: link '1:{word}' is to the card itself: 1 is its position" == itself
    assert nobody.startswith(f"line 9: link '2:{word}' is to no card: ")
    assert f"link '0:{foreign}' has no word of this vendor's driver: write 0:{word}" in other


@pytest.mark.parametrize("vendor", sorted(rack_keys.UUIDS))
def test_a_uuid_that_the_driver_would_not_take_is_refused(tmp_path: Path, vendor: str) -> None:
    refused = refusal(tmp_path, CARD.format(vendor=vendor) + "uuid = 7100f95cee823041\n")

    assert "line 5: [device] uuid = 7100f95cee823041: expected GPU- and a UUID" == refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("power = 5\n", "line 1: power before any section: write [device] first"),
        ("[kernel]\ntime = 2 us\n", "line 1: [kernel] without a name: write [kernel spin]"),
        ("[fault]\ndoes = missing\n", "line 1: [fault] without call: expected "),
    ],
)
def test_a_section_without_what_it_needs_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert refusal(tmp_path, text + CARD.format(vendor="nvidia")).startswith(says)


def test_all_shipped_racks_are_taken() -> None:
    for path in racks().values():
        cards_of_rack(path, rack_keys)
