"""Co-Mixup's batch: cut into parts, each of them a joint problem, and the outputs put together again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from mixsage.saliency import normalise
from mixsage.solvers.joint import JointProblem
from mixsage.solvers.puzzle import block_means

CENTRE_WINDOW = 8
"""Pixels along the side of the window whose best place is an image's salient centre."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How much the terms of the joint objective weigh."""

    smoothness: float
    """Of borders between blocks with different inputs [β]."""
    diversity: float
    """Of inputs that the other outputs use more than the threshold [γ]."""
    prior: float
    """Of the prior on the inputs' shares [η]."""
    threshold: float
    """Use by the other outputs, in pictures, up to which it costs nothing [τ]."""
    compatibility: float
    """Of the use of inputs that are salient elsewhere, beside that of the input itself [ω]."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A batch cut into parts of equal size, to the image; shorter ones are filled up."""

    rows: Tensor
    """[P, m] int64: rows of the batch."""
    member: Tensor
    """[P, m] bool: whether there is an image, or only filling."""
    place: Tensor
    """[B] int64: where each row of the batch lies among all places."""

    @classmethod
    def of(cls, batch: int, most: int) -> Parts:
        """Parts of at most that many images, on the host."""
        count = -(-batch // most)
        # Halves of inputs are looked for among three, so that there are at least three places.
        size = max(3, -(-batch // count))
        part = torch.arange(batch, device="cpu") * count // batch
        first = torch.searchsorted(part, torch.arange(count, device="cpu"))
        place = part * size + torch.arange(batch, device="cpu") - first[part]
        rows, member = (torch.zeros(count * size, dtype=dtype, device="cpu") for dtype in (torch.int64, torch.bool))
        rows[place], member[place] = torch.arange(batch, device="cpu"), True
        return cls(rows.view(count, size), member.view(count, size), place)

    def to(self, device: torch.device) -> Parts:
        """The same parts on another device."""
        return Parts(*(values.to(device, non_blocking=True) for values in (self.rows, self.member, self.place)))

    def gather(self, values: Tensor) -> Tensor:
        """Values [B, ...] of the batch as [P, m, ...]."""
        return values[self.rows]

    def spread(self, values: Tensor) -> Tensor:
        """Values [P, m, ...] as [B, ...] of the batch."""
        return values.flatten(0, 1)[self.place]

    def draw_members(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        """[P, *shape] int64: members of each part by number, all equally likely."""
        count = self.member.sum(dim=1).view(-1, *[1] * len(shape))
        place = torch.rand(len(self.rows), *shape, generator=generator, dtype=torch.float32, device="cpu")
        return (place * count).long().clamp_max(count - 1)


def joint_problem(maps: Tensor, expected: Tensor, parts: Parts, side: int, weights: Weights) -> JointProblem:
    """The joint problems of all parts.

    Args:
        maps: [B, H, W] raw saliency.
        expected: [P, m] share of each input that the prior expects.
        parts: of the batch, on the maps' device.
        side: blocks along a side.
        weights: of the terms.
    """
    blocks, maps = side**2, normalise(maps)
    prior = weights.prior / blocks * torch.log(expected.float() + 1e-8)
    apart = _distances(parts.gather(_centres(maps)), parts.member)
    same = torch.eye(parts.rows.shape[1], dtype=torch.float32, device=maps.device)
    return JointProblem(
        cost=-parts.gather(normalise(block_means(maps, side))) - prior[..., None, None],
        compatibility=(1 - weights.compatibility) * same + weights.compatibility * apart,
        member=parts.member,
        smoothness=weights.smoothness / blocks,
        diversity=weights.diversity / blocks,
        threshold=weights.threshold * blocks,
    )


def inputs_of_outputs(shares: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
    """From shares [P, m, n, n, m] the sources [B, m] of each output, itself first and then the most used, and their masks [B, m, n, n].

    Most inputs show nowhere; how many do is known on the device only.
    """
    masks = parts.spread(shares.movedim(-1, 2))
    size = parts.rows.shape[1]
    own = functional.one_hot(parts.place % size, size)
    amount = masks.sum(dim=(2, 3))
    order = (amount + own * (amount.sum() + 1)).argsort(dim=1, descending=True, stable=True)
    sources = parts.rows[parts.place // size].gather(1, order)
    return sources, masks.gather(1, order[:, :, None, None].expand(-1, -1, *masks.shape[2:]))


def _centres(maps: Tensor) -> Tensor:
    """[B, 2] row and column of the window that holds most saliency."""
    window = [min(CENTRE_WINDOW, size) for size in maps.shape[1:]]
    held = functional.avg_pool2d(maps[:, None], window, stride=1)[:, 0]
    best = held.flatten(1).argmax(dim=1)
    return torch.stack([best // held.shape[2], best % held.shape[2]], dim=1).to(torch.float32)


def _distances(centres: Tensor, member: Tensor) -> Tensor:
    """[P, m, m] sums of the distances along both axes, scaled so that those of a part sum to the number of its members."""
    distances = (centres[:, :, None] - centres[:, None]).abs().sum(dim=-1) * (member[:, :, None] & member[:, None])
    # Distances are whole numbers, so that a sum below 1 is zero: all centres are the same.
    return distances * (member.sum(dim=1) / distances.sum(dim=(1, 2)).clamp_min(1))[:, None, None]
