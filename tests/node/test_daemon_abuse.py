"""heterod under clients that are hostile or killed, and killed itself: nobody else notices."""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hetero.model.errors import BadInput, HeteroError
from hetero.model.units import GiB
from hetero.node.daemon.server import MOST_CONNECTIONS, MOST_CONNECTIONS_OF_USER, TRANSFER_TIMEOUT_S
from hetero.node.daemon_client import LENGTH, MOST_REQUEST_BYTES, SOCKET
from hetero.node.grants import admit_program, grants_of
from hetero.node.ledger import usage_region
from hetero.node.ledger.board import PAGE_BYTES
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.node import Node

from .conftest import request
from .users import ALICE, BOB, ROOT, Machine, grants, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become several users")


# --- a hostile client ----------------------------------------------------------------------------


def connect(machine: Machine) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(machine.state / SOCKET))
    connection.settimeout(60)
    return connection


def answer_to(machine: Machine, message: bytes) -> dict[str, Any] | None:
    """Return what heterod answers, None if it ends the connection."""
    with connect(machine) as connection:
        try:
            connection.sendall(message)
            frame = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except (BrokenPipeError, ConnectionResetError):
            return None
    answer: dict[str, Any] | None = json.loads(frame[LENGTH.size :]) if frame else None
    return answer


