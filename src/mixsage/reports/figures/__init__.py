"""The figures, drawn by matplotlib from plain arrays (`mixsage.reports.pictures`); each function returns a `Figure`, `save` writes it."""

from mixsage.reports.figures.charts import has_gaps, tradeoff, training_curves
from mixsage.reports.figures.gallery import gallery
from mixsage.reports.figures.steps import against_mixup, pipeline, rearrangements, shares
from mixsage.reports.figures.style import as_svg, save

__all__ = [
    "against_mixup",
    "as_svg",
    "gallery",
    "has_gaps",
    "pipeline",
    "rearrangements",
    "save",
    "shares",
    "tradeoff",
    "training_curves",
]
