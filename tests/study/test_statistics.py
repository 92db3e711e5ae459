"""Statistics agree with SciPy and with statsmodels' worked numbers, cover what they claim, and are silent where there is too little."""

import math

import numpy as np
import pytest
from scipy import stats

from mixsage.study.records import Record, RecordError
from mixsage.study.statistics import Estimate, by_arm, compare, estimate, holm, ranks, worth


def record(arm, seed, value, *, run=None, data="cifar10", **metrics):
    return Record(
        run=run or f"{data}/{arm}/{seed}",
        arm=arm,
        data=data,
        model="m",
        seed=seed,
        epochs=1,
        metrics={"last": value, **metrics},
    )


def synthetic(effects, seeds=6, noise=0.3):
    """Arms of known effect, with a part of the noise shared by the runs of a seed."""
    draw = np.random.default_rng(0)
    shared = draw.normal(0, 1, seeds)
    return [
        record(arm, seed, 90 + effect + shared[seed] + draw.normal(0, noise))
        for arm, effect in effects.items()
        for seed in range(seeds)
    ]


@pytest.mark.parametrize("count", [3, 5, 20])
def test_interval_is_scipys(count):
    values = np.random.default_rng(count).normal(95, 0.3, count).tolist()
    found = estimate(values)
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high))
    assert found.note is None


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_seeds_claim_nothing(count):
    found = estimate([95.0] * count)
    assert found.half_width is None
    assert found.note.startswith(f"{count} seed")
    assert "no interval (needs 3)" in found.note
    assert str(found) == "95.00"
    (pair,) = compare({"a": dict.fromkeys(range(count), 1.0), "b": dict.fromkeys(range(count), 9.0)}, "a")
    assert pair.p is None
    assert pair.corrected is None
    assert not pair.significant()
    assert "nothing can be claimed" in pair.note


def test_paired_tests_are_scipys_with_holm():
    effects = {"none": 0.0, "small": 0.4, "large": 2.0, "zero": 0.0}
    arms = by_arm(synthetic(effects))
    found = compare(arms, "none")
    assert [entry.arm for entry in found] == ["small", "large", "zero"]
    expected = [stats.ttest_rel(list(arms[name].values()), list(arms["none"].values())) for name in ("small", "large", "zero")]
    for entry, test in zip(found, expected, strict=True):
        assert entry.p == pytest.approx(test.pvalue)
        low, high = test.confidence_interval()
        assert entry.difference.mean - entry.difference.half_width == pytest.approx(low)
        assert entry.difference.mean + entry.difference.half_width == pytest.approx(high)
    assert [entry.corrected for entry in found] == pytest.approx(holm([test.pvalue for test in expected]))
    large = found[1]
    assert large.significant()
    assert not found[2].significant()
    # The shared noise of a seed is 1, its pairs differ by 0.3: without pairs the small effect could not be seen.
    unpaired = stats.ttest_ind(list(arms["small"].values()), list(arms["none"].values())).pvalue
    assert found[0].p < unpaired


def test_only_seeds_that_both_have_are_pairs():
    arms = {"a": {0: 1.0, 1: 2.0, 2: 3.5, 7: 99.0}, "b": {0: 2.0, 1: 3.5, 2: 4.0, 8: -50.0}}
    (found,) = compare(arms, "a")
    assert found.difference.mean == pytest.approx((1 + 1.5 + 0.5) / 3)
    assert found.difference.count == 3
    with pytest.raises(RecordError, match="no seed in common"):
        compare({"a": {0: 1.0}, "b": {1: 1.0}}, "a")


