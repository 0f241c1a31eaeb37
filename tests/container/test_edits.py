"""What goes into a container, and the CDI specs that say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero.container.cdi import Specs, check_name
from hetero.container.edits import confine, in_place
from hetero.container.share import create, remove, settle
from hetero.errors import BadInput, NotFound, Refused
from hetero.model import MEMORY, Ask, Edits, Mount, Request
from hetero.node.ledger import Ledger
from hetero.node.node import Node
from hetero.testing import MemoryVendor
from hetero.units import GiB

ASK = Request(asks=(Ask(memory=GiB, core=30),))


def spec(specs: Specs, name: str) -> dict[str, Any]:
    document = json.loads(specs.path(name).read_text())
    assert ("0.3.0", "hetero.io/share") == (document["cdiVersion"], document["kind"])
    (device,) = document["devices"]
    assert name == device["name"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_a_share_brings_the_device_where_nobody_else_does(node: Node, specs: Specs) -> None:
    view = create(node, "train", ASK, specs=specs)

    assert ("hetero.io/share=train",) == view.devices
    (entry,) = node.look().standing
    grant = f"{node.ledger.path}/grants/{entry.id}/tenant/grant"
    assert {
        "env": ["MEMORY_VISIBLE_DEVICES=memory-0"],
        "deviceNodes": [{"path": "/dev/full"}],
        "mounts": [
            {
                "hostPath": source,
                "containerPath": target,
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
            for source, target in (("/bin/sh", "/bin/sh"), (grant, "/etc/hetero/grant"))
        ],
    } == spec(specs, "train")


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "memory.com/card", "devices": [{"name": "memory-0"}]}',
        "kind: memory.com/card\ndevices:\n- name: memory-0\n",
    ],
)
def test_a_share_leaves_the_device_to_the_vendor_s_own_spec(
    node: Node, specs: Specs, text: str
) -> None:
    specs.directories[0].mkdir()
    (specs.directories[0] / "memory.yaml").write_text(text)

    view = create(node, "train", ASK, specs=specs)

    assert ("memory.com/card=memory-0", "hetero.io/share=train") == view.devices
    assert {"env", "mounts"} == set(spec(specs, "train"))
    assert ["/etc/hetero/grant"] == [
        mount["containerPath"] for mount in spec(specs, "train")["mounts"]
    ]


def test_a_spec_of_another_card_is_not_taken_for_ours(node: Node, specs: Specs) -> None:
    specs.directories[0].mkdir()
    for name in ("memory-00", "xmemory-0", "memory-0-1"):
        text = f"kind: memory.com/card\ndevices:\n- name: {name}\n"
        (specs.directories[0] / f"{name}.yaml").write_text(text)

    assert ("hetero.io/share=train",) == create(node, "train", ASK, specs=specs).devices


def test_the_limiter_gets_in_by_files_only(node: Node, tmp_path: Path) -> None:
    hold = node.take(ASK, share="train").hold
    limiters = in_place(hold.path, [tmp_path / "liblimit.so"], ["/opt/own.so"])

    edits = confine(node, hold.standing, Edits(env={"A": "b"}), limiters=limiters)

    assert {"A": "b"} == edits.env
    assert {
        Mount(str(tmp_path / "liblimit.so"), "/etc/hetero/liblimit.so"),
        Mount(f"{hold.path}/tenant/grant", "/etc/hetero/grant"),
        Mount(f"{hold.path}/tenant/usage", "/etc/hetero/usage", writable=True),
        Mount(f"{hold.path}/tenant/turn.0", "/etc/hetero/turn.0", writable=True),
        Mount(f"{hold.path}/tenant/ld.so.preload", "/etc/ld.so.preload"),
    } == set(edits.mounts)
    said = (hold.path / "tenant/ld.so.preload").read_text()
    assert "/etc/hetero/liblimit.so\n/opt/own.so\n" == said


def test_a_share_stands_until_it_is_removed_and_after_a_reboot(node: Node, specs: Specs) -> None:
    create(node, "train", ASK, specs=specs)
    with pytest.raises(Refused, match="share train is there already"):
        create(node, "train", ASK, specs=specs)
    (before,) = node.look().standing
    (node.ledger.path / "boot").write_text("another\n")
    specs.remove("train")

    (view,) = settle(node, specs=specs).shares

    assert before == view.entry
    assert specs.path("train").exists()
    remove(node, "train", specs=specs)
    assert ((), ()) == (node.look().standing, settle(node, specs=specs).shares)
    assert not specs.path("train").exists()
    with pytest.raises(NotFound, match="no share 'train'"):
        remove(node, "train", specs=specs)


def test_a_share_that_is_refused_takes_nothing(node: Node, specs: Specs) -> None:
    with pytest.raises(Refused, match="0 of 1 device"):
        create(node, "large", Request(asks=(Ask(memory=17 * GiB),)), specs=specs)

    assert ((), False) == (node.look().standing, specs.path("large").exists())


def test_the_spec_of_a_card_that_is_gone_goes_with_a_word(
    node: Node, vendor: MemoryVendor, specs: Specs
) -> None:
    create(node, "train", ASK, specs=specs)
    cards = list(vendor.devices)
    vendor.devices.clear()

    settled = settle(node, specs=specs)

    assert ("memory-0",) == settled.shares[0].gone
    assert settled.words[0].startswith("removed the spec of train: memory-0 is gone")
    assert () == settle(node, specs=specs).words
    vendor.devices += cards
    assert () == settle(node, specs=specs).shares[0].gone
    assert specs.path("train").exists()


def test_a_spec_without_a_share_is_removed_and_another_ledger_s_is_not(
    node: Node, vendor: MemoryVendor, specs: Specs, tmp_path: Path
) -> None:
    other = evolve(node, ledger=Ledger(tmp_path / "other", kept=tmp_path / "other-kept"))
    limited = (Mount(f"{other.ledger.path}/grants/1/tenant/grant", "/etc/hetero/grant"),)
    specs.put("theirs", Edits(mounts=limited), owner=other.ledger.path)
    ours = (Mount(f"{node.ledger.path}/grants/1/tenant/grant", "/etc/hetero/grant"),)
    specs.put("ours", Edits(mounts=ours), owner=node.ledger.path)

    settled = settle(node, specs=specs)

    assert ("removed the spec of ours: no such share stands",) == settled.words
    assert (True, False) == (specs.path("theirs").exists(), specs.path("ours").exists())
    with pytest.raises(Refused, match="choose another name"):
        create(node, "theirs", ASK, specs=specs)
    assert () == node.look().standing


def test_a_share_s_memory_is_counted(node: Node, specs: Specs) -> None:
    create(node, "train", ASK, specs=specs)

    with pytest.raises(Refused, match="lack memory"):
        node.take(Request(asks=(Ask(memory=16 * GiB),)))
    assert [GiB] == [entry.limits[0].memory for entry in node.look().standing]
    assert GiB == node.look().standing[0].allocation.grants[0].takes[MEMORY]


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "1a", "a-", "a" * 65, "../x"])
def test_a_name_that_cdi_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="a name is a letter"):
        check_name(name)
