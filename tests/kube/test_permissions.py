"""Each rule of the chart is a row of docs/permissions.md, and each row a rule."""

import pytest

from tests.cluster.test_permissions import ELSEWHERE
from tests.kube.binaries import ROOT
from tests.kube.permissions import documented, granted
from tests.kube.test_chart import chart


@pytest.mark.parametrize("allocation", ["classic", "both", "dra"])
def test_what_accounts_may_do_is_what_is_documented(allocation: str) -> None:
    assert documented(allocation) == set(granted(chart(allocation=allocation)))


def test_what_uses_a_permission_in_the_cluster_tests_is_there() -> None:
    """Else nobody would notice a row that nothing uses."""
    known = set[str]()
    for path in (ROOT / "tests/cluster").glob("test_*.py"):
        lines = path.read_text().splitlines()
        known |= {path.stem, *(line[4:].partition("(")[0] for line in lines if line[:4] == "def ")}
    assert {name for names in ELSEWHERE.values() for name in names} <= known
