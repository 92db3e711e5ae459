"""A model, a batch and methods to the arrays that `mixsage.reports.figures` draws."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        """Some images [B, 3, H, W] in [0, 1]; two of them in blue and orange, if you like."""
        colours = as_pixels(self.images[rows])
        colours = colours.expand(-1, 3, -1, -1)
        return colours * _TINTS if tint else colours

    def names_of(self, rows: Tensor) -> tuple[str, str]:
        """The class names of two images."""
        first, second = (self.names[int(label)] for label in self.labels[rows])
        return first, second

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
    partners: Sequence[int] | None = None,
    generator: Generator | None = None,
    least_share: float = 0.0,
    tint: bool = False,
) -> list[Pair]:
    """Every image with its partner, under every method: the arrays of `figures.gallery`.

    The partners are the same for all methods, so that their mixes can be compared.

    Args:
        subject: images, labels and the model.
        mixers: the methods by the name that the figure shows.
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
    for i, j in enumerate(partners):
        rows = torch.tensor([i, j])
        colours, names = subject.coloured(rows, tint=tint), subject.names_of(rows)
        mixes = {}
        for name, mixer in mixers.items():
            looked = maps[name]
            saliency = None if looked is None else looked[rows]
            plan = _plan_of_pair(mixer, inputs[rows], subject.labels[rows], saliency, generator, least_share)
            mixes[name] = as_mix(plan, colours, subject.mean, names)
        image, partner = as_pictures(colours)
        seen = None if looks is None else (looks[i], looks[j])
        found.append(Pair(image=image, partner=partner, names=names, saliency=seen, mixes=mixes))
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


def as_mix(plan: MixPlan, colours: Tensor, fill: Sequence[float], names: tuple[str, str]) -> Mix:
    """The first output of a plan as arrays; pictures [2, 3, H, W] in [0, 1] are mixed, and what comes in from outside has the mean colour."""
    masks = plan.dense_masks()[0]
    offset = None
    if isinstance(plan.warp, Shift) and plan.sources.shape[1] == 2:
        down, right = plan.warp.offsets[0, 1].tolist()
        offset = (int(down), int(right))
    mean = _per_channel(fill)
    return Mix(
        picture=as_pictures(plan.apply(colours - mean) + mean)[0],
        names=tuple(names[int(k)] for k in plan.sources[0]),
        shares=tuple(float(weight) for weight in plan.weights[0]),
        mask=_enlarged(masks[plan.sources[0] == 0].sum(dim=0), *colours.shape[-2:]),
        offset=offset,
    )


def as_pictures(colours: Tensor) -> NDArray[np.float64]:
    """[B, H, W, 3] of [B, 3, H, W]."""
    return colours.detach().clamp(0, 1).permute(0, 2, 3, 1).double().numpy()


def _plan_of_pair(
    mixer: Mixer, inputs: Tensor, labels: Tensor, saliency: Tensor | None, generator: Generator | None, least_share: float
) -> MixPlan:
    """A plan of the pair as a batch of two, drawn until the two meet, at the input, with enough of each; else the draw that came nearest."""
    nearest, near = None, -1.0
    for _ in range(_TRIES):
        plan = mixer.plan(inputs, labels, saliency=saliency, generator=generator)
        if plan.is_identity and mixer.min_batch == 1:
            return plan
        if plan.layer is not None or int(plan.sources[0, 0]) != 0:
            continue
        share_of_first = float(plan.weights[0][plan.sources[0] == 0].sum())
        meets = plan.sources.shape[1] > 1 and bool((plan.sources[0] == 1).any())
        least = min(share_of_first, 1 - share_of_first) if meets else -0.5
        if least >= least_share:
            return plan
        if least > near:
            nearest, near = plan, least
    if nearest is None:
        raise ValueError(f"{mixer} did not mix the pair in {_TRIES} draws")
    # Some methods choose, for their own reasons, to leave a pair apart: that is what they do, and so it is shown.
    _log.info("%s gave no less than %.0f %% of the label to either of a pair in %d draws", mixer, 100 * max(near, 0), _TRIES)
    return nearest


def _enlarged(mask: Tensor, height: int, width: int) -> NDArray[np.float64]:
    rows = block_of(height, mask.shape[0])
    columns = block_of(width, mask.shape[1])
    return mask[rows][:, columns].double().numpy()


_TINTS = torch.tensor([[0.42, 0.76, 1.0], [1.0, 0.62, 0.28]]).view(2, 3, 1, 1)
"""The colours of the image and of its partner, light enough for a white pixel to stay bright; half of each is nearly grey."""


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values)).view(-1, 1, 1)
