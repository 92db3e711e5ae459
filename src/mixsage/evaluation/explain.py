"""A model, a batch and methods to the arrays that `mixsage.reports.figures` draws."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from mixsage.evaluation.pixels import as_pixels, device_of
from mixsage.loss import cross_entropy
from mixsage.methods.base import Mixer, soft_targets
from mixsage.plan import MixPlan, Shift
from mixsage.reports.pictures import Mix, Pair
from mixsage.saliency import Criterion, InputGradient, Mode, input_gradient, normalise, smooth
from mixsage.warp import block_of

_log = logging.getLogger("mixsage")
_TRIES = 200


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """Images that are to be explained, and the model that looks at them."""

    images: Tensor
    """[B, C, H, W] in [0, 1], or bytes; on the CPU."""
    labels: Tensor
    """[B] class indices."""
    names: Sequence[str]
    """Names of the classes."""
    mean: Sequence[float]
    """Mean of each channel in [0, 1], as the model was trained with."""
    std: Sequence[float]
    """Standard deviation of each channel in [0, 1], as the model was trained with."""
    model: nn.Module | None = None
    """From normalised images to logits: where saliency comes from. Without one, only methods that need none can be shown."""
    criterion: Criterion = cross_entropy
    """The loss whose gradient is the saliency."""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[1] not in {1, 3} or len(self.images) < 2:
            raise ValueError(f"pictures need at least 2 images [B, 1 or 3, H, W], got {list(self.images.shape)}")
        if len(self.labels) != len(self.images) or int(self.labels.max()) >= len(self.names) or int(self.labels.min()) < 0:
            raise ValueError(
                f"every one of {len(self.images)} images needs a label below {len(self.names)}, got {self.labels.tolist()}"
            )

    def inputs(self) -> Tensor:
        """The images as the model takes them."""
        return (as_pixels(self.images) - _per_channel(self.mean)) / _per_channel(self.std)

    def coloured(self, rows: Tensor, *, tint: bool = False) -> Tensor:
        """Some images [B, 3, H, W] in [0, 1]; if you like, the first in blue, the second in orange, and any others in green."""
        colours = as_pixels(self.images[rows])
        colours = colours.expand(-1, 3, -1, -1)
        return colours * _TINTS[torch.arange(len(rows)).clamp_max(len(_TINTS) - 1)] if tint else colours

    def names_of(self, rows: Tensor) -> tuple[str, ...]:
        """The class names of some images."""
        return tuple(self.names[int(label)] for label in self.labels[rows])

    def gradient(self, mode: Mode) -> Tensor | None:
        """The loss's gradient at each pixel, of all images in one batch."""
        if self.model is None:
            return None
        device = device_of(self.model)
        labels = self.labels.to(device)
        found = input_gradient(
            self.model, self.inputs().to(device), lambda logits: soft_targets(labels, logits.shape[1]), self.criterion, mode
        )
        return found.cpu()


def pairs(
    subject: Subject,
    mixers: Mapping[str, Mixer],
    *,
    shown: Sequence[int] | None = None,
    partners: Sequence[int] | None = None,
    generator: Generator | None = None,
    least_share: float = 0.0,
    tint: bool = False,
) -> list[Pair]:
    """Every image with its partner, under every method: the arrays of `figures.gallery`.

    The partners are the same for all methods, so that their mixes can be compared. A method that mixes more than two (Co-Mixup) is given
    all images and drawn until the two meet; others may then be in the mix too.

    Args:
        subject: images, labels and the model.
        mixers: the methods by the name that the figure shows.
        shown: the images whose pairs are drawn, by number; all if left out.
        partners: the partner of each image; the next one if left out.
        generator: where the methods' choices come from.
        least_share: draw anew until the image and its partner both have at least this share of the label, and take the nearest of many
            draws where none has; 0 takes the first draw that mixes.
        tint: show the image in blue and its partner in orange, so that grey pictures can be told apart in their mix.
    """
    if not 0 <= least_share <= 0.5:
        raise ValueError(f"both of a pair cannot have {least_share} of the label; lower least_share to at most 0.5")
    count = len(subject.images)
    partners = list(partners) if partners is not None else [(i + 1) % count for i in range(count)]
    if len(partners) != count or any(not 0 <= j < count or i == j for i, j in enumerate(partners)):
        raise ValueError(f"partners must name another one of {count} images for each of them, got {partners}")
    inputs = subject.inputs()
    maps = {name: maps_of(subject, mixer) for name, mixer in mixers.items()}
    gradient = subject.gradient("eval")
    looks = None if gradient is None else normalise(smooth(InputGradient()(inputs, gradient))).double().numpy()

    found = []
    for i in range(count) if shown is None else shown:
        j = partners[i]
        # The image first and its partner next, whatever else is there.
        rows = torch.tensor([i, j, *(k for k in range(count) if k not in (i, j))])
        colours, names = subject.coloured(rows, tint=tint), subject.names_of(rows)
        mixes = {}
        for name, mixer in mixers.items():
            looked = maps[name]
            batch = _Batch(inputs[rows], subject.labels[rows], None if looked is None else looked[rows])
            plan, output = _plan_of_pair(mixer, batch, generator, least_share)
            mixes[name] = as_mix(plan, colours[: plan.sources.shape[0]], subject.mean, names, output=output)
        image, partner = as_pictures(colours[:2])
        seen = None if looks is None else (looks[i], looks[j])
        found.append(Pair(image=image, partner=partner, names=(names[0], names[1]), saliency=seen, mixes=mixes))
    return found


