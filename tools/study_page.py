"""Write docs/study.md and its figures, and the table in docs/choosing.md, anew from the records of the small study.

python tools/study_page.py                        what `make study-page` runs
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mixsage.reports.arms import Arm, Setting, settings_of
from mixsage.reports.markdown import report
from mixsage.study.cost import by_steps
from mixsage.study.records import Record, read_all
from mixsage.study.statistics import compare

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "studies" / "cifar10-5k" / "records.jsonl"
COSTS = ROOT / "benchmarks" / "results" / "bench_cpu.json"
TITLE = "The small study"
BEGIN, END = "<!-- study: begin -->", "<!-- study: end -->"
HEADS = ("arm", "accuracy (%)", "less no mixing", "perturbed (%)", "calibration error (%)", "cost in plain steps")


def table(records: Sequence[Record]) -> str:
    """Accuracy, robustness, calibration and cost of every arm, the most accurate first."""
    (setting,) = settings_of(records)
    plain = setting.baseline()
    assert plain is not None
    arms = sorted(setting.arms, key=_accuracy, reverse=True)
    differences = {one.arm: one.difference for one in compare({arm.label: arm.values("last") for arm in arms}, plain.label)}
    costs = _costs(setting, plain)
    rows = [
        (
            arm.label,
            str(arm.estimate("last")),
            f"{differences[arm.label].mean:+.2f}" if arm.label in differences else "",
            str(arm.estimate("ood")),
            str(arm.estimate("ece")),
            costs.get(arm.label, "–"),
        )
        for arm in arms
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [HEADS, ("---",) * len(HEADS), *rows])


def filled(text: str, records: Sequence[Record]) -> str:
    """A page with the table between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table(records)}\n{END}", text, flags=re.DOTALL)


def _accuracy(arm: Arm) -> float:
    found = arm.estimate("last")
    return 0.0 if found is None else found.mean


def _costs(setting: Setting, plain: Arm) -> dict[str, str]:
    """Measured step times, times the number of steps: the runs themselves shared their machine."""
    found = by_steps({arm.label: arm.records for arm in setting.arms}, plain.label, COSTS)
    return {plain.label: "1", **{arm: f"{cost.ratio.mean:.2f}" for arm, cost in found.items()}}


if __name__ == "__main__":
    records = read_all([RECORDS])
    for path in report(records, ROOT / "docs" / "study.md", title=TITLE, costs=COSTS):
        print(path.relative_to(ROOT))
    page = ROOT / "docs" / "choosing.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), records), encoding="utf-8")
    print(page.relative_to(ROOT))