def document(**words: Any) -> bytes:
    text = json.dumps({"version": 1, **words}).encode()
    return LENGTH.pack(len(text)) + text


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (document(do="stop"), "'stop' with what came with it is nothing heterod does"),
        (document(do="admit"), "is nothing heterod does"),
        (document(do="resize", grant="x"), "is nothing heterod does"),
        (document(do="resize", grant="x", ask={"core": 5}), "no grant 'x' stands"),
        (document(do="admit", request={"asks": []}), "names at least one device"),
        (document(do="admit", request={"asks": [{"core": 500}]}), "out of range"),
        (
            document(do="admit", request={"asks": [{"memory": 10**4000}]}),
            "memory is more than any device has",
        ),
        (document(do="admit", request={"asks": [{"core": 1}] * 200}), "needed"),
        (document(do="admit", uid=0, user="root", request="[" * 9000), "not a valid Question"),
        (LENGTH.pack(4) + b"[[[[", "not a valid Question"),
        (LENGTH.pack(9000) + b"[" * 9000, "not a valid Question"),
        (json.dumps({"version": 2}).encode().join((LENGTH.pack(14), b"")), "newer hetero"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_nonsense_is_answered_in_a_line_and_changes_nothing(
    machine: Machine, message: bytes, says: str
) -> None:
    answer = answer_to(machine, message)

    assert answer is not None
    assert says in answer["says"]
    assert "\n" not in answer["says"]
    assert [] == os.listdir(machine.state / "grants")


@pytest.mark.parametrize(
    "message",
    [LENGTH.pack(MOST_REQUEST_BYTES + 1), b"\xff" * 4, LENGTH.pack(4) + b"\xff" * 4, b"\0\0"],
    ids=["too long", "4 GiB", "no UTF-8", "half a length"],
)
def test_what_is_no_message_ends_the_connection(machine: Machine, message: bytes) -> None:
    with connect(machine) as connection:
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        assert b"" == connection.recv(1)
    machine.hold(BOB, request(memory=GiB))


def test_thousands_of_slow_connections_of_one_user_delay_no_other(machine: Machine) -> None:
    def flood(_: Node) -> tuple[int, int]:
        open_ = []
        for _number in range(2000):
            connection = connect(machine)
            connection.setblocking(False)
            open_.append(connection)
            with suppress(BrokenPipeError):
                connection.send(b"\0")  # and never more
        time.sleep(0.2)
        rejected = 0
        for connection in open_:
            try:
                rejected += b"too many connections" in connection.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                rejected += 1
        return len(open_), rejected

    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    everything, rejected = machine.said_by(ALICE, flood)
    machine.hold(BOB, request(memory=GiB))

    assert everything - rejected <= MOST_CONNECTIONS_OF_USER
    assert MOST_CONNECTIONS_OF_USER < MOST_CONNECTIONS


def test_a_slow_client_is_cut_off_at_the_deadline(machine: Machine) -> None:
    with connect(machine) as connection:
        began = time.monotonic()
        connection.sendall(LENGTH.pack(100) + b"{")

        assert b"" == connection.recv(1)
        assert TRANSFER_TIMEOUT_S - 0.1 <= time.monotonic() - began


def test_users_alternate_however_much_one_of_them_asks(machine: Machine) -> None:
    """Sixteen requests of one user wait; another's, that comes last, is done after one of them."""
    asked, go, held = (os.pipe() for _ in range(3))
    message = document(do="admit", request={"asks": [{"memory": GiB // 1024}]}, command=["test"])

    def ask(_: Node) -> int:
        """Return when the grant was made: by its files, whenever its owner woke."""
        with connect(machine) as connection:
            connection.settimeout(None)
            connection.sendall(message)
            os.write(asked[1], b".")
            answer = socket.recv_fds(connection, 1 << 16, 1)[0]
            grant: dict[str, str] = json.loads(answer[LENGTH.size :])["grant"]
            files = (machine.state / "grants" / grant["id"]).iterdir()
            return min(file.stat().st_mtime_ns for file in files)

    def lock(node: Node) -> None:
        with node.ledger.admission():
            os.write(held[1], b".")
            os.read(go[0], 1)

    def wait(requests: int) -> None:
        """Return when so many more requests wait at heterod, which reads in the order they came."""
        for _ in range(requests):
            os.read(asked[0], 1)
        for _ in range(2):
            assert (
                answer_to(machine, LENGTH.pack(MOST_REQUEST_BYTES + 1)) is None
            )  # no place is needed

    locked = machine.begin(ROOT, lock)
    os.read(held[0], 1)
    of_alice = [machine.begin(ALICE, ask) for _ in range(MOST_CONNECTIONS_OF_USER)]
    wait(MOST_CONNECTIONS_OF_USER)
    of_bob = machine.begin(BOB, ask)
    wait(1)
    os.write(go[1], b".")
    locked()
    bob = of_bob()
    assert 2 >= sum(each() < bob for each in of_alice)
    for descriptor in (*asked, *go, *held):
        os.close(descriptor)


def test_a_client_that_vanishes_leaves_nothing(machine: Machine) -> None:
    asked = document(do="admit", request={"asks": [{"memory": 16 * GiB}]}, command=["x"])
    for _ in range(20):
        with connect(machine) as connection:
            connection.sendall(asked)

    def nothing_is_left() -> bool:
        return grants(machine.node()) == {}

    assert until(lambda: [] == os.listdir(machine.state / "grants"))
    assert until(nothing_is_left)


def test_a_user_cannot_fill_the_ledgers_directory(machine: Machine) -> None:
    alices = machine.hold(ALICE, request(memory=GiB, core=10))
    directory = machine.state / "grants" / alices.grant

    def fill(_: Node) -> None:
        for name in (USAGE, "tenant/page.0"):
            os.truncate(directory / name, 1 << 40)
        with pytest.raises(PermissionError):
            (machine.state / "mine").touch()
        with pytest.raises(PermissionError):
            (directory / "tenant/mine").touch()

    machine.said_by(ALICE, fill)

    assert until(lambda: usage_region.SIZE == (directory / USAGE).stat().st_size)
    page = directory / "tenant/page.0"
    assert until(lambda: PAGE_BYTES == page.stat().st_size)  # cut back next


def test_a_long_command_is_recorded_in_part_and_a_long_label_refused(machine: Machine) -> None:
    def admit(label: str) -> Callable[[Node], tuple[str, ...]]:
        def action(node: Node) -> tuple[str, ...]:
            command = ["python", "x" * 100_000, "never"]
            return admit_program(
                grants_of(node), request(memory=GiB), command=command, label=label
            )[0].grant.command

        return action

    recorded = machine.said_by(ALICE, admit("short"))

    assert ("python", "…") == (recorded[0], recorded[1][-1])
    assert 2 == len(recorded)
    with pytest.raises(BadInput, match="heterod reads"):
        machine.said_by(ALICE, admit("y" * MOST_REQUEST_BYTES))


def test_a_ledger_that_root_does_not_own_alone_is_not_believed(machine: Machine) -> None:
    machine.state.chmod(0o777)

    with pytest.raises(HeteroError, match="is not a directory of user"):
        machine.said_by(ALICE, lambda node: None)


# --- kills ---------------------------------------------------------------------------------------


def kill_at_random(machine: Machine, rng: random.Random, *, times: int) -> None:
    """Kill heterod or a client at a random moment of an admission, again and again.

    After each, what the ledger says stands is exactly what living processes hold.
    """
    for _ in range(times):
        asked = request(memory=rng.choice((1, 2, 3)) * GiB, core=rng.choice((None, 10, 20)))
        uid = rng.choice((ALICE, BOB, ROOT))
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            _hold_as(machine, uid, asked, writable)
        os.close(writable)
        time.sleep(rng.random() * 0.03)
        killed = rng.choice(("heterod", "client"))
        if killed == "heterod":
            machine.stop(signal.SIGKILL)
            machine.start()
        else:
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(readable) as pipe:
            identity = pipe.readline().strip()  # its grant; nothing if it was killed or refused
        holds = {identity} if killed == "heterod" and identity else set()
        # One that was killed while heterod was at its request has a grant for a moment.
        assert until(lambda: holds == set(machine.said_by(BOB, grants))), (identity, killed)  # noqa: B023
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert until(lambda: {} == machine.said_by(ROOT, grants))


def _hold_as(machine: Machine, uid: int, asked: Any, writable: int) -> None:
    from .users import become

    try:
        become(uid)
        answer = admit_program(grants_of(machine.node()), asked, command=["test"])[0].grant.id
    except HeteroError:
        answer = ""
    os.write(writable, f"{answer}\n".encode())
    if answer:
        signal.pause()
    os._exit(0)


def test_kills_of_heterod_and_of_clients_leave_the_ledger_as_the_locks(machine: Machine) -> None:
    kill_at_random(machine, random.Random(27), times=25)


@pytest.mark.soak
def test_a_thousand_kills_of_heterod_and_of_clients(machine: Machine) -> None:
    kill_at_random(machine, random.Random(), times=1000)
