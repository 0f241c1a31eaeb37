"""What goes into a container, and the CDI specs that say it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.container.cdi import Specs, check_name
from hetero.container.edits import confine, in_place
from hetero.container.share import create
from hetero.model import Ask, Edits, Mount, Request
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants
from hetero.node.node import Node

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
    (entry,) = node.snapshot().grants
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


def test_a_spec_s_hook_inherits_nothing_and_is_there_for_the_preload_file_alone(
    node: Node, limited: Node, specs: Specs
) -> None:
    create(node, "plain", ASK, specs=specs)
    create(limited, "held", ASK, specs=specs)

    assert "hooks" not in spec(specs, "plain")
    (hook,) = spec(specs, "held")["hooks"]
    assert ("createContainer", hook["path"]) == (hook["hookName"], hook["args"][0])
    assert ["PATH"] == [variable.partition("=")[0] for variable in hook["env"]]
    assert not any("LD_" in variable for variable in spec(specs, "held").get("env", ()))


def test_a_spec_of_another_card_is_not_taken_for_ours(node: Node, specs: Specs) -> None:
    specs.directories[0].mkdir()
    for name in ("memory-00", "xmemory-0", "memory-0-1"):
        text = f"kind: memory.com/card\ndevices:\n- name: {name}\n"
        (specs.directories[0] / f"{name}.yaml").write_text(text)

    assert ("hetero.io/share=train",) == create(node, "train", ASK, specs=specs).devices


def test_the_limiter_gets_in_by_files_only(node: Node, tmp_path: Path) -> None:
    handle = LocalGrants(node).take(ASK, share="train").handle
    limiters = in_place(handle.path, [tmp_path / "liblimit.so"], ["/opt/own.so"])

    edits = confine(node, handle.grant, Edits(env={"A": "b"}), limiters=limiters)

    assert {"A": "b"} == edits.env
    assert {
        Mount(str(tmp_path / "liblimit.so"), "/etc/hetero/liblimit.so"),
        Mount(f"{handle.path}/tenant/grant", "/etc/hetero/grant"),
        Mount(f"{handle.path}/tenant/usage", "/etc/hetero/usage", writable=True),
        Mount(f"{handle.path}/tenant/page.0", "/etc/hetero/page.0", writable=True),
        Mount(str(node.ledger.boards / "memory-0"), "/etc/hetero/board.0"),
        Mount(f"{handle.path}/tenant/ld.so.preload", "/etc/ld.so.preload"),
    } == set(edits.mounts)
    preloads = (handle.path / "tenant/ld.so.preload").read_text()
    assert "/etc/hetero/liblimit.so\n/opt/own.so\n" == preloads


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "1a", "a-", "a" * 65, "../x"])
def test_a_name_that_cdi_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="a name is a letter"):
        check_name(name)
