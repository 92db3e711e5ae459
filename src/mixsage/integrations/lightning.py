"""Lightning: a callback that makes any LightningModule with automatic optimisation train on mixed batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Generator, Tensor

from mixsage import sampling
from mixsage.errors import not_installed
from mixsage.hidden import mixed_at
from mixsage.host import fork
from mixsage.methods.base import CleanPass, Mixer, check_kind
from mixsage.saliency import evaluating

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import StochasticWeightAveraging
    from lightning.pytorch.strategies import ParallelStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed(__name__, "lightning", "lightning")) from error

CLEAN = "clean/"
"""What names are prefixed with that `training_step` logs in the clean pass."""


class Mixing(Callback):
    """Train any LightningModule by a method, with its `training_step` as it is.

    The module's batches are ``(x, y)``, and its loss takes class probabilities [B, C] as well as class indices [B]: `cross_entropy` does.
    `training_step` runs on the mixed batch, and before that on the clean one where the method asks for a clean pass; both gradients are in
    `.grad` when the optimizer steps. What it logs in the clean pass is logged under ``clean/…``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from mixsage import SAGE
        >>> trainer = Trainer(callbacks=[Mixing(SAGE(num_classes=10))], logger=False, enable_checkpointing=False, accelerator="cpu")
    """

    def __init__(self, mixer: Mixer, *, generator: Generator | None = None) -> None:
        """Bind the method.

        Args:
            mixer: the method, with `num_classes` where labels are class indices.
            generator: a CPU generator, whose state is kept in checkpoints; torch's default one if left out.
        """
        check_kind("mixer", mixer, Mixer, "SAGE(num_classes=10)")
        self.mixer = mixer
        self.generator = generator
        self._batch = ExitStack()

    # ------------------------------------------------------------------------------------------------------- Lightning's hooks

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What this cannot work with, before the first batch."""
        _check(self.mixer, trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """The clean pass and the plan; until the batch ends, `training_step` gets the mixed batch."""
        self._batch.close()
        images, labels = _unpack(batch)
        mixer = self.mixer.bind(pl_module)
        mixer.check(images, self.generator)
        classes = mixer.classes_of(labels)
        if not sampling.coin(mixer.prob, self.generator):
            return
        generator = fork(self.generator, trainer.global_rank) if trainer.world_size > 1 else self.generator
        gradient, loss = self._clean_pass(mixer, trainer, pl_module, batch, batch_idx)
        plan = mixer.draw_from(images, labels, None, gradient, generator)
        mixed = _repack(batch, images if plan.layer else plan.apply(images), plan.targets(labels, classes))
        # A hidden layer stays hooked until the batch ends, as backward runs it again where activations are checkpointed.
        forward_is_over = self._batch.enter_context(mixed_at(pl_module, plan))
        self._instead(
            pl_module, "training_step", _mixed_step(pl_module.training_step, mixed, mixer.mixed_weight, loss, forward_is_over)
        )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The module's own methods again."""
        self._batch.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same, after a batch that has no end: the module's own `on_train_batch_start` may cut the epoch short."""
        self._batch.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The module's own methods again."""
        self._batch.close()

    def state_dict(self) -> dict[str, Any]:
        """The generator's state: the same on every process, as each draws from a fork of it."""
        return {} if self.generator is None else {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was written."""
        if self.generator is not None and "generator" in state_dict:
            self.generator.set_state(state_dict["generator"].cpu())

    # ----------------------------------------------------------------------------------------------------------- the clean pass

    def _clean_pass(
        self, mixer: Mixer, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> tuple[Tensor | None, Tensor | float]:
        """The gradient of the images, and the pass's share of the loss; its parameter gradient goes to `.grad`."""
        clean = mixer.clean
        if clean is None:
            return None, 0.0
        if clean.weight:
            self._zero_first(trainer, module, batch_idx)
        images, labels = _unpack(batch)
        leaf = images.detach().requires_grad_(mixer.source is not None and mixer.source.needs_gradient)
        with _alone(trainer), _mode(clean, module), _logged_as_clean(module):
            loss = _loss_of(
                trainer.strategy.training_step(*_arguments(module.training_step, _repack(batch, leaf, labels), batch_idx))
            )
            if clean.weight:
                trainer.strategy.backward(loss * (clean.weight / trainer.accumulate_grad_batches), None)
            else:
                trainer.strategy.backward(loss, None, inputs=[leaf])
        return leaf.grad, loss.detach() * clean.weight

    def _zero_first(self, trainer: Trainer, module: LightningModule, batch_idx: int) -> None:
        """Lightning zeroes gradients between `training_step` and backward, which would wipe the clean pass's: zero now, and not then."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            module.optimizer_zero_grad(trainer.current_epoch, batch_idx, trainer.optimizers[0])
            self._instead(module, "optimizer_zero_grad", lambda *_: None)

    def _instead(self, owner: object, name: str, value: object) -> None:
        self._batch.enter_context(_replaced(owner, name, value))


def _mixed_step(
    step: Callable[..., Any], mixed: Any, weight: float, rest: Tensor | float, forward_is_over: Callable[[], None]
) -> Callable[..., Any]:
    """`training_step` on the mixed batch; the value of its loss is the whole step's, its gradient the mixed pass's share."""

    @wraps(step)
    def mixed_step(_batch: Any, *arguments: Any, **options: Any) -> Any:
        try:
            output = step(mixed, *arguments, **options)
        except Exception as error:
            error.add_note(
                "mixsage: this training_step was given soft targets [B, C]; metrics want class indices: y.argmax(1) if y.ndim > 1"
            )
            raise
        forward_is_over()
        loss = _loss_of(output) * weight + rest
        return {**output, "loss": loss} if isinstance(output, dict) else loss

    return mixed_step


def _loss_of(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"training_step must return a loss, or a dict with one under 'loss', got {type(output).__name__}; a batch cannot be skipped"
        )
    return loss


def _arguments(step: Callable[..., Any], batch: Any, batch_idx: int) -> tuple[Any, ...]:
    """What Lightning calls `training_step` with: batch_idx where it takes one."""
    try:
        inspect.signature(step).bind(batch, batch_idx)
    except TypeError:
        return (batch,)
    return (batch, batch_idx)


def _unpack(batch: Any) -> tuple[Tensor, Tensor]:
    if not (isinstance(batch, (list, tuple)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        parts = f" of {', '.join(type(part).__name__ for part in batch)}" if isinstance(batch, (list, tuple)) else ""
        raise TypeError(
            f"Mixing takes batches (x, y) of two tensors, got {type(batch).__name__}{parts}; let the loader's collate_fn make such batches"
        )
    images, labels = batch
    return images, labels


def _repack(batch: Any, images: Tensor, labels: Tensor) -> Any:
    return type(batch)(images, labels) if hasattr(batch, "_fields") else type(batch)((images, labels))


def _mode(clean: CleanPass, module: LightningModule) -> AbstractContextManager[Any]:
    return evaluating(module) if clean.mode == "eval" else nullcontext()


def _alone(trainer: Trainer) -> AbstractContextManager[Any]:
    """Within this context gradients stay on their own process."""
    strategy = trainer.strategy
    return strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext()


@contextmanager
def _logged_as_clean(module: LightningModule) -> Iterator[None]:
    log = module.log

    def log_clean(name: str, *arguments: Any, **options: Any) -> None:
        log(CLEAN + name, *arguments, **options)

    with _replaced(module, "log", log_clean):
        yield


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Within this context the object has this attribute of its own; afterwards whatever it had before."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


def _check(mixer: Mixer, trainer: Trainer, module: LightningModule) -> None:
    if not module.automatic_optimization:
        raise ValueError(
            "Mixing works with automatic optimisation; in a training_step that optimises by itself, call mixsage.accumulate with a host "
            "whose backward is self.manual_backward"
        )
    if mixer.clean is None or not mixer.clean.weight:
        return
    name = type(mixer).__name__
    if trainer.strategy.handles_gradient_accumulation:
        raise ValueError(
            f"{type(trainer.strategy).__name__} keeps gradients of its own, so that {name}'s clean pass would be lost; use mixed_share=1"
        )
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in trainer.optimizers):
        raise ValueError(
            f"LBFGS runs training_step several times a batch, but {name}'s clean pass runs once; use another optimizer"
        )
    if any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks):  # type: ignore[attr-defined]  # set from elsewhere
        raise ValueError(
            f"StochasticWeightAveraging ends with an epoch without backward, in which {name}'s clean pass would step; use WeightAveraging"
        )
