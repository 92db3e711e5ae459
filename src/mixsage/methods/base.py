"""What all methods share: a frozen value of settings that draws plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from mixsage import loss, sampling
from mixsage.errors import check_number, unknown_name
from mixsage.plan import MixPlan
from mixsage.saliency import Criterion, Mode, Saliency, check_maps, input_gradient


@dataclass(frozen=True, kw_only=True)
class CleanPass:
    """The pass over the unmixed batch that a method asks for."""

    mode: Mode = "train"
    """"train" leaves the training flags as the loop has them, "eval" clears them for the pass."""
    weight: float = 0.0
    """Weight of its parameter gradient in the step; with 0 only the gradient of the input is computed."""
    criterion: Criterion | None = None
    """Its loss; None is the step's own."""


@dataclass(frozen=True, kw_only=True)
class Mixer(ABC):
    """A method of mixing: settings only. It draws a `MixPlan`, and the plan does the mixing."""

    prob: float = 1.0
    """Probability that a batch is mixed."""
    per_sample: bool = False
    """Draw shares and boxes for each image instead of once for the batch."""
    num_classes: int | None = None
    """Number of classes; needed by the plain call with class indices, as there are no logits to read it from."""

    min_batch: ClassVar[int] = 2
    """The fewest images that can be mixed."""
    spatial: ClassVar[bool] = True
    """Whether the images must have rows and columns, [B, C, H, W]."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by name; see `preset`."""

    def __post_init__(self) -> None:
        check_range("prob", self.prob, 0, 1)
        if self.num_classes is not None:
            check_count("num_classes", self.num_classes, at_least=2)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The published settings for a data set and a model, with some of them changed if you like."""
        if name not in cls.presets:
            raise ValueError(unknown_name(f"preset of {cls.__name__}", name, cls.presets))
        return cls(**{**cls.presets[name], **overrides})

    # What a method may say of itself -----------------------------------------------------------------------------------------

    @property
    def source(self) -> Saliency | None:
        """Where the saliency maps come from, for methods that look at any."""
        return None

    @property
    def clean(self) -> CleanPass | None:
        """The pass over the unmixed batch, for methods that need one."""
        return None

    @property
    def mixed_weight(self) -> float:
        """Weight of the mixed batch's gradient in the step."""
        return 1.0

    def bind(self, model: nn.Module) -> Mixer:
        """These settings for one model: the place to look up what depends on it."""
        return self

    @abstractmethod
    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Draw the plan of a batch that is to be mixed; the arguments have been checked."""

    # What every method does --------------------------------------------------------------------------------------------------

    def plan(
        self, images: Tensor, labels: Tensor | None = None, *, saliency: Tensor | None = None, generator: Generator | None = None
    ) -> MixPlan:
        """Draw a plan for a batch; the same generator state gives the same plan.

        Args:
            images: [B, C, H, W] floating point (any [B, …] for methods that blend whole images).
            labels: class indices [B] or soft labels [B, C], for methods that look at them.
            saliency: raw maps [B, H, W], neither smoothed nor normalised, for methods that look at them.
            generator: a CPU generator; torch's default one if left out.
        """
        self.check(images, generator)
        self._check_where_to_look(saliency is not None)
        if not sampling.coin(self.prob, generator):
            return MixPlan.identity(len(images), images.device)
        return self.draw_from(images, labels, saliency, None, generator)

    def draw_from(
        self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, gradient: Tensor | None, generator: Generator | None
    ) -> MixPlan:
        """`draw`, with the maps handed in or made from the gradient of the loss with respect to the images."""
        with torch.no_grad(), without_autocast(images):
            if self.source is not None and saliency is None:
                self._check_where_to_look(gradient is not None)
                saliency = self.source(images, gradient)
            if saliency is not None:
                check_maps(saliency, images)
            return self.draw(images, labels, saliency, generator)

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        model: nn.Module | None = None,
        saliency: Tensor | None = None,
        criterion: Criterion = loss.cross_entropy,
        generator: Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix a batch: the mixed images, and their soft targets [B, num_classes] float32.

        With ``model`` the saliency is taken from it, and the model stays exactly as it was (`.grad`, parameters, buffers, training flags).
        """
        self.check(images, generator)
        check_labels(labels, images)
        self._check_where_to_look(saliency is not None or model is not None)
        classes = self.classes_of(labels)
        if not sampling.coin(self.prob, generator):
            plan = MixPlan.identity(len(images), images.device)
        else:
            gradient = None
            if saliency is None and model is not None and self.source is not None and self.source.needs_gradient:
                gradient = self._gradient(model, images, labels, criterion)
            plan = self.draw_from(images, labels, saliency, gradient, generator)
        with torch.no_grad():
            return plan.apply(images), plan.targets(labels, classes)

    def check(self, images: Tensor, generator: Generator | None = None) -> None:
        """The door: structure of the batch and the generator."""
        name = type(self).__name__
        if not isinstance(images, Tensor):
            raise TypeError(
                f"{name} mixes a batch of images in one tensor, got {type(images).__name__}; stack them, for example with torch.stack"
            )
        if not images.is_floating_point():
            raise TypeError(
                f"{name} mixes floating-point images, got {images.dtype}; convert first, for example images.float() / 255"
            )
        if self.spatial and images.ndim != 4:
            raise ValueError(
                f"{name} mixes images [B, C, H, W], got {list(images.shape)}; a single image needs a batch axis: images[None]"
            )
        if images.ndim < 2 or 0 in images.shape:
            raise ValueError(f"{name} mixes batches [B, …] of at least one value an image, got {list(images.shape)}")
        if len(images) < self.min_batch:
            raise ValueError(f"{name} mixes at least {self.min_batch} images, got {len(images)}; set drop_last=True in the loader")
        if generator is not None and not isinstance(generator, Generator):
            raise TypeError(
                f"generator must be a torch.Generator, got {type(generator).__name__}; for example torch.Generator().manual_seed(0)"
            )
        if generator is not None and generator.device.type != "cpu":
            raise ValueError(
                f"the generator must be on the CPU, got one on {generator.device}; choices are drawn on the host: torch.Generator()"
            )

    def _check_where_to_look(self, known: bool) -> None:
        if self.source is not None and self.source.needs_gradient and not known:
            raise ValueError(
                f"{type(self).__name__} needs to know where to look: pass saliency=maps [B, H, W], or model=… in a plain call, "
                "or train with accumulate(…), which takes the maps on the way"
            )

    def _gradient(self, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion) -> Tensor:
        check_kind("model", model, nn.Module, "the network that you train")
        clean = self.clean or CleanPass()
        return input_gradient(
            model, images, lambda logits: soft_targets(labels, logits.shape[1]), clean.criterion or criterion, clean.mode
        )

    def classes_of(self, labels: Tensor) -> int:
        """The number of classes of soft targets, where there are no logits to read it from."""
        if labels.is_floating_point() and labels.ndim == 2:
            if self.num_classes not in {None, labels.shape[1]}:
                raise ValueError(
                    f"num_classes is {self.num_classes}, but the soft labels have {labels.shape[1]} classes; leave num_classes out"
                )
            return labels.shape[1]
        if self.num_classes is None:
            name = type(self).__name__
            raise ValueError(
                f"num_classes is missing: class indices become soft targets, so say how many classes there are: {name}(num_classes=10)"
            )
        return self.num_classes


