"""Everything that a run is at a moment, and how it is taken up again bit for bit.

Weights that are sharded (strategy fsdp) are gathered on the first process and handed out again by torch.distributed.checkpoint: the tests try
that with `fully_shard` on CPU processes, not through Fabric, whose FSDP needs CUDA devices.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from mixsage.training.meters import Meters

if TYPE_CHECKING:
    from mixsage.training.session import Session


@dataclass
class Place:
    """Where a run is: complete epochs, steps done in the one that is under way, and what was measured in it."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    """Time spent training in complete epochs, over all sittings."""
    epoch_seconds: float = 0.0
    """Time spent training in the epoch that is under way."""
    best: float | None = None
    """The highest validation accuracy so far."""
    meters: Meters = field(default_factory=Meters)

    def turn(self) -> None:
        """On to the next epoch."""
        self.epoch, self.step, self.meters = self.epoch + 1, 0, Meters()
        self.seconds, self.epoch_seconds = self.seconds + self.epoch_seconds, 0.0


_PLAIN = ("epoch", "step", "seconds", "epoch_seconds", "best")


def capture(session: Session, place: Place) -> dict[str, Any]:
    """The state to save; every process takes part, as sharded parts and random states are gathered."""
    model, optimizer = _training_state(session)
    return {
        "place": {name: getattr(place, name) for name in _PLAIN},
        "meters": session.gather(place.meters.state()),
        "classes": list(session.dataset.classes),
        "model": model,
        "optimizer": optimizer,
        "scaler": session.fabric.strategy.precision.state_dict(),
        "average": session.average.state_dict() if session.average is not None else None,
        "random": session.gather(_random_state(session.fabric.device)),
    }


def restore(session: Session, state: dict[str, Any]) -> Place:
    """Bring all that trains to a saved state, and say how far that was."""
    ours, theirs = list(session.dataset.classes), state["classes"]
    if ours != theirs:
        raise ValueError(
            f"the checkpoint was trained on {_classes(theirs)}, the data have {_classes(ours)}; give the data that the run began with"
        )
    _load_training_state(session, state["model"], state["optimizer"])
    session.fabric.strategy.precision.load_state_dict(state["scaler"])
    if session.average is not None:
        session.average.load_state_dict(state["average"])
    rank = session.fabric.global_rank
    _restore_random(state["random"][rank], session.fabric.device)
    return Place(**state["place"], meters=Meters(state["meters"][rank]))


def weights_of(session: Session) -> dict[str, Any]:
    """The weights that are evaluated and kept: the averaged ones where there are any. Every process takes part."""
    if session.average is not None:
        return dict(session.average.module.state_dict())
    if not session.sharded:
        return dict(session.bare.state_dict())
    return _training_state(session)[0]


def all_finite(session: Session) -> Tensor:
    """Whether all weights and statistics are finite, as a tensor on the device; the loss may show only later that they are not."""
    values = (value.detach() for value in [*session.bare.parameters(), *session.bare.buffers()])
    return torch.stack([getattr(value, "_local_tensor", value).isfinite().all() for value in values]).all()


def gathered(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """State of a sharded model and of its optimiser, whole, on the CPU of the first process."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def scatter(model: nn.Module, optimizer: torch.optim.Optimizer, states: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The reverse of `gathered`: every process has read the whole state, and takes its part."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)


def _training_state(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    if session.sharded:
        return gathered(session.model._forward_module, session.optimizer.optimizer)
    return dict(session.bare.state_dict()), session.optimizer.state_dict()


def _load_training_state(session: Session, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    if session.sharded:
        scatter(session.model._forward_module, session.optimizer.optimizer, (model, optimizer))
        return
    session.bare.load_state_dict(model)
    session.optimizer.load_state_dict(optimizer)


def _random_state(device: torch.device) -> dict[str, Any]:
    """The states that a model's own layers and a user's own code draw from; the library's choices need none, being functions of their place."""
    import numpy as np

    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": [version, list(words), gauss],
        "numpy": [str(kind), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }


def _restore_random(state: dict[str, Any], device: torch.device) -> None:
    import numpy as np

    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype("uint32"), *rest))


def _classes(names: list[str]) -> str:
    return f"{len(names)} classes ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
