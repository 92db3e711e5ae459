"""Attacks of many steps, by the libraries that are kept for them: PGD by the Adversarial Robustness Toolbox, AutoAttack by its authors' package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor, nn

from mixsage.errors import not_installed
from mixsage.evaluation.attacks import LINF
from mixsage.evaluation.pixels import Loader, batches, check_logits, device_of
from mixsage.evaluation.scores import Share

Attack = Callable[[Tensor, Tensor], Tensor]
"""Pixels and labels to perturbed pixels."""


def pgd(model: nn.Module, loader: Loader, *, epsilon: float = LINF, step: float = 2 / 255, steps: int = 20) -> dict[str, float]:
    """Accuracy in per cent under projected gradient descent within ``epsilon`` of each pixel (Madry et al., 2018): ``pgd``.

    It starts at the image itself, so that it needs no randomness.
    """
    evasion = _library("art.attacks.evasion", "PGD", "adversarial-robustness-toolbox")
    estimators = _library("art.estimators.classification", "PGD", "adversarial-robustness-toolbox")

    def prepare(network: nn.Module, shape: tuple[int, ...], classes: int) -> Attack:
        kind = "gpu" if device_of(network).type == "cuda" else "cpu"
        bounds = (0.0, 1.0)
        judged = estimators.PyTorchClassifier(network, nn.CrossEntropyLoss(), shape, classes, clip_values=bounds, device_type=kind)
        descent = evasion.ProjectedGradientDescentPyTorch(
            judged, norm="inf", eps=epsilon, eps_step=step, max_iter=steps, batch_size=_ALL, verbose=False
        )
        return lambda pixels, labels: torch.from_numpy(descent.generate(x=pixels.cpu().numpy(), y=labels.cpu().numpy()))

    return {"pgd": _under(model, loader, prepare)}


def autoattack(model: nn.Module, loader: Loader, *, epsilon: float = LINF, seed: int = 0) -> dict[str, float]:
    """Accuracy in per cent under AutoAttack's standard version within ``epsilon`` of each pixel (Croce & Hein, 2020): ``autoattack``.

    For at least four classes. A thousand times the cost of a forward pass and more: give it a part of the test set first.
    """
    library = _library("pyautoattack", "AutoAttack", "pyautoattack")

    def prepare(network: nn.Module, shape: tuple[int, ...], classes: int) -> Attack:
        if classes < 4:
            raise ValueError(f"AutoAttack is defined for at least 4 classes, the model has {classes}; use pgd")
        attack = library.AutoAttack(network, norm="Linf", eps=epsilon, seed=seed, device=device_of(network))
        # It aims at nine wrong classes, or at all of them where there are fewer.
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(9, classes - 1)
        return lambda pixels, labels: _pictures(attack.run_standard_evaluation(pixels, labels, batch_size=len(pixels)))

    return {"autoattack": _under(model, loader, prepare)}


_ALL = 10**9
"""The loader decides on the size of batches, not the toolbox."""


def _under(model: nn.Module, loader: Loader, prepare: Callable[[nn.Module, tuple[int, ...], int], Attack]) -> float:
    """Accuracy on what the attack makes of each batch. It is given a copy: these libraries clear gradients and set flags."""
    network = deepcopy(model).eval().requires_grad_(False)
    share = Share()
    attack: Attack | None = None
    for pixels, labels in batches(loader, device_of(model)):
        if attack is None:
            with torch.no_grad():
                classes = check_logits(network(pixels), labels).shape[1]
            attack = prepare(network, tuple(pixels.shape[1:]), classes)
        with _forked(device_of(model)):
            found = attack(pixels, labels).to(pixels)
        with torch.no_grad():
            share.add(check_logits(network(found), labels), labels)
    return share.value()


def _pictures(answer: object) -> Tensor:
    """The perturbed pixels, which the package returns alone or before other things."""
    found = answer[0] if isinstance(answer, tuple) else answer
    assert isinstance(found, Tensor)
    return found


@contextmanager
def _forked(device: torch.device) -> Iterator[None]:
    """These libraries draw from torch's own generators, or seed them: what they were comes back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _library(module: str, what: str, package: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed(what, package, "attacks")) from error
