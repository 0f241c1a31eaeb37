"""What each key of a rack may say (docs/racks.md): the drivers read it, and ignore all else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: The vendors whose drivers are simulated.
VENDORS = ("amd", "ascend", "cambricon", "hygon", "iluvatar", "metax", "mthreads", "nvidia")


class ValueForm(NamedTuple):
    """How a value is written: a regular expression of all of it, and the words that say so.

    `most` is the largest that its first number may be, None where the expression says enough.
    """

    pattern: str
    expected: str
    most: int | None = None


_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_TEXT = ValueForm(r"[ -~]{1,63}", "at most 63 printable ASCII characters")
_SIZE = ValueForm(r"[0-9]{1,30}(\.[0-9]{1,9})?\s*([KMGT]i)?B", "a size such as 23034 MiB")
_TIME = ValueForm(rf"{_NUMBER}\s*(ns|us|ms|s)", "a time such as 2 us")
_SOME_TIME = ValueForm(rf"(?=.*[1-9]){_TIME.pattern}", "a time such as 2 ms, more than 0")
_SWITCH = ValueForm("on|off", "on or off")
_VERSION = ValueForm(r"[0-9][0-9A-Za-z.+_-]{0,31}", "a version such as 5.1.20")


def _whole(noun: str, most: int, least: int = 0) -> ValueForm:
    pattern = r"[0-9]{1,9}" if least == 0 else r"0*[1-9][0-9]{0,8}"
    return ValueForm(pattern, f"{noun} from {least} to {most}", most)


_DEVICE = {
    "vendor": ValueForm("|".join(VENDORS), f"one of {', '.join(VENDORS)}"),
    "model": _TEXT,
    "memory": _SIZE,
    "uuid": ValueForm(r"[ -~]{1,47}", "at most 47 printable ASCII characters"),
    "serial": ValueForm(r"[!-~]{1,31}", "at most 31 printable ASCII characters"),
    "pci": ValueForm(
        r"[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}:[01]?[0-9A-Fa-f]\.[0-7]",
        "an address such as 0000:18:00.0",
    ),
    "numa": _whole("a NUMA node", 31),
    "health": _TEXT,
    "xid": _whole("an Xid", 999),
    "recovery": _whole("a recovery action", 99),
    "links": ValueForm(r"[0-9]+:\w+([\s,]+[0-9]+:\w+)*", "peers such as 1:NV18 2:PIX"),
    "used": _SIZE,
    "busy": _whole("percent", 100),
    "processes": ValueForm(
        r"[1-9][0-9]{0,8}:[0-9]{1,9}(\s+[1-9][0-9]{0,8}:[0-9]{1,9})*",
        "PIDs with their MiB such as 4242:512 4243:1024",
    ),
    "core": _whole("units of core", 99_999, least=1),
    "compute": ValueForm(r"[0-9]{1,2}\.[0-9]", "a capability such as 9.0"),
    "multiprocessors": _whole("multiprocessors", 9_999, least=1),
    "bandwidth": ValueForm(rf"(?=.*[1-9]){_NUMBER}\s*[MG]B/s", "a rate such as 300 GB/s"),
    "context": _SIZE,
    "power": _whole("whole watts", 9_999),
    "power_limit": _whole("whole watts", 9_999),
    "temperature": _whole("whole degrees Celsius", 199),
    "mig": ValueForm(
        r"([123457]g\.[0-9]{1,4}gb(\s*x[1-7])?([,\s]+[123457]g\.[0-9]{1,4}gb(\s*x[1-7])?)*)?",
        "instances such as 1g.18gb x3, 2g.35gb x1",
    ),
    "slice": _SOME_TIME,
    "switch": _TIME,
    "aicpu": _whole("AI CPUs", 99),
    "card": _whole("a card", 63),
    "chip": _whole("a chip", 63),
    "cpus": ValueForm(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", "processors such as 0-23"),
    "sgpu": ValueForm("on|off|never", "on, off or never"),
    "smlu": _SWITCH,
    "reserved": _SIZE,
}
#: What each kind of section may say, by its keys.
KEYS: Mapping[str, Mapping[str, ValueForm]] = MappingProxyType(
    {
        "device": _DEVICE,
        "kernel": {"time": _TIME, "per_arg0": _TIME},
        "driver": {
            **dict.fromkeys((*VENDORS, "maca"), _VERSION),
            "cndev": _whole("an interface", 9, least=1),
        },
        "fault": {
            "call": ValueForm(r"[!-~]+", "a driver's function, or a pattern"),
            "device": _whole("a position", 63),
            "vendor": _DEVICE["vendor"],
            "does": ValueForm(
                rf"error -?(0x[0-9A-Fa-f]{{1,8}}|[0-9]{{1,9}})|hang( {_NUMBER} (ms|s))?"
                r"|garbage|missing|vanish( [0-9]{1,9})?",
                "error CODE, hang [TIME], garbage, missing or vanish [COUNT]",
            ),
        },
    }
)
#: What a section of these kinds must say.
REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"device": ("vendor", "model", "memory"), "fault": ("call", "does")}
)
#: The keys that cut a card, by the expression of each part: its `slices`, `size` in GB and `count`.
PARTITIONS: Mapping[str, str] = MappingProxyType(
    {"mig": r"(?P<slices>[1-7])g\.(?P<size>[0-9]+)gb(\s*x(?P<count>[0-9]+))?"}
)
#: The slices that a card's parts have together.
MOST_SLICES = 7
_PCIE = "PIX|PXB|PHB|NODE|SYS"
#: The words for a link that each vendor's driver knows, as a regular expression, with an example.
LINKS: Mapping[str, ValueForm] = MappingProxyType(
    {
        vendor: ValueForm(f"{own}|{_PCIE}" if own else _PCIE, example)
        for vendor, own, example in (
            ("amd", "XGMI", "XGMI"),
            ("ascend", "HCCS|HCCS_SW|SIO", "HCCS"),
            ("cambricon", "", "PIX"),
            ("hygon", "XGMI", "XGMI"),
            ("iluvatar", "", "PIX"),
            ("metax", "METAXLINK", "METAXLINK"),
            ("mthreads", "MTLINK[1-9]", "MTLINK2"),
            ("nvidia", "NV[1-9][0-9]?", "NV18"),
        )
    }
)
#: How a card's UUID is written, of those vendors whose drivers do not take any.
UUIDS: Mapping[str, ValueForm] = MappingProxyType(
    dict.fromkeys(("amd", "iluvatar", "nvidia"), ValueForm(r"GPU-[!-~]{1,43}", "GPU- and a UUID"))
)
