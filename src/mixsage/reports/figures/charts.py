"""Figure (5) and the training curves: numbers of arms, as charts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mixsage.reports.figures.style import FAINT, IMAGE, INK, LINE, OTHERS, PARTNER, literal, new_figure
from mixsage.reports.pictures import Curve, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (IMAGE, *OTHERS)
"""Of arms that are not picked out, in their order."""
MARKERS = "osD^vPX<>dhp*"
"""A form for each arm, so that colour alone never tells them apart."""


@literal
def tradeoff(
    points: Sequence[Point], *, x: str, y: str, title: str | None = None, strong: str | None = "SAGE", log_x: bool = False
) -> Figure:
    """Figure (5): a point an arm, with its name beside it and its intervals as thin lines.

    Args:
        points: the arms.
        x: what the horizontal axis shows, with its unit.
        y: what the vertical axis shows, with its unit.
        title: a heading.
        strong: the arm that is picked out.
        log_x: a logarithmic horizontal axis.
    """
    if not points:
        raise ValueError("there are no points to show")
    figure = new_figure(5.2, 4.1)
    axes = figure.add_axes((0.13, 0.14, 0.83, 0.74))
    if log_x:
        axes.set_xscale("log")
    for number, point in enumerate(points):
        colour = _colour(point.arm, number, strong)
        axes.errorbar(
            [point.x],
            [point.y],
            xerr=None if point.x_error is None else [point.x_error],
            yerr=None if point.y_error is None else [point.y_error],
            fmt=MARKERS[number % len(MARKERS)],
            color=colour,
            markersize=8 if point.arm == strong else 6.5,
            markeredgecolor="white",
            markeredgewidth=0.8,
            elinewidth=1.1,
            capsize=0,
            zorder=3,
        )
    axes.margins(0.14, 0.12)
    _plain(axes, x=x, y=y, title=title)
    if log_x:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    _name(figure, axes, points, strong)
    return figure


@literal
def training_curves(curves: Sequence[Curve], *, y: str, title: str | None = None, strong: str | None = "SAGE") -> Figure:
    """Means over runs, a line an arm with its name at its end, and the range of its runs as a pale band.

    Runs of different lengths are laid over one another by the share of their own epochs, so that they all end at the right.
    """
    if not curves:
        raise ValueError("there are no curves to show")
    names = 0.4 + 0.066 * max(len(curve.arm) for curve in curves)
    figure = new_figure(4.3 + names, 4.1)
    axes = figure.add_axes((0.65 / (4.3 + names), 0.14, 3.6 / (4.3 + names), 0.74))
    together = len({curve.epochs[-1] for curve in curves}) == 1
    ends, first = [], float("inf")
    for number, curve in enumerate(curves):
        values = np.atleast_2d(np.asarray(curve.values, dtype=np.float64))
        if values.shape[1] != len(curve.epochs):
            raise ValueError(f"the curve of {curve.arm!r} has {values.shape[1]} values for {len(curve.epochs)} epochs")
        colour, mean = _colour(curve.arm, number, strong), values.mean(axis=0)
        picked = curve.arm == strong
        places = np.array(curve.epochs) / (1 if together else curve.epochs[-1] / 100)
        for part in _stretches(curve.epochs):
            axes.plot(
                places[part],
                mean[part],
                color=colour,
                linewidth=2.4 if picked else 1.4,
                zorder=3 if picked else 2,
                linestyle="-" if picked else _dash(number),
                marker="o" if part.stop - part.start == 1 else None,
                markersize=3.5,
            )
            if len(values) > 1:
                low, high = values[:, part].min(axis=0), values[:, part].max(axis=0)
                axes.fill_between(places[part], low, high, color=colour, alpha=0.13, linewidth=0)
        ends.append((float(mean[-1]), curve.arm, colour, picked))
        first = min(first, *(float(places[part.start]) for part in _main(_stretches(curve.epochs))))
    _plain(axes, x="epoch" if together else "share of each run's epochs (%)", y=y, title=title)
    # The first steep part would press everything that matters into a line at the top.
    low = min(float(np.atleast_2d(curve.values).mean(axis=0)[len(curve.epochs) // 8 :].min()) for curve in curves)
    high = max(float(np.max(curve.values)) for curve in curves)
    axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low) + 1e-9)
    axes.set_xlim(first, curves[0].epochs[-1] if together else 100)
    _name_ends(axes, ends)
    return figure


def has_gaps(curve: Curve) -> bool:
    """Whether epochs are missing between measured ones, beyond a regular distance."""
    return len(_stretches(curve.epochs)) > 1


def _stretches(epochs: Sequence[int]) -> list[slice]:
    """Runs of epochs at their usual distance: between these, nothing was measured and no line may be drawn."""
    usual = int(np.median(np.diff(epochs))) if len(epochs) > 1 else 1
    breaks = [i + 1 for i, (one, other) in enumerate(pairwise(epochs)) if other - one > usual]
    return [slice(begin, end) for begin, end in pairwise([0, *breaks, len(epochs)])]


def _main(stretches: Sequence[slice]) -> list[slice]:
    """Those with more than a single epoch, where there are such: a lone early one must not squeeze the rest into a corner."""
    return [part for part in stretches if part.stop - part.start > 1] or list(stretches)


def _plain(axes: Axes, *, x: str, y: str, title: str | None) -> None:
    """Two thin axes, a pale grid, nothing else."""
    axes.set_xlabel(x, fontsize=9.5, color=INK)
    axes.set_ylabel(y, fontsize=9.5, color=INK)
    if title:
        axes.set_title(title, fontsize=10.5, color=INK, weight="bold", loc="left", pad=8)
    axes.grid(True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, color=LINE, labelcolor=FAINT, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)


def _name(figure: Figure, axes: Axes, points: Sequence[Point], strong: str | None) -> None:
    """Each point's name at the first of eight places around it where it covers neither a point nor another name."""
    figure.canvas.draw()  # settles the limits of the axes, which the places of the points depend on
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # new_figure gives every figure an Agg canvas
    frame = axes.get_window_extent(renderer)
    places = axes.transData.transform([(point.x, point.y) for point in points])
    reach = figure.dpi / 72 * 6
    taken: list[tuple[float, float, float, float]] = [(x - reach, y - reach, x + reach, y + reach) for x, y in places]
    for number, (point, (x, y)) in enumerate(zip(points, places, strict=True)):
        text = axes.annotate(
            point.arm,
            (point.x, point.y),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            weight="bold" if point.arm == strong else "normal",
            ha="left",
            va="bottom",
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=4,
        )
        box = text.get_window_extent(renderer)
        wide, high = box.width, box.height
        choices = [
            (dx, dy)
            for far in (1.0, 2.2, 3.6)
            for dx, dy in (
                (reach * far * 0.7, reach * far * 0.7),
                (-wide - reach * far * 0.7, reach * far * 0.7),
                (reach * far * 0.7, -high - reach * far * 0.7),
                (-wide - reach * far * 0.7, -high - reach * far * 0.7),
                (reach * far, -high / 2),
                (-wide - reach * far, -high / 2),
                (-wide / 2, reach * far),
                (-wide / 2, -high - reach * far),
            )
        ]
        others = [box for k, box in enumerate(taken) if k != number]
        dx, dy = min(
            choices, key=lambda move: _cost((x + move[0], y + move[1], x + move[0] + wide, y + move[1] + high), others, frame)
        )
        taken.append((x + dx, y + dy, x + dx + wide, y + dy + high))
        text.set_position((dx * 72 / figure.dpi, dy * 72 / figure.dpi))


