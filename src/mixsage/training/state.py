"""Everything that a run is at a moment, and how it is taken up again bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from mixsage.training.meters import Meters

if TYPE_CHECKING:
    from mixsage.training.session import Session


@dataclass
class Place:
    """Where a run is: complete epochs, steps done in the one that is under way, and what was measured in it."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    """Time spent training, over all sittings."""
    epoch_seconds: float = 0.0
    """Time spent in the epoch that is under way."""
    meters: Meters = field(default_factory=Meters)


def capture(session: Session, place: Place) -> dict[str, Any]:
    """The state to save; every process takes part, as sharded parts and random states are gathered."""
    model, optimizer = _training_state(session)
    return {
        "place": {"epoch": place.epoch, "step": place.step, "seconds": place.seconds, "epoch_seconds": place.epoch_seconds},
        "meters": place.meters.state(),
        "classes": list(session.dataset.classes),
        "model": model,
        "optimizer": optimizer,
        "scaler": session.fabric.strategy.precision.state_dict(),
        "average": session.average.state_dict() if session.average is not None else None,
        "random": _random_state(session),
    }


def restore(session: Session, state: dict[str, Any]) -> Place:
    """Bring the session to a saved state, and say where that is."""
    if list(session.dataset.classes) != state["classes"]:
        raise ValueError(
            f"the checkpoint was trained on {len(state['classes'])} classes ({', '.join(state['classes'][:3])}, …), "
            f"the data has {len(session.dataset.classes)} ({', '.join(session.dataset.classes[:3])}, …); give the data that the run began with"
        )
    _load_training_state(session, state["model"], state["optimizer"])
    session.fabric.strategy.precision.load_state_dict(state["scaler"])
    if session.average is not None:
        session.average.load_state_dict(state["average"])
    _restore_random(session, state["random"])
    return Place(**state["place"], meters=Meters(state["meters"]))


def model_state(session: Session) -> dict[str, Any]:
    """The weights, gathered where they lie in pieces; every process takes part."""
    return _training_state(session)[0]


def _training_state(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    if not session.sharded:
        return session.model.state_dict(), session.optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_state_dict(session.model._forward_module, session.optimizer.optimizer, options=options)


def _load_training_state(session: Session, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    if not session.sharded:
        session.model.load_state_dict(model)
        session.optimizer.load_state_dict(optimizer)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    module, inner = session.model._forward_module, session.optimizer.optimizer
    set_state_dict(module, inner, model_state_dict=model, optim_state_dict=optimizer, options=options)


def _random_state(session: Session) -> dict[str, Any]:
    """The states that a model's own layers and a user's own code draw from; the library's choices need none, being functions of their place."""
    own = torch.get_rng_state()
    python = random.getstate()
    device = session.fabric.device
    return {
        "torch": session.gather(own),
        "cuda": session.gather(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
        "python": [python[0], list(python[1]), python[2]],
        "numpy": _numpy_state(),
    }


def _restore_random(session: Session, state: dict[str, Any]) -> None:
    rank = session.fabric.global_rank
    torch.set_rng_state(state["torch"][rank])
    if state["cuda"] is not None and session.fabric.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"][rank], session.fabric.device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    _set_numpy_state(state["numpy"])


def _numpy_state() -> list[Any]:
    import numpy as np

    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)]


def _set_numpy_state(state: list[Any]) -> None:
    import numpy as np

    kind, keys, position, has_gauss, gauss = state
    np.random.set_state((kind, np.array(keys, dtype="uint32"), position, has_gauss, gauss))
