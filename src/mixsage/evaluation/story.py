"""How SAGE mixes one pair, step by step, as arrays for `mixsage.reports.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from mixsage.evaluation.explain import Subject, as_mix, as_pictures, maps_of
from mixsage.methods.sage import SAGE
from mixsage.plan import MixPlan, Shift
from mixsage.rearrange import all_shifts, best_of, sample_shifts, total_saliency
from mixsage.reports.pictures import Arrangement, Mix, Story
from mixsage.saliency import normalise, smooth


@dataclass(frozen=True, eq=False, kw_only=True)
class _Maps:
    """A pair of rescaled maps [1, H, W], and what lays one over the other."""

    mixer: SAGE
    subject: Subject
    colours: Tensor
    names: tuple[str, str]
    first: Tensor
    second: Tensor

    def values(self, shifts: Tensor) -> Tensor:
        return total_saliency(self.first, self.second, shifts, blend=self.mixer.blend)[0]

    def best(self, shifts: Tensor) -> Tensor:
        return best_of(self.first, self.second, shifts, blend=self.mixer.blend).shifts[0]

    def mix(self, offset: Tensor) -> Mix:
        mask = self.mixer.blend.mask(self.first, self.second, offset[None])
        plan = MixPlan(
            sources=torch.tensor([[0, 1]]),
            masks=torch.stack([mask, 1 - mask], dim=1),
            warp=Shift(torch.stack([torch.zeros_like(offset), offset])[None]),
        )
        return as_mix(plan, self.colours, self.subject.mean, self.names)

    def arrangement(self, offset: Tensor) -> Arrangement:
        return Arrangement(value=float(self.values(offset[None])[0]), mix=self.mix(offset))


def story(
    subject: Subject,
    image: int = 0,
    partner: int = 1,
    *,
    mixer: SAGE | None = None,
    share: float = 0.5,
    portion: float = 0.01,
    generator: Generator | None = None,
    tint: bool = False,
) -> Story:
    """One pair through SAGE: saliency, the offsets that are tried, the surface of all of them, mask and mix.

    Args:
        subject: images, labels and the model.
        image: which image is mixed.
        partner: which one is mixed into it.
        mixer: SAGE, or one composed otherwise; its search is left out, as `portion` says what is tried.
        share: the share λ of the image's own saliency.
        portion: share of all rearrangements that is tried.
        generator: where the offsets come from.
        tint: show the image in blue and its partner in orange.
    """
    maps, looks = _maps(subject, image, partner, mixer or SAGE(), share, tint)
    height, width = maps.first.shape[-2:]
    tried = sample_shifts(height, width, portion, generator)
    every = all_shifts(height, width)
    surface = maps.values(every)
    best = maps.best(tried)
    # For comparison: no shift, a middling one, and the one that keeps least of those that still overlap much.
    near = every[(every.abs() * 2 <= torch.tensor([height, width])).all(dim=1)]
    order = maps.values(near).argsort()
    others = [torch.zeros(2, dtype=torch.int64), near[order[len(order) // 2]], near[order[0]]]
    return Story(
        image=as_pictures(maps.colours)[0],
        partner=as_pictures(maps.colours)[1],
        names=maps.names,
        saliency=(looks[0].double().numpy(), looks[1].double().numpy()),
        share=share,
        surface=surface.view(2 * height - 1, 2 * width - 1).double().numpy(),
        tried=tried.double().numpy(),
        best=maps.arrangement(best),
        others=tuple(maps.arrangement(offset) for offset in others),
    )


def sweep(
    subject: Subject,
    image: int = 0,
    partner: int = 1,
    *,
    mixer: SAGE | None = None,
    shares: Sequence[float] = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95),
    tint: bool = False,
) -> list[tuple[float, Mix]]:
    """One pair under shares λ from 0 to 1, each with its best shift of all: the arrays of `figures.shares`."""
    found = []
    for share in shares:
        maps, _ = _maps(subject, image, partner, mixer or SAGE(), share, tint)
        found.append((share, maps.mix(maps.best(all_shifts(*maps.first.shape[-2:])))))
    return found


def _maps(subject: Subject, image: int, partner: int, mixer: SAGE, share: float, tint: bool) -> tuple[_Maps, Tensor]:
    if not 0 <= share <= 1:
        raise ValueError(f"the share of the image's saliency must lie in [0, 1], got {share}")
    raw = maps_of(subject, mixer)
    assert raw is not None
    rows = torch.tensor([image, partner])
    looks = normalise(smooth(raw))[rows]
    first, second = subject.names_of(rows)
    maps = _Maps(
        mixer=mixer,
        subject=subject,
        colours=subject.coloured(rows, tint=tint),
        names=(first, second),
        first=share * looks[:1],
        second=(1 - share) * looks[1:],
    )
    return maps, looks