def _cost(box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]], frame: Any) -> float:
    """The area of a label that covers something or lies outside; the order of the choices decides between equals."""
    covered = sum(_overlap(box, other) for other in taken)
    inside = _overlap(box, (frame.x0, frame.y0, frame.x1, frame.y1))
    return covered + 3 * ((box[2] - box[0]) * (box[3] - box[1]) - inside)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _name_ends(axes: Axes, ends: Sequence[tuple[float, str, str, bool]]) -> None:
    """Names to the right of the lines, pushed apart where they would lie over one another, each with a thin line to its end."""
    ends = sorted(ends)
    heights = _apart([value for value, *_ in ends], axes.get_ylim())
    for (value, arm, colour, picked), height in zip(ends, heights, strict=True):
        axes.annotate(
            arm,
            xy=(1, value),
            xytext=(1.05, height),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            fontsize=8.5,
            color=INK,
            weight="bold" if picked else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.4, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def _apart(values: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """Heights in rising order, close to the values, far enough from one another for text, and within the limits while there is room."""
    low, high = limits
    gap = min(0.055 * (high - low), (high - low) / max(len(values) - 1, 1))
    heights: list[float] = []
    for value in values:
        heights.append(max(value, heights[-1] + gap) if heights else value)
    ceiling = high
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    return heights


def _colour(arm: str, number: int, strong: str | None) -> str:
    return PARTNER if arm == strong else COLOURS[number % len(COLOURS)]


def _dash(number: int) -> Any:
    """Lines that share a colour differ in their dashes."""
    return ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))[number // len(COLOURS) % 3]
