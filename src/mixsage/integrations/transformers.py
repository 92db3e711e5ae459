"""Hugging Face Transformers: a mixin that makes a `Trainer` train an image classifier on mixed batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Generator, Tensor, nn

from mixsage.errors import not_installed
from mixsage.integrations.accelerate import AccelerateHost
from mixsage.loss import cross_entropy
from mixsage.methods.base import Mixer, check_kind
from mixsage.saliency import Criterion
from mixsage.step import accumulate

try:
    from transformers import Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed(__name__, "transformers", "transformers")) from error

if TYPE_CHECKING:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # it comes without types

    _Base = Trainer
else:
    _Base = object


class PixelHost(AccelerateHost):
    """A model of Transformers' that an Accelerator has prepared: it takes `pixel_values`, and its output has `logits`."""

    def __init__(self, accelerator: Accelerator, model: nn.Module | None = None, **inputs: Any) -> None:
        super().__init__(accelerator, model)
        self.inputs = inputs

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        """Logits, by way of the model's output object; further inputs go along as they are."""
        logits: Tensor = model(pixel_values=images, **self.inputs).logits
        return logits


class Mixing(_Base):
    """Put it before `Trainer`, or a subclass of it, and hand over a method: training is mixed, evaluation stays as it is.

    Example:
        >>> from mixsage import SAGE
        >>> class MixingTrainer(Mixing, Trainer):
        ...     pass
        >>> trainer = MixingTrainer(model, mixer=SAGE(), train_dataset=photos)  # doctest: +SKIP
    """

    def __init__(
        self, *args: Any, mixer: Mixer, criterion: Criterion | None = None, generator: Generator | None = None, **kwargs: Any
    ) -> None:
        """A Trainer's arguments, and three more.

        Args:
            mixer: the method.
            criterion: ``criterion(logits, soft_targets [B, C]) -> scalar`` in training; cross-entropy with the label smoothing of
                `TrainingArguments` if left out. A model's own loss does not take soft labels.
            generator: a CPU generator; torch's default one, which the Trainer seeds and keeps in checkpoints, if left out.
        """
        check_kind("mixer", mixer, Mixer, "SAGE()")
        super().__init__(*args, **kwargs)
        if criterion is None and self.compute_loss_func is not None:
            raise ValueError(
                "compute_loss_func takes a model's output and class indices; say what the loss on soft targets is: criterion=…"
            )
        self.mixer = mixer
        self.criterion = criterion or partial(cross_entropy, label_smoothing=self.args.label_smoothing_factor)
        self.generator = generator

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """A step of `mixsage.accumulate` where the Trainer has forward and backward."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):  # schedule-free optimizers have modes, too
            self.optimizer.train()  # type: ignore[union-attr]  # as just seen
        inputs = dict(self._prepare_inputs(inputs))
        images, labels = _taken(inputs, "pixel_values"), _taken(inputs, "labels")
        share = 1 / self.current_gradient_accumulation_steps
        host = PixelHost(self.accelerator, **inputs)
        step = accumulate(
            self.mixer, model, images, labels, criterion=self.criterion, weight=share, generator=self.generator, host=host
        )
        return step.loss * share


def _taken(inputs: dict[str, Any], name: str) -> Any:
    if name not in inputs:
        raise ValueError(
            f"Mixing trains image classifiers on batches with 'pixel_values' and 'labels', got {sorted(inputs)}; see the data collator"
        )
    return inputs.pop(name)
