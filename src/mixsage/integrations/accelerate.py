"""Hugging Face Accelerate: a host for loops whose model an `Accelerator` has prepared."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy

from torch import Generator, Tensor, nn

from mixsage.errors import not_installed
from mixsage.host import Host, fork
from mixsage.saliency import arrived

try:
    from accelerate import Accelerator, DistributedType  # type: ignore[import-untyped]  # it comes without types
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed(__name__, "accelerate", "transformers")) from error


class AccelerateHost(Host):
    """A model that an Accelerator has prepared: precision, scaling, processes and gradient accumulation are the Accelerator's.

    `accelerator.backward` divides by `gradient_accumulation_steps`, so that ``weight`` stays 1 within `accelerator.accumulate(model)`.

    Example:
        >>> import accelerate, mixsage, torch
        >>> accelerator = accelerate.Accelerator(cpu=True)
        >>> model = mixsage.models.small_convnet()
        >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> images, labels = torch.rand(8, 1, 28, 28), torch.arange(8)
        >>> step = mixsage.accumulate(mixsage.SAGE(), model, images, labels, host=AccelerateHost(accelerator))
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module | None = None) -> None:
        if accelerator.distributed_type in {DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}:
            raise ValueError(
                f"{accelerator.distributed_type.value} keeps gradients in buffers of its own, which two passes a step would not reach; "
                "use DDP or FSDP, or a plain call, which gives back images and targets (SAGE: η = 1)"
            )
        self.accelerator = accelerator
        self.model = model

    def bind(self, model: nn.Module) -> Host:
        """For the model of this step."""
        bound = copy(self)
        bound.model = model
        return bound

    def backward(self, loss: Tensor) -> None:
        """The Accelerator's backward, which scales where its precision asks for it."""
        self.accelerator.backward(loss)

    def input_gradient(self, loss: Tensor, images: Tensor) -> Tensor:
        """The Accelerator's backward, for the images alone."""
        self.accelerator.backward(loss, inputs=[images])
        return arrived(images.grad)

    def no_sync(self) -> AbstractContextManager[None]:
        """The Accelerator's context, where there are processes to keep from reducing."""
        return nullcontext() if self.accelerator.num_processes == 1 else self.accelerator.no_sync(self.model)

    def choices(self, generator: Generator | None) -> Generator | None:
        """A generator of this process's own, where there are several."""
        return generator if self.accelerator.num_processes == 1 else fork(generator, self.accelerator.process_index)
