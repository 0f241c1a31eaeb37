"""What happens on a node beside its pods and claims, at random."""

from contextlib import suppress
from random import Random

from attrs import define, evolve, field
from racks import threaded_registry

from hetero.model import Ask, Request
from hetero.model.errors import HeteroError
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import GrantHandle
from hetero.node.resize import resize
from hetero.node.settings import NodeSettings
from tests.kube.site import Site
from tests.kube.site_cards import ALL


@define
class Others:
    """What happens on a node beside its pods: programs that come and go, resizes, settings."""

    it: Site
    rng: Random
    changes_settings: bool = True
    _programs: list[GrantHandle] = field(init=False, factory=list)

    async def act(self) -> None:
        """Do one thing or nothing, whatever the node says to it."""
        chance = self.rng.random()
        with suppress(HeteroError):
            if chance < 0.06:
                self._start()
            elif chance < 0.14 and self._programs:
                number = self.rng.randrange(len(self._programs))
                self._end(self._programs.pop(number))
            elif chance < 0.20:
                self._resize()
            elif chance < 0.22 and self.changes_settings:
                await self._change_settings()
        if chance < 0.22:
            self.it.at.agent.cards.due.set()

    @property
    def uuids(self) -> set[str]:
        """The devices that programs hold."""
        grants = [program.grant for program in self._programs]
        return {piece.device for grant in grants for piece in grant.allocation.pieces}

    def _start(self) -> None:
        device = self.rng.choice(self.it.at.agent.discovery.devices)
        percents = (self.rng.choice((10, 25, 50, 100)), self.rng.choice((10, 25, 50)))
        ask = Ask(memory_percent=percents[0], core=percents[1], device=device.uuid)
        grants = LocalGrants(self.it.at.node)
        self._programs.append(grants.take(Request(asks=(ask,)), command=("train",)).handle)

    def _end(self, program: GrantHandle) -> None:
        """End a program; its slices go as its watcher has them go."""
        grants = LocalGrants(self.it.at.node)
        grants.abort(program)
        grants.sweep(program.grant.allocation.vendors)

    def _resize(self) -> None:
        grant = self.rng.choice(self.it.at.node.snapshot().grants or (None,))
        if grant is not None:
            ask = Ask(memory_percent=self.rng.choice((5, 20, 60)), core=self.rng.choice((5, 40)))
            resize(self.it.at.node, grant.id, ask)

    async def _change_settings(self) -> None:
        """Start the agent with other settings; cards with grants of before wait for their end."""
        soft = self.rng.choice(((), (), ("hygon",), ("mthreads",)))
        self.it.at.node = evolve(
            self.it.at.node,
            settings=NodeSettings(soft=soft),
            registry=threaded_registry(*{card.vendor for card in ALL.values()}, soft=soft),
        )
        await self.it.restart_agent()
