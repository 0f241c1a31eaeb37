"""heterod with two users and root: one ledger, everybody's own grants, and nobody in the way."""

import fcntl
import os
import re
import signal
import socket
import struct
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve

from hetero.cli import tell_warnings
from hetero.model import Ask, Device, Usage
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.model.units import GiB
from hetero.node.daemon.server import set_up
from hetero.node.daemon_client import SOCKET, DaemonClient
from hetero.node.grants import LocalGrants, admit_program, grants_of, release
from hetero.node.ledger.board import PAGE_BYTES
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.ledger import ALIVE, ALLOCATION, ContainerInfo, Ledger
from hetero.node.node import Node
from hetero.node.view.doctor import examine
from hetero.plugin.hookspecs import hookimpl
from hetero.testing import MemoryVendor

from .conftest import request
from .users import ALICE, BOB, ROOT, Machine, grants, plain, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


# --- one ledger ----------------------------------------------------------------------------------


def test_row_10_two_users_cannot_overbook_a_card_and_all_see_both(machine: Machine) -> None:
    alices = machine.hold(ALICE, request(memory=6 * GiB, core=60))
    with pytest.raises(Refused, match="0 of 1 device: 1 lack core"):
        machine.hold(BOB, request(memory=GiB, core=60))
    with pytest.raises(Refused, match="0 of 1 device: 1 lack memory"):
        machine.hold(ROOT, request(memory=12 * GiB, core=10))
    bobs = machine.hold(BOB, request(memory=2 * GiB, core=30))
    roots = machine.hold(ROOT, request(memory=GiB, core=10))

    everybody = {alices.grant: str(ALICE), bobs.grant: str(BOB), roots.grant: "root"}
    assert [everybody] * 3 == [machine.said_by(uid, grants) for uid in (ROOT, ALICE, BOB)]


def test_users_see_the_grant_of_a_container_whose_state_only_root_may_see(
    machine: Machine,
) -> None:
    state = machine.path / "runc" / "c1"
    state.mkdir(parents=True)
    state.parent.chmod(0o700)
    taken = LocalGrants(machine.node()).take(
        request(memory=GiB), container=ContainerInfo(id="c1", name="c1", state=str(state))
    )
    os.close(taken.handle.descriptor)

    assert {taken.handle.grant.id: "root"} == machine.said_by(ALICE, grants)
    state.rmdir()
    assert until(lambda: {} == machine.said_by(ALICE, grants))


def test_a_grant_ends_with_its_program_and_not_with_heterod(machine: Machine) -> None:
    held = machine.hold(ALICE, request(memory=6 * GiB))

    assert 0 == machine.stop(signal.SIGTERM)
    assert {held.grant: str(ALICE)} == machine.said_by(BOB, grants)
    machine.start()
    assert {held.grant: str(ALICE)} == machine.said_by(BOB, grants)
    held.kill()
    assert {} == machine.said_by(BOB, grants)
    assert until(lambda: not (machine.state / "grants" / held.grant).exists())


def test_while_heterod_is_away_nothing_is_given_and_the_line_says_what_to_do(
    machine: Machine,
) -> None:
    machine.stop(signal.SIGKILL)

    def admit_at_once(node: Node) -> None:
        assert node.daemon
        impatient = evolve(node, daemon=evolve(node.daemon, away_s=0.0))
        admit_program(grants_of(impatient), request(), command=["test"])

    with pytest.raises(HeteroError, match=r"does not answer at .*: start it \(systemctl start"):
        machine.said_by(ALICE, admit_at_once)


def test_an_admission_waits_for_a_heterod_that_is_started_again(machine: Machine) -> None:
    machine.stop(signal.SIGKILL)

    def admit(node: Node) -> str:
        return admit_program(grants_of(node), request(memory=GiB), command=["test"])[0].grant.user

    admitted = machine.begin(ALICE, admit)
    time.sleep(0.2)  # it asks by now
    machine.start()

    assert str(ALICE) == admitted()


def test_without_heterod_a_user_has_a_ledger_of_its_own_and_is_told(stopped: Machine) -> None:
    def unseen(_: Node) -> tuple[bool, str | None]:
        node = Node.here({"XDG_RUNTIME_DIR": "/nowhere"})
        return node.daemon is None, node.unseen

    own, says = stopped.said_by(ALICE, unseen)

    assert own
    assert says is not None
    assert re.fullmatch(r"grants that other users made are not seen: `hetero install`.*", says)


