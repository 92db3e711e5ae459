"""The examination of other libraries' transforms finds what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mixsage.bench import Settings, transforms
from mixsage.bench.transforms import KINDS, LIBRARIES, Library, examine
from mixsage.methods.cutmix import CutMix
from mixsage.methods.mixup import Mixup

IMAGES = torch.rand(6, 3, 16, 20, generator=torch.Generator().manual_seed(0))
OURS: dict[str, Callable[[int], Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = {
    "mixup": lambda classes: Mixup(num_classes=classes),
    "cutmix": lambda classes: CutMix(num_classes=classes),
}


def library(spoil: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Library:
    """Ours, with its output spoiled; `spoil` also gets the images that were given."""

    def make(kind: str, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return lambda images, labels: spoil(images, *OURS[kind](classes)(images, labels))

    return Library("ours", make)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_sample", [False, True])
def test_what_is_right_passes(kind: str, per_sample: bool) -> None:
    method = Mixup if kind == "mixup" else CutMix
    ours = Library("ours", lambda _, classes: method(num_classes=classes, per_sample=per_sample))
    torch.manual_seed(0)
    assert [examine(kind, ours, IMAGES) for _ in range(20)] == [(True, None)] * 20


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_is_found(kind: str) -> None:
    torch.manual_seed(0)
    _, shifted = examine(kind, library(lambda _, mixed, targets: (mixed.roll(1, 0), targets)), IMAGES)
    _, noisy = examine(kind, library(lambda _, mixed, targets: (mixed + 0.01, targets)), IMAGES)
    _, unsound = examine(kind, library(lambda _, mixed, targets: (mixed, targets * 0.9)), IMAGES)
    _, even = examine(kind, library(lambda _, mixed, targets: (mixed, (targets > 0) / (targets > 0).sum(1, keepdim=True))), IMAGES)
    assert shifted and noisy and even
    assert unsound == "the shares do not sum to 1"


@pytest.mark.parametrize("kind", KINDS)
def test_writing_into_the_images_is_noticed(kind: str) -> None:
    def overwrite(images: Tensor, mixed: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        images.copy_(mixed + 1)
        return mixed, targets

    assert examine(kind, library(overwrite), IMAGES)[0] is False


def test_a_library_that_is_missing_is_left_out_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Library("no_such_library", lambda kind, classes: pytest.fail("it is not there"))
    monkeypatch.setattr(transforms, "LIBRARIES", {"ghost": missing, "itself": transforms._OURS})
    found = transforms.compare(Settings(quick=True, rounds=1))
    assert found.notes == ("ghost is not installed, so it is left out: pip install no_such_library",)
    assert {row.name for row in found.rows} == {
        f"{kind} {side}{end}" for kind in KINDS for side in (16, 32) for end in ("", " itself")
    }


def test_kornias_pairs_of_labels_become_soft_targets() -> None:
    pairs = torch.tensor([[0.0, 1.0, 0.25], [2.0, 2.0, 0.4]])
    mixup = LIBRARIES["kornia"].read(pairs, 3)
    cutmix = LIBRARIES["kornia"].read(pairs[None], 3)
    torch.testing.assert_close(mixup, torch.tensor([[0.75, 0.25, 0], [0, 0, 1]]))
    torch.testing.assert_close(cutmix, torch.tensor([[0.25, 0.75, 0], [0, 0, 1]]))
