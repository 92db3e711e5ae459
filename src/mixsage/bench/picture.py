"""Results as one figure: every number that has a goal, beside it; and how the search grows with the side of the images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter, NullFormatter

from mixsage.bench.results import Curve, Results, Row
from mixsage.bench.text import goal, machine, number, rounds
from mixsage.reports.figures.style import FAINT, IMAGE, INK, LINE, OTHERS, PARTNER, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(results: Results) -> Figure:
    """The figure; numbers without a goal are left to the table."""
    rows = [row for comparison in results.comparisons for row in comparison.rows if row.goal is not None]
    curves = [curve for comparison in results.comparisons for curve in comparison.curves]
    if not rows and not curves:
        raise ValueError("there is nothing to draw: none of these comparisons has a goal or a curve")
    inches = max(2.2 + 0.36 * len(rows), 4.2 if curves else 0)
    width = (10.0 if rows else 0.0) + (5.0 if curves else 0.0)
    figure = new_figure(width, inches)
    bottom, height = 1.05 / inches, 1 - 1.75 / inches
    if rows:
        _goals(figure.add_axes((4.3 / width, bottom, 3.4 / width, height)), rows)
    if curves:
        _growth(figure.add_axes(((width - 4.1) / width, bottom, 3.8 / width, height)), curves)
    quick = "a quick run, whose times mean nothing · " if results.settings.get("quick") else ""
    figure.text(0.15 / width, 0.15 / inches, quick + machine(results.machine), fontsize=7.5, color=FAINT, wrap=True)
    return figure


def _goals(axes: Axes, rows: list[Row]) -> None:
    """Each number as a part of its goal, on a logarithmic axis: left of the line is good, whichever way the goal points."""
    for place, row in enumerate(rows):
        median, low, high = (_part(row, value) for value in (row.spread.median, row.spread.low, row.spread.high))
        colour = IMAGE if row.met else PARTNER
        axes.plot([min(low, high), max(low, high)], [place, place], color=colour, linewidth=2, solid_capstyle="butt", zorder=2)
        axes.plot([median], [place], marker="o" if row.met else "X", color=colour, markersize=8, markeredgecolor="white", zorder=3)
        axes.annotate(
            f"{number(row, row.spread.median)}  (goal {goal(row)}; {rounds(row)})",
            (1, place),
            xytext=(8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK if row.met else PARTNER,
            annotation_clip=False,
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row.text for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    parts = [_part(row, value) for row in rows for value in (row.spread.low, row.spread.high)]
    axes.set_xlim(min(0.2, *parts) / 1.3, max(2.0, *parts) * 1.3)
    axes.axvline(1, color=INK, linewidth=1.2, zorder=1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _plain(axes, "measured / goal (goals that are lower bounds: goal / measured)", "Beside their goals: ● met, ✖ missed")
    axes.tick_params(axis="y", labelcolor=INK)


def _part(row: Row, value: float) -> float:
    assert row.goal is not None
    return row.goal / value if row.at_least else max(value / row.goal, 1e-6)


def _growth(axes: Axes, curves: list[Curve]) -> None:
    """Seconds over sides, both logarithmic, so that a power is a straight line."""
    for number_, curve in enumerate(curves):
        colour = (IMAGE, PARTNER, *OTHERS)[number_ % (2 + len(OTHERS))]
        axes.plot(
            curve.sides,
            curve.seconds,
            marker="osD^vP"[number_ % 6],
            color=colour,
            label=f"{curve.name}: power {curve.power:.2f}",
            zorder=3,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _plain(axes, "side of the images", "Seconds of a search")
    axes.legend(fontsize=8.5, frameon=False, labelcolor=INK)


def _plain(axes: Axes, x: str, title: str) -> None:
    axes.set_title(title, fontsize=10.5, color=INK, weight="bold", loc="left", pad=8)
    axes.set_xlabel(x, fontsize=8.5, color=INK)
    axes.grid(True, axis="both", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, color=LINE, labelcolor=FAINT, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
