"""Named shares: any container gets one by its CDI name, several use it together."""

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Machine, Podman, until

pytestmark = pytest.mark.containers

#: Of a context on a simulated card whose rack names none: a block for small pieces of memory.
CONTEXT = 2 << 20


def device(name: str) -> list[str]:
    return ["--device", f"hetero.io/share={name}"]


def test_three_commands_lead_to_a_share_in_a_container(podman: Podman) -> None:
    with podman.machine.share("--memory", "8Gi", "--core", "30") as name:
        assert "8192 MiB\n" == podman.output(device(name), "nvidia-smi")
        assert "8 GiB" in podman.machine.output("share", "ls")


def test_a_share_in_use_is_not_removed_and_says_by_whom(podman: Podman) -> None:
    with podman.machine.share("--memory", "1Gi") as name:
        with podman.standing(device(name), name="user-of-share"):
            done = podman.machine.hetero("share", "rm", name)
            listed = json.loads(podman.machine.output("share", "ls", "--json"))["items"]

        assert 3 == done.returncode
        assert f"share {name} is in use by container user-of-share" in done.stderr
        assert "user-of-share" == listed[0]["containers"][0]["name"]
        assert until(lambda: 0 == podman.machine.hetero("share", "rm", name).returncode)
        assert 126 == podman.run(device(name), "true").returncode


def test_removing_hetero_while_a_container_has_a_share_is_refused_with_its_name(
    podman: Podman,
) -> None:
    with (
        podman.machine.share("--memory", "1Gi") as name,
        podman.standing(device(name), name="owner-of-share"),
    ):
        done = podman.machine.hetero("doctor", "--uninstall-check")

    assert 3 == done.returncode
    assert f"share {name}, container owner-of-share" in done.stderr


def test_ps_names_the_containers_of_a_share(podman: Podman) -> None:
    with (
        podman.machine.share("--memory", "1Gi") as name,
        podman.standing(device(name), name="first"),
        podman.standing(device(name)) as second,
    ):
        (grant,) = json.loads(podman.machine.output("ps", "--json"))["items"]

    assert name == grant["share"]
    assert {"first", second} == {container["name"] for container in grant["containers"]}
    assert {"docker.io/local/job:1"} == {one["image"] for one in grant["containers"]}


def test_top_tells_the_containers_of_a_share_apart(podman: Podman) -> None:
    busy = ("job", "--seconds", "100", "--iterations", "1000", "--memory")
    with (
        podman.machine.share("--memory", "8Gi") as name,
        podman.standing(device(name), *busy, "1GiB", name="small") as small,
        podman.standing(device(name), *busy, "2GiB", name="large") as large,
    ):
        assert until(lambda: _used(podman.machine) == (3 << 30) + 2 * CONTEXT)
        (grant,) = json.loads(podman.machine.output("top", "--once", "--json"))["grants"]
        screen = podman.machine.output("top", "--once", "--interval", "0.2")

    names = {container["id"]: container["name"] for container in grant["containers"]}
    # Each calls itself process 1.
    held = {names[one["container"]]: one["memory"] for one in grant["running"] if one["memory"]}
    assert {small: [(1 << 30) + CONTEXT], large: [(2 << 30) + CONTEXT]} == held
    for line, size in ((small, "1026 MiB"), (large, "2050 MiB")):
        (shown,) = [row for row in screen.splitlines() if f" {line} " in f"{row} "]
        assert size in shown
        assert [line, "job"] == shown.split()[-2:]


def test_containers_of_one_share_have_its_memory_together(podman: Podman) -> None:
    busy = ("job", "--seconds", "100", "--memory", "3000MiB", "--iterations", "1000")
    with (
        podman.machine.share("--memory", "3276Mi") as name,
        podman.standing(device(name), *busy),
    ):
        assert until(lambda: _used(podman.machine) >= 3000 << 20)
        done = podman.run(device(name), "job", "--alloc", "400MiB")

    assert "CUDA_ERROR_OUT_OF_MEMORY" == json.loads(done.stdout)["error"]


def test_a_share_is_changed_in_containers_that_run(podman: Podman) -> None:
    rack = f"HETERO_RACK={podman.machine.environ['HETERO_RACK']}"
    with (
        podman.machine.share("--memory", "3276Mi") as name,
        podman.standing(device(name)) as container,
    ):
        podman.machine.output("share", "resize", name, "--memory", "8Gi")
        printed = podman("exec", "--env", rack, container, "nvidia-smi").stdout

    assert "8192 MiB\n" == printed


def test_a_share_comes_back_after_a_reboot(podman: Podman) -> None:
    machine = podman.machine
    with machine.share("--memory", "3276Mi", "--core", "30") as name:
        machine.output("share", "resize", name, "--core", "60")
        _lose_what_a_reboot_loses(machine)

        assert 126 == podman.run(device(name), "true").returncode
        assert "1 share stands\n" == machine.output("share", "restore")
        assert "3276 MiB\n" == podman.output(device(name), "nvidia-smi")
        (grant,) = json.loads(machine.output("ps", "--json"))["items"]
        assert 60 == grant["shares"][0]["core"]


def test_the_spec_of_a_card_that_is_gone_is_removed_with_a_word(podman: Podman) -> None:
    machine = podman.machine
    rack = Path(machine.environ["HETERO_RACK"])
    cards = rack.read_text()
    with machine.share("--memory", "1Gi", "--device", "3") as name:
        rack.write_text(cards.replace(f"uuid = {machine.uuids[3]}\n", ""))
        message = machine.output("share", "restore")
        again = podman.run(device(name), "true")
        rack.write_text(cards)

        assert f"removed the spec of {name}: {machine.uuids[3]} is gone" in message
        assert 126 == again.returncode
        assert "1 share stands\n" == machine.output("share", "restore")
        assert 0 == podman.run(device(name), "true").returncode


def test_where_the_vendor_has_cdi_devices_the_driver_is_left_to_them(podman: Podman) -> None:
    machine = podman.machine
    spec = Path(f"/var/run/cdi/test-{machine.uuids[0]}.json")
    edits = {"env": ["BROUGHT_BY=vendor"]}
    vendor = {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": machine.uuids[0], "containerEdits": edits}],
    }
    spec.parent.mkdir(exist_ok=True)
    spec.write_text(json.dumps(vendor))
    try:
        with machine.share("--memory", "1Gi", "--device", "0") as name:
            (share,) = json.loads(machine.output("share", "ls", "--json"))["items"]
            both = [word for one in share["cdi"] for word in ("--device", one)]
            printed = podman.output(both, "sh", "-c", "env; ls /etc/hetero /usr/lib*/* 2>&-; :")
    finally:
        spec.unlink()

    assert [f"nvidia.com/gpu={machine.uuids[0]}", f"hetero.io/share={name}"] == share["cdi"]
    assert "BROUGHT_BY=vendor" in printed
    assert ("grant" in printed, "libcuda" in printed) == (True, False)


def _used(machine: Machine) -> int:
    (grant,) = json.loads(machine.output("ps", "--json", "--seconds", "0.05"))["items"]
    return int(grant["shares"][0]["memory_used"] or 0)


def _lose_what_a_reboot_loses(machine: Machine) -> None:
    """All but what is kept: the ledger's directory, and the CDI specs."""
    for kept in Path(machine.environ["HETERO_STATE"]).iterdir():
        if kept.name != "persistent":
            shutil.rmtree(kept)
    for spec in Path("/var/run/cdi").glob("hetero.io-share_*.json"):
        if str(machine.directory) in spec.read_text():
            spec.unlink()
