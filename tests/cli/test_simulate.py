"""The replay of a workload from the command line: a table, JSON, a picture, one line for errors."""

import json
from pathlib import Path

import pytest

from hetero.model import Ask, Request, codec
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod
from hetero.testing import rack

from .conftest import Run


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    nodes = [
        PlacedNode(name=name, devices=rack(80 * GiB, 80 * GiB, vendor=name), host={"cpu": 8000})
        for name in ("a", "b")
    ]
    pods = [
        PlacedPod(containers=(PlacedContainer(request=Request(asks=(Ask(memory=size * GiB),))),))
        for size in (10, 30, 50)
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"nodes": codec.to_plain(nodes), "pods": codec.to_plain(pods)}))
    return str(path)


def test_orders_stand_side_by_side(hetero: Run, cluster: str) -> None:
    done = hetero("simulate", "--trace", cluster, "--placement", "spread,fgd", "--jobs", "1")
    lines = [line.split() for line in done.stdout.splitlines()]

    assert 0 == done.returncode, done.stderr
    assert ["placement", "allocated", "from–to", "fragmented", "placed", "refused"] == lines[0][:6]
    assert ["spread", "fgd"] == [line[0] for line in lines[1:]]
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_seeds_give_the_same_numbers_again_as_json(
    hetero: Run, cluster: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"
    arguments = (
        "simulate",
        "--trace",
        cluster,
        "--placement",
        "fragmentation",
        "--seeds",
        "2",
        "--json",
    )
    first, second = (
        json.loads(hetero(*arguments, "--plot", str(picture)).stdout) for _ in range(2)
    )
    (row,) = first["items"]

    assert ("fragmentation", 2) == (row["placement"], row["seeds"])
    assert 130 == row["curve"][-1]["arrived"]
    del row["decisions_per_second"], second["items"][0]["decisions_per_second"]
    assert first == second
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_makes_no_sense_is_one_line_and_exit_2(hetero: Run, cluster: str) -> None:
    for arguments, says in (
        (("--trace", cluster, "--placement", "frog"), "placement 'frog' is none of fragmentation,"),
        (("--trace", cluster, "--plot", "curves.svg"), "name a file that ends in .png"),
        (("--trace", cluster + "x"), "no such trace"),
        (("--trace", cluster, "--seeds", "0"), "0 is not in the range"),
    ):
        done = hetero("simulate", *arguments)

        assert (2, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
        assert says in done.stderr
