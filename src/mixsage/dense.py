"""What a plan makes of targets that have places in the picture: class maps and boxes.

Every function here is for `MixPlan`, whose verbs check what comes in. Nothing waits for a device, but `MixedBoxes.per_image`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mixsage import warp as geometry
from mixsage.forms import Blocks, Boxes, Shift, describe

if TYPE_CHECKING:
    from mixsage.plan import MixPlan

_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedBoxes:
    """The boxes of a mixed batch, in tensors of one size for all images; `per_image` has only those that remain.

    M is the number of sources times the most boxes of any image.
    """

    boxes: Tensor
    """[B, M, 4] float32: left, top, right, bottom in the mixed picture."""
    labels: Tensor
    """[B, M], as they were handed in."""
    weights: Tensor
    """[B, M] float32: the share of the box that shows; 0 where it was dropped, and where an image has fewer than M boxes."""

    def per_image(self) -> list[dict[str, Tensor]]:
        """The boxes that remain, image by image: "boxes" [N, 4], "labels" [N] and "weights" [N]. On a device this waits, once."""
        kept = (self.weights > 0).cpu()
        parts = {"boxes": self.boxes, "labels": self.labels, "weights": self.weights}
        return [
            {name: tensor[b].index_select(0, row.nonzero()[:, 0].to(tensor.device)) for name, tensor in parts.items()}
            for b, row in enumerate(kept)
        ]


# ------------------------------------------------------------------------------------------------------------------------ class maps


def soft_maps(plan: MixPlan, class_maps: Tensor, num_classes: int, ignore: int) -> Tensor:
    """Shares of the classes at each pixel [B, C, H, W] float32; a source that is ignored at a pixel adds nothing there."""
    height, width = class_maps.shape[1:]
    targets = torch.zeros(len(plan.sources), num_classes, height, width, dtype=torch.float32, device=class_maps.device)
    for k in range(plan.sources.shape[1]):
        classes = _classes(plan, class_maps, k, ignore)
        known = classes != ignore
        share = _shares(plan, k, height, width) * known
        targets.scatter_add_(1, classes.where(known, 0)[:, None], share[:, None])
    return targets


def hard_maps(plan: MixPlan, class_maps: Tensor, ignore: int) -> Tensor:
    """The class [B, H, W] int64 of the source with the largest share at each pixel; of equal ones, the first."""
    height, width = class_maps.shape[1:]
    winner, most = _classes(plan, class_maps, 0, ignore), _shares(plan, 0, height, width)
    for k in range(1, plan.sources.shape[1]):
        share = _shares(plan, k, height, width)
        winner = torch.where(share > most, _classes(plan, class_maps, k, ignore), winner)
        most = torch.maximum(share, most)
    return winner


def check_class_maps(class_maps: Tensor, num_classes: int | None, hard: bool, ignore: int) -> None:
    """Class maps must be [P, H, W] whole numbers; their values are looked at only where that waits for no device."""
    if class_maps.is_floating_point():
        raise TypeError(
            f"class maps must be whole numbers [P, H, W], got {describe(class_maps)}; pass class_maps.long(), or mix shares "
            "[P, C, H, W] of the classes with plan.apply"
        )
    if class_maps.dtype not in _WHOLE:
        raise TypeError(f"class maps must be whole numbers [P, H, W], got {describe(class_maps)}; pass class_maps.long()")
    if class_maps.ndim != 3:
        raise ValueError(
            f"class maps must be [P, H, W], one for each image, got {describe(class_maps)}; for maps [P, 1, H, W] pass class_maps.squeeze(1)"
        )
    if isinstance(ignore, bool) or not isinstance(ignore, int):
        raise TypeError(f"ignore must be a whole number, got {ignore!r}; for example 255")
    if num_classes is None and not hard:
        raise ValueError(
            "num_classes is missing: soft targets have a channel for each class; pass num_classes, or hard=True for an index map"
        )
    if num_classes is not None:
        _check_classes(class_maps, num_classes, ignore)


def _check_classes(class_maps: Tensor, num_classes: int, ignore: int) -> None:
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    if class_maps.device.type != "cpu":
        return
    wrong = class_maps[((class_maps < 0) | (class_maps >= num_classes)) & (class_maps != ignore)]
    if wrong.numel():
        raise ValueError(
            f"class maps hold values from {int(wrong.min())} to {int(wrong.max())} that are neither one of {num_classes} classes "
            f"(0 to {num_classes - 1}) nor the ignore label {ignore}; set num_classes or ignore, or number the classes from 0"
        )


def _classes(plan: MixPlan, class_maps: Tensor, k: int, ignore: int) -> Tensor:
    """Source ``k``'s class at each pixel [B, H, W] int64, moved to its place; the ignore label comes in from outside."""
    classes = class_maps.index_select(0, plan.sources[:, k]).long()
    if plan.warp is None:
        return classes
    index, visible = plan.warp.index(k, *class_maps.shape[1:])
    classes = classes.flatten(1).gather(1, index).view_as(classes)
    return classes if visible is None else classes.masked_fill_(~visible, ignore)


def _shares(plan: MixPlan, k: int, height: int, width: int) -> Tensor:
    """Source ``k``'s share at each pixel: float32, of a shape that goes with [B, H, W]."""
    if isinstance(plan.masks, Tensor):
        share = plan.masks[:, k]
        return share if share.shape[1:] == (1, 1) else geometry.enlarge(share, height, width)
    inside = plan.masks.to(plan.sources.device).inside()
    return (inside if k == 1 else ~inside).to(torch.float32)


# ----------------------------------------------------------------------------------------------------------------------------- boxes


