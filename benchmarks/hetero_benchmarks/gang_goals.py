"""Which programs of several cards are measured beside each other, and what is promised of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from hetero.model import Policy
from hetero_benchmarks.cells import Share, Tenant
from hetero_benchmarks.rates import Pace, swing
from hetero_benchmarks.rates import share as percent_of

#: Those that are measured on four cards, and under HAMi-core, at that share.
ON_FOUR, UNDER_HAMI, HALF = ("ddp-gpt2", "tp", "allreduce-16"), ("ddp-gpt2", "tp"), 50
#: The share of a gang of four and of two gangs of two beside it.
OF_FOUR = 40
#: Points below its share that a program may be beside others, and in any second; of two gangs of
#: tensor parallel; and the part of the sum asked of a card that its programs have.
BESIDE_POINTS, SECOND_POINTS, TENSOR_POINTS, SUM = 3.0, 10.0, 4.0, 0.95


@frozen(kw_only=True)
class Together:
    """Tenants beside each other, what each may lack of its share, and how far seconds may spread.

    Without a spread, each second is within `SECOND_POINTS` of what the tenant may have.
    """

    name: str
    tenants: tuple[Tenant, ...]
    points: float = BESIDE_POINTS
    spread: float | None = None


def law(share: int, b: float | None) -> float:
    """Return the percent of its rate alone that a program of this share may have."""
    return min(100.0, share / (b or 1.0))


def missed(together: Together, row: dict[str, Any]) -> list[str]:
    """Return a line for each figure of programs beside each other that is not as promised."""
    lines = []
    for who, tenant in zip(row["tenants"], together.tenants, strict=True):
        if tenant.share is None or tenant.share.core is None or tenant.idle:
            continue
        core, (low, high) = tenant.share.core, who["seconds"]
        name = f"{together.name}: {tenant}"
        if who["got"] < core - together.points:
            lines.append(f"{name} has {who['got']:.1f}, less than {core - together.points:g}")
        if together.spread is not None and high - low > together.spread:
            lines.append(f"{name} spreads from {low:.1f} to {high:.1f} by the second")
        elif together.spread is None and low < core - SECOND_POINTS:
            lines.append(f"{name} has a second of {low:.1f}")
        most = law(core, who["b"]) + SECOND_POINTS
        if together.spread is None and tenant.share.policy is Policy.FIXED and high > most:
            lines.append(f"{name} has a second of {high:.1f}, more than {most:.1f}")
    for card in sorted({card for tenant in together.tenants for card in tenant.cards}):
        on_card = [number for number, each in enumerate(together.tenants) if card in each.cards]
        asked = sum((together.tenants[n].share or Share()).core or 0 for n in on_card)
        got = sum(row["tenants"][n]["got"] for n in on_card)
        idle = any(together.tenants[n].idle for n in on_card)
        if got < SUM * asked and not idle:
            lines.append(f"{together.name}: card {card} has {got:.1f} of {asked} in all")
    return lines


def natives(tenants: Sequence[Tenant]) -> list[tuple[Tenant, ...]]:
    """Return those that are measured without hetero for reference, and at the same time.

    Each gang by itself, and then all programs of one card.
    """
    bare = dict.fromkeys(Tenant(job=each.job, cards=each.cards) for each in tenants)
    gangs = [(each,) for each in bare if len(each.cards) > 1]
    singles = tuple(each for each in bare if len(each.cards) == 1)
    return [*gangs, *([singles] if singles else [])]


def against(
    together: Together,
    paces: Iterator[Pace],
    rates: dict[Tenant, float],
    parts: dict[Tenant, float | None],
) -> dict[str, Any]:
    """Return what tenants had in percent of the rate of the same without hetero."""
    row: dict[str, Any] = {"name": together.name, "tenants": []}
    for tenant in together.tenants:
        bare = Tenant(job=tenant.job, cards=tenant.cards)
        who: dict[str, Any] = {"tenant": str(tenant), "native": rates[bare], "b": parts[bare]}
        if tenant.idle:
            who |= {"got": 0.0, "seconds": [0.0, 0.0]}
        else:
            pace = next(paces)
            who |= {
                "got": percent_of(pace.rate, rates[bare]),
                "seconds": list(swing(pace, rates[bare])),
            }
        row["tenants"].append(who)
    return row


def gangs(
    program: str, core: int | None, policy: Policy = Policy.FIXED, *, idle: bool = False
) -> tuple[Tenant, ...]:
    """Return two gangs of a program on the same two cards; the second may be idle."""
    share = None if core is None else Share(core=core, policy=policy)
    tenant = Tenant(job=program, cards=(0, 1), share=share)
    return (tenant, evolve(tenant, idle=idle))


def groups(programs: Sequence[str]) -> list[list[Together]]:
    """Return who is measured beside whom, of these programs, those of a start together."""
    chosen = []
    for program in programs:
        points = TENSOR_POINTS if program == "tp" else BESIDE_POINTS
        if program in ("tp", "simulated"):
            none = Together(name=f"{program} twice without hetero", tenants=gangs(program, None))
            chosen.append([none])
        if program in ("tp", "ddp-gpt2", "simulated"):
            name = f"{program} 50 + 50"
            chosen.append([Together(name=name, tenants=gangs(program, HALF), points=points)])
        if program in ("tp", "simulated"):
            single = "gemm" if program == "tp" else "simulated"
            tenants = (
                gangs(program, HALF)[0],
                *(Tenant(job=single, cards=(n,), share=Share(core=HALF)) for n in (0, 1)),
            )
            chosen.append([Together(name=f"{program} 50 + {single} 50 a card", tenants=tenants)])
            name, elastic = f"{program} elastic 50 + 50", Policy.ELASTIC
            both = gangs(program, HALF, elastic)
            lone = gangs(program, HALF, elastic, idle=True)
            chosen.append(
                [
                    Together(name=name, tenants=both),
                    Together(name=f"{name}, one of them idle", tenants=lone),
                ]
            )
        if program == "decode-graph":
            tenants = gangs(program, HALF)
            chosen.append(
                [Together(name=f"{program} 50 + 50", tenants=tenants, points=4.0, spread=10.0)]
            )
    return chosen
