"""What an elastic grant borrows of a device is told at the grants that lend it."""

import pytest

from hetero.node.view.observe import Share, lending


def _share(core: float | None, used: float | None, borrowed: float = 0, device: str = "a") -> Share:
    return Share(
        device=device,
        device_number=0,
        memory_bytes=1,
        core_percent=core,
        core_used_percent=used,
        core_borrowed_percent=borrowed,
    )


def _lent(*shares: Share) -> list[float | None]:
    return [share.core_lent_percent for share in map(lending(shares), shares)]


def test_what_is_borrowed_comes_from_who_left_it_unused() -> None:
    assert [pytest.approx(0), pytest.approx(40)] == _lent(_share(50, 90, 40), _share(50, 10))


def test_what_nobody_was_given_is_lent_by_nobody() -> None:
    # 30 of the second's share are unused, and 20 of the device are nobody's: 3 to 2.
    assert [0, pytest.approx(15)] == _lent(_share(50, 75, 25), _share(30, 0))


def test_each_lends_in_proportion_to_what_it_left() -> None:
    lent = _lent(_share(40, 70, 30), _share(40, 10), _share(20, 5))

    assert [0, pytest.approx(20), pytest.approx(10)] == lent


def test_of_another_device_and_of_shares_without_a_limit_nothing_is_lent() -> None:
    shares = (_share(50, 90, 40), _share(50, 10), _share(50, 0, device="b"), _share(None, None))

    assert [0, pytest.approx(40), 0, None] == _lent(*shares)


def test_where_nothing_is_left_nothing_is_lent() -> None:
    assert [0, 0] == _lent(_share(50, 50), _share(50, 50))
