"""Where the state is kept, and what is refused as a place for it."""

import os
from pathlib import Path

import pytest

from hetero.model.errors import HeteroError
from hetero.node.ledger.state import check, prepare
from hetero.node.place import state_directory


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({}, 0, "/run/hetero"),
        ({"XDG_RUNTIME_DIR": "/"}, 0, "/run/hetero"),
        ({"XDG_RUNTIME_DIR": "/proc"}, 1000, "/proc/hetero"),
        ({"XDG_RUNTIME_DIR": "/no/such/place"}, 1000, "/tmp/hetero-1000"),
        ({}, 1000, "/tmp/hetero-1000"),
        ({"HETERO_STATE": "/srv/h"}, 0, "/srv/h"),
        ({"HETERO_STATE": "/srv/h"}, 1000, "/srv/h"),
    ],
)
def test_each_user_has_a_place(environ: dict[str, str], uid: int, expected: str) -> None:
    assert Path(expected) == state_directory(environ, uid=uid)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = Path("/")
    if os.geteuid() == 0:
        path = tmp_path / "theirs"
        path.mkdir()
        os.chown(path, 12345, 12345)

    with pytest.raises(HeteroError, match=f"not a directory of user {os.geteuid()}"):
        check(path)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(HeteroError, match="not a directory of user"):
        prepare(tmp_path / "link")


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(HeteroError, match="can be written by others: chmod go-w"):
        prepare(tmp_path / "open")


def test_a_plain_file_is_refused_and_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(HeteroError, match="HETERO_STATE"):
        prepare(tmp_path / "file")


def test_only_root_lets_others_look(tmp_path: Path) -> None:
    prepare(tmp_path / "state")

    expected = 0o755 if os.geteuid() == 0 else 0o700
    assert expected == (tmp_path / "state").stat().st_mode & 0o777
