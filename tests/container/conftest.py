"""A node whose cards give a container more than a variable: a /dev entry, files, CDI devices."""

from pathlib import Path

import pytest
from attrs import evolve

from hetero.container.cdi import Specs
from hetero.model.units import GiB
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.plugin.container import ContainerEdits
from hetero.plugin.hookspecs import hookimpl
from hetero.plugin.vendor import Vendor
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack


class Carded(MemoryVendor):
    """A vendor that says what a container needs of it."""

    @hookimpl
    def hetero_vendor(self) -> Vendor:
        """Return the declaration, with a /dev entry and a file that every machine has."""
        return evolve(
            super().hetero_vendor(),
            container=ContainerEdits(
                device_nodes=("/dev/full", "/dev/of-{index}"),
                files=("/bin/sh", "libabsent.so.1"),
                cdi="memory.com/card",
            ),
        )


def node_with(vendor: MemoryVendor, path: Path) -> Node:
    ledger = Ledger(path / "state", persistent=path / "persistent")
    return Node(registry=Registry.of(vendor), ledger=ledger)


@pytest.fixture
def vendor() -> Carded:
    return Carded(rack(16 * GiB))


@pytest.fixture
def node(tmp_path: Path, vendor: Carded) -> Node:
    return node_with(vendor, tmp_path)


@pytest.fixture
def limited(tmp_path: Path) -> Node:
    """A node whose vendor has a limiter."""
    return node_with(MemoryVendor(rack(16 * GiB), limiter="cuda"), tmp_path / "limited")


@pytest.fixture
def specs(tmp_path: Path) -> Specs:
    return Specs((tmp_path / "lasting", tmp_path / "run"))
