"""What the benchmarks make of their measurements, on measurements made by hand."""

from __future__ import annotations

import pytest
from hetero_benchmarks.isolation import judged, planned
from hetero_benchmarks.overhead import costs
from hetero_benchmarks.rates import Pace
from hetero_benchmarks.trial import Trial


def _pace(rate: float, *seconds: float) -> Pace:
    return Pace(rate=rate, seconds=seconds or (rate,), p50=0.1, p99=0.2)


def test_every_job_runs_unlimited_first_and_last() -> None:
    native, third = Trial(job="gemm"), Trial(job="gemm", core=30)

    assert [(native,), (third,), (native,)] == planned(["gemm"], [30], [])


def test_a_tenant_whose_job_did_not_run_alone_is_measured_alone_first() -> None:
    beside = (Trial(job="gemm", core=60), Trial(job="small", core=30))

    plan = planned(["gemm"], [], [beside])

    native, small = Trial(job="gemm"), Trial(job="small")
    assert [(native,), (native,), (small,), beside] == plan


def test_a_share_is_judged_by_the_mean_of_the_runs_before_and_after_it() -> None:
    runs = [
        ((Trial(job="gemm"), _pace(90)),),
        ((Trial(job="gemm", core=30), _pace(33, 30, 36)),),
        ((Trial(job="gemm"), _pace(110)),),
    ]

    (first, third, last), together = judged(runs)

    assert () == together
    assert pytest.approx((90, 33, 110)) == (first.got, third.got, last.got)
    assert (None, None) == (first.error, last.error)
    assert pytest.approx(3) == third.error
    assert pytest.approx((30, 36)) == (third.slowest, third.fastest)


def test_tenants_are_judged_each_by_its_own_job_alone() -> None:
    runs = [
        ((Trial(job="gemm"), _pace(100)),),
        ((Trial(job="small"), _pace(50)),),
        ((Trial(job="gemm", core=60), _pace(58)), (Trial(job="small", core=30), _pace(15))),
    ]

    alone, ((gemm, small),) = judged(runs)

    assert 2 == len(alone)
    assert pytest.approx((58, -2)) == (gemm.got, gemm.error)
    assert pytest.approx((30, 0)) == (small.got, small.error)


def test_a_call_costs_the_median_of_its_rounds_beside_the_native_one_of_the_same_round() -> None:
    def rounds(*medians: int) -> list[dict[str, dict[str, int]]]:
        return [{"launch": {"median": each, "p99": 2 * each}} for each in medians]

    native, limited = costs({"native": rounds(100, 900, 110), "core 50": rounds(120, 910, 105)})

    assert (110, 220, 0, 0) == (native.median, native.p99, native.added, native.added_p99)
    assert (120, 240, 10, 20) == (limited.median, limited.p99, limited.added, limited.added_p99)


def test_a_call_made_once_a_process_has_no_percentile() -> None:
    (cost,) = costs({"native": [{"initialise": {"median": 7}}]})

    assert (7, None, None) == (cost.median, cost.p99, cost.added_p99)