@contextmanager
def without_autocast(images: Tensor) -> Iterator[None]:
    """Backward belongs outside autocast, and maps and shares keep their float32, also where the caller wrapped the whole step in it."""
    device = images.device.type
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


def check_labels(labels: Tensor, images: Tensor) -> None:
    """Labels must be one for each image, and lie where the images do."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor, class indices [B] or soft labels [B, C]; got {type(labels).__name__}")
    if labels.shape[:1] != images.shape[:1]:
        raise ValueError(f"got {len(images)} images and labels {list(labels.shape)}; every image needs one label")
    if labels.device != images.device:
        raise ValueError(f"labels lie on {labels.device}, the images on {images.device}; move them with labels.to(images.device)")


def soft_targets(labels: Tensor, num_classes: int) -> Tensor:
    """Labels as soft targets [B, C] float32."""
    return MixPlan.identity(len(labels), labels.device).targets(labels, num_classes)


def pair(partners: Tensor) -> Tensor:
    """The sources [B, 2] of pairs: each image, and its partner."""
    # Laid out row by row of its transpose: what reads the partners alone finds them side by side.
    return torch.stack([torch.arange(len(partners), device="cpu"), partners]).T


def check_range(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """A setting must lie in its range."""
    check_number(field, value)
    if not (low < value <= high if open_low else low <= value <= high):
        raise ValueError(f"{field} must lie in {'(' if open_low else '['}{low}, {high}], got {value}")


def check_kind(field: str, value: object, kind: type, examples: str) -> None:
    """A part that a method is composed with must be one of its kind: a value, not its class and not its name."""
    if not isinstance(value, kind):
        shown = repr(value)
        # A whole model may come by mistake, which prints as a page.
        raise TypeError(
            f"{field} must be a {kind.__name__}, such as {examples}, got {shown if len(shown) < 100 else type(value).__name__}"
        )


def check_count(field: str, value: object, at_least: int) -> None:
    """A setting must be a whole number, and not too small."""
    if not isinstance(value, int):
        raise TypeError(f"{field} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{field} must be at least {at_least}, got {value}")


def check_positive(field: str, value: float) -> None:
    """A setting must be a positive, finite number."""
    check_number(field, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{field} must be positive and finite, got {value}")
