"""What the benchmarks make of their measurements, on measurements made by hand."""

import pytest
from hetero_benchmarks import tables
from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.goals import (
    Results,
    free,
    lending,
    lent,
    precedence,
    precedence_cells,
    rows,
    unhindered,
)
from hetero_benchmarks.isolation import SHORT_FORM, SignedContainer, judged
from hetero_benchmarks.overhead import costs
from hetero_benchmarks.rates import Pace
from hetero_benchmarks.trial import Machine


def _pace(rate: float, *seconds: float, p50: float = 0.1, busy: float = 1) -> Pace:
    return Pace(rate=rate, seconds=seconds or (rate,), p50=p50, p99=2 * p50, longest=0.5, busy=busy)


def _alone(job: str, core: int | None = None) -> Cell:
    share = None if core is None else Share(core=core)
    return Cell(tenants=(Tenant(job=job, share=share),), seconds=10)


def _beside(**cores: int) -> Cell:
    tenants = tuple(Tenant(job=job, share=Share(core=core)) for job, core in cores.items())
    return Cell(tenants=tenants, seconds=10)


def test_every_job_runs_unlimited_first_and_last() -> None:
    plan = SignedContainer(jobs=("gemm",), shares=(30,)).plan(10)

    assert [_alone("gemm"), _alone("gemm", 30), _alone("gemm")] == plan


def test_tenants_are_measured_alone_first_and_last() -> None:
    together = _beside(gemm=60, small=30)

    plan = SignedContainer(jobs=("gemm",), shares=(), together=(together.tenants,)).plan(10)

    last = [_alone("gemm"), _alone("small")]
    assert [_alone("gemm"), _alone("gemm"), _alone("small"), together, *last] == plan


def test_every_pairing_runs_and_unequal_shares_both_ways() -> None:
    wanted = SignedContainer(pairs=((("gemm", "copy"), (90, 10)), (("gemm", "copy"), (25,) * 4)))

    cells = [str(cell) for cell in wanted.together_cells(10)]

    assert [
        "gemm at 90 % beside gemm at 10 %",
        "gemm at 90 % beside copy at 10 %",
        "gemm at 10 % beside copy at 90 %",
        "copy at 90 % beside copy at 10 %",
        " beside ".join(["gemm at 25 %"] * 4),
        " beside ".join(["gemm at 25 %", "copy at 25 %"] * 2),
        " beside ".join(["copy at 25 %"] * 4),
    ] == cells


def test_programs_that_differ_in_what_can_be_set_are_one_and_those_at_once_are_several() -> None:
    alone, together, native = _alone("gemm", 30), _beside(gemm=60), _alone("gemm")
    twice = Cell(tenants=together.tenants * 2, seconds=10)

    assert alone.programs == together.programs
    assert {0, 1} == {number for _, number in twice.programs}
    assert not set(native.programs) & set(alone.programs)


def test_a_share_is_judged_by_the_mean_of_the_runs_before_and_after_it() -> None:
    results: Results = {
        _alone("gemm"): [(_pace(90),), (_pace(110),)],
        _alone("gemm", 30): [(_pace(33, 30, 36),)],
        _alone("gemm", 20): [(_pace(21, 10, 30),)],
    }
    cells = [*results, _alone("gemm")]

    (first,), (third,), (fifth,), (last,) = rows(cells, results)

    assert pytest.approx((90, 33, 110)) == (first.got, third.got, last.got)
    assert (None, None) == (first.error, last.error)
    assert pytest.approx((3, 6)) == (third.error, third.worst)
    assert pytest.approx((30, 36)) == (third.slowest, third.fastest)
    assert None is fifth.worst


def test_tenants_are_judged_each_by_its_own_job_alone() -> None:
    together = _beside(gemm=60, small=30)
    results: Results = {
        _alone("gemm"): [(_pace(100),)],
        _alone("small"): [(_pace(50),)],
        together: [(_pace(58), _pace(15))],
    }

    ((gemm, small),) = rows([together], results)

    assert pytest.approx((58, -2)) == (gemm.got, gemm.error)
    assert pytest.approx((30, 0)) == (small.got, small.error)


def test_what_was_not_measured_is_left_out() -> None:
    results: Results = {_alone("gemm"): [(_pace(100),)]}

    assert () == rows([_alone("gemm", 30)], results)
    assert None is lent("gemm", 10, results)
    assert None is precedence("decode", "gemm", 10, results)
    assert None is free("gemm", 10, results)