def maps_of(subject: Subject, mixer: Mixer) -> Tensor | None:
    """Raw maps as the method takes them, from one pass over all images: two alone would be a poor batch for BatchNorm."""
    if mixer.source is None:
        return None
    gradient = None
    if mixer.source.needs_gradient:
        gradient = subject.gradient(mixer.clean.mode if mixer.clean else "train")
        if gradient is None:
            raise ValueError(f"{type(mixer).__name__} looks at the model's saliency: give the subject a model")
    return mixer.source(subject.inputs(), gradient)


def as_mix(plan: MixPlan, colours: Tensor, fill: Sequence[float], names: Sequence[str], *, output: int = 0) -> Mix:
    """One output of a plan as arrays: of the first image, its partner the second, and others after these.

    Args:
        plan: what is done to the pictures.
        colours: pictures [B, 3, H, W] in [0, 1].
        fill: the mean colour, which comes in from outside where pictures move.
        names: class names of the pictures.
        output: which of the plan's outputs.
    """
    sources, masks = plan.sources[output].tolist(), plan.dense_masks()[output]
    shares: dict[int, float] = {}
    for source, weight in zip(sources, plan.weights[output].tolist(), strict=True):
        shares[source] = shares.get(source, 0.0) + weight
    pair = [row for row in (0, 1) if row in shares]
    others = sorted((row for row in shares if row > 1 and shares[row] > 0), key=lambda row: -shares[row])
    offset = None
    if isinstance(plan.warp, Shift) and len(sources) == 2:
        down, right = plan.warp.offsets[output, 1].tolist()
        offset = (int(down), int(right))
    mean = _per_channel(fill)
    return Mix(
        picture=as_pictures(plan.apply(colours - mean) + mean)[output],
        names=tuple(names[row] for row in pair + others),
        shares=tuple(shares[row] for row in pair + others),
        mask=_enlarged(masks[plan.sources[output] == 0].sum(dim=0), *colours.shape[-2:]),
        offset=offset,
    )


def as_pictures(colours: Tensor) -> NDArray[np.float64]:
    """[B, H, W, 3] of [B, 3, H, W]."""
    return colours.detach().clamp(0, 1).permute(0, 2, 3, 1).double().numpy()


class _Batch(NamedTuple):
    """Images of which the first two are the pair, with their labels and raw maps."""

    images: Tensor
    labels: Tensor
    saliency: Tensor | None

    def first(self, count: int) -> _Batch:
        """Only so many of them."""
        return _Batch(self.images[:count], self.labels[:count], None if self.saliency is None else self.saliency[:count])


def _plan_of_pair(mixer: Mixer, batch: _Batch, generator: Generator | None, least_share: float) -> tuple[MixPlan, int]:
    """A plan, and which of its outputs shows the pair.

    It is drawn until the two meet, at the input, with enough of each; else it is the draw that came nearest.
    """
    nearest, near, drawn = None, _NEVER, batch.first(2)
    for _ in range(_TRIES):
        plan = mixer.plan(drawn.images, drawn.labels, saliency=drawn.saliency, generator=generator)
        if plan.is_identity and mixer.min_batch == 1:
            return plan, 0
        if plan.layer is not None:
            continue
        jointly = plan.sources.shape[1] > 2
        if jointly and len(drawn.images) < len(batch.images):
            # Outputs that are chosen jointly need not mix two images that are alone: one can show the first, one the other.
            drawn = batch
            continue
        for output in range(len(plan.sources)) if jointly else [0]:
            found = _nearness(plan, output)
            if found > near:
                nearest, near = (plan, output), found
        if nearest is not None and near.least >= least_share:
            return nearest
    if nearest is None:
        raise ValueError(f"{mixer} did not mix the pair in {_TRIES} draws")
    # Some methods choose, for their own reasons, to leave a pair apart: that is what they do, and so it is shown.
    _log.info("%s gave no less than %.0f %% of the label to either of a pair in %d draws", mixer, 100 * max(near.least, 0), _TRIES)
    return nearest


class _Nearness(NamedTuple):
    """How near an output comes to showing the pair: the greater, the nearer."""

    least: float
    """The smaller of the pair's shares; less than nothing where the two do not meet."""
    together: float
    """The sum of both."""


_NEVER = _Nearness(-1.0, 0.0)


def _nearness(plan: MixPlan, output: int) -> _Nearness:
    sources, weights = plan.sources[output], plan.weights[output]
    if len(sources) <= 2 and int(sources[0]) != 0:
        return _NEVER  # the partner's own output, where the two have changed places
    first, second = (weights[sources == row] for row in (0, 1))
    shares = float(first.sum()), float(second.sum())
    return _Nearness(min(shares) if len(first) and len(second) else -0.5, sum(shares))


def _enlarged(mask: Tensor, height: int, width: int) -> NDArray[np.float64]:
    rows = block_of(height, mask.shape[0])
    columns = block_of(width, mask.shape[1])
    return mask[rows][:, columns].double().numpy()


_TINTS = torch.tensor([[0.42, 0.76, 1.0], [1.0, 0.62, 0.28], [0.30, 0.85, 0.62]]).view(-1, 3, 1, 1)
"""The colours of the image, of its partner and of any others, light enough for a white pixel to stay bright; half of the first two is
nearly grey."""


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values)).view(-1, 1, 1)
