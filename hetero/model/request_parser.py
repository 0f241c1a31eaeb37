"""Reads the ways people write what they want of devices, as flags and in a container's environment.

0:mem=3276Mi,core=10;1:mem=8Gi,core=50            two named devices, each with its share
count=1,mem=3Gi,core=30                           any device
POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,…   memory in MiB, per device
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from hetero.model import Ask, Policy, Request
from hetero.model.errors import BadInput
from hetero.model.units import MiB, parse_count, parse_memory, parse_percent

#: The variables a container may say its request in; the first that is set counts.
REQUEST, SEED = "HETERO", "EGPU"

_SHARES = {"mem": "memory", "memory": "memory", "core": "core"}
_EXAMPLE = "write 0:mem=3276Mi,core=10"


def ask_from(*, memory: str | None, core: str | None, device: str | None = None) -> Ask:
    """Return what is asked of one device. Raises `BadInput`."""
    percent = None
    size = None
    if memory is not None and memory.strip().endswith("%"):
        percent = parse_percent(memory, of="memory")
    elif memory is not None:
        size = parse_memory(memory)
    return Ask(
        memory=size,
        memory_percent=percent,
        core=None if core is None else parse_percent(core, of="core"),
        device=device,
    )


def ask_of_device(text: str, each: Ask, *, said: str) -> Ask:
    """Return the ask in `0:mem=3276Mi,core=10`; what it leaves out is as `each` says.

    `said` is how the text is introduced in an error. Raises `BadInput`.
    """
    name, _, shares = text.partition(":")
    if not name.strip():
        raise BadInput(f"{said} {text!r} names no device: write 0, or 0:mem=3276Mi,core=10")
    told = _pairs(shares, said=f"{said} {text!r}", known=_SHARES, example=_EXAMPLE)
    own = ask_from(memory=told.get("memory"), core=told.get("core"), device=name.strip())
    if "memory" not in told:
        own = evolve(own, memory=each.memory, memory_percent=each.memory_percent)
    if "core" not in told:
        own = evolve(own, core=each.core)
    return own


def request_in(environ: Mapping[str, str]) -> Request | None:
    """Return the request a container's environment makes, None when it makes none."""
    if text := environ.get(REQUEST, "").strip():
        return _request(text)
    if seed := environ.get(SEED, "").strip():
        return _seed(seed)
    return None


def _request(text: str) -> Request:
    if "=" in text.partition(":")[0]:
        known = {**_SHARES, "count": "count"}
        told = _pairs(
            text, said=f"{REQUEST}={text!r}", known=known, example="write count=1,mem=3Gi"
        )
        count = parse_count(told.get("count", "1"), of=f"{REQUEST}={text!r}: count")
        each = ask_from(memory=told.get("memory"), core=told.get("core"))
        return Request(asks=(each,) * count)
    parts = [part for part in text.split(";") if part.strip()]
    return Request(asks=tuple(ask_of_device(part, Ask(), said=REQUEST) for part in parts))


def _seed(text: str) -> Request:
    """Read the older form: a head for all, then one part for each device, apart by colons.

    POLICY 0 is a hard limit and 1 lends idle time; ONLINE and TYPE describe how the asker runs.
    """
    said = f"{SEED}={text!r}"
    example = "write POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
    head, *parts = text.split(":")
    words = {name: name for name in ("POLICY", "ONLINE", "TYPE")}
    policy = _pairs(head, said=said, known=words, example=example).get("POLICY", "0")
    policies = {"0": Policy.FIXED, "1": Policy.ELASTIC}
    if policy not in policies or not parts:
        raise BadInput(f"{said}: {example}")
    asks = []
    for part in parts:
        words = {name: name for name in ("PGPU", "MEM", "WEIGHT")}
        told = _pairs(part, said=said, known=words, example=example)
        memory = told.get("MEM", "")
        if not told.get("PGPU", "").isdecimal() or not memory.isdecimal() or int(memory) < 1:
            raise BadInput(f"{said}: {part!r} lacks PGPU or MEM (in MiB): {example}")
        core = told.get("WEIGHT")
        asks.append(
            Ask(
                memory=int(memory) * MiB,
                core=None if core is None else parse_percent(core, of="WEIGHT"),
                device=told["PGPU"],
            )
        )
    return Request(asks=tuple(asks), policy=policies[policy])


def _pairs(text: str, *, said: str, known: Mapping[str, str], example: str) -> dict[str, str]:
    """Return `name=value,name=value` by what `known` calls each name."""
    told: dict[str, str] = {}
    for share in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = share.partition("=")
        name = known.get(word.strip())
        if not equals or name is None or name in told:
            names = " or ".join(f"{word}=…" for word in known if word != "memory")
            raise BadInput(f"{said}: {share!r} is not {names}: {example}")
        told[name] = value.strip()
    return told
