"""Comparisons as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixsage.bench.results import Comparison, Row

_FORMS = {
    "ratio": "{:.3f}",
    "share": "{:.3f} %",
    "copies": "{:.1f}",
    "power": "{:.2f}",
    "seconds": "{:.3g} s",
    "images/s": "{:,.0f} /s",
    "hours": "{:.1f} h",
}


def number(row: Row, value: float) -> str:
    """A value in the form of its row."""
    return _FORMS[row.unit].format(100 * value if row.unit == "share" else value)


def goal(row: Row) -> str:
    """The goal with its direction, such as ≤ 2.03; nothing without one.

    >>> from mixsage.bench.results import Spread
    >>> goal(Row(name="feed", text="feed", spread=Spread.exact(30), goal=20, at_least=True))
    '≥ 20'
    """
    if row.goal is None:
        return ""
    shown = f"{100 * row.goal:g} %" if row.unit == "share" else f"{row.goal:g}"
    return f"{'≥' if row.at_least else '≤'} {shown}"


def rounds(row: Row) -> str:
    """How often the number was measured."""
    return "1 round" if row.spread.count == 1 else f"{row.spread.count} rounds"


def verdict(row: Row, *, quick: bool = False) -> str:
    """Whether the goal is met; of a quick run nothing can be said."""
    if row.met is None or quick:
        return ""
    return "pass" if row.met else "miss"


def table(comparison: Comparison, *, quick: bool = False) -> str:
    """A comparison for a terminal."""
    lines = [f"{comparison.name}: {comparison.title}", f"  {comparison.setting}"]
    if comparison.rows:
        wide = max(len(row.text) for row in comparison.rows)
        lines.append(f"  {'':<{wide}}{'median':>12}{'5 %':>12}{'95 %':>12}{'rounds':>8}{'goal':>10}")
        for row in comparison.rows:
            values = "".join(f"{number(row, value):>12}" for value in (row.spread.median, row.spread.low, row.spread.high))
            end = f"{row.spread.count:>8}{goal(row):>10}  {verdict(row, quick=quick)}"
            lines.append(f"  {row.text:<{wide}}{values}{end}".rstrip())
    lines += [
        f"  {curve.name}: "
        + ", ".join(f"{side}: {seconds:.3g} s" for side, seconds in zip(curve.sides, curve.seconds, strict=True))
        + f"; grows as the side to the power of {curve.power:.2f}"
        for curve in comparison.curves
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in comparison.notes)])


def machine(found: Mapping[str, Any]) -> str:
    """Machine and versions in a line."""
    first = f"{found.get('gpu') or found['machine']}, {found['threads']} threads of {found['cores']} cores"
    load = "" if found.get("load") is None else f", load {found['load']}"
    skipped = {"machine", "gpu", "threads", "cores", "load"}
    return first + load + "; " + ", ".join(f"{name} {value}" for name, value in found.items() if name not in skipped)
