"""Figures (2), (3), (4) and (6): what SAGE does to one pair, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Circle

from mixsage.reports.figures.marks import draw_shift, share_bar
from mixsage.reports.figures.style import (
    FAINT,
    IMAGE,
    INK,
    LINE,
    PARTNER,
    SURFACE,
    caption,
    heading,
    literal,
    new_figure,
    show_map,
    show_mask,
    show_picture,
)
from mixsage.reports.pictures import Mix, Pair, Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@literal
def pipeline(story: Story) -> Figure:
    """Figure (2): one pair from left to right: images, saliency, the offsets that were tried, mask and shift, the mix."""
    figure = new_figure(11.2, 4.6)
    grid = figure.add_gridspec(
        2, 5, left=0.012, right=0.988, top=0.88, bottom=0.06, wspace=0.2, hspace=0.22, width_ratios=[1, 1, 1.5, 1.2, 1.2]
    )
    titles = (
        "1  the pair",
        "2  what the network\n    looks at",
        "3  the shift of the partner\n    that keeps most of that",
        "4  who shows where",
        "5  the mix",
    )
    for column, title in enumerate(titles):
        box = grid[:, column].get_position(figure)
        figure.text(box.x0, 0.985, title, fontsize=10, weight="bold", color=INK, va="top", linespacing=1.15)

    top, bottom = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    show_picture(top, story.image, frame=IMAGE)
    caption(top, story.names[0], IMAGE)
    show_picture(bottom, story.partner, frame=PARTNER)
    caption(bottom, story.names[1], PARTNER)

    for row, (values, beneath, share) in enumerate(
        zip(story.saliency, (story.image, story.partner), (story.share, 1 - story.share), strict=True)
    ):
        axes = figure.add_subplot(grid[row, 1])
        show_map(axes, values, beneath=beneath)
        caption(axes, f"weighs {share:.2f}", (IMAGE, PARTNER)[row])

    _surface(figure, figure.add_subplot(grid[:, 2]), story)
    mask = figure.add_subplot(grid[:, 3])
    show_mask(mask, story.best.mix.mask)
    draw_shift(mask, story.best.mix)
    mix = figure.add_subplot(grid[:, 4])
    show_picture(mix, story.best.mix.picture)
    share_bar(mix, story.best.mix)
    return figure


@literal
def against_mixup(pair: Pair, *, names: tuple[str, str] = ("Mixup", "SAGE")) -> Figure:
    """Figure (3): mask and mix of SAGE beside those of Mixup, for one pair that has the mixes of both."""
    missing = [name for name in names if name not in pair.mixes]
    if missing:
        raise ValueError(f"the pair has no mix of {missing[0]!r}, only of {', '.join(pair.mixes) or 'none'}")
    figure = new_figure(6.4, 4.6)
    grid = figure.add_gridspec(2, 3, left=0.02, right=0.98, top=0.9, bottom=0.09, wspace=0.1, hspace=0.36)
    for row, (picture, colour, name) in enumerate(((pair.image, IMAGE, pair.names[0]), (pair.partner, PARTNER, pair.names[1]))):
        axes = figure.add_subplot(grid[row, 0])
        show_picture(axes, picture, frame=colour)
        caption(axes, name, colour)
        heading(axes, ("image", "partner")[row])
    for row, name in enumerate(names):
        mix = pair.mixes[name]
        mask, mixed = figure.add_subplot(grid[row, 1]), figure.add_subplot(grid[row, 2])
        show_mask(mask, mix.mask)
        draw_shift(mask, mix)
        if mix.offset is None and float(np.ptp(mix.mask)) < 1e-6:
            caption(mask, "the same everywhere", INK, strong=False)
        heading(mask, f"{name}: mask")
        show_picture(mixed, mix.picture)
        share_bar(mixed, mix)
        heading(mixed, f"{name}: mix", strong=True)
    return figure


@literal
def rearrangements(story: Story) -> Figure:
    """Figure (4): several offsets of one pair with the saliency v(τ) that each keeps, and the surface of all offsets."""
    shown = [story.best, *sorted(story.others, key=lambda one: -one.value)]
    count = len(shown)
    figure = new_figure(3.4 + 1.75 * count, 3.9)
    grid = figure.add_gridspec(
        2, count + 1, left=0.055, right=0.99, top=0.9, bottom=0.11, wspace=0.12, hspace=0.26, width_ratios=[2.05, *[1.0] * count]
    )
    axes = figure.add_subplot(grid[:, 0])
    _surface(figure, axes, story, letters=[one.mix.offset for one in shown])
    heading(axes, "v(τ) of every rearrangement τ", strong=True)
    for column, one in enumerate(shown, start=1):
        mask, mix = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        show_mask(mask, one.mix.mask)
        draw_shift(mask, one.mix)
        heading(mask, f"{'abcdefgh'[column - 1]}   v = {one.value:.3f}", strong=column == 1)
        show_picture(mix, one.mix.picture)
        share_bar(mix, one.mix)
    return figure


@literal
def shares(steps: Sequence[tuple[float, Mix]]) -> Figure:
    """Figure (6): the share λ of the image's own saliency rises from 0 to 1, each time with its best shift."""
    if not steps:
        raise ValueError("there are no shares λ to show")
    figure = new_figure(1.45 * len(steps) + 0.2, 3.5)
    grid = figure.add_gridspec(2, len(steps), left=0.012, right=0.988, top=0.9, bottom=0.1, wspace=0.08, hspace=0.22)
    for column, (share, mix) in enumerate(steps):
        mask, mixed = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        show_mask(mask, mix.mask)
        draw_shift(mask, mix)
        heading(mask, f"λ = {share:g}")
        show_picture(mixed, mix.picture)
        share_bar(mixed, mix)
    return figure


