"""What is drawn on and beneath pictures: the shift, the shares of the label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from mixsage.reports.figures.style import IMAGE, INK, OTHERS, PARTNER, caption
from mixsage.reports.pictures import Mix

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_shift(axes: Axes, mix: Mix) -> None:
    """The partner's frame where it went, an arrow in that direction, and the shift in numbers beneath."""
    if mix.offset is None:
        return
    down, right = mix.offset
    if (down, right) == (0, 0):
        caption(axes, "stays in place", INK, strong=False)
        return
    height, width = mix.mask.shape
    frame = Rectangle((right - 0.5, down - 0.5), width, height, fill=False, edgecolor=PARTNER, linewidth=1.8, linestyle=(0, (3, 2)))
    axes.add_patch(frame)
    centre = (width / 2 - 0.5, height / 2 - 0.5)
    # A shift may lead out of the picture; its arrow ends inside.
    scale = min(1.0, 0.46 * width / max(abs(right), 1), 0.46 * height / max(abs(down), 1))
    tip = (centre[0] + right * scale, centre[1] + down * scale)
    axes.add_patch(FancyArrowPatch(centre, tip, arrowstyle="-|>", mutation_scale=13, linewidth=2, color=INK, shrinkA=0, shrinkB=0))
    caption(axes, f"{_arrow(down, '↓', '↑')} {_arrow(right, '→', '←')}".strip(), INK, strong=False)


def share_bar(axes: Axes, mix: Mix) -> None:
    """The label's shares as a bar beneath the picture, with the numbers in it."""
    figure: Any = axes.figure
    # Along the picture in shares of its width, below it in inches, so that the bar is as high beneath large pictures as beneath small ones.
    corner: Any = axes.transAxes  # affine, though its type does not say so
    below = figure.dpi_scale_trans + ScaledTranslation(0, 0, corner)
    place = blended_transform_factory(axes.transAxes, below)
    box, (height, width) = axes.get_position(), mix.mask.shape
    inches = min(box.width * figure.get_figwidth(), box.height * figure.get_figheight() * width / height)
    start = 0.0
    for share, colour in zip(mix.shares, (IMAGE, PARTNER, *OTHERS), strict=False):
        axes.add_patch(Rectangle((start, -0.205), share, 0.155, transform=place, color=colour, clip_on=False, linewidth=0))
        if share * inches >= 0.31:  # else there is no room for the number
            text = f"{100 * share:.0f} %"
            axes.text(
                start + share / 2,
                -0.131,
                text,
                transform=place,
                ha="center",
                va="center",
                fontsize=7.5,
                color="white",
                weight="bold",
            )
        start += share


def _arrow(value: int, positive: str, negative: str) -> str:
    return "" if value == 0 else f"{positive if value > 0 else negative}{abs(value)}"
