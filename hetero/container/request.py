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
    """Return the request in a container's environment, None if it has none. Raises `BadInput`."""
    if request_text := environ.get(HETERO, "").strip():
        return _of_hetero(request_text)
    if request_text := environ.get(EGPU, "").strip():
        return _of_egpu(request_text)
    return None


def _of_hetero(request_text: str) -> Request:
    if "=" in request_text.partition(":")[0]:
        names = {**SHARES, "count": "count"}
        value_texts = pairs(
            request_text,
            source=f"{HETERO}={request_text!r}",
            names=names,
            example="write count=1,mem=3Gi",
        )
        device_count = parse_count(
            value_texts.get("count", "1"), of=f"{HETERO}={request_text!r}: count"
        )
        device_ask = ask_from(memory=value_texts.get("memory"), core=value_texts.get("core"))
        return Request(asks=(device_ask,) * device_count)
    device_texts = [device_text for device_text in request_text.split(";") if device_text.strip()]
    return Request(
        asks=tuple(ask_of_device(device_text, Ask(), source=HETERO) for device_text in device_texts)
    )


def _of_egpu(request_text: str) -> Request:
    """Read the form of EGPU: a head for all, then one part for each device, apart by colons.

    POLICY 0 is a hard limit and 1 lends idle time; ONLINE and TYPE describe how the asker runs.
    """
    source_name = f"{EGPU}={request_text!r}"
    example = "write POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"
    common_text, *device_texts = request_text.split(":")
    names = {key_name: key_name for key_name in ("POLICY", "ONLINE", "TYPE")}
    policy = pairs(common_text, source=source_name, names=names, example=example).get("POLICY", "0")
    policies = {"0": Policy.FIXED, "1": Policy.ELASTIC}
    if policy not in policies or not device_texts:
        raise BadInput(f"{source_name}: {example}")
    asks = []
    for device_text in device_texts:
        names = {key_name: key_name for key_name in ("PGPU", "MEM", "WEIGHT")}
        value_texts = pairs(device_text, source=source_name, names=names, example=example)
        memory_text = value_texts.get("MEM", "")
        if (
            not value_texts.get("PGPU", "").isdecimal()
            or not memory_text.isdecimal()
            or int(memory_text) < 1
        ):
            raise BadInput(f"{source_name}: {device_text!r} lacks PGPU or MEM (in MiB): {example}")
        core_text = value_texts.get("WEIGHT")
        asks.append(
            Ask(
                memory=int(memory_text) * MiB,
                core=None if core_text is None else parse_percent(core_text, of="WEIGHT"),
                device=value_texts["PGPU"],
            )
        )
    return Request(asks=tuple(asks), policy=policies[policy])
