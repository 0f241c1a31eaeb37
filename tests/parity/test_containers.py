"""What containers without Kubernetes say, sent to the runtime that starts them."""

import json
import os
import sys
from pathlib import Path

import hetero_simulator
import pytest

from hetero.container import runtime
from tests.programs import completed

OLDER = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10"


@pytest.mark.parametrize(
    ("variable", "text"), [("HETERO", "0:mem=3276Mi,core=10"), ("EGPU", OLDER)]
)
def test_a_container_is_confined_by_its_variable(tmp_path: Path, variable: str, text: str) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "rack").write_text(Path(hetero_simulator.rack("one")).read_text())
    config = {
        "process": {"env": [f"{variable}={text}"], "args": ["job"]},
        "root": {"path": "rootfs"},
    }
    (bundle / "config.json").write_text(json.dumps(config))
    env = {
        **os.environ,
        "HETERO_RACK": str(tmp_path / "rack"),
        "HETERO_STATE": str(tmp_path / "state"),
    }
    called = (
        sys.executable,
        "-IS",
        runtime.__file__,
        "/bin/true",
        "--root",
        str(tmp_path / "runs"),
    )

    done = completed([*called, "create", "--bundle", str(bundle), "one"], env=env)

    assert 0 == done.returncode, done.stderr
    given = json.loads((bundle / "config.json").read_text())
    mounts = [mount["destination"] for mount in given.get("mounts", [])]
    assert "/etc/hetero/grant" in mounts
