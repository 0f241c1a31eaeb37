"""What people write for sizes and shares, and what they are told about the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.model.errors import BadInput
from hetero.model.units import GiB, KiB, MiB, format_memory, parse_memory, parse_percent


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("3000Mi", 3000 * MiB),
        ("3000MiB", 3000 * MiB),
        ("3000 mib", 3000 * MiB),
        ("3G", 3 * 10**9),
        ("3GB", 3 * 10**9),
        ("3Gi", 3 * GiB),
        ("1.5GiB", 3 * GiB // 2),
        ("0.5Ki", 512),
        ("1Ti", 1024 * GiB),
        ("2k", 2000),
        ("1073741824B", GiB),
        (" 7 B ", 7),
        ("22.4Gi", 22 * GiB + 4 * GiB // 10 + 1),
    ],
)
def test_a_size_people_write_is_understood(text: str, size: int) -> None:
    assert size == parse_memory(text)


@pytest.mark.parametrize(
    "text",
    ["", "Mi", "three", "-1Gi", "+1Gi", "1e3", "1Xi", "1,5Gi", "1 000Mi", "٣Gi", "50%", "Gi3"],
)
def test_any_other_spelling_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="is not a size: write 3000Mi, 3G or 50%"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "write"), [("3000", "3000Mi"), ("1", "1Mi"), ("1073741824", "1073741824B")]
)
def test_a_size_without_a_unit_is_refused_with_what_to_write(text: str, write: str) -> None:
    with pytest.raises(
        BadInput, match=f"memory '{text}' has no unit: {text} bytes[?] write {write}$"
    ):
        parse_memory(text)


@pytest.mark.parametrize("text", ["0", "0Gi", "0.5", "1.5B", "0.0001Ki"])
def test_a_size_of_no_whole_byte_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a whole, positive number of bytes"):
        parse_memory(text)


@pytest.mark.parametrize(("text", "percent"), [("30", 30), ("30%", 30), (" 1 % ", 1), ("100", 100)])
def test_a_percentage_people_write_is_understood(text: str, percent: int) -> None:
    assert percent == parse_percent(text, of="core")


@pytest.mark.parametrize("text", ["0", "101", "110%", "-5", "3.5", "half", "", "%"])
def test_a_percentage_out_of_range_names_what_it_was_for(text: str) -> None:
    with pytest.raises(BadInput, match=r"core .* is not a percentage: write a whole number from 1"):
        parse_percent(text, of="core")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (KiB, "1 KiB"),
        (3000 * MiB, "3000 MiB"),
        (80 * GiB, "80 GiB"),
        (1024 * GiB, "1 TiB"),
        (3 * GiB + 1, "3.0 GiB"),
        (143771 * MiB, "143771 MiB"),
    ],
)
def test_a_size_is_shown_in_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert text == format_memory(size)


@given(st.integers(1, 10**9))
def test_a_whole_number_of_mebibytes_survives_being_shown_and_read_back(count: int) -> None:
    assert count * MiB == parse_memory(format_memory(count * MiB))
