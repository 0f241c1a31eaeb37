"""Reads what a container's environment asks for, in either of the two forms.

HETERO=0:mem=3276Mi,core=10;1:mem=8Gi,core=50      two named devices, each with its share
HETERO=count=1,mem=3Gi,core=30                     any device
EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,…   memory in MiB, per device
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model import Ask, Policy, Request
from hetero.model.errors import BadInput
from hetero.model.request_parser import SHARES, ask_from, ask_of_device, pairs
from hetero.model.units import MiB, parse_count, parse_percent

#: The variables a container may say its request in; the first that is set counts.
HETERO, EGPU = "HETERO", "EGPU"


def request_in(environ: Mapping[str, str]) -> Request | None:
    """Return the request a container's environment makes, None when it makes none."""
    if text := environ.get(HETERO, "").strip():
        return _of_hetero(text)
    if text := environ.get(EGPU, "").strip():
        return _of_egpu(text)
    return None


def _of_hetero(text: str) -> Request:
    if "=" in text.partition(":")[0]:
        known = {**SHARES, "count": "count"}
        texts = pairs(
            text, source=f"{HETERO}={text!r}", names=known, example="write count=1,mem=3Gi"
        )
        count = parse_count(texts.get("count", "1"), of=f"{HETERO}={text!r}: count")
        each = ask_from(memory=texts.get("memory"), core=texts.get("core"))
        return Request(asks=(each,) * count)
    parts = [part for part in text.split(";") if part.strip()]
    return Request(asks=tuple(ask_of_device(part, Ask(), source=HETERO) for part in parts))


def _of_egpu(text: str) -> Request:
    """Read the form of EGPU: a head for all, then one part for each device, apart by colons.

    POLICY 0 is a hard limit and 1 lends idle time; ONLINE and TYPE describe how the asker runs.
    """
    source = f"{EGPU}={text!r}"
    example = "write POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
    head, *parts = text.split(":")
    words = {name: name for name in ("POLICY", "ONLINE", "TYPE")}
    policy = pairs(head, source=source, names=words, example=example).get("POLICY", "0")
    policies = {"0": Policy.FIXED, "1": Policy.ELASTIC}
    if policy not in policies or not parts:
        raise BadInput(f"{source}: {example}")
    asks = []
    for part in parts:
        words = {name: name for name in ("PGPU", "MEM", "WEIGHT")}
        texts = pairs(part, source=source, names=words, example=example)
        memory = texts.get("MEM", "")
        if not texts.get("PGPU", "").isdecimal() or not memory.isdecimal() or int(memory) < 1:
            raise BadInput(f"{source}: {part!r} lacks PGPU or MEM (in MiB): {example}")
        core = texts.get("WEIGHT")
        asks.append(
            Ask(
                memory=int(memory) * MiB,
                core=None if core is None else parse_percent(core, of="WEIGHT"),
                device=texts["PGPU"],
            )
        )
    return Request(asks=tuple(asks), policy=policies[policy])
