"""heterod under the machine's own systemd, which runs the units that `hetero install` writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero.container.install import apply, service_installation

pytestmark = pytest.mark.containers

#: It may lie in /tmp, which systemd is not to see.
ROOT = Path(__file__).parents[2]
#: In mount, PID and cgroup namespaces of its own systemd sees and changes nothing of the machine's.
BOOT = """
set -e
mount --make-rprivate /
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mkdir {cgroup}
echo 0 > {cgroup}/cgroup.procs
mkdir {path}/run
mount -t tmpfs none {path}/run
mkdir -p {path}/run/systemd/system {path}/run/lock
cp -r {path}/units/etc/systemd/system/. {path}/run/systemd/system
cp {path}/probe.service {path}/run/systemd/system
mkdir {path}/run/said {path}/run/checkout
mount --bind {path} {path}/run/said
mount --bind {checkout} {path}/run/checkout
mount --rbind {path}/run /run
for each in /tmp /var/tmp /var/lib /var/log /etc/systemd/system; do mount -t tmpfs none $each; done
mkdir -p {checkout}
mount --bind /run/checkout {checkout}
mount -t proc none /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
exec unshare --cgroup bash -c '
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec env -i container=other PATH="$PATH" /lib/systemd/systemd --system --unit=probe.service
'
"""
CLEAN = """
mount --make-rprivate /
umount -l /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
find {cgroup} -depth -type d -exec rmdir {{}} +
"""
PROBE = """
[Unit]
Wants=heterod.service
After=heterod.service heterod.socket
[Service]
Type=oneshot
Environment=HETERO_RACK=one
ExecStart=/bin/bash -x {said}/probe.sh
StandardOutput=append:{said}/out
StandardError=append:{said}/errors
ExecStopPost=/bin/bash -c "systemctl poweroff --force --force"
"""
USERS = """
hetero() {{ {python} -Im hetero.cli "$@"; }}
user() {{ setpriv --reuid 64001 --clear-groups "$@"; }}
as() {{ setpriv --reuid $1 --clear-groups {python} -Im hetero.cli run --memory 1Gi "${{@:2}}"; }}
as 64001 --core 60 --label alice -- sleep 60 &
as 64002 --core 30 --label bob -- sleep 60 &
until [ $(hetero ps | grep -c sleep) = 2 ]; do sleep 0.2; done
echo shown $(user ls {boards}/*/ | wc -w)
user touch {boards}/mine || echo read-only
as 64001 --core 30 -- true || echo refused $?
systemctl kill -s KILL heterod.service
as 64002 --core 5 -- echo admitted
systemctl restart heterod.service
echo stand $(hetero ps | grep -c sleep)
"""
#: The state directory of a simulated machine is another one than the units say.
SOCKET = """
[Socket]
ListenStream=
ListenStream={socket}
"""


def state() -> Path:
    """Where root's ledger of the simulated machine is."""
    environ = {**os.environ, "HETERO_RACK": "one"}
    environ.pop("HETERO_STATE", None)
    words = (sys.executable, "-Im", "hetero.cli", "doctor", "--json")
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    (says,) = (one["says"] for one in json.loads(done.stdout)["items"] if one["subject"] == "state")
    return Path(says)


def test_two_users_share_a_card_by_the_units_and_a_killed_heterod_comes_back(
    tmp_path: Path,
) -> None:
    shared_dir, directory = "/run/said", state()
    units = tmp_path / "units"
    apply(service_installation(prefix=units, environ={"HETERO_RACK": "one"}))
    drop_in = units / "etc/systemd/system/heterod.socket.d"
    drop_in.mkdir()
    (drop_in / "rack.conf").write_text(SOCKET.format(socket=directory / "heterod.sock"))
    (tmp_path / "probe.service").write_text(PROBE.format(said=shared_dir))
    users = USERS.format(python=sys.executable, boards=directory / "boards")
    (tmp_path / "probe.sh").write_text(users)

    cgroup = f"/sys/fs/cgroup/hetero-systemd-{os.getpid()}"
    apart = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "bash")
    try:
        boot = [*apart, "-c", BOOT.format(path=tmp_path, cgroup=cgroup, checkout=ROOT)]
        subprocess.run(boot, stdin=subprocess.DEVNULL, timeout=100, check=False)
    finally:
        clean = ["unshare", "--mount", "bash", "-c", CLEAN.format(cgroup=cgroup)]
        subprocess.run(clean, check=True)
    out = (tmp_path / "out").read_text().splitlines()
    errors = (tmp_path / "errors").read_text()

    assert ["shown 3", "read-only", "refused 3", "admitted", "stand 2"] == out, errors
    assert "lack core" in errors
