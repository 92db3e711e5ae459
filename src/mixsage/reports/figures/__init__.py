"""The figures, drawn by matplotlib from plain arrays; each function returns a `Figure`, `save` writes it."""

from mixsage.reports.figures.gallery import gallery
from mixsage.reports.figures.style import as_svg, save

__all__ = ["as_svg", "gallery", "save"]
