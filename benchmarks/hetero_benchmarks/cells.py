"""What is measured at a time: which jobs, under which shares, for how long."""

from __future__ import annotations

from collections import Counter

from attrs import evolve, frozen

from hetero.model import Policy, Priority

#: Seconds after the cue that are not measured: the queues fill and the limiter finds its rhythm.
LEAD = 1.0
#: The core of a whole card. Nobody else is let in beside it, and nothing can be set to it.
FULL = 100
#: No limit, of a core that was limited before or will be: the program's other cells differ from
#: that one in nothing else.
OPEN = 0


@frozen(kw_only=True)
class Share:
    """What a tenant's grant says beside its memory; `core` None: no share of the core is asked."""

    core: int | None = None
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW

    def __str__(self) -> str:
        named = {None: "memory only", OPEN: "no limit"}
        core = named.get(self.core) or f"{self.core} %"
        policy = "" if self.policy is Policy.FIXED else f" {self.policy.value}"
        return core + policy + (" high" if self.priority is Priority.HIGH else "")


@frozen(kw_only=True)
class Tenant:
    """One job as it is measured: `share` None is without hetero.

    It rests `rest` seconds after every step; an idle one only stands there. A job on several cards
    is a program of hetero_benchmarks.gang; cards are counted from 0. `settings` are more of its
    environment, of one without hetero.
    """

    job: str
    cards: tuple[int, ...] = (0,)
    share: Share | None = None
    rest: float = 0.0
    idle: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        how = " unlimited" if self.share is None else f" at {self.share}"
        return self.name + how + (" idle" if self.idle else "")

    @property
    def name(self) -> str:
        """What runs, and where if that is not the first card."""
        where = "" if self.cards == (0,) else f" on {'+'.join(map(str, self.cards))}"
        return self.job + where

    @property
    def program(self) -> Tenant:
        """Which program this is of.

        Tenants whose shares differ in what `hetero resize` can change are the same, with 1 in the
        place of that.
        """
        share = self.share
        if share is not None and share.core not in (None, FULL):
            policy = Policy.OFF if share.policy is Policy.OFF else Policy.FIXED
            share = evolve(share, core=1, policy=policy)
        return Tenant(job=self.job, cards=self.cards, share=share, settings=self.settings)


#: A program: what it was started as, and the how manieth of those alike.
Key = tuple[Tenant, int]


@frozen(kw_only=True)
class Cell:
    """Tenants measured at the same time, each for `seconds`."""

    tenants: tuple[Tenant, ...]
    seconds: float
    lead: float = LEAD

    def __str__(self) -> str:
        return " beside ".join(map(str, self.tenants))

    @property
    def programs(self) -> tuple[Key, ...]:
        """The program of each tenant."""
        met: Counter[Tenant] = Counter()
        named = []
        for tenant in self.tenants:
            named.append((tenant.program, met[tenant.program]))
            met[tenant.program] += 1
        return tuple(named)