def mix_boxes(
    plan: MixPlan, boxes: Sequence[Tensor], labels: Sequence[Tensor], height: int, width: int, threshold: float
) -> MixedBoxes:
    """Every source's boxes, moved, clipped, weighted by the share that shows, and dropped where that is too little."""
    picture = _frame(height, width, boxes[0].device)
    everything = _clipped(pad_sequence([part.float() for part in boxes], batch_first=True), picture)
    everywhere = pad_sequence(list(labels), batch_first=True)
    shown, named, weights = [], [], []
    for k in range(plan.sources.shape[1]):
        rows = plan.sources[:, k]
        whole = everything.index_select(0, rows)
        here, visible = _visible(plan, k, _placed(plan, k, whole, picture), height, width)
        shown.append(here)
        named.append(everywhere.index_select(0, rows))
        weights.append((visible / _area(whole)).clamp_max_(1))
    weight = torch.cat(weights, dim=1)
    # What has no area has no share either: its 0/0 fails the comparison.
    weight = torch.where(weight >= threshold, weight, 0)
    return MixedBoxes(boxes=torch.cat(shown, dim=1), labels=torch.cat(named, dim=1), weights=weight)


def check_boxes(plan: MixPlan, boxes: Sequence[Tensor], labels: Sequence[Tensor], size: Sequence[int], threshold: float) -> None:
    """Boxes must be [N, 4] with labels [N], for each image; their values are looked at only where that waits for no device."""
    if isinstance(plan.warp, Blocks):
        raise ValueError(
            "this plan moves the blocks of an image to different places, which leaves no box whole; use a method without moving blocks, "
            "for example PuzzleMix(moved_block=None)"
        )
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must lie in [0, 1], the share of a box that has to show, got {threshold}")
    if len(size) != 2:
        raise ValueError(f"size must be the height and width of the pictures, got {list(size)}; for example images.shape[-2:]")
    for name, given in {"boxes": boxes, "labels": labels}.items():
        if not isinstance(given, (list, tuple)):
            raise TypeError(
                f"{name} must be a list, one entry for each image, as images have different numbers; got {type(given).__name__}"
            )
    if len(boxes) != len(labels):
        raise ValueError(f"got boxes of {len(boxes)} images and labels of {len(labels)}; every image needs both, empty ones too")
    for place, (corners, names) in enumerate(zip(boxes, labels, strict=True)):
        if corners.ndim != 2 or corners.shape[1] != 4:
            raise ValueError(
                f"boxes of image {place} must be [N, 4]: left, top, right, bottom; got {describe(corners)}; none are torch.zeros(0, 4)"
            )
        if names.shape != corners.shape[:1]:
            raise ValueError(f"image {place} has {len(corners)} boxes and labels {describe(names)}; every box needs one label")
        if corners.device.type == "cpu" and bool((corners[:, 2:] < corners[:, :2]).any()):
            raise ValueError(
                f"boxes of image {place} end before they begin; give left, top, right, bottom in pixels, "
                "for example with torchvision.ops.box_convert(boxes, 'xywh', 'xyxy')"
            )


def _frame(height: int, width: int, device: torch.device) -> Tensor:
    """The whole picture as a box [1, 1, 4], filled in on the device: a copy of host values would wait for it."""
    frame = torch.zeros(1, 1, 4, dtype=torch.float32, device=device)
    frame[..., 2].fill_(width)
    frame[..., 3].fill_(height)
    return frame


def _placed(plan: MixPlan, k: int, boxes: Tensor, picture: Tensor) -> Tensor:
    """Source ``k``'s boxes [B, N, 4] where the plan moves them, as far as they lie in the picture."""
    if not isinstance(plan.warp, Shift):
        return boxes
    moves = plan.warp.offsets[:, k].flip(1).repeat(1, 2)[:, None]
    return _clipped(boxes + moves, picture)


def _visible(plan: MixPlan, k: int, boxes: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The boxes as they show (of what is pasted, only the part inside the pasted box), and the area [B, N] of each that shows."""
    if isinstance(plan.masks, Boxes):
        top, left, bottom, right = plan.masks.to(boxes.device).corners.to(boxes.dtype).unbind(1)
        pasted = _clipped(boxes, torch.stack([left, top, right, bottom], dim=1)[:, None])
        return (pasted, _area(pasted)) if k == 1 else (boxes, _area(boxes) - _area(pasted))
    share = plan.masks[:, k]
    rows = _covered(boxes[..., 1], boxes[..., 3], geometry.block_edges(height, share.shape[1], share.device))
    columns = _covered(boxes[..., 0], boxes[..., 2], geometry.block_edges(width, share.shape[2], share.device))
    with _without_autocast(boxes.device.type):
        return boxes, (torch.bmm(rows, share) * columns).sum(dim=2)


def _without_autocast(kind: str) -> AbstractContextManager[object]:
    """Products keep their float32; some kinds of device know no autocast."""
    known = torch.amp.is_autocast_available(kind)
    return torch.autocast(kind, enabled=False) if known else nullcontext()


def _covered(begin: Tensor, end: Tensor, edges: Tensor) -> Tensor:
    """How much of each cell between the edges [n + 1] a side from ``begin`` to ``end`` [B, N] covers: [B, N, n]."""
    return (torch.minimum(end[..., None], edges[1:]) - torch.maximum(begin[..., None], edges[:-1])).clamp_min_(0)


def _clipped(boxes: Tensor, frame: Tensor) -> Tensor:
    """The part of each box [B, N, 4] that lies in the frame [B, 1, 4]; without area where none does."""
    low, high = frame[..., :2].repeat(1, 1, 2), frame[..., 2:].repeat(1, 1, 2)
    return torch.minimum(torch.maximum(boxes, low), high)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp_min_(0).prod(dim=-1)
