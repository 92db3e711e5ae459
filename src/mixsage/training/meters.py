"""Running means of an epoch, kept on the device so that no step waits for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class Meters:
    """Weighted means by name."""

    def __init__(self, totals: Mapping[str, Tensor] | None = None) -> None:
        self.totals: dict[str, Tensor] = {name: total.clone() for name, total in (totals or {}).items()}

    def add(self, name: str, mean: Tensor, count: int) -> None:
        """Add a mean over so many things."""
        amount = torch.stack([mean.detach().double() * count, torch.full((), count, dtype=torch.float64, device=mean.device)])
        self.totals[name] = self.totals[name].to(amount.device) + amount if name in self.totals else amount

    def means(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The means over all processes; ``reduce`` sums a tensor over them."""
        sums = {name: reduce(self.totals[name]) for name in sorted(self.totals)}
        return {name: float(total[0] / total[1]) for name, total in sums.items()}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {name: total.cpu() for name, total in self.totals.items()}
