"""A simulation is entered by a command, at its start; nothing else loads its drivers."""

import json
import os
import sys
from pathlib import Path

from tests.programs import completed

PROGRAM = """
import json, os
from hetero.model.errors import HeteroError
from hetero.node.node import Node
from hetero.node.simulation import enter

def loaded():
    return "hetero_simulator" in open("/proc/self/maps").read()

before = dict(os.environ)
try:
    Node.here()
    refused = None
except HeteroError as error:
    refused = str(error)
first = [refused, loaded(), before == dict(os.environ)]

enter(os.environ)
entered = dict(os.environ)
node = Node.here()
devices = len(node.discover().devices)
print(json.dumps([first, loaded(), entered == dict(os.environ), devices]))
"""


def test_the_node_takes_no_real_devices_for_a_simulation_that_was_not_entered(
    tmp_path: Path,
) -> None:
    done = completed(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "HETERO_RACK": "one", "HETERO_STATE": str(tmp_path)},
    )

    assert (0, "") == (done.returncode, done.stderr)
    first, loaded, same, devices = json.loads(done.stdout)
    says = "HETERO_RACK is set and its simulation was not entered at the start"
    assert [says, False, True] == first
    assert (True, True, 1) == (loaded, same, devices)
