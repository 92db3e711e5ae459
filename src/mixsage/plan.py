"""`MixPlan`: which images are mixed, how much of each shows at each pixel, and where every pixel comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from mixsage import dense
from mixsage import warp as geometry
from mixsage.forms import Blocks, Boxes, Shift, describe, moved

__all__ = ["Blocks", "Boxes", "MixPlan", "Shift", "check_class_indices"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MixPlan:
    """How a batch is to be mixed: drawn once, then applied to whatever lies on the same grid.

    Example:
        >>> plan = MixPlan(sources=torch.tensor([[0, 1], [1, 0]]), masks=torch.full((2, 2, 1, 1), 0.5))
        >>> plan.apply(torch.tensor([[0.0], [4.0]]))
        tensor([[2.],
                [2.]])
        >>> plan.targets(torch.tensor([0, 2]), num_classes=3)
        tensor([[0.5000, 0.0000, 0.5000],
                [0.5000, 0.0000, 0.5000]])
    """

    sources: Tensor
    """[B, K] int64: rows of the pool that go into each output, the image itself first."""
    masks: Tensor | Boxes
    """[B, K, h, w] float32, the share of each source, summing to 1 over K: 1×1 is a blend, n×n a grid of blocks, H×W a share for each pixel."""
    warp: Shift | Blocks | None = None
    """How each source moves before the mask selects from it."""
    weights: Tensor = None  # type: ignore[assignment]  # filled below when left out, so that it is always a tensor to readers
    """[B, K] float32: label shares; the mean of the masks when left out."""
    layer: str | None = None
    """Dotted name of the module whose output is mixed instead of the input."""

    def __post_init__(self) -> None:
        self._check()
        if cast("Tensor | None", self.weights) is None:
            object.__setattr__(self, "weights", self._mean_masks())
        if self.weights.shape != self.sources.shape or self.weights.dtype != torch.float32:
            raise ValueError(f"weights must be [B, K] = {list(self.sources.shape)} float32, got {describe(self.weights)}")

    @classmethod
    def identity(cls, batch: int, device: torch.device | str | None = None) -> MixPlan:
        """The plan that leaves every image as it is."""
        return cls(
            sources=torch.arange(batch, device=device)[:, None],
            masks=torch.ones(batch, 1, 1, 1, dtype=torch.float32, device=device),
        )

    @property
    def is_identity(self) -> bool:
        """Whether nothing is mixed or moved, as in `identity`: one source an output. Read off the form, never off values on a device."""
        return self.sources.shape[1] == 1 and self.warp is None and self.layer is None

    def apply(self, pool: Tensor) -> Tensor:
        """Mix the rows of ``pool`` [P, …]: its dtype, device and memory format, a new tensor, differentiable in ``pool``.

        The rows are the batch, unless the method brought rows of its own, which then follow the batch's.
        """
        self.check_pool(pool)
        channels_last = _is_channels_last(pool)
        grid = pool.movedim(1, -1) if channels_last else pool
        mixed = self._paste(grid, channels_last) if isinstance(self.masks, Boxes) else self._blend(grid, channels_last)
        return mixed.movedim(-1, 1) if channels_last else mixed

    def targets(self, labels: Tensor, num_classes: int) -> Tensor:
        """Mixed labels [B, C] float32 from class indices [P] or from labels that are soft already [P, C].

        Soft labels are shares of classes, or several classes at once (zeros and ones in floating point): each output's are the weighted
        mean of its sources', and need not sum to 1.
        """
        if labels.is_floating_point():
            return self._mix_soft(labels, num_classes)
        check_class_indices(labels, num_classes)
        self._check_rows(len(labels), "labels")
        empty = torch.zeros(len(self.sources), num_classes, dtype=torch.float32, device=self.weights.device)
        return empty.scatter_add_(1, labels.long().take(self.sources), self.weights)

    def apply_masks(self, class_maps: Tensor, num_classes: int | None = None, *, hard: bool = False, ignore: int = 255) -> Tensor:
        """Mix segmentation masks as `apply` mixes the images: the shares of the classes at each pixel [B, C, H, W] float32.

        What is ignored, or comes in from outside, has no share: where everything does the pixel's target is all zeros, and weighs nothing
        in `loss.pixel_cross_entropy`. The shares are those of the pixels (`masks`), not of the labels (`weights`). A plan that mixes a
        hidden layer mixes the classes likewise, but not if it shifts that layer, whose pixels are not the picture's.

        Args:
            class_maps: [P, H, W] whole numbers, on the grid of the images. Shares [P, C, H, W] of classes are mixed by `apply` itself.
            num_classes: number of classes C; not needed with ``hard``.
            hard: give the class of the source with the largest share (of equal ones, the first) instead: [B, H, W] int64.
            ignore: the value of pixels without a class.

        Example:
            >>> plan = MixPlan(sources=torch.tensor([[0, 1], [1, 0]]), masks=torch.tensor([0.75, 0.25]).expand(2, 2).view(2, 2, 1, 1))
            >>> class_maps = torch.tensor([[[0, 1]], [[1, 255]]])
            >>> plan.apply_masks(class_maps, num_classes=2)[0, :, 0]
            tensor([[0.7500, 0.0000],
                    [0.2500, 0.7500]])
            >>> plan.apply_masks(class_maps, hard=True)[:, 0]
            tensor([[  0,   1],
                    [  1, 255]])
        """
        dense.check_class_maps(class_maps, num_classes, hard, ignore)
        self._check_device(class_maps.device, "class maps")
        self._check_rows(len(class_maps), "class maps")
        self._check_picture(class_maps.shape[1], class_maps.shape[2], "class maps are")
        if hard or num_classes is None:
            return dense.hard_maps(self, class_maps, ignore)
        return dense.soft_maps(self, class_maps, num_classes, ignore)

    def apply_boxes(
        self, boxes: Sequence[Tensor], labels: Sequence[Tensor], size: Sequence[int], *, threshold: float = 0.1
    ) -> dense.MixedBoxes:
        """Mix detection targets: every source's boxes, moved with it, clipped, and weighted by the share of the box that shows.

        A box that is pasted is clipped to the pasted part; one that something is pasted over keeps its corners and loses weight. Plans that
        move blocks are refused, as they leave no box whole.

        Args:
            boxes: [N, 4] for each row of the pool: left, top, right, bottom in pixels; an image without boxes has [0, 4].
            labels: [N] for each row of the pool.
            size: height and width of the pictures.
            threshold: boxes of which less shows are dropped.

        Example:
            >>> plan = MixPlan(sources=torch.tensor([[0, 1], [1, 0]]), masks=Boxes(torch.tensor([[0, 0, 4, 4]]), height=8, width=8))
            >>> boxes = [torch.tensor([[0.0, 0.0, 4.0, 8.0]]), torch.tensor([[2.0, 2.0, 6.0, 6.0]])]
            >>> plan.apply_boxes(boxes, [torch.tensor([5]), torch.tensor([7])], size=(8, 8)).per_image()[0]
            {'boxes': tensor([[0., 0., 4., 8.],
                    [2., 2., 4., 4.]]), 'labels': tensor([5, 7]), 'weights': tensor([0.5000, 0.2500])}
        """
        dense.check_boxes(self, boxes, labels, size, threshold)
        self._check_rows(len(boxes), "lists of boxes")
        for corners, names in zip(boxes, labels, strict=True):
            self._check_device(corners.device, "boxes")
            self._check_device(names.device, "labels of the boxes")
        height, width = size
        self._check_picture(height, width, "pictures are")
        return dense.mix_boxes(self, boxes, labels, height, width, threshold)

    def dense_masks(self) -> Tensor:
        """The masks as a tensor [B, K, h, w] whatever form they are kept in: for pictures and for inspection."""
        if isinstance(self.masks, Tensor):
            return self.masks
        inside = self.masks.inside().to(torch.float32).to(self.sources.device)
        return torch.stack([1 - inside, inside], dim=1).expand(len(self.sources), -1, -1, -1)

    def to(self, device: torch.device | str) -> MixPlan:
        """The same plan on another device."""
        return replace(
            self,
            sources=moved(self.sources, device),
            masks=moved(self.masks, device) if isinstance(self.masks, Tensor) else self.masks.to(device),
            weights=moved(self.weights, device),
            warp=None if self.warp is None else self.warp.to(device),
        )

    # ------------------------------------------------------------------------------------------------------------------ mixing

    def _blend(self, grid: Tensor, channels_last: bool) -> Tensor:
        """Σ_k mask_k · source_k, one source at a time, so that no [B, K, …] copy of the images ever exists."""
        # A share is float32, and products of half precision with it are formed in float32: rounding the shares to half would make
        # them sum to something else than 1 and push values out of the range of the inputs.
        # The last source goes first: it is a copy of our own, which then holds the sum, so that no further one is needed.
        assert isinstance(self.masks, Tensor)
        count = self.sources.shape[1]
        mixed, visible = self._source(grid, count - 1, channels_last)
        if count == 2 and self.warp is None and grid.dtype == self.masks.dtype:
            # Nothing comes from outside, so that the two shares sum to 1, and one pass over the images is enough.
            return _between(mixed, self._rows(grid, 0), self._share(0, grid, None, channels_last))
        mixed = _product(mixed, self._share(count - 1, grid, visible, channels_last), own=count > 1)
        for k in reversed(range(count - 1)):
            source, visible = self._source(grid, k, channels_last)
            mixed = _add_product(mixed, source, self._share(k, grid, visible, channels_last))
        return mixed.to(grid.dtype)

    def _paste(self, grid: Tensor, channels_last: bool) -> Tensor:
        """The second source inside the box, the first outside."""
        assert isinstance(self.masks, Boxes)
        base, _ = self._source(grid, 0, channels_last)
        corners = self.masks.corners
        if len(corners) == 1 and corners.device.type == "cpu":
            # A shared box that the host knows is two slices: nothing outside the box is read or written twice.
            top, left, bottom, right = corners[0].tolist()
            mixed = base.clone() if base.untyped_storage().data_ptr() == grid.untyped_storage().data_ptr() else base
            columns = slice(left, right)
            rows = slice(top, bottom)
            box = (..., rows, columns, slice(None)) if channels_last else (..., rows, columns)
            if grid.requires_grad and torch.is_grad_enabled():
                mixed[box] = grid[box].index_select(0, self.sources[:, 1])
            else:  # straight into its place, which autograd could not follow
                torch.index_select(grid.detach()[box], 0, self.sources[:, 1], out=mixed.detach()[box])
            return mixed
        other, _ = self._source(grid, 1, channels_last)
        inside = self.masks.to(grid.device).inside()
        return torch.where(_expand_share(inside, grid, channels_last), other, base)

    def _source(self, grid: Tensor, k: int, channels_last: bool) -> tuple[Tensor, Tensor | None]:
        """Source ``k`` of every output, moved to its place; and which pixels lie inside it, if not all do."""
        if self.warp is None or not self.warp.moves(k):
            return self._rows(grid, k), None
        height, width = _sides(grid, channels_last)
        index, visible = self.warp.index(k, height, width)
        if channels_last:
            # A pixel's colours lie together: whole pixels are picked out of the pool in one pass. A clip holds several pictures.
            pictures = math.prod(grid.shape[1:-3])
            picture = self.sources[:, k, None] * pictures + torch.arange(pictures, device=index.device)
            pixels = (picture[:, :, None] * (height * width) + index[:, None, :]).flatten()
            return grid.flatten(0, -2).index_select(0, pixels).view(len(index), *grid.shape[1:]), visible
        rows = self._rows(grid, k)
        flat = rows.flatten(-2)
        return flat.gather(-1, index.view(len(index), *[1] * (flat.ndim - 2), -1).expand_as(flat)).view(rows.shape), visible

    def _rows(self, grid: Tensor, k: int) -> Tensor:
        rows = self.sources[:, k]
        # Host tensors may be looked at, as that waits for no device: the image itself then needs no copy.
        if k == 0 and rows.device.type == "cpu" and torch.equal(rows, torch.arange(len(rows), device="cpu")):
            return grid[: len(rows)]
        return grid.index_select(0, rows)

    def _share(self, k: int, grid: Tensor, visible: Tensor | None, channels_last: bool) -> Tensor:
        """The mask of source ``k`` in a shape that multiplies the images."""
        assert isinstance(self.masks, Tensor)
        share = self.masks[:, k]
        if share.shape[1:] == (1, 1) and visible is None:
            return share.reshape(-1, *[1] * (grid.ndim - 1))
        share = geometry.enlarge(share, *_sides(grid, channels_last))
        if visible is not None:
            share = share * visible
        return _expand_share(share, grid, channels_last)

    def _mix_soft(self, labels: Tensor, num_classes: int) -> Tensor:
        if labels.ndim != 2 or labels.shape[1] != num_classes:
            raise ValueError(
                f"soft labels must be [B, {num_classes}], got {list(labels.shape)}; pass class indices [B], or shares for every class"
            )
        self._check_rows(len(labels), "labels")
        mixed = self.weights[:, :1] * labels[self.sources[:, 0]].float()
        for k in range(1, self.sources.shape[1]):
            mixed = mixed.addcmul_(self.weights[:, k : k + 1], labels[self.sources[:, k]].float())
        return mixed

    def _mean_masks(self) -> Tensor:
        if isinstance(self.masks, Boxes):
            return moved(self.masks.weights(), self.sources.device).expand(len(self.sources), -1)
        return self.masks.mean(dim=(2, 3))

    # ------------------------------------------------------------------------------------------------------------------ checks

    def _check(self) -> None:
        """Structure only: to look at values would wait for the device."""
        if self.sources.ndim != 2 or self.sources.dtype != torch.int64:
            raise ValueError(f"sources must be [B, K] int64, got {describe(self.sources)}")
        batch, count = self.sources.shape
        if isinstance(self.masks, Boxes):
            corners = self.masks.corners
            if count != 2 or corners.shape not in {(batch, 4), (1, 4)} or corners.dtype != torch.int64:
                raise ValueError(
                    f"Boxes mix 2 sources and are corners [{batch}, 4] or [1, 4] int64; got {count} sources, {describe(corners)}"
                )
        elif self.masks.ndim != 4 or self.masks.shape[:2] != (batch, count) or self.masks.dtype != torch.float32:
            raise ValueError(f"masks must be [B, K, h, w] = [{batch}, {count}, h, w] float32, got {describe(self.masks)}")
        if isinstance(self.warp, Shift) and (
            self.warp.offsets.shape != (batch, count, 2) or self.warp.offsets.dtype != torch.int64
        ):
            raise ValueError(f"Shift offsets must be [B, K, 2] = [{batch}, {count}, 2] int64, got {describe(self.warp.offsets)}")
        if isinstance(self.warp, Blocks):
            order = self.warp.order
            if order.ndim != 3 or order.shape[:2] != (batch, count) or order.dtype != torch.int64:
                raise ValueError(f"Blocks order must be [B, K, n·n] = [{batch}, {count}, n·n] int64, got {describe(order)}")
            geometry.side_of(order.shape[2])
        if self.warp is not None and isinstance(self.masks, Boxes):
            raise ValueError("Boxes do not go with a warp; use dense masks [B, K, H, W]")

    def _check_rows(self, count: int, things: str) -> None:
        if count < len(self.sources):
            raise ValueError(
                f"the plan mixes {len(self.sources)} images, got only {count} {things}; apply it to the batch that it was drawn for"
            )

    def check_pool(self, pool: Tensor) -> None:
        """Whether the plan can be applied to these rows: an error that says what does not fit, or nothing."""
        if not pool.is_floating_point():
            raise TypeError(f"apply mixes floating-point values, got {pool.dtype}; convert first, for example images.float() / 255")
        self._check_device(pool.device, "pool")
        self._check_rows(len(pool), "rows")
        if self._is_spatial() and pool.ndim < 3:
            raise ValueError(f"this plan needs rows and columns, got {describe(pool)}; expected [P, …, H, W]")
        if self._is_spatial():
            self._check_grid(*_sides_of(pool), "pool has")

    def _check_device(self, device: torch.device, thing: str) -> None:
        if device != self.sources.device:
            raise ValueError(
                f"the plan lies on {self.sources.device}, the {thing} on {device}; move the plan with plan.to({str(device)!r})"
            )

    def _is_spatial(self) -> bool:
        return isinstance(self.masks, Boxes) or self.warp is not None or self.masks.shape[2:] != (1, 1)

    def _check_grid(self, height: int, width: int, thing: str) -> None:
        if isinstance(self.masks, Boxes):
            wanted, fits = (self.masks.height, self.masks.width), (self.masks.height, self.masks.width) == (height, width)
        else:
            n = geometry.side_of(self.warp.order.shape[2]) if isinstance(self.warp, Blocks) else 1
            wanted = (max(n, self.masks.shape[2]), max(n, self.masks.shape[3]))
            fits = wanted[0] <= height and wanted[1] <= width
        if not fits:
            raise ValueError(
                f"the plan was drawn for a grid of {wanted[0]}×{wanted[1]}, the {thing} {height}×{width}; draw a plan for this size"
            )

    def _check_picture(self, height: int, width: int, thing: str) -> None:
        """Targets lie on the grid of the picture, not on that of a hidden layer."""
        if self.layer is not None and isinstance(self.warp, Shift):
            raise ValueError(
                f"the plan shifts the output of the layer {self.layer!r}, whose pixels are not the picture's; "
                "for targets on that layer's own grid use dataclasses.replace(plan, layer=None)"
            )
        self._check_grid(height, width, thing)


def check_class_indices(labels: Tensor, num_classes: int) -> None:
    """Class indices must be [B] integers below ``num_classes``; values are looked at only where that waits for no device."""
    if labels.dtype == torch.bool or labels.is_complex() or labels.ndim != 1:
        raise ValueError(f"labels must be class indices [B] or soft labels [B, C] in floating point, got {describe(labels)}")
    if labels.device.type != "cpu" or not labels.numel():
        return
    least, most = (int(label) for label in labels.aminmax())
    if least < 0 or most >= num_classes:
        raise ValueError(
            f"labels range from {least} to {most}, but there are {num_classes} classes (0 to {num_classes - 1}); "
            "set num_classes to the number of classes, or number the classes from 0"
        )


def _product(source: Tensor, share: Tensor, *, own: bool) -> Tensor:
    if not own or source.requires_grad or source.dtype != share.dtype:
        return source * share
    return source.mul_(share)


def _between(own: Tensor, other: Tensor, share: Tensor) -> Tensor:
    return own.lerp(other, share) if own.requires_grad or other.requires_grad else own.lerp_(other, share)


def _add_product(total: Tensor, source: Tensor, share: Tensor) -> Tensor:
    if total.requires_grad or total.dtype != source.dtype or total.dtype != share.dtype:
        return total + source * share
    return total.addcmul_(source, share)


def _is_channels_last(pool: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return pool.ndim in formats and not pool.is_contiguous() and pool.is_contiguous(memory_format=formats[pool.ndim])


def _sides_of(pool: Tensor) -> tuple[int, int]:
    return pool.shape[-2], pool.shape[-1]


def _sides(grid: Tensor, channels_last: bool) -> tuple[int, int]:
    return (grid.shape[-3], grid.shape[-2]) if channels_last else _sides_of(grid)


def _expand_share(share: Tensor, grid: Tensor, channels_last: bool) -> Tensor:
    """[B, H, W] with axes of length 1 where the images have further ones."""
    shape = list(share.shape)
    extra = [1] * (grid.ndim - 3)
    return share.reshape(shape[:1] + extra[1:] + shape[1:] + [1]) if channels_last else share.reshape(shape[:1] + extra + shape[1:])