def _surface(figure: Figure, axes: Axes, story: Story, letters: Sequence[tuple[int, int] | None] = ()) -> None:
    """v(τ) over the offsets, with those that were tried and the best of them; some with letters, if asked for."""
    height, width = (side // 2 for side in story.surface.shape)
    limits = (-width - 0.5, width + 0.5, height + 0.5, -height - 0.5)
    image = axes.imshow(story.surface, cmap=SURFACE, extent=limits, interpolation="nearest", aspect="equal")
    axes.set_xlabel("→ columns", fontsize=8, color=FAINT, labelpad=2)
    axes.set_ylabel("↓ rows", fontsize=8, color=FAINT, labelpad=2)
    axes.tick_params(labelsize=7.5, color=LINE, labelcolor=FAINT, length=2)
    for spine in axes.spines.values():
        spine.set_color(LINE)
    if letters:
        for letter, offset in zip("abcdefgh", letters, strict=False):
            if offset is None:
                continue
            axes.add_patch(Circle((offset[1], offset[0]), 0.04 * (2 * width + 1), facecolor="white", edgecolor=INK, linewidth=0.9))
            axes.text(offset[1], offset[0], letter, ha="center", va="center", fontsize=8, color=INK, weight="bold")
    else:
        tried = np.asarray(story.tried)
        axes.scatter(tried[:, 1], tried[:, 0], s=7, facecolor="white", edgecolor=INK, linewidth=0.5)
        best = story.best.mix.offset
        if best is not None:
            axes.scatter([best[1]], [best[0]], s=130, marker="*", facecolor=PARTNER, edgecolor="white", linewidth=0.9, zorder=3)
            where = f"★ best of {len(tried)} tried {story.best.value:.3f},  of all {float(story.surface.max()):.3f}"
            axes.text(0.5, 1.02, where, transform=axes.transAxes, fontsize=8, color=FAINT, ha="center", va="bottom")
    if letters:
        return
    bar = figure.colorbar(image, ax=axes, orientation="vertical", fraction=0.04, pad=0.025)
    bar.ax.tick_params(labelsize=7, color=LINE, labelcolor=FAINT, length=2)
    bar.outline.set_visible(False)
