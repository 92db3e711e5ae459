"""Figure (1): the same pairs under every method, side by side, with what SAGE looked at on the way."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixsage.reports.figures.marks import draw_shift, share_bar
from mixsage.reports.figures.style import (
    FAINT,
    IMAGE,
    INK,
    PARTNER,
    caption,
    heading,
    literal,
    new_figure,
    show_map,
    show_mask,
    show_picture,
)
from mixsage.reports.pictures import Pair

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec


@literal
def gallery(pairs: Sequence[Pair], *, explained: str | None = "SAGE", title: str | None = None) -> Figure:
    """A row a pair, a column a method; the explained method last, with saliency, mask and shift before its mix.

    Args:
        pairs: pairs with the same methods in each.
        explained: the method whose saliency, mask and shift are shown; None shows the mixes alone.
        title: a heading above everything.
    """
    methods = _methods(pairs)
    if explained is not None and explained not in methods:
        explained = None
    others = [name for name in methods if name != explained]
    columns = _columns(pairs, others, explained)
    widths = [_GAP if title is None else 1.0 for title, _ in columns]

    cell, height, width = 1.35, *pairs[0].image.shape[:2]
    row = cell * height / width + 0.34
    top = 0.45 + (0.3 if title else 0.0)
    figure = new_figure(cell * sum(widths) * 1.06, top + row * len(pairs) + 0.32)
    size = figure.get_size_inches()
    grid = figure.add_gridspec(
        len(pairs), len(columns), width_ratios=widths, wspace=0.06, hspace=0.34 / (row - 0.34) * 0.95,
        left=0.012, right=0.988, top=1 - top / size[1], bottom=0.66 / size[1],
    )  # fmt: skip
    if title:
        figure.text(0.012, 1 - 0.12 / size[1], title, fontsize=13, weight="bold", color=INK, va="top")
    for i, pair in enumerate(pairs):
        _draw_row(figure, grid, i, pair, columns)
    shares = f"{_SHARES}, other colours: further images of the batch" if _mixes_more(pairs) else _SHARES
    _legend(figure, size[1], f"{shares}). {_mask_text(pairs, explained)}" if explained else f"{shares}).")
    return figure


_GAP = 0.16
"""Width of the gap between groups of columns, in columns."""

_Column = tuple[str | None, str]
"""A heading (None for a gap) and what the column shows."""


def _columns(pairs: Sequence[Pair], others: Sequence[str], explained: str | None) -> list[_Column]:
    columns: list[_Column] = [("image", "image"), ("partner", "partner"), (None, "")]
    columns += [(name, f"mix:{name}") for name in others]
    if explained is None:
        return columns
    if others:
        columns.append((None, ""))
    if all(pair.saliency is not None for pair in pairs):
        columns += [("saliency\nof the image", "saliency"), ("saliency\nof the partner", "partner saliency")]
    shifts = any(pair.mixes[explained].offset is not None for pair in pairs)
    columns += [("mask and shift" if shifts else "mask", f"mask:{explained}"), (explained, f"mix:{explained}")]
    return columns


def _draw_row(figure: Figure, grid: GridSpec, i: int, pair: Pair, columns: Sequence[_Column]) -> None:
    for j, (title, shows) in enumerate(columns):
        if title is None:
            continue
        axes = figure.add_subplot(grid[i, j])
        kind, _, method = shows.partition(":")
        if kind == "image":
            show_picture(axes, pair.image, frame=IMAGE)
            caption(axes, pair.names[0], IMAGE)
        elif kind == "partner":
            show_picture(axes, pair.partner, frame=PARTNER)
            caption(axes, pair.names[1], PARTNER)
        elif kind == "saliency" and pair.saliency:
            show_map(axes, pair.saliency[0], beneath=pair.image)
        elif kind == "partner saliency" and pair.saliency:
            show_map(axes, pair.saliency[1], beneath=pair.partner)
        elif kind == "mask":
            mix = pair.mixes[method]
            show_mask(axes, mix.mask)
            draw_shift(axes, mix)
        else:
            mix = pair.mixes[method]
            show_picture(axes, mix.picture)
            share_bar(axes, mix)
        if i == 0:
            heading(axes, title, strong=kind == "mix")


def _mixes_more(pairs: Sequence[Pair]) -> bool:
    return any(len(mix.shares) > 2 for pair in pairs for mix in pair.mixes.values())


def _legend(figure: Figure, height: float, text: str) -> None:
    lines = textwrap.wrap(text, width=int(figure.get_figwidth() * 14.5))
    figure.text(0.012, 0.06 / height, "\n".join(lines), fontsize=8.5, color=FAINT, va="bottom", linespacing=1.3)


_SHARES = "Bars: shares of the label (blue: the image, orange: the partner"


def _mask_text(pairs: Sequence[Pair], explained: str) -> str:
    mixes = [pair.mixes[explained] for pair in pairs]
    others = "any other does" if any(len(mix.shares) > 2 for mix in mixes) else "the partner does"
    frame = (
        "; the dashed frame is the partner after its shift, which the arrow shows"
        if any(mix.offset is not None for mix in mixes)
        else ""
    )
    return f"Mask: blue where the image shows, orange where {others}{frame}."


def _methods(pairs: Sequence[Pair]) -> list[str]:
    if not pairs:
        raise ValueError("a gallery needs at least one pair")
    methods = list(pairs[0].mixes)
    for pair in pairs:
        if list(pair.mixes) != methods:
            raise ValueError(f"every pair of a gallery needs the same methods, got {methods} and {list(pair.mixes)}")
    return methods
