"""Maps to the best shift: how much saliency each rearrangement keeps, and the search for the one that keeps most.

Maps come as given: normalised and rescaled by their owner, [B, H, W], rows first. One file an engine.
"""

from mixsage.rearrange.blend import Blend, Guided, Paste
from mixsage.rearrange.engines import ENGINES
from mixsage.rearrange.search import Found, best_of, search, total_saliency
from mixsage.rearrange.searches import Full, NoShift, Sampled, Search
from mixsage.rearrange.shifts import all_shifts, sample_shifts

__all__ = [
    "ENGINES",
    "Blend",
    "Found",
    "Full",
    "Guided",
    "NoShift",
    "Paste",
    "Sampled",
    "Search",
    "all_shifts",
    "best_of",
    "sample_shifts",
    "search",
    "total_saliency",
]
