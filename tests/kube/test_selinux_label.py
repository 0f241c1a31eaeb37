"""What containers get of an agent's directories, where SELinux confines containers."""

import errno
import logging
import os
from pathlib import Path

import pytest

from hetero.kube.agent.selinux_label import ATTRIBUTE, label
from tests.kube.test_chart import of

LABEL = b"system_u:object_r:container_file_t:s0\0"


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A directory that takes labels."""
    try:
        os.setxattr(tmp_path, ATTRIBUTE, b"system_u:object_r:var_run_t:s0\0")
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        pytest.skip(f"{tmp_path} takes no SELinux labels: {error}")
    return tmp_path


def test_all_that_is_there_has_the_type_and_the_targets_of_links_have_not(labelled: Path) -> None:
    (labelled / "grants/one").mkdir(parents=True)
    (labelled / "grants/one/usage").touch()
    outside = labelled / "outside"
    outside.touch()
    (labelled / "grants/link").symlink_to(outside)
    absent = labelled / "libraries"

    label((labelled / "grants", absent), "container_file_t")

    for path in ("grants", "grants/one", "grants/one/usage", "libraries"):
        assert LABEL == os.getxattr(labelled / path, ATTRIBUTE), path
    assert ATTRIBUTE not in os.listxattr(outside)


def test_where_no_label_is_taken_one_line_says_so_and_the_agent_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        label((Path("/proc/self/fdinfo"),), "container_file_t")

    (line,) = caplog.messages
    assert "/proc/self/fdinfo: no SELinux label container_file_t: " in line


def test_the_chart_names_the_type_to_the_agent() -> None:
    def arguments(**agent: str) -> list[str]:
        made = of("DaemonSet", "hetero-agent", agent=agent)
        container_arguments: list[str] = made["spec"]["template"]["spec"]["containers"][0]["args"]
        return container_arguments

    assert "--selinux-type=container_file_t" in arguments(selinuxType="container_file_t")
    assert not any("selinux" in argument for argument in arguments())
