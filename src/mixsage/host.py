"""Hosts: the seam for training loops that own the passes. The plain one is what a bare loop does; others compose around it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from mixsage.saliency import arrived


class Host:
    """The plain loop: call the model, run backward. Override what your loop does otherwise."""

    def bind(self, model: nn.Module) -> Host:
        """This host for one model: with `DDPHost` or `FSDPHost` around it where processes train the model together."""
        model = getattr(model, "_orig_mod", model)  # what torch.compile lies around
        if isinstance(model, DistributedDataParallel):
            return DDPHost(model, self)
        return FSDPHost(self) if _is_sharded(model) else self

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        """Logits [B, C]."""
        logits: Tensor = model(images)
        return logits

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients to `.grad`."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def input_gradient(self, loss: Tensor, images: Tensor) -> Tensor:
        """The gradient of the loss with respect to the images alone, scaled where the loop scales its losses; no `.grad` is touched."""
        (gradient,) = torch.autograd.grad(loss, images, allow_unused=True)
        return arrived(gradient)

    def no_sync(self) -> AbstractContextManager[None]:
        """Within this context gradients stay on their own process."""
        return nullcontext()

    def choices(self, generator: Generator | None) -> Generator | None:
        """The generator that this process draws from: processes that work together must not make the same choices."""
        return generator


class Around(Host):
    """A host that composes with another: what it does not do itself, the inner one does. Override some methods, and call `inner` in them."""

    def __init__(self, inner: Host | None = None) -> None:
        self.inner = inner or Host()

    def bind(self, model: nn.Module) -> Host:
        """This host around an inner one that is bound to the model."""
        bound = copy(self)
        bound.inner = self.inner.bind(model)
        return bound

    def forward(self, model: nn.Module, images: Tensor) -> Tensor:
        """As the inner host does."""
        return self.inner.forward(model, images)

    def backward(self, loss: Tensor) -> None:
        """As the inner host does."""
        self.inner.backward(loss)

    def input_gradient(self, loss: Tensor, images: Tensor) -> Tensor:
        """As the inner host does."""
        return self.inner.input_gradient(loss, images)

    def no_sync(self) -> AbstractContextManager[None]:
        """As the inner host does."""
        return self.inner.no_sync()

    def choices(self, generator: Generator | None) -> Generator | None:
        """As the inner host does."""
        return self.inner.choices(generator)


class ScalerHost(Around):
    """A loop with a `torch.amp.GradScaler`: losses are scaled before backward; `scaler.step` and `scaler.update` stay with the loop.

    Example:
        >>> host = ScalerHost(torch.amp.GradScaler("cpu"))
    """

    def __init__(self, scaler: GradScaler, inner: Host | None = None) -> None:
        super().__init__(inner)
        self.scaler = scaler

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss."""
        self.inner.backward(self.scaler.scale(loss))

    def input_gradient(self, loss: Tensor, images: Tensor) -> Tensor:
        """Gradient of the scaled loss, so that float16 does not underflow."""
        return self.inner.input_gradient(self.scaler.scale(loss), images)


class DDPHost(Around):
    """A model wrapped in DistributedDataParallel: one reduction a step, and choices of its own on each process."""

    def __init__(self, model: DistributedDataParallel, inner: Host | None = None) -> None:
        super().__init__(inner)
        self.model = model

    def bind(self, model: nn.Module) -> Host:
        """This host: it has its model."""
        return self

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave the reduction to the last backward of the step."""
        if self.model.static_graph and not getattr(self.model, "_static_graph_delay_allreduce_enqueued", True):
            raise RuntimeError(
                "DistributedDataParallel(static_graph=True) records the graph at its first backward, which must be one that is reduced; "
                "run a first step without a clean pass, accumulate(Clean(), …), or leave static_graph out"
            )
        with self.inner.no_sync(), self.model.no_sync():
            yield

    def choices(self, generator: Generator | None) -> Generator | None:
        """A generator of this process's own, seeded by a draw from the one given and the rank: equal seeds everywhere still differ."""
        return fork(self.inner.choices(generator), torch.distributed.get_rank(self.model.process_group))


class FSDPHost(Around):
    """A model sharded by `fully_shard` or FullyShardedDataParallel: choices of its own on each process.

    Both passes reduce their gradients: to keep the first pass's back would keep a whole model's gradients on every process, which sharding
    is there to avoid.
    """

    def __init__(self, inner: Host | None = None, *, rank: int | None = None) -> None:
        super().__init__(inner)
        self.rank = rank

    def bind(self, model: nn.Module) -> Host:
        """This host, for any model."""
        return self

    def choices(self, generator: Generator | None) -> Generator | None:
        """As `DDPHost`. The rank is the process's own; where several processes share a batch (tensor parallelism), name the batch's."""
        rank = torch.distributed.get_rank() if self.rank is None else self.rank
        return fork(self.inner.choices(generator), rank)


class FabricHost(Host):
    """A model that Lightning Fabric has set up: precision, scaling and processes are Fabric's."""

    def __init__(self, fabric: Any, model: nn.Module) -> None:
        self.fabric = fabric
        self.model = model

    def backward(self, loss: Tensor) -> None:
        """Fabric's backward, which scales where its precision asks for it."""
        self.fabric.backward(loss)

    def input_gradient(self, loss: Tensor, images: Tensor) -> Tensor:
        """Fabric's backward, for the images alone: it refuses a gradient that is taken past it."""
        self.fabric.backward(loss, inputs=[images])
        return arrived(images.grad)

    def no_sync(self) -> AbstractContextManager[None]:
        """Fabric's context, where there are processes to keep from reducing."""
        if self.fabric.world_size == 1:
            return nullcontext()
        context: AbstractContextManager[None] = self.fabric.no_backward_sync(self.model)
        return context

    def choices(self, generator: Generator | None) -> Generator | None:
        """A generator of this process's own, where there are several."""
        return generator if self.fabric.world_size == 1 else fork(generator, self.fabric.global_rank)


def fork(generator: Generator | None, rank: int) -> Generator:
    """A new generator for one of several processes; the given one advances by one draw."""
    seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    # An odd multiplier spreads neighbouring ranks over the seeds, which share the draw above where all processes were seeded alike.
    return torch.Generator().manual_seed((seed + 0x9E3779B97F4A7C15 * rank) % 2**63)


def _is_sharded(model: nn.Module) -> bool:
    """Whether FSDP has sharded the model; who never imported it has no such model, and should not have to wait for the import."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, (fsdp.FSDPModule, fsdp.FullyShardedDataParallel))
