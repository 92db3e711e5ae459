"""torchvision v2: methods as transforms of batches, after the loader or in its `collate_fn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Generator, Tensor, nn
from torch.utils.data import default_collate

from mixsage.errors import not_installed
from mixsage.integrations.calls import Call, Maps
from mixsage.loss import cross_entropy
from mixsage.methods.base import Mixer, check_kind
from mixsage.saliency import Criterion

try:
    from torchvision import tv_tensors  # type: ignore[import-untyped]  # torchvision comes without types
    from torchvision.transforms import v2  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed(__name__, "torchvision", "torchvision")) from error


class Mixing(v2.MixUp):  # type: ignore[misc]  # as above
    """A method where `v2.MixUp` or `v2.CutMix` would stand: it takes the same samples, and finds the labels in them the same way.

    Example:
        >>> import torch
        >>> from mixsage import CutMix, Mixup
        >>> mix = v2.RandomChoice([Mixing(CutMix(num_classes=10)), Mixing(Mixup(num_classes=10))])
        >>> images, targets = mix(torch.rand(4, 3, 32, 32), torch.arange(4))
        >>> targets.shape
        torch.Size([4, 10])
    """

    # Built on torchvision's own class, so that samples are taken apart and labels are found (`labels_getter`) by its code, not by a copy.

    def __init__(
        self,
        mixer: Mixer,
        *,
        model: nn.Module | None = None,
        saliency: Maps | None = None,
        criterion: Criterion = cross_entropy,
        labels_getter: str | Callable[[Any], Any] | None = "default",
        generator: Generator | None = None,
    ) -> None:
        """Bind what the method needs.

        Args:
            mixer: the method, with `num_classes` where labels are class indices.
            model: where saliency comes from; SAGE and other methods that look need it or ``saliency``.
            saliency: a function from images to raw maps [B, H, W].
            criterion: the loss whose gradient is the saliency.
            labels_getter: as in `v2.MixUp`: "default", or a function that finds the labels in a sample.
            generator: a CPU generator; leave it out where workers of a loader mix.
        """
        check_kind("mixer", mixer, Mixer, "CutMix(num_classes=10)")
        super().__init__(num_classes=mixer.num_classes, labels_getter=labels_getter)
        self.mixer = mixer
        self.call = Call(model=model, saliency=saliency, criterion=criterion, generator=generator)
        self.call.check(mixer)

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        """The batch of images; what is drawn for it depends on the labels too."""
        if len(flat_inputs) != 1:
            raise ValueError(
                f"{type(self.mixer).__name__} mixes one batch of images in a sample, got {len(flat_inputs)}; call it for each"
            )
        return {"images": flat_inputs[0], "mixed": []}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        """The mixed images, or their soft targets."""
        if not params["mixed"]:
            params["mixed"] += self.call(self.mixer, params["images"].as_subclass(Tensor), params["labels"])
        images, targets = params["mixed"]
        if inpt is params["labels"]:
            return targets
        return tv_tensors.wrap(images, like=inpt) if isinstance(inpt, tv_tensors.TVTensor) else images

    def extra_repr(self) -> str:
        """The method."""
        return repr(self.mixer)


class Collate:
    """A `collate_fn` that ends in a transform of the batch; it can be pickled for a loader's workers if its parts can.

    Example:
        >>> import torch
        >>> from mixsage import CutMix
        >>> samples = [(torch.rand(3, 8, 8), label) for label in range(4)]
        >>> loader = torch.utils.data.DataLoader(samples, batch_size=4, collate_fn=Collate(CutMix(num_classes=4)))
        >>> images, targets = next(iter(loader))
        >>> targets.shape
        torch.Size([4, 4])
    """

    def __init__(self, transform: Callable[..., Any], collate: Callable[[list[Any]], Any] = default_collate) -> None:
        """Put ``transform``, a mixer, a `Mixing` or a pipeline of v2 that holds one, behind ``collate``."""
        if isinstance(transform, type) or not callable(transform):
            raise TypeError(
                f"transform must be a method such as CutMix(num_classes=10), or a function of the batch; got {transform!r}"
            )
        self.transform = Mixing(transform) if isinstance(transform, Mixer) else transform
        self.collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        """The batch of these samples, mixed."""
        batch = self.collate(samples)
        return self.transform(*batch) if isinstance(batch, (list, tuple)) else self.transform(batch)