def test_in_a_pod_nobody_is_told_to_install_heterod(stopped: Machine) -> None:
    def unseen(_: Node) -> str | None:
        pod = {"XDG_RUNTIME_DIR": "/nowhere", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        return Node.here(pod).unseen

    assert stopped.said_by(ALICE, unseen) is None


class WaitsOnce(MemoryVendor):
    """Makes its first share when there is a file `go` in the ledger's directory."""

    @hookimpl
    def hetero_enforce(self, directory: Path) -> None:
        state = directory.parent.parent
        with suppress(FileExistsError), (state / "first").open("x"):
            assert until((state / "go").exists)


def test_users_are_served_while_a_vendor_makes_another_ones_share(stopped: Machine) -> None:
    def admit(node: Node) -> str:
        return admit_program(grants_of(node), request(memory=GiB), command=["test"])[0].grant.user

    stopped.vendor = WaitsOnce
    stopped.start()
    hers = stopped.begin(ALICE, admit)
    assert until((stopped.state / "first").exists)
    bobs = stopped.said_by(BOB, admit)
    assert [str(ALICE)] == [*stopped.said_by(ROOT, grants).values()]  # his ended with his program
    (stopped.state / "go").touch()

    assert (str(ALICE), str(BOB)) == (hers(), bobs)


class Crowded(MemoryVendor):
    """A vendor of whose card the machine's first process holds 12 GiB of 16, without a grant."""

    @hookimpl
    def hetero_observe(self, device: Device) -> Usage:
        return Usage(memory=12 * GiB, processes={1: 12 * GiB})


def test_heterod_refuses_what_others_hold_unless_the_user_takes_it_anyway(
    stopped: Machine,
) -> None:
    def admit(node: Node, *, anyway: bool) -> int:
        asked = request(memory=8 * GiB)
        handle, _ = admit_program(grants_of(node), asked, command=["test"], anyway=anyway)
        return handle.grant.limits[0].memory

    stopped.vendor = Crowded
    stopped.start()
    for uid in (ALICE, ROOT):
        with pytest.raises(Refused, match=r"has 4 GiB free: process 1 .* holds 12 GiB without a"):
            stopped.said_by(uid, partial(admit, anyway=False))
        assert {} == stopped.said_by(uid, grants)
        assert 8 * GiB == stopped.said_by(uid, partial(admit, anyway=True))


def finding(node: Node) -> tuple[str, str]:
    (heterod,) = (each for each in examine(plain(node)) if each.subject == "heterod")
    return heterod.verdict.value, heterod.says


def hurried(node: Node) -> Node:
    """Return a node whose user is told after 0.2 s that heterod takes long, and waits for 0.4."""
    assert node.daemon
    return evolve(node, daemon=evolve(node.daemon, away_s=0.0, slow_s=0.2, patience_s=0.4))


def test_who_waits_for_a_heterod_that_says_nothing_is_told(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert machine.daemon
    os.kill(machine.daemon, signal.SIGSTOP)

    def admit(node: Node) -> None:
        admit_program(grants_of(hurried(node)), request(), command=["test"])

    def admit_by_command(node: Node) -> None:
        warnings.simplefilter("default")
        tell_warnings()
        admit(node)

    no_answer = r"does not answer at .* \(not within 0.4 s\), and noth"
    socket_path = machine.state / SOCKET
    with pytest.raises(UserWarning, match=r"takes long: 0\.2 s more at most"):
        machine.said_by(ALICE, admit)
    assert "" == capfd.readouterr().err  # a package prints nothing by itself
    with pytest.raises(HeteroError, match=no_answer):
        machine.said_by(ALICE, admit_by_command)
    assert f"hetero: heterod at {socket_path} takes long: 0.2 s more at most\n" == (
        capfd.readouterr().err
    )
    verdict, says = machine.said_by(ALICE, lambda node: finding(hurried(node)))
    assert ("bad", True) == (verdict, says.startswith(f"heterod does not answer at {socket_path}"))
    assert "" == capfd.readouterr().err


def test_a_forced_release_without_heterod_says_what_was_done(machine: Machine) -> None:
    held = machine.hold(ALICE, request(memory=GiB, core=10))
    machine.stop(signal.SIGKILL)

    message = machine.said_by(ALICE, lambda node: release(grants_of(node), held.grant, force=True))

    assert f"ended what held grant {held.grant}: its entry goes when heterod is back" == message
    assert signal.SIGTERM == os.waitpid(held.pid, 0)[1]
    machine.start()
    assert until(lambda: not (machine.state / "grants" / held.grant).exists())


def test_doctor_says_who_shares_the_ledger(machine: Machine) -> None:

    assert [("ok", f"all users share {machine.state}")] * 2 == [
        machine.said_by(uid, finding) for uid in (ROOT, ALICE)
    ]
    machine.stop(signal.SIGKILL)
    verdict, says = machine.said_by(ALICE, finding)
    assert ("bad", True) == (verdict, "does not answer" in says)

    def alone(node: Node) -> tuple[str, str]:
        return finding(evolve(node, daemon=None, ledger=Ledger(machine.path / "none"), environ={}))

    verdict, says = machine.said_by(ROOT, alone)
    assert ("note", True) == (verdict, "are not seen" in says)


def test_a_second_heterod_is_refused_and_the_first_goes_on(machine: Machine) -> None:
    from hetero.node.daemon.server import serve

    with pytest.raises(Refused, match="runs already"):
        serve(machine.node(), ready=lambda _: None, tell=print)

    machine.hold(ALICE, request(memory=GiB))


def test_only_root_can_be_heterod(stopped: Machine) -> None:
    from hetero.node.daemon.server import serve

    with pytest.raises(HeteroError, match="run it as root"):
        stopped.said_by(ALICE, lambda node: serve(node, ready=lambda _: None, tell=print))


# --- everybody's own -----------------------------------------------------------------------------


def test_a_user_changes_and_ends_own_grants_and_root_all(machine: Machine) -> None:
    alices = machine.hold(ALICE, request(memory=6 * GiB, core=50))

    def smaller(node: Node) -> int:
        return grants_of(node).resize(alices.grant, Ask(core=20)).limits[0].core

    refusal = f"grant {alices.grant} is {ALICE}'s: {ALICE} or root can change or release it"
    with pytest.raises(Refused, match=refusal):
        machine.said_by(BOB, smaller)
    with pytest.raises(Refused, match=refusal):
        machine.said_by(BOB, lambda node: release(grants_of(node), alices.grant, force=True))
    assert 2000 == machine.said_by(ALICE, smaller)
    with pytest.raises(Refused, match=f"in use by process {alices.pid}"):
        machine.said_by(ALICE, lambda node: release(grants_of(node), alices.grant))
    machine.said_by(ALICE, lambda node: release(grants_of(node), alices.grant, force=True))
    assert {} == machine.said_by(ROOT, grants)
    assert signal.SIGTERM == os.waitpid(alices.pid, 0)[1]

    other = machine.hold(BOB, request(memory=6 * GiB))
    machine.said_by(ROOT, lambda node: release(grants_of(node), other.grant, force=True))
    assert {} == machine.said_by(BOB, grants)


def test_a_label_that_two_users_gave_is_each_users_own(machine: Machine) -> None:
    alices = machine.hold(ALICE, request(memory=GiB, core=10), label="trainer")
    bobs = machine.hold(BOB, request(memory=GiB, core=10), label="trainer")

    for uid, held in ((ALICE, alices), (BOB, bobs)):
        machine.said_by(uid, lambda node: grants_of(node).resize("trainer", Ask(core=20)))
        with pytest.raises(Refused, match=f"grant {held.grant} is in use"):
            machine.said_by(uid, lambda node: release(grants_of(node), "trainer"))
    either = rf"\w+ \(({ALICE}|{BOB}): test\)"
    with pytest.raises(BadInput, match=f"grant 'trainer' could be {either}, {either}: give more"):
        machine.said_by(ROOT, lambda node: release(grants_of(node), "trainer"))


def test_a_user_cannot_change_roots_grant(machine: Machine) -> None:
    roots = machine.hold(ROOT, request(memory=GiB))

    with pytest.raises(Refused, match=f"grant {roots.grant} is root's"):
        machine.said_by(ALICE, lambda node: grants_of(node).resize(roots.grant, Ask(core=20)))


def test_the_files_of_a_grant_are_roots_and_its_user_alone_uses_them(machine: Machine) -> None:
    alices = machine.hold(ALICE, request(memory=GiB, core=10))
    directory = machine.state / "grants" / alices.grant

    def allowed(_: Node) -> dict[str, tuple[bool, bool]]:
        names = (ALLOCATION, ALIVE, GRANT, USAGE, "tenant/page.0", "tenant", ".")
        return {
            name: (os.access(directory / name, os.R_OK), os.access(directory / name, os.W_OK))
            for name in names
        }

    public = {ALLOCATION: (True, False), ALIVE: (True, False), ".": (True, False)}
    writable = {USAGE: (True, True), "tenant/page.0": (True, True)}
    assert public | writable | {GRANT: (True, False), "tenant": (True, False)} == machine.said_by(
        ALICE, allowed
    )
    nothing = dict.fromkeys((GRANT, *writable, "tenant"), (False, False))
    assert public | nothing == machine.said_by(BOB, allowed)
    assert {0} == {path.stat().st_uid for path in [directory, *directory.rglob("*")]}


def test_users_read_boards_and_pages_of_each_other_and_write_their_own_page_alone(
    machine: Machine,
) -> None:
    alices = machine.hold(ALICE, request(memory=GiB, core=10))
    bobs = machine.hold(BOB, request(memory=GiB, core=10))
    tenant = machine.state / "grants" / alices.grant / "tenant"

    def attack(_: Node) -> None:
        board = tenant / "board.0"
        assert {"board", alices.grant, bobs.grant} == set(os.listdir(board))
        assert (board / alices.grant).samefile(tenant / "page.0")
        (tenant / "page.0").write_bytes(b"mine".ljust(PAGE_BYTES))
        for name in ("board", bobs.grant, alices.grant):
            with (board / name).open("rb") as file, pytest.raises(OSError, match="Bad file"):
                fcntl.fcntl(
                    file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, *[0] * 4)
                )
            with pytest.raises(OSError, match=r"Read-only|denied"):
                (board / name).write_bytes(b"")
            with pytest.raises(OSError, match=r"Read-only|denied"):
                os.truncate(board / name, 0)
        for path in (machine.state / "private", machine.state / "grants" / bobs.grant / "tenant"):
            with pytest.raises(PermissionError):
                os.listdir(path)

    machine.said_by(ALICE, attack)
    assert 0 == machine.stop(signal.SIGTERM)
    set_up(machine.node())
    machine.start()  # what is mounted already stays
    machine.said_by(ALICE, attack)
    assert 1 == Path("/proc/mounts").read_text().count(str(machine.path))


def test_root_ends_no_process_that_merely_was_sent_the_descriptor(machine: Machine) -> None:
    """A user could send it to any service that takes descriptors, and have root kill that."""
    alices = machine.hold(ALICE, request(memory=GiB))
    alive = machine.state / "grants" / alices.grant / ALIVE
    descriptor = os.open(alive, os.O_RDWR)
    bystander = os.fork()
    if bystander == 0:
        signal.pause()
    os.close(descriptor)

    try:
        machine.said_by(
            ROOT, lambda node: release(grants_of(node), alices.grant, force=True, grace=0.5)
        )
        assert (0, 0) == os.waitpid(bystander, os.WNOHANG)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)
    assert {} == machine.said_by(ROOT, grants)


def test_the_socket_that_is_passed_by_systemd_is_served(stopped: Machine) -> None:
    stopped.path.chmod(0o755)
    stopped.state.mkdir(mode=0o755)
    path = stopped.state / SOCKET
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o666)
    listener.listen(8)
    from hetero.node.daemon.server import serve

    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(listener.fileno(), 3)
            os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
            serve(stopped.node(), ready=lambda _: None, tell=print)
        finally:
            os._exit(0)
    listener.close()
    try:
        held = stopped.hold(ALICE, request(memory=GiB))  # what connects early waits
        assert {held.grant: str(ALICE)} == stopped.said_by(BOB, grants)
        assert path.is_socket()
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def test_what_is_asked_for_does_not_exist(machine: Machine) -> None:
    with pytest.raises(NotFound, match="no grant 'ffff' stands"):
        machine.said_by(ALICE, lambda node: grants_of(node).resize("ffff", Ask(core=20)))
    assert not DaemonClient(machine.path / "nothing").answers()