def test_differences_without_any_spread_are_not_tested():
    (found,) = compare({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 2.0, 1: 3.0, 2: 4.0}}, "a")
    assert found.p is None
    assert "all differences are the same" in found.note


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
        ([0.04, 0.01], [0.04, 0.02]),
        ([0.6, 0.5, 0.9], [1.0, 1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holm_by_hand(given, expected):
    assert holm(given) == pytest.approx(expected)


def test_holm_rejects_what_the_step_down_procedure_rejects():
    draw = np.random.default_rng(1)
    for _ in range(200):
        p_values = (draw.random(5) ** 3).tolist()
        corrected = holm(p_values)
        rejected = set()
        for step, i in enumerate(np.argsort(p_values)):
            if p_values[i] > 0.05 / (5 - step):
                break
            rejected.add(int(i))
        assert {i for i in range(5) if corrected[i] <= 0.05} == rejected


def test_ranks():
    values = {"a": 90.0, "b": 92.0, "c": 90.0, "d": 91.0}
    assert ranks(values) == {"a": 3.5, "b": 1.0, "c": 3.5, "d": 2.0}
    assert ranks(values, higher_is_better=False) == {"a": 1.5, "b": 4.0, "c": 1.5, "d": 3.0}


def test_worth():
    found = worth({"sage": 3.0, "mixup": 1.0, "untimed": 9.0, "cutmix": -1.0}, {"sage": 2.0, "mixup": 1.0, "cutmix": 0.5})
    assert [(one.arm, one.gain, one.cost, one.gain_per_cost) for one in found] == [
        ("sage", 3.0, 2.0, 1.5),
        ("mixup", 1.0, 1.0, 1.0),
        ("cutmix", -1.0, 0.5, None),
    ]


def test_arms_from_records():
    found = by_arm([record("a", 0, 1.0), record("a", 1, 2.0), record("b", 0, 3.0, top5=9.0)])
    assert found == {"a": {0: 1.0, 1: 2.0}, "b": {0: 3.0}}
    assert by_arm([record("a", 0, 1.0), record("b", 0, 3.0, top5=9.0)], "top5") == {"b": {0: 9.0}}


@pytest.mark.parametrize(
    ("records", "metric", "message"),
    [
        ([record("a", 0, 1.0), record("a", 0, 2.0, run="again")], "last", r"two runs of 'a' have the seed 0"),
        ([record("a", 0, 1.0), record("a", 1, 2.0, data="cifar100")], "last", "several settings.*cifar10 with m; cifar100 with m"),
        ([record("a", 0, 1.0)], "lsat", "unknown metric 'lsat'; did you mean 'last'"),
        ([], "last", "no finished runs"),
    ],
)
def test_records_that_cannot_be_compared(records, metric, message):
    with pytest.raises(RecordError, match=message):
        by_arm(records, metric)


@pytest.mark.parametrize("call", [lambda: estimate([]), lambda: estimate([1.0, math.nan]), lambda: ranks({"a": math.inf})])
def test_no_numbers(call):
    with pytest.raises(RecordError, match=r"no values|not finite"):
        call()


def test_unknown_baseline():
    with pytest.raises(RecordError, match="unknown arm among the records: 'clan'; did you mean 'clean'"):
        compare({"clean": {0: 1.0}}, "clan")


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Twenty thousand studies of three and of five seeds: the true mean lies inside in 95 % of them (± 0.46 points at three σ)."""
    draw = np.random.default_rng(0)
    factor = {n: estimate([*range(n)]).half_width / (np.std(range(n), ddof=1) / math.sqrt(n)) for n in (3, 5)}
    for n in (3, 5):
        runs = draw.normal(95.0, 0.3, (20_000, n))
        half = factor[n] * runs.std(axis=1, ddof=1) / math.sqrt(n)
        assert np.mean(np.abs(runs.mean(axis=1) - 95.0) <= half) == pytest.approx(0.95, abs=0.005)


def test_coverage_of_the_function_itself():
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(3000):
        found: Estimate = estimate(draw.normal(0, 1, 3).tolist())
        inside += abs(found.mean) <= found.half_width
    assert inside / 3000 == pytest.approx(0.95, abs=0.012)


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised():
    """Where no arm differs, at least one of seven comparisons is called significant in at most 5 % of studies."""
    draw = np.random.default_rng(2)
    alarms = 0
    for _ in range(1500):
        arms = {name: dict(enumerate(draw.normal(90, 0.3, 5).tolist())) for name in "abcdefgh"}
        alarms += any(entry.significant() for entry in compare(arms, "a"))
    assert alarms / 1500 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
