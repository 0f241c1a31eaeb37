"""hetero demo, as a person without a card sees it."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run


@pytest.mark.measured
def test_the_demo_shows_sharing_and_says_that_its_card_is_simulated(hetero: Run) -> None:
    done = hetero("demo", "--seconds", "2")

    assert (0, "") == (done.returncode, done.stderr)
    shown = done.stdout
    assert shown.splitlines()[0].startswith("The cards in this demo are SIMULATED")
    small, large = (float(got) for got in re.findall(r"got +([\d.]+) %", shown)[-2:])
    assert 20 < small < 40 < large < 70
    assert "CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert re.search(r"hetero: 0 of \d+ devices: .*lack core.*\nexit status 3", shown)
    assert 2 == shown.count(" fixed ")  # who held the card while the third one asked


def test_without_a_card_the_real_demo_says_so_and_touches_nothing(hetero: Run) -> None:
    done = hetero("demo", "--real", HETERO_RACK="")

    assert (4, "") == (done.returncode, done.stdout)
    assert "hetero: no empty card with a limiter here" in done.stderr
