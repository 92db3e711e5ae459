"""What records support, as plain values and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixsage.errors import unknown_name
from mixsage.study.cost import Cost, by_steps, by_times, mixed_pairs, place_of, places
from mixsage.study.records import ACCURACIES, Record, RecordError, latest
from mixsage.study.statistics import Comparison, by_arm, compare, estimate, ranks, worth

LOWER_IS_BETTER = frozenset({"nll", "ece", "seconds"})
"""Metrics of which less is better."""
_EPOCHS = {"last": "last epoch", "best": "best epoch", "median_of_last_ten": "median of last 10"}


def summarise(
    records: Sequence[Record], *, metric: str = "last", baseline: str | None = None, costs: Path | None = None
) -> dict[str, Any]:
    """Each arm's mean, interval, paired difference to the baseline, rank, cost; and what is wrong with claiming more.

    Accuracies after the last epoch, of the best epoch and of the median of the last ten stand beside one another, each under its own name.

    Args:
        records: of one setting; `records.select` picks them.
        metric: what is compared.
        baseline: the arm that the others are compared with; no mixing if left out, or
            the first arm where there is none.
        costs: a file of step times; the cost comes from these then, instead of the runs' own seconds.
    """
    values = by_arm(records, metric)
    runs = _runs(records)
    reference = baseline or _plain(values, runs)
    if reference not in values:
        raise RecordError(unknown_name("arm among the records:", reference, values))
    unpaired = [arm for arm in values if not values[arm].keys() & values[reference].keys()]
    comparisons = {entry.arm: entry for entry in compare(_without(values, unpaired), reference)}
    means = {arm: estimate(list(one.values())) for arm, one in values.items()}
    order = ranks({arm: mean.mean for arm, mean in means.items()}, higher_is_better=metric not in LOWER_IS_BETTER)
    paid = by_times(runs, reference) if costs is None else by_steps(runs, reference, costs)
    gains = {} if metric in LOWER_IS_BETTER else {arm: one.difference.mean for arm, one in comparisons.items()}
    gained = {one.arm: one.gain_per_cost for one in worth(gains, {arm: one.ratio.mean for arm, one in paid.items()})}
    others = {name: _means(records, name) for name in ACCURACIES}
    seconds = _means(records, "seconds")
    rows = []
    for arm, mean in means.items():
        comparison = comparisons.get(arm)
        rows.append(
            {
                "arm": arm,
                "mean": mean.mean,
                "half_width": mean.half_width,
                "seeds": mean.count,
                "rank": order[arm],
                **_difference(comparison),
                **_cost(paid.get(arm), is_baseline=arm == reference),
                "gain_per_cost": gained.get(arm),
                "seconds": seconds.get(arm) if len({place_of(run) for run in runs[arm]}) == 1 else None,
                "places": places(runs[arm]),
                "note": (comparison and comparison.note)
                or mean.note
                or (f"no seed in common with {reference}: no pairs" if arm in unpaired else None),
                **{name: table.get(arm) for name, table in others.items()},
            }
        )
    failed = [{"run": record.run, "error": record.error} for record in latest(records) if record.status == "failed"]
    return {
        "metric": metric,
        "baseline": reference,
        "level": 0.95,
        "cost_from": "seconds of the runs" if costs is None else str(costs),
        "arms": rows,
        "notes": [*_places_note(runs), *_cost_notes(values, paid, reference, costs), *_mixed_pairs(runs, reference)],
        "failed": failed,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    metric = summary["metric"]
    others = [name for name in ACCURACIES if name != metric and metric in ACCURACIES]
    heads = ["arm", _EPOCHS.get(metric, metric), "seeds", "rank", f"less {summary['baseline']}", "p (Holm)", "cost", "points/cost"]
    heads += [_EPOCHS[name] for name in others]
    rows = [_row(arm, others) for arm in summary["arms"]]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]
    explanation = [
        "mean ± 95 % interval over seeds; differences over pairs with the same seed",
        f"cost: training time over that of {summary['baseline']}, "
        + (
            "by the seconds of runs with the same seed on the same machine at the same precision"
            if summary["cost_from"] == "seconds of the runs"
            else f"by step times measured elsewhere ({summary['cost_from']}) and the number of steps"
        ),
    ]
    if "best" in others or metric == "best":
        explanation.append("the best epoch was chosen on the test set, so it flatters")
    notes = [f"{arm['arm']}: {arm['note']}" for arm in summary["arms"] if arm["note"]]
    lost = [f"failed: {run['run']}: {run['error']}" for run in summary["failed"]]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *explanation, *notes, *summary["notes"], *lost])


def _difference(comparison: Comparison | None) -> dict[str, Any]:
    return {
        "difference": comparison and comparison.difference.mean,
        "difference_half_width": comparison and comparison.difference.half_width,
        "p": comparison and comparison.p,
        "p_holm": comparison and comparison.corrected,
    }


def _cost(cost: Cost | None, *, is_baseline: bool) -> dict[str, Any]:
    if is_baseline:
        return {"cost": 1.0, "cost_half_width": None, "cost_pairs": None}
    return {
        "cost": cost and cost.ratio.mean,
        "cost_half_width": cost and cost.ratio.half_width,
        "cost_pairs": cost and cost.ratio.count,
    }


def _places_note(runs: Mapping[str, Sequence[Record]]) -> list[str]:
    found = places([record for own in runs.values() for record in own])
    if len(found) < 2:
        return []
    listed = "; ".join(f"{count} on {place}" for place, count in found.items())
    return [f"runs of several machines or precisions: {listed}"]


def _cost_notes(values: Mapping[str, Any], paid: Mapping[str, Cost], baseline: str, costs: Path | None) -> list[str]:
    dear = [arm for arm in values if arm != baseline and arm not in paid]
    if not dear:
        return []
    reason = (
        f"no run with the same seed as one of {baseline}, on the same machine at the same precision"
        if costs is None
        else f"{costs} has no step of the method"
    )
    return [f"no cost for {', '.join(dear)}: {reason}"]


def _mixed_pairs(runs: Mapping[str, Sequence[Record]], baseline: str) -> list[str]:
    return [
        f"{arm}: {mixed} of {count} pairs compare runs of different machines or precisions"
        for arm, (mixed, count) in mixed_pairs(runs, baseline).items()
    ]


def _row(arm: dict[str, Any], others: Sequence[str]) -> list[str]:
    def interval(mean: float | None, half: float | None, sign: str = "") -> str:
        if mean is None:
            return ""
        return f"{mean:{sign}.2f}" + (f" ± {half:.2f}" if half is not None else "")

    return [
        arm["arm"],
        interval(arm["mean"], arm["half_width"]),
        str(arm["seeds"]),
        f"{arm['rank']:g}",
        interval(arm["difference"], arm["difference_half_width"], "+"),
        "" if arm["p_holm"] is None else f"{arm['p_holm']:.4f}",
        interval(arm["cost"], arm["cost_half_width"]),
        interval(arm["gain_per_cost"], None, "+"),
        *(interval(arm[name], None) for name in others),
    ]


def _runs(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in latest(records):
        if record.status == "ok":
            found.setdefault(record.arm, []).append(record)
    return found


def _plain(values: Mapping[str, Any], runs: Mapping[str, Sequence[Record]]) -> str:
    """No mixing, the shortest arm of it: which arm stands first depends on which of several processes was done first."""
    plain = [arm for arm in values if runs[arm][0].method.strip().lower().removesuffix("()") == "clean"]
    return min(plain, key=lambda arm: runs[arm][0].epochs, default=next(iter(values)))


def _without(values: dict[str, dict[int, float]], arms: Sequence[str]) -> dict[str, dict[int, float]]:
    return {arm: one for arm, one in values.items() if arm not in arms}


def _means(records: Sequence[Record], metric: str) -> dict[str, float]:
    there = any(metric in record.metrics for record in records)
    return {arm: estimate(list(values.values())).mean for arm, values in by_arm(records, metric).items()} if there else {}
