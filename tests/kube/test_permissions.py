"""Each rule of the chart is a row of docs/permissions.md, and each row a rule."""

from __future__ import annotations

import pytest

from tests.kube.permissions import documented, granted
from tests.kube.test_chart import chart


@pytest.mark.parametrize("allocation", ["classic", "both", "dra"])
def test_what_accounts_may_do_is_what_is_documented(allocation: str) -> None:
    assert documented(allocation) == set(granted(chart(allocation=allocation)))
