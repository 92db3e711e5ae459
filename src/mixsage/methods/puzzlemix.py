"""Puzzle Mix (Kim et al., ICML 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Generator, Tensor

from mixsage import loss, sampling
from mixsage.adversarial import DisturbedPlan, against, draw_disturbed
from mixsage.colours import check_statistics, colours
from mixsage.methods.base import CleanPass, Mixer, check_count, check_kind, check_positive, check_range, pair
from mixsage.plan import Blocks, MixPlan
from mixsage.saliency import InputGradient, Saliency, normalise
from mixsage.solvers import best_levels, transport
from mixsage.solvers.puzzle import Weights, block_means, mask_problem


@dataclass(frozen=True, kw_only=True)
class PuzzleMix(Mixer):
    """Show of each image the blocks that matter, in few pieces, after moving what matters to where it shows.

    Example:
        >>> import mixsage, torch
        >>> model = mixsage.models.preactresnet18(width=8)
        >>> step = mixsage.accumulate(PuzzleMix(), model, torch.rand(4, 3, 32, 32), torch.arange(4))
    """

    alpha: float = 1.0
    """Concentration of the Beta distribution that the expected share of the image itself, λ, is drawn from [α]."""
    grids: tuple[int, ...] = (2, 4, 8, 16)
    """Blocks along a side, one of these drawn for each batch [n]; no more than the shorter side of the images has pixels."""
    levels: int = 3
    """Shares that a block may have, from 0 to 1: 3 are 0, ½ and 1."""
    smoothness: float = 1.2
    """Cost of different shares in neighbouring blocks [β]."""
    data_smoothness: float = 0.5
    """Of that cost, the part that grows with the difference of the colours that meet [γ]."""
    prior: float = 0.2
    """Weight of the prior that expects the share λ [η]."""
    distance: float = 0.8
    """Cost of moving a block, over the square of the distance [ξ]."""
    colour_block: int = 4
    """Pixels along the side of the squares that colours are averaged over before they are compared."""
    moved_block: int | None = 4
    """Pixels along the side of the blocks that move; the grid of those has 16 a side at most. With None nothing moves."""
    adversarial: float = 0.0
    """Probability that the images, and likewise that their partners, are disturbed against the model before they are mixed; the authors
    use 0 or 0.1. The disturbance is a step up the sign of the gradient that the saliency is made of."""
    epsilon: float = 10 / 255
    """Longest such step, in colours from 0 to 1 [ε]; each is a random share of it."""
    saliency: Saliency = field(default_factory=lambda: InputGradient(mode="eval"))
    """Where the saliency comes from."""
    mean: tuple[float, ...] | None = None
    """Mean that the images were normalised with, a value a channel; None takes them as colours from 0 to 1."""
    std: tuple[float, ...] | None = None
    """Standard deviation that the images were normalised with."""

    most_moved: ClassVar[int] = 16
    """Blocks along a side up to which the authors move blocks finer than the mask's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)
        for name in ("smoothness", "prior", "distance"):
            check_range(name, getattr(self, name), 0, 1e6)
        check_range("data_smoothness", self.data_smoothness, 0, 1)
        check_count("levels", self.levels, 2)
        check_range("levels", self.levels, 2, 16)
        check_range("adversarial", self.adversarial, 0, 1)
        check_range("epsilon", self.epsilon, 0, 1)
        check_kind("saliency", self.saliency, Saliency, "InputGradient(mode='eval') or Uniform()")
        if self.adversarial and not self.saliency.needs_gradient:
            raise ValueError(
                f"adversarial={self.adversarial} disturbs images by the gradient of the loss, which {type(self.saliency).__name__} "
                "does not take; set saliency=InputGradient(mode='eval') or adversarial=0"
            )
        _check_grids(self.grids)
        check_count("colour_block", self.colour_block, 1)
        if self.moved_block is not None:
            check_count("moved_block", self.moved_block, 1)
        check_statistics(self.mean, self.std)

    @property
    def source(self) -> Saliency:
        """Where the saliency comes from."""
        return self.saliency

    @property
    def clean(self) -> CleanPass | None:
        """A pass for the saliency alone, with cross-entropy whatever the loss of the step."""
        if not self.saliency.needs_gradient:
            return None
        return CleanPass(mode=getattr(self.saliency, "mode", "eval"), weight=0, criterion=loss.cross_entropy)

    def draw_from(
        self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, gradient: Tensor | None, generator: Generator | None
    ) -> MixPlan:
        """`draw`, and with the probability `adversarial` the noise that disturbs the images first."""
        if self.adversarial and gradient is None:
            raise ValueError(
                f"adversarial={self.adversarial} needs the gradient of the loss, not maps alone: pass model=… in a plain call, "
                "train with accumulate(…), or set adversarial=0"
            )
        plan = super().draw_from(images, labels, saliency, gradient, generator)
        if not self.adversarial or gradient is None:
            return plan
        disturbed, strength = draw_disturbed(self.adversarial, len(images) if self.per_sample else 1, generator)
        if not disturbed.any():
            return plan
        device = images.device
        noise = against(images, gradient, self.epsilon * strength.to(device, non_blocking=True), self.mean, self.std)
        parts = {part.name: getattr(plan, part.name) for part in fields(plan)}
        return DisturbedPlan(**parts, noise=noise, disturbed=disturbed.to(device, non_blocking=True))

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Partners, λ and a grid; the cheapest mask; and where its blocks come from."""
        assert saliency is not None
        device = images.device
        sources = pair(sampling.partners(len(images), generator)).to(device, non_blocking=True)
        share = sampling.beta(self.alpha, len(images) if self.per_sample else 1, generator).to(device, non_blocking=True)
        shorter = min(images.shape[-2:])
        side = min(self.grids[sampling.choice(len(self.grids), generator)], shorter)
        problem = mask_problem(
            colours(images, self.mean, self.std),
            saliency,
            sources[:, 1],
            share,
            side=side,
            parts=_parts(shorter // side, self.colour_block),
            levels=self.levels,
            weights=Weights(smoothness=self.smoothness, data_smoothness=self.data_smoothness, prior=self.prior),
        )
        own = best_levels(problem).to(torch.float32) / (self.levels - 1)
        masks = torch.stack([own, 1 - own], dim=1)
        return MixPlan(sources=sources, masks=masks, warp=self._moves(saliency, sources, masks))

    def _moves(self, maps: Tensor, sources: Tensor, masks: Tensor) -> Blocks | None:
        if self.moved_block is None:
            return None
        side = masks.shape[-1]
        parts = min(_parts(min(maps.shape[-2:]) // side, self.moved_block), max(1, self.most_moved // side))
        saliency = normalise(block_means(normalise(maps), side * parts)).flatten(1)
        visible = (masks > 0).repeat_interleave(parts, dim=2).repeat_interleave(parts, dim=3)
        order = transport(saliency[sources].flatten(0, 1), visible.flatten(0, 1).flatten(1), self.distance)
        return Blocks(order.view(len(sources), 2, -1))


def _check_grids(grids: object) -> None:
    if not (isinstance(grids, (tuple, list)) and grids):
        raise ValueError(f"grids must name at least one number of blocks, for example grids=(2, 4, 8, 16); got {grids!r}")
    for side in grids:
        check_count("grids", side, 1)


def _parts(block: int, smallest: int) -> int:
    """Into how many parts of at least ``smallest`` pixels the side of a block is cut."""
    return max(1, block // min(smallest, block))
