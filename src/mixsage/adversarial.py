"""Images that are disturbed against the model before they are mixed, by the gradient that the saliency is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

from mixsage.colours import colours
from mixsage.plan import Blocks, MixPlan, Shift


@dataclass(frozen=True, eq=False, kw_only=True)
class DisturbedPlan(MixPlan):
    """A plan that adds noise to the images that it mixes. It fits the batch that it was drawn for; on anything else, apply `undisturbed`."""

    noise: Tensor
    """What is added to the rows of the pool, in the pool's own units."""
    disturbed: Tensor
    """[B, K] or [1, K] float32: whether (1) or not (0) each source of an output has its noise."""

    @property
    def undisturbed(self) -> MixPlan:
        """The same mix without the noise: for features, masks, or other images of that size."""
        return MixPlan(**{field.name: getattr(self, field.name) for field in fields(MixPlan)})

    def apply(self, pool: Tensor) -> Tensor:
        """Mix the disturbed images."""
        if pool.shape != self.noise.shape:
            raise ValueError(
                f"this plan disturbs images {list(self.noise.shape)}, got {list(pool.shape)}; for anything else, apply plan.undisturbed"
            )
        assert isinstance(self.masks, Tensor)
        mixed = super().apply(pool)
        for k in range(self.sources.shape[1]):
            mixed = mixed + self._noise_of(k).to(mixed.dtype)
        return mixed

    def _noise_of(self, k: int) -> Tensor:
        """The noise of one source, where and as much as that source shows."""
        # One source at a time, as the shares of those that are disturbed need not sum to 1, which `apply` may rely on.
        assert isinstance(self.masks, Tensor)
        share = self.masks[:, k : k + 1] * self.disturbed[:, k : k + 1, None, None]
        return MixPlan(sources=self.sources[:, k : k + 1], masks=share, warp=self._warp_of(k)).apply(self.noise)

    def _warp_of(self, k: int) -> Shift | Blocks | None:
        if isinstance(self.warp, Blocks):
            return Blocks(self.warp.order[:, k : k + 1])
        return None if self.warp is None else Shift(self.warp.offsets[:, k : k + 1])

    def to(self, device: torch.device | str) -> DisturbedPlan:
        """The same plan on another device."""
        plan = self.undisturbed.to(device)
        moved = {field.name: getattr(plan, field.name) for field in fields(MixPlan)}
        waits = torch.device(device).type == "cpu"
        noise, disturbed = (values.to(device, non_blocking=not waits) for values in (self.noise, self.disturbed))
        return DisturbedPlan(**moved, noise=noise, disturbed=disturbed)


def against(
    images: Tensor,
    gradient: Tensor,
    strength: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Tensor:
    """Noise in the images' own units: a step of ``strength`` [B] or [1], in colours from 0 to 1, up the sign of the loss's gradient.

    Colours stay between 0 and 1. Where the gradient is not a number, nothing is added.

    >>> against(torch.tensor([[[[0.5, 0.9]]]]), torch.tensor([[[[-3.0, 1e-9]]]]), torch.tensor([0.25]))
    tensor([[[[-0.2500,  0.1000]]]])
    """
    shown = colours(images, mean, std)
    step = strength.view(-1, 1, 1, 1) * gradient.detach().sign().nan_to_num(0.0)
    noise = (shown + step).clamp_(0, 1) - shown
    if std is None:
        return noise
    return noise / torch.tensor(std).view(-1, 1, 1).to(noise.device, non_blocking=True)


def draw_disturbed(probability: float, count: int, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """For ``count`` pairs, on the host: whether (1) or not (0) the image and its partner are disturbed, [count, 2]; and by how much, [count] in [0, 1)."""
    disturbed = (torch.rand(count, 2, generator=generator) < probability).to(torch.float32)
    return disturbed, torch.rand(count, generator=generator)
