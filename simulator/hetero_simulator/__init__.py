"""Simulated accelerators: fake drivers, the racks they read, and programs that use a driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from hetero_simulator import rack_keys
from hetero_simulator.rack_keys import KEYS, VENDORS

__all__ = [
    "KEYS",
    "VENDORS",
    "clock",
    "fake_drivers",
    "job",
    "programs",
    "rack",
    "rack_keys",
    "racks",
    "sysfs",
    "timing",
]

#: The vendors whose drivers do not tell a card's NUMA node.
_BY_KERNEL = ("ascend", "iluvatar")
_HERE = Path(__file__).parent


def fake_drivers() -> Path:
    """Return the directory of the fake drivers, to search for libraries first (LD_LIBRARY_PATH).

    They simulate the rack file that $HETERO_RACK names; without it they answer as a machine that
    has no driver.
    """
    return _built(_HERE / "lib" / "drivers")


def clock() -> Path:
    """Return the library under which programs have a clock of their own (LD_PRELOAD).

    Then what they and their limiters do does not depend on the machine's speed.
    """
    return _built(_HERE / "lib" / "libpthread.so.virtual")


def programs() -> Path:
    """Return the directory of the programs, for the search path of commands (PATH)."""
    return _HERE / "lib"


def job(api: str) -> Path:
    """Return the program that keeps a device with this API busy and says how fast it went."""
    return _built(_HERE / "lib" / f"hetero-job-{api}")


def timing(api: str) -> Path:
    """Return the program that says what calls of the driver with this API cost."""
    return _built(_HERE / "lib" / f"hetero-timing-{api}")


def racks() -> dict[str, Path]:
    """Return the racks that are shipped, by name."""
    return {path.stem: path for path in sorted((_HERE / "racks").glob("*.rack"))}


def rack(name: str) -> Path:
    """Return a rack that is shipped, such as "mixed" or "one"."""
    shipped = racks()
    if name not in shipped:
        raise FileNotFoundError(f"no such file, and shipped are {', '.join(shipped)}")
    return shipped[name]


def sysfs(cards: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what the kernel's /sys has of a rack's cards: the content of each file by its path.

    That is the NUMA node of the PCI device. A card whose rack says no address has the one that its
    driver tells: bus 0x18 and on, by its position among the cards of its vendor.
    """
    files: dict[str, str] = {}
    positions: Counter[str] = Counter()
    # Those that leave it to the kernel last, where cards of two vendors have one address.
    for card in sorted(cards, key=lambda card: card["vendor"] in _BY_KERNEL):
        vendor = card["vendor"]
        address = card.get("pci", f"0:{0x18 + positions[vendor]:x}:0.0")
        positions[vendor] += 1
        domain, bus, device, function = (
            int(number, 16) for number in address.replace(".", ":").split(":")
        )
        # ixml's struct of an address has no function.
        of_driver = f"{domain:04x}:{bus:02x}:{device:02x}.{0 if vendor == 'iluvatar' else function}"
        files[f"bus/pci/devices/{of_driver}/numa_node"] = f"{card.get('numa', -1)}\n"
    return files


def _built(path: Path) -> Path:
    if not path.exists():
        source = _HERE.parent
        raise FileNotFoundError(f"{path}: not built yet; run: make -C {source}")
    return path
