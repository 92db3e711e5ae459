"""Our Mixup and CutMix beside those of other libraries, on the same batches: how fast, and whether the outputs are right."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mixsage.bench.results import Comparison, Row
from mixsage.bench.timing import Settings, Times, Work, ratio, take_turns
from mixsage.methods.cutmix import CutMix
from mixsage.methods.mixup import Mixup

Call = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Images and class indices to mixed images and soft targets."""

OURS = "mixsage"
KINDS = ("mixup", "cutmix")


@dataclass(frozen=True)
class Library:
    """Another library."""

    package: str
    """What is imported."""
    make: Callable[[str, int], Call]
    """Its transform of a kind, for a number of classes."""
    read: Callable[[Tensor, int], Tensor] = lambda targets, _: targets
    """Its targets as soft targets, where it hands out something else."""


def compare(settings: Settings) -> Comparison:
    """The time of our whole call / that of each other library's; the goal is set by the fastest that leaves its input unchanged."""
    rows: list[Row] = []
    notes: list[str] = []
    here = {name: library for name, library in LIBRARIES.items() if _installed(name, library, notes)}
    for side, batch, classes in ((16, 8, 10), (32, 6, 20)) if settings.quick else ((32, 100, 10), (224, 64, 1000)):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(batch, 3, side, side, generator=generator).to(settings.device)
        for kind in KINDS:
            rows += _rows(kind, images, classes, here, notes, settings)
    return Comparison(
        name="transforms",
        title="Our Mixup and CutMix / those of other libraries",
        setting="float32, α = 1, soft targets included; "
        + ("tiny batches" if settings.quick else "100 images at 32×32 with 10 classes, 64 at 224×224 with 1,000"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _installed(name: str, library: Library, notes: list[str]) -> bool:
    try:
        importlib.import_module(library.package)
    except ModuleNotFoundError:
        notes.append(f"{name} is not installed, so it is left out: pip install {library.package}")
        return False
    return True


def _rows(
    kind: str, images: Tensor, classes: int, libraries: dict[str, Library], notes: list[str], settings: Settings
) -> list[Row]:
    """Ours beside each, and beside the fastest that copies."""
    side = images.shape[-1]
    copying = {}
    for name, library in {OURS: _OURS, **libraries}.items():
        copying[name], wrong = examine(kind, library, images)
        if wrong:
            notes.append(f"{kind} {side}×{side}: the output of {name} is not what its targets say: {wrong}")
    labels = torch.arange(len(images), device=images.device) % classes
    # In-place forms work on a batch of their own, so that the others see what they were given.
    arms = {
        name: _bound(library.make(kind, classes), images if copying[name] else images.clone(), labels)
        for name, library in {OURS: _OURS, **libraries}.items()
    }
    times = take_turns(arms, settings.rounds_or(30), settings.device, calls=2 if settings.quick else 15)
    rivals = [name for name in libraries if copying[name]]
    rows = [
        Row(
            name=f"{kind} {side} {name}",
            text=f"{kind} {side}×{side}: ours / {name}{'' if copying[name] else ' (in place)'}",
            spread=ratio(times, OURS, name),
        )
        for name in libraries
    ]
    if rivals:
        fastest = min(rivals, key=lambda name: _total(times, name))
        rows.append(
            Row(
                name=f"{kind} {side}",
                text=f"{kind} {side}×{side}: ours / the fastest that copies ({fastest})",
                spread=ratio(times, OURS, fastest),
                goal=1.0,
            )
        )
    return rows


def _total(times: Times, name: str) -> float:
    return sum(sorted(times[name])[: len(times[name]) // 2 + 1])


# ------------------------------------------------------------------------------------------------------------- whether it is right


def examine(kind: str, library: Library, images: Tensor) -> tuple[bool, str | None]:
    """Whether a library's transform leaves the images that it is given as they were, found out and not assumed; and what is wrong with its output."""
    labels = torch.arange(len(images), device=images.device)
    call, kept = library.make(kind, len(images)), True

    def mixed() -> tuple[Tensor, Tensor]:
        nonlocal kept
        given = images.clone()
        found, targets = call(given, labels)
        kept = kept and torch.equal(given, images)
        return found, library.read(targets, len(images))

    wrong = fault(kind, mixed, images)
    return kept, wrong


def fault(kind: str, call: Callable[[], tuple[Tensor, Tensor]], images: Tensor, tries: int = 3) -> str | None:
    """What is wrong with mixed images, going by the soft targets that came with them; None if nothing is.

    Every image is a class of its own, so that a row of the targets names the image, its partner and both shares.
    """
    for _ in range(tries):
        mixed, targets = call()
        if not torch.allclose(targets.sum(1), torch.ones_like(targets[:, 0]), atol=1e-5):
            return "the shares do not sum to 1"
        found = _fault_of_blend(mixed, targets, images) if kind == "mixup" else _fault_of_box(mixed, targets, images)
        if found:
            return found
    return None


def _partners(targets: Tensor) -> tuple[Tensor, Tensor]:
    """The other class of each row, or its own where there is no other; and the share of its own."""
    own = targets.diagonal()
    others = targets.clone()
    others.fill_diagonal_(0)
    share, partner = others.max(dim=1)
    return torch.where(share > 0, partner, torch.arange(len(targets), device=targets.device)), own


def _fault_of_blend(mixed: Tensor, targets: Tensor, images: Tensor) -> str | None:
    partner, own = _partners(targets)
    share = own[:, None, None, None]
    error = float((mixed - (share * images + (1 - share) * images[partner])).abs().max())
    return None if error < 1e-5 else f"an image differs from the blend by {error:.2g}"


def _fault_of_box(mixed: Tensor, targets: Tensor, images: Tensor) -> str | None:
    partner, own = _partners(targets)
    from_partner = (mixed == images[partner]).all(dim=1)
    if not ((mixed == images).all(dim=1) | from_partner).all():
        return "a pixel is neither the image's nor its partner's"
    mask = from_partner & (partner != torch.arange(len(images), device=images.device))[:, None, None]
    rows, columns = mask.any(dim=2), mask.any(dim=1)
    if not torch.equal(mask, rows[:, :, None] & columns[:, None, :]):
        return "what comes from the partner is no box"
    area = torch.where(partner == torch.arange(len(images), device=images.device), 0.0, mask.float().mean(dim=(1, 2)))
    error = float((1 - own - area).abs().max())
    return None if error < 1e-5 else f"the box differs from the share by {error:.2g} of the picture"


def _bound(call: Call, images: Tensor, labels: Tensor) -> Work:
    return lambda: call(images, labels)


# ------------------------------------------------------------------------------------------------------------------- the libraries


def _ours(kind: str, classes: int) -> Call:
    return Mixup(num_classes=classes) if kind == "mixup" else CutMix(num_classes=classes)


def _torchvision(kind: str, classes: int) -> Call:
    from torchvision.transforms import v2  # type: ignore[import-untyped]  # it has no stubs

    transform: nn.Module = v2.MixUp(num_classes=classes) if kind == "mixup" else v2.CutMix(num_classes=classes)
    return transform


def _timm(kind: str, classes: int) -> Call:
    from timm.data.mixup import Mixup as TimmMixup

    shares = {"mixup_alpha": 1.0, "cutmix_alpha": 0.0} if kind == "mixup" else {"mixup_alpha": 0.0, "cutmix_alpha": 1.0}
    call: Call = TimmMixup(**shares, label_smoothing=0.0, num_classes=classes)  # type: ignore[no-untyped-call]  # timm's own
    return call


def _kornia(kind: str, classes: int) -> Call:
    from kornia.augmentation import RandomCutMixV2, RandomMixUpV2

    keys = ["input", "class"]
    transform: nn.Module = (
        RandomMixUpV2(data_keys=keys) if kind == "mixup" else RandomCutMixV2(data_keys=keys, use_correct_lambda=True)
    )
    return transform


def _read_kornia(labels: Tensor, classes: int) -> Tensor:
    """From rows (own class, partner's class, share): Mixup's share is the partner's, CutMix's, which has an axis more, the image's own."""
    own, partner, share = labels.reshape(-1, 3).unbind(1)
    own_share = share if labels.ndim == 3 else 1 - share
    soft = torch.zeros(len(own), classes, device=labels.device)
    soft.scatter_add_(1, own.long()[:, None], own_share[:, None])
    return soft.scatter_add_(1, partner.long()[:, None], 1 - own_share[:, None])


_OURS = Library("mixsage", _ours)
LIBRARIES: dict[str, Library] = {
    "torchvision": Library("torchvision", _torchvision),
    "timm": Library("timm", _timm),
    "kornia": Library("kornia", _kornia, _read_kornia),
}
"""The others by name. kornia hands out pairs of labels and shares instead of soft targets, which saves it a little."""
