"""What a user may hold of a machine: quotas of users and groups, as heterod's settings say."""

import grp
import os
import pwd
import signal
from typing import Any

import pytest
from attrs import evolve

from hetero.model import Ask
from hetero.model.errors import Refused
from hetero.model.units import GiB, MiB
from hetero.node.grants import grants_of
from hetero.node.node import Node
from hetero.node.outlook import explain_now, fit_now
from hetero.node.quota import User, expect_within, held_of_quotas
from hetero.node.settings import NodeSettings, Quota
from hetero.node.view.doctor import Finding, examine
from hetero.testing import rack

from .conftest import request
from .users import ALICE, BOB, ROOT, Machine, plain

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


def examined(node: Node) -> tuple[Finding, ...]:
    return examine(plain(node))


def test_a_user_has_a_quota_of_memory_core_and_grants(stopped: Machine) -> None:
    stopped.settings = NodeSettings(quota=Quota(memory=6 * GiB, core=50, grants=2))
    stopped.start()
    alices = stopped.hold(ALICE, request(memory=4 * GiB, core=30))

    quota = f"quota of {ALICE}"
    with pytest.raises(Refused, match=f"{quota}: memory would be 7 GiB and may be 6 GiB"):
        stopped.hold(ALICE, request(memory=3 * GiB, core=10))
    with pytest.raises(Refused, match=f"{quota}: memory would be 7.1 GiB and may be 6 GiB"):
        stopped.hold(ALICE, request(memory=3 * GiB + MiB, core=10))
    with pytest.raises(Refused, match=f"{quota}: core would be 130 and may be 50 percent"):
        stopped.hold(ALICE, request(memory=GiB))
    with pytest.raises(Refused, match=f"{quota}: core would be 60 and may be 50 percent"):
        stopped.said_by(ALICE, lambda node: grants_of(node).resize(alices.grant, Ask(core=60)))
    with pytest.raises(Refused, match=f"{quota}: memory would be 7 GiB"):
        stopped.said_by(ALICE, lambda node: fit_now(node, request(memory=3 * GiB, core=10)))
    stopped.hold(ALICE, request(memory=GiB, core=10))
    with pytest.raises(Refused, match=f"{quota}: grants would be 3 and may be 2"):
        stopped.hold(ALICE, request(memory=GiB, core=10))
    stopped.hold(BOB, request(memory=4 * GiB, core=50))
    stopped.hold(ROOT, request(memory=7 * GiB, core=10))


def test_the_quota_is_that_of_heterods_settings_and_doctor_shows_what_is_held(
    stopped: Machine,
) -> None:
    stopped.settings = NodeSettings(quota=Quota(memory=6 * GiB, core=50, grants=2))
    stopped.start()
    stopped.settings = NodeSettings()  # as users read them
    stopped.hold(ALICE, request(memory=4 * GiB + MiB, core=30))

    asked = request(memory=3 * GiB, core=10)
    sentence = f"quota of {ALICE}: memory would be 7.1 GiB and may be 6 GiB"
    with pytest.raises(Refused, match=sentence):
        stopped.said_by(ALICE, lambda node: fit_now(node, asked))
    with pytest.raises(Refused, match=sentence):
        stopped.said_by(ALICE, lambda node: explain_now(node, asked))
    examined_as = {each.subject: each.says for each in stopped.said_by(ALICE, examined)}
    says = "grants 1 of 2, memory 4 GiB of 6 GiB, core 30 of 50 percent of a card"
    assert says == examined_as[f"quota of {ALICE}"]
    assert not any(each.subject.startswith("quota") for each in stopped.said_by(ROOT, examined))
    stopped.stop(signal.SIGKILL)
    stopped.said_by(ALICE, lambda node: fit_now(node, asked))


def test_the_members_of_a_group_hold_no_more_than_its_quota_together(
    monkeypatch: pytest.MonkeyPatch, stopped: Machine
) -> None:
    stopped.start()
    stopped.hold(ALICE, request(memory=6 * GiB, core=10))
    (entry,) = stopped.node().snapshot().grants

    class Entry:
        pw_gid = 1000

    students = grp.struct_group(("students", "x", 2000, ["ann", "ben"]))
    own = grp.struct_group(("own", "x", 1000, []))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: Entry)
    monkeypatch.setattr(grp, "getgrall", lambda: [students, own])
    monkeypatch.setattr(
        os, "getgrouplist", lambda name, gid: [gid, *([2000] if name in students.gr_mem else [])]
    )
    (card,) = rack(16 * GiB)
    settings = NodeSettings(
        user_quotas={"ann": Quota(memory=16 * GiB)},
        group_quotas={"students": Quota(memory=10 * GiB)},
    )
    asked = entry.allocation

    def held_by(name: str, uid: int) -> list[Any]:
        return [evolve(entry, user=name, uid=uid)]

    def expect(asker: User, held: list[Any]) -> None:
        devices = {card.uuid: card}
        expect_within(held_of_quotas(settings, asker, held, devices), asked, devices)

    with pytest.raises(Refused, match="quota of group students: memory would be 12 GiB"):
        expect(User(2, "ben"), held_by("ann", 1))
    expect(User(2, "ben"), held_by("carl", 3))
    expect(User(3, "carl"), held_by("ann", 1))
