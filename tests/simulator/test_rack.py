"""The rack file, as the drivers read it."""

import re
from pathlib import Path

import hetero_simulator
import pytest
from simulated import ONE_CARD, Machine

INIT = "cuda = Cuda(); say(cuda.code('cuInit', 0))"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "test.rack:11: expected key = value"),
        ("[device", "test.rack:11: expected [kind] or [kind name]"),
        ("time = 3 us", "test.rack:11: a key given twice in one section"),
        (
            "[device]\nvendor = nvidia\nmodel = X\nmemory = 80 apples",
            "test.rack:14: memory: expected a size such as 80 GiB or 143771 MiB, not '80 apples'",
        ),
        (
            "[device]\nvendor = nvidia\nmodel = X",
            "test.rack:11: [device]: memory is missing: expected a size such as 80 GiB",
        ),
        (
            "[device]\nvendor = nvidia\nmodel = X\nmemory = 1 GiB\nlinks = 5:NV18",
            "test.rack:15: links: expected peers such as 1:NV18 2:PIX, not '5:NV18'",
        ),
        (
            "[device]\nvendor = nvidia\nmodel = X\nmemory = 1 GiB\nmig = two",
            "test.rack:15: mig: expected instances such as 1g.18gb x3, 2g.35gb x1, not 'two'",
        ),
    ],
)
def test_a_malformed_line_is_one_message_and_no_device(
    tmp_path: Path, line: str, message: str
) -> None:
    process = Machine(tmp_path, ONE_CARD + line + "\n").start(INIT)
    out, error = process.communicate(timeout=30)
    assert ("100\n", f"{tmp_path}/{message}\n") == (out, error)


def test_other_vendors_devices_and_keys_are_not_ours(tmp_path: Path) -> None:
    other = "[device]\nvendor = other\nmodel = Y\nmemory = many\nfabric = ring\n"
    count = "cuda = Cuda(); cuda.cuInit(0); say(cuda.made('cuDeviceGetCount'))"
    assert 1 == Machine(tmp_path, other + ONE_CARD).run(count)


def test_without_a_rack_there_is_no_driver(machine: Machine) -> None:
    program = """
        import pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            say([Cuda().code("cuInit", 0), error.value])
    """
    assert [100, 9] == machine.run(program, HETERO_RACK="")


def test_an_edited_rack_starts_afresh(machine: Machine) -> None:
    program = """
        cuda = Cuda(); cuda.start()
        print(cuda.made("cuMemAlloc_v2", 600 * MIB), file=__import__("sys").stderr)
    """
    use = "cuda = Cuda(); cuda.start(); say(cuda.used())"
    with machine.standing(program):
        assert 600 << 20 == machine.run(use)
        machine.rack.write_text(machine.rack.read_text().replace("1 GiB", "2 GiB"))
        assert 0 == machine.run(use)


def test_the_shipped_racks_are_well_formed(tmp_path: Path) -> None:
    count = "cuda = Cuda(); cuda.cuInit(0); say(cuda.made('cuDeviceGetCount'))"
    for name, devices in [("one", 1), ("mixed", 5)]:
        assert devices == Machine(tmp_path, hetero_simulator.rack(name).read_text()).run(count)


def test_the_keys_that_a_rack_may_have_are_those_the_drivers_read_and_the_guide_names() -> None:
    root = Path(__file__).parents[2]
    read = {
        key
        for source in (root / "simulator" / "drivers").glob("*.[ch]")
        for key in re.findall(
            r'(?:rack_text|rack_number|fake_driver|\bnumber)\([^"()]*"(\w+)"', source.read_text()
        )
    }
    known = {key for keys in hetero_simulator.KEYS.values() for key in keys}
    guide = (root / "docs" / "racks.md").read_text()

    assert set() == read - known
    assert set() == known - read - set(hetero_simulator.VENDORS)
    assert [] == [key for key in known if f"`{key}" not in guide]
    rows = re.search(r"^\| `\[device\]` .*\n(?:\|.*\n)+", guide, re.MULTILINE)
    assert rows
    named = {
        key for row in rows[0].splitlines()[1:] for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(hetero_simulator.KEYS["device"])
