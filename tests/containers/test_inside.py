"""However a process of a container was started, it meets the limit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Machine, Podman, load
from .image import root_filesystem, write_image

pytestmark = pytest.mark.containers

SHOWN = "3276 MiB\n"


@pytest.fixture(params=["share", "runtime"])
def granted(request: pytest.FixtureRequest, machine: Machine) -> Iterator[list[str]]:
    """The options of `podman run` that give a container 3276 MiB of a card."""
    if request.param == "runtime":
        yield ["--env", "HETERO=count=1,mem=3276Mi"]
        return
    with machine.share("--memory", "3276Mi") as name:
        yield ["--device", f"hetero.io/share={name}"]


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([], ["nvidia-smi"]),
        ([], ["sh", "-c", "sh -c nvidia-smi"]),
        ([], ["su", "user", "-c", "nvidia-smi"]),
        ([], ["su", "-", "user", "-c", "/bin/env HETERO_RACK=$RACK /bin/nvidia-smi"]),
        ([], ["sh", "-c", "env -i HETERO_RACK=$HETERO_RACK LD_PRELOAD= /bin/nvidia-smi"]),
        (["--read-only"], ["nvidia-smi"]),
        (["--user", "1000"], ["nvidia-smi"]),
        (["--cap-drop=all"], ["nvidia-smi"]),
        (["--cap-drop=all", "--user", "1000", "--read-only"], ["nvidia-smi"]),
    ],
    ids=["itself", "child", "su", "login", "no environment", "read-only", "user", "no caps", "all"],
)
def test_every_process_is_shown_the_share(
    podman: Podman, granted: list[str], options: list[str], command: list[str]
) -> None:
    rack = podman.machine.environ["HETERO_RACK"]
    words = [word.replace("$RACK", rack) for word in command]

    assert SHOWN == podman.output([*granted, *options], *words)


def test_a_process_that_is_started_later_is_held_as_well(
    podman: Podman, granted: list[str]
) -> None:
    # podman starts it with the environment it knows: the simulated cards are no part of that.
    rack = ("--env", f"HETERO_RACK={podman.machine.environ['HETERO_RACK']}")
    with podman.standing(granted) as name:
        assert SHOWN == podman("exec", *rack, name, "nvidia-smi").stdout
        assert SHOWN == podman("exec", *rack, "--user", "1000", name, "nvidia-smi").stdout
        done = podman("exec", *rack, "--user", "1000", name, "job", "--alloc", "7600MiB")

    assert (1, True) == (done.returncode, "CUDA_ERROR_OUT_OF_MEMORY" in done.stdout)


def test_the_runtime_gives_a_later_process_the_environment_of_the_first(podman: Podman) -> None:
    with podman.standing(["--env", "HETERO=3:mem=3276Mi"]) as name:
        variables = podman("exec", name, "env").stdout
        done = podman("exec", name, "job", "--alloc", "3000MiB")

    assert f"CUDA_VISIBLE_DEVICES={podman.machine.uuids[3]}\n" in variables
    assert 0 == done.returncode


def test_the_processes_of_a_container_share_its_memory_whoever_they_run_as(
    podman: Podman, granted: list[str]
) -> None:
    rack = ("--env", f"HETERO_RACK={podman.machine.environ['HETERO_RACK']}")
    busy = ("job", "--seconds", "100", "--memory", "3000MiB", "--iterations", "1000")
    with podman.standing(granted, *busy) as name:
        done = [
            podman("exec", *rack, *user, name, "job", "--alloc", "400MiB")
            for user in ((), ("--user", "1000"))
        ]

    assert [True, True] == ["CUDA_ERROR_OUT_OF_MEMORY" in each.stdout for each in done]


def test_nothing_that_limits_can_be_written_from_inside(podman: Podman, granted: list[str]) -> None:
    writable = podman.output(
        granted,
        *(
            "sh",
            "-c",
            "cd /etc; for f in hetero/* ld.so.preload; do (: >>$f) && echo $f; done 2>&-; :",
        ),
    )

    # They hold what is used and who has the time slice; the limits are in `grant`.
    assert ["hetero/page.0", "hetero/usage"] == writable.split()


@pytest.fixture(scope="module")
def preloading(storage: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that preloads a library of its own; another, `/link`, by a symbolic link."""
    directory = tmp_path_factory.mktemp("preloading")
    own = root_filesystem(directory)
    (own / "etc/ld.so.preload").write_text("# ours\n/opt/own.so\n")
    write_image(own, directory / "own.tar", name="local/own:1")
    (own / "etc/ld.so.preload").rename(own / "opt/preload")
    (own / "etc/ld.so.preload").symlink_to("/opt/preload")
    write_image(own, directory / "link.tar", name="local/link:1")
    for name in ("own", "link"):
        load(storage, directory / f"{name}.tar")
    return "local/own:1"


@pytest.mark.parametrize(
    "options", [[], ["--read-only"], ["--cap-drop=all", "--user", "1000"]], ids=" ".join
)
def test_an_image_keeps_what_it_preloads_by_itself(
    podman: Podman, granted: list[str], preloading: str, options: list[str]
) -> None:
    words = ("sh", "-c", "nvidia-smi; marked; (: >>/etc/ld.so.preload) 2>&- && echo written; :")
    printed = podman.output([*granted, *options], *words, image=preloading)

    assert f"{SHOWN}kept\n" == printed


def test_an_image_that_preloads_by_a_link_is_refused_with_a_word(
    podman: Podman, granted: list[str], preloading: str
) -> None:
    done = podman.run(granted, "true", image="local/link:1")

    assert 126 == done.returncode
    assert "the image's /etc/ld.so.preload: is a symbolic link" in done.stderr


def test_no_descriptor_of_ours_is_left_in_the_container(podman: Podman) -> None:
    descriptors = podman.output(
        ["--env", "HETERO=count=1,mem=1Gi"], "sh", "-c", "exec ls -l /proc/self/fd 2>/dev/null"
    )

    assert "alive" not in descriptors
