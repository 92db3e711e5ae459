"""What records support, as plain values and as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mixsage.study.records import ACCURACIES, Record, latest
from mixsage.study.statistics import by_arm, compare, estimate, ranks, worth

LOWER_IS_BETTER = frozenset({"nll", "ece", "seconds"})
"""Metrics of which less is better."""


def summarise(records: Sequence[Record], *, metric: str = "last", baseline: str | None = None) -> dict[str, Any]:
    """Each arm's mean, interval, paired difference to the baseline, rank, cost; and what is wrong with claiming more.

    Accuracies after the last epoch, of the best epoch and of the median of the last ten stand beside one another, each under its own name.
    """
    arms = by_arm(records, metric)
    reference = baseline or next(iter(arms))
    comparisons = {entry.arm: entry for entry in compare(arms, reference)}
    means = {arm: estimate(list(values.values())) for arm, values in arms.items()}
    places = ranks({arm: mean.mean for arm, mean in means.items()}, higher_is_better=metric not in LOWER_IS_BETTER)
    seconds = {arm: estimate(list(values.values())).mean for arm, values in by_arm(records, "seconds").items()}
    gains = {entry.arm: entry for entry in worth({arm: mean.mean for arm, mean in means.items()}, seconds, reference)}
    others = {name: _means(records, name) for name in ACCURACIES if name != metric}
    rows = []
    for arm, mean in means.items():
        comparison, gain = comparisons.get(arm), gains.get(arm)
        rows.append(
            {
                "arm": arm,
                "mean": mean.mean,
                "half_width": mean.half_width,
                "seeds": mean.count,
                "rank": places[arm],
                "difference": comparison and comparison.difference.mean,
                "difference_half_width": comparison and comparison.difference.half_width,
                "p": comparison and comparison.p,
                "p_holm": comparison and comparison.corrected,
                "seconds": seconds.get(arm),
                "cost": gain.cost if gain else 1.0,
                "gain_per_cost": gain and gain.gain_per_cost,
                "note": (comparison and comparison.note) or mean.note,
                **{name: values.get(arm) for name, values in others.items()},
            }
        )
    failed = [{"run": record.run, "error": record.error} for record in latest(records) if record.status == "failed"]
    return {"metric": metric, "baseline": reference, "level": 0.95, "arms": rows, "failed": failed}


def table(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    heads = ["arm", summary["metric"], "seeds", "rank", f"less {summary['baseline']}", "p (Holm)", "cost", "points/cost"]
    rows = [_row(arm) for arm in summary["arms"]]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width) for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [heads, *rows]
    ]
    notes = [f"{arm['arm']}: {arm['note']}" for arm in summary["arms"] if arm["note"]]
    lost = [f"failed: {run['run']}: {run['error']}" for run in summary["failed"]]
    explanation = "mean ± 95 % interval over seeds; differences over pairs with the same seed; cost in the baseline's training time"
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", explanation, *notes, *lost])


def _row(arm: dict[str, Any]) -> list[str]:
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
        f"{arm['cost']:.2f}",
        "" if arm["gain_per_cost"] is None else f"{arm['gain_per_cost']:+.2f}",
    ]


def _means(records: Sequence[Record], metric: str) -> dict[str, float]:
    there = any(metric in record.metrics for record in records)
    return {arm: estimate(list(values.values())).mean for arm, values in by_arm(records, metric).items()} if there else {}
