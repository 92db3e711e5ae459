"""A figure with what is said about it; knows nothing of records, so that a figure need not come from any."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mixsage.reports.figures import as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Shown:
    """A figure with its caption."""

    name: str
    """Of its files."""
    caption: str
    """What it shows; also what is read to people who cannot see it."""
    figure: Figure
    """The figure."""
    wide: bool = False
    """Whether it needs the whole width of the page."""

    @property
    def address(self) -> str:
        """The figure itself, as an address that needs no network."""
        return "data:image/svg+xml;base64," + base64.b64encode(as_svg(self.figure).encode()).decode()
