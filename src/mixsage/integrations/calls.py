"""A method as a function of images and labels, with what it needs for that bound to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor, nn
from torch.utils.data import get_worker_info

from mixsage.loss import cross_entropy
from mixsage.methods.base import Mixer
from mixsage.saliency import Criterion

Maps = Callable[[Tensor], Tensor]
"""From images [B, C, H, W] to raw saliency maps [B, H, W]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """The plain call of a mixer, for pipelines that know of images and labels only."""

    model: nn.Module | None = None
    """Where saliency comes from, for methods that need a model."""
    saliency: Maps | None = None
    """Maps of one's own instead."""
    criterion: Criterion = cross_entropy
    """The loss whose gradient is the model's saliency."""
    generator: Generator | None = None
    """A CPU generator; torch's default one if left out, which every worker of a loader has seeded for itself."""

    def check(self, mixer: Mixer) -> None:
        """A method that looks at a model needs one, or maps."""
        needs = mixer.source is not None and mixer.source.needs_gradient
        if needs and self.model is None and self.saliency is None:
            name = type(mixer).__name__
            raise ValueError(
                f"{name} needs to know where to look: give model=… or saliency=… (a function from images to maps [B, H, W]), "
                f"or train with mixsage.accumulate({name}(), model, images, labels), which also makes use of the gradient"
            )

    def __call__(self, mixer: Mixer, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed images and soft targets."""
        if get_worker_info() is not None:
            self._check_worker()
        maps = None if self.saliency is None else self.saliency(images)
        return mixer(images, labels, model=self.model, saliency=maps, criterion=self.criterion, generator=self.generator)

    def _check_worker(self) -> None:
        if self.generator is not None:
            raise ValueError(
                "a generator of one's own is copied into every worker of a loader, and all workers would make the same choices; "
                "leave generator=None: torch's default one is seeded for each worker, and torch.manual_seed reproduces the run"
            )
        if self.model is not None:
            raise ValueError(
                "a worker of a loader holds a copy of the model that never trains; mix after the loader instead, where the model is"
            )
