"""timm: methods behind the call and the attributes of `timm.data.Mixup`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Generator, Tensor, nn

from mixsage.errors import not_installed
from mixsage.integrations.calls import Call, Maps
from mixsage.loss import cross_entropy
from mixsage.methods.base import Mixer, check_kind, check_range, soft_targets
from mixsage.saliency import Criterion

try:
    from timm.data.mixup import Mixup
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed(__name__, "timm", "timm")) from error


class Mixing(Mixup):
    """A method where a loop of timm's expects its `Mixup`: ``(x, target) -> (x, soft targets)``, `mixup_enabled` and all.

    A call cannot hand the clean pass's parameter gradient to a loop that zeroes gradients just before backward, so SAGE runs with η = 1 here.

    Example:
        >>> import torch
        >>> from mixsage import CutMix
        >>> mixup_fn = Mixing(CutMix(num_classes=10), label_smoothing=0.1)
        >>> x, target = mixup_fn(torch.rand(4, 3, 32, 32), torch.arange(4))
        >>> mixup_fn.mixup_enabled = False  # what `--mixup-off-epoch` does
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        label_smoothing: float = 0.0,
        model: nn.Module | None = None,
        saliency: Maps | None = None,
        criterion: Criterion = cross_entropy,
        amp_autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        generator: Generator | None = None,
    ) -> None:
        """Bind what the method needs.

        Args:
            mixer: the method, with `num_classes`; its `prob` is timm's ``prob``, `per_sample` is timm's ``mode="elem"``.
            label_smoothing: share of the target that is spread over all classes.
            model: where saliency comes from: the network itself, not its DistributedDataParallel wrapper.
            saliency: a function from images to raw maps [B, H, W].
            criterion: the loss whose gradient is the saliency.
            amp_autocast: makes the context that the saliency's pass runs in, as in timm's loop.
            generator: a CPU generator; torch's default one if left out.
        """
        check_kind("mixer", mixer, Mixer, "SAGE(num_classes=1000)")
        if mixer.num_classes is None:
            raise ValueError(
                f"num_classes is missing: timm hands over class indices, so say {type(mixer).__name__}(num_classes=1000)"
            )
        check_range("label_smoothing", label_smoothing, 0, 1)
        mode = "elem" if mixer.per_sample else "batch"
        # Neither of timm's own two: how much is mixed is the method's setting.
        super().__init__(  # type: ignore[no-untyped-call]  # timm leaves it unannotated
            mixup_alpha=0.0,
            cutmix_alpha=0.0,
            prob=mixer.prob,
            mode=mode,
            label_smoothing=label_smoothing,
            num_classes=mixer.num_classes,
        )
        self.mixer = mixer
        self.amp_autocast = amp_autocast
        self.call = Call(model=model, saliency=saliency, criterion=criterion, generator=generator)
        self.call.check(mixer)

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The batch mixed, or as it is while `mixup_enabled` is false; soft targets [B, C] float32 in either case."""
        if self.mixup_enabled:
            with self.amp_autocast():
                x, target = self.call(self._mixer(), x, target)
        else:
            target = soft_targets(target, self.num_classes)
        return x, target * (1 - self.label_smoothing) + self.label_smoothing / self.num_classes

    def _mixer(self) -> Mixer:
        """The method with the attributes as they are now: loops of timm's may change them between epochs."""
        if self.mode not in {"batch", "elem"}:
            raise ValueError(
                f"mode must be 'batch' or 'elem', got {self.mode!r}; partners are drawn anew for every image here, "
                "so that no two images form a 'pair' with each other, and there is no 'half'"
            )
        return replace(self.mixer, prob=self.mix_prob, per_sample=self.mode == "elem")