def test_an_elastic_tenant_is_judged_alone_and_by_what_its_neighbour_waits() -> None:
    idle, rare, both = lending("gemm", 10)
    results: Results = {
        _alone("gemm"): [(_pace(100),)],
        idle: [(_pace(98), None)],
        rare: [(_pace(4, p50=0.001),)],
        both: [(_pace(95), _pace(3.9, p50=0.003))],
    }

    judged = lent("gemm", 10, results)

    assert judged is not None
    assert pytest.approx((98, 2, 499)) == (judged.lone, judged.late, judged.latest)
    assert 39 == judged.requests


def test_low_priority_is_judged_by_what_the_loop_leaves_when_alone() -> None:
    loop, unshared, both, idle = precedence_cells("decode", "gemm", 10)
    results: Results = {
        _alone("gemm"): [(_pace(200),)],
        loop: [(_pace(40, p50=0.01, busy=0.4),)],
        unshared: [(_pace(30, p50=0.015), _pace(100))],
        both: [(_pace(39, p50=0.011), _pace(100))],
        idle: [(None, _pace(198))],
    }

    cost = precedence("decode", "gemm", 10, results)

    assert cost is not None
    assert pytest.approx((10, 15, 11, 20, 30, 22)) == (
        cost.p50_alone,
        cost.p50_unshared,
        cost.p50,
        cost.p99_alone,
        cost.p99_unshared,
        cost.p99,
    )
    assert pytest.approx((60, 50, 99)) == (cost.left, cost.low, cost.undisturbed)


def test_a_run_without_a_limit_is_judged_by_the_native_one_of_its_round() -> None:
    native, memory_only, full = unhindered("gemm", 10)[:3]
    results: Results = {
        native: [(_pace(rate),) for rate in (100, 110, 120, 130)],
        memory_only: [(_pace(rate),) for rate in (99, 110, 120, 130)],
        full: [(_pace(rate),) for rate in (100, 110, 120, 143)],
    }

    free_run = free("gemm", 10, results)

    assert free_run is not None
    assert pytest.approx((99, 100, 100, 100)) == free_run.memory_only
    assert pytest.approx((100, 100, 100, 110)) == free_run.full


def test_the_short_form_measures_every_promise() -> None:
    report = judged("", MACHINE, SHORT_FORM, 10, _perfect(SHORT_FORM), [])

    assert (40, 6, 1, 1, 4) == (
        len(report.alone),
        len(report.together),
        len(report.elastic),
        len(report.priority),
        len(report.free),
    )


def test_the_tables_say_what_was_measured_and_how_much_of_it_is_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = SignedContainer(
        jobs=("gemm",),
        together=(_beside(gemm=60, resnet18=30).tenants,),
        elastic=("copy",),
        priority=(("decode", "gemm"),),
        free=("small",),
    )
    tables.show(judged("", MACHINE, wanted, 10, _perfect(wanted), ["graph: no room"]))

    printed = capsys.readouterr().out
    assert "2 of 2 within 1 points; from 25 % in every second 2 of 2 within 3 points" in printed
    assert "2 of 2 within 1.5 points" in printed
    assert "HAMi-core" in printed
    assert "not measured: graph: no room" in printed
    for title in ("One job at a time", "Together", "Elastic", "Priority", "Nothing limited"):
        assert title in printed


MACHINE = Machine(
    card="Card",
    uuid="CARD-1",
    memory=1 << 30,
    driver="1.0",
    simulated=False,
    date="2026-01-01T00:00:00+00:00",
    kernel="6.1",
    processors=2,
    versions={},
)


def _perfect(wanted: SignedContainer) -> Results:
    """Results in which everybody gets what it asked."""
    results: dict[Cell, list[tuple[Pace | None, ...]]] = {}
    for cell in wanted.plan(10):
        shares = [each.share.core if each.share else 100 for each in cell.tenants]
        paces = [
            None if tenant.idle else _pace(share or 100, busy=0.5)
            for tenant, share in zip(cell.tenants, shares, strict=True)
        ]
        results.setdefault(cell, []).append(tuple(paces))
    return results


def test_a_call_costs_the_median_of_its_rounds_beside_the_native_one_of_the_same_round() -> None:
    def rounds(*medians: int) -> list[dict[str, dict[str, int]]]:
        return [{"launch": {"median": each, "p99": 2 * each}} for each in medians]

    native, limited = costs({"native": rounds(100, 900, 110), "core 50": rounds(120, 910, 105)})

    assert (110, 220, 0, 0) == (native.median, native.p99, native.added, native.added_p99)
    assert (120, 240, 10, 20) == (limited.median, limited.p99, limited.added, limited.added_p99)


def test_a_call_made_once_a_process_has_no_percentile() -> None:
    (cost,) = costs({"native": [{"initialise": {"median": 7}}]})

    assert (7, None, None) == (cost.median, cost.p99, cost.added_p99)
