"""What all figures share: colours that the colour-blind can tell apart, text that stays readable on a phone, and saving."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from mixsage.reports.pictures import Array

try:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise ModuleNotFoundError("figures are drawn by matplotlib, which is not installed: pip install 'mixsage[report]'") from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGE = "#0072B2"
"""The image itself, everywhere."""
PARTNER = "#D55E00"
"""Its partner, everywhere."""
OTHERS = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#5B5B5B")
"""Whatever else has to be told apart; with the two above, the palette of Okabe and Ito."""
INK = "#1A1A1A"
FAINT = "#6B6B6B"
LINE = "#D9D9D9"
PAPER = "#FFFFFF"

HEAT = LinearSegmentedColormap.from_list("saliency", ["#000004", "#3B0F70", "#B63679", "#FB8861", "#FCFDBF"])
"""Dark where the network does not look, bright where it does."""
MASK = LinearSegmentedColormap.from_list("mask", [PARTNER, "#F7F7F7", IMAGE])
"""The partner's colour where only the partner shows, the image's where only the image does."""

SURFACE = LinearSegmentedColormap.from_list("surface", ["#F3F7FA", "#B9D4E6", "#6AA5CB", "#21709F", "#0B3A59"])
"""Pale where a rearrangement keeps little, dark where it keeps much."""

_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # matplotlib brings it along, so that a figure looks the same everywhere
    "svg.fonttype": "path",
    "svg.hashsalt": "mixsage",  # the same figure gives the same file
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches; it belongs to nobody but its caller."""
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


_Given = ParamSpec("_Given")


def literal(draw: Callable[_Given, Figure]) -> Callable[_Given, Figure]:
    """Names come from users: a dollar sign in them is one, and does not begin a formula, which could not even be read."""

    @wraps(draw)
    def drawn(*given: _Given.args, **settings: _Given.kwargs) -> Figure:
        with mpl.rc_context({"text.parse_math": False}):
            return draw(*given, **settings)

    return drawn


def save(figure: Figure, path: str | Path, *, dpi: int = 160) -> Path:
    """Write the figure in the format that the file's ending names: svg, png or pdf."""
    path = check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_rendered(figure, path.suffix[1:].lower(), dpi))
    return path


def check_format(path: str | Path) -> Path:
    """The path, if a figure can be saved there: to be asked before long work whose end is a figure."""
    path = Path(path)
    formats = (".svg", ".png", ".pdf")
    if path.suffix.lower() not in formats:
        raise ValueError(f"a figure is saved as {', '.join(formats)}, got {path.name!r}")
    return path


def as_svg(figure: Figure) -> str:
    """The figure as the text of an SVG element, without the header of a file of its own: for a page."""
    text = _rendered(figure, "svg", 160).decode("utf-8")
    return text[text.index("<svg") :]


def _rendered(figure: Figure, kind: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    # Without a date in it, the same figure is the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[kind]
    with mpl.rc_context(_SETTINGS):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def show_picture(axes: Axes, picture: Array, *, frame: str | None = None) -> None:
    """A picture without ticks, its pixels sharp, with a coloured frame if one is named."""
    axes.imshow(_in_colour(picture), interpolation="nearest")
    bare(axes, frame=frame)


def show_map(axes: Axes, values: Array, *, beneath: Array | None = None) -> None:
    """A saliency map, bright where the network looks; over a grey version of the picture if one is given."""
    scaled = values / max(float(values.max()), 1e-12)
    heat = HEAT(scaled)[..., :3]
    if beneath is not None:
        grey = _in_colour(beneath).mean(axis=-1, keepdims=True)
        strength = np.sqrt(scaled)[..., None]
        heat = strength * heat + (1 - strength) * (0.25 + 0.75 * grey)
    axes.imshow(np.clip(heat, 0, 1), interpolation="nearest")
    bare(axes)


def show_mask(axes: Axes, mask: Array) -> None:
    """Blue where the image shows, orange where its partner does."""
    axes.imshow(mask, cmap=MASK, vmin=0, vmax=1, interpolation="nearest")
    bare(axes)


def bare(axes: Axes, *, frame: str | None = None) -> None:
    """No ticks; a thin grey frame, or a strong one in a colour."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(frame or LINE)
        spine.set_linewidth(2.5 if frame else 0.8)


def caption(axes: Axes, text: str, colour: str, *, strong: bool = True) -> None:
    """A short text beneath a picture."""
    weight = "bold" if strong else "normal"
    axes.annotate(
        text, (0.5, 0), xytext=(0, -4), xycoords="axes fraction", textcoords="offset points", ha="center", va="top", fontsize=8.5,
        color=colour, weight=weight, annotation_clip=False,
    )  # fmt: skip


def heading(axes: Axes, text: str, *, strong: bool = False) -> None:
    """A short text above a picture."""
    axes.set_title(text, fontsize=9.5, color=INK, pad=5, weight="bold" if strong else "normal", linespacing=1.05)


def _in_colour(picture: Array) -> Array:
    picture = np.clip(np.asarray(picture, dtype=np.float64), 0, 1)
    if picture.ndim != 3 or picture.shape[-1] not in {1, 3}:
        raise ValueError(f"a picture is [H, W, 3] or [H, W, 1], got {list(picture.shape)}")
    return np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture
