"""The oracle of `accumulate`: a step as two plain autograd passes, each on a copy of the model, that know of no host and no hook."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from mixsage import MixPlan


@dataclass
class Passes:
    """What two plain passes leave: their losses, their gradients by name, and the gradient of the clean loss with respect to the images."""

    clean_loss: Tensor | None
    mixed_loss: Tensor
    clean: dict[str, Tensor]
    mixed: dict[str, Tensor]
    image_gradient: Tensor | None

    def combined(self, clean_weight: float, mixed_weight: float) -> dict[str, Tensor]:
        return {name: clean_weight * self.clean[name] + mixed_weight * self.mixed[name] for name in self.mixed}


def plain_passes(model, images, labels, plan, criterion, *, clean_mode="train", clean_criterion=None, autocast=None) -> Passes:
    """The clean and the mixed pass of a step whose plan is known, one by one. ``autocast`` makes the context of each forward pass."""
    autocast = autocast or nullcontext

    first = deepcopy(model).train(model.training and clean_mode == "train")
    copy_flags(model, first, keep=clean_mode == "train")
    leaf = images.detach().clone().requires_grad_()
    with autocast():
        logits = first(leaf)
        clean_loss = (clean_criterion or criterion)(logits, one_hot(labels, logits.shape[1]))
    clean_loss.backward()

    second = deepcopy(model)
    with autocast():
        logits = mixed_logits(second, images, plan)
        mixed_loss = criterion(logits, mixed_targets(labels, plan, logits.shape[1]))
    mixed_loss.backward()
    return Passes(clean_loss.detach(), mixed_loss.detach(), gradients(first), gradients(second), leaf.grad)


def mixed_logits(model: nn.Module, images: Tensor, plan: MixPlan) -> Tensor:
    """The mixed pass; a hidden layer is mixed by a forward that is written over the layer's own."""
    if plan.layer is None:
        return model(plan.apply(images))
    layer = model.get_submodule(plan.layer)
    original = layer.forward
    layer.forward = lambda *inputs: plan.apply(original(*inputs))
    return model(images)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    return labels if labels.is_floating_point() else functional.one_hot(labels.long(), classes).to(torch.get_default_dtype())


def mixed_targets(labels: Tensor, plan: MixPlan, classes: int) -> Tensor:
    hot = one_hot(labels, classes)
    return sum(plan.weights[:, k, None] * hot[plan.sources[:, k]] for k in range(plan.sources.shape[1]))


def copy_flags(source: nn.Module, target: nn.Module, *, keep: bool) -> None:
    for one, other in zip(source.modules(), target.modules(), strict=True):
        other.training = one.training and keep


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """`.grad` of each parameter; zero where there is none."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
    }


def assert_gradients(
    model: nn.Module, expected: dict[str, Tensor], *, rtol: float = 1e-9, atol: float = 1e-12, scale: float = 1.0
) -> None:
    """`.grad` of each parameter, by name; ``atol`` is relative to the largest value of that gradient."""
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    assert any(tensor.abs().max() > 0 for tensor in expected.values()), (
        "the expected gradient is zero everywhere: the test would show nothing"
    )
    for name, tensor in expected.items():
        floor = atol * max(1e-3, float(tensor.abs().max()) * scale)
        torch.testing.assert_close(
            actual[name], tensor * scale, rtol=rtol, atol=floor, msg=lambda text, name=name: f"{name}: {text}"
        )


def precise(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy in the precision of the logits: the library's own works in float32, which would hide the tenth digit."""
    return -(targets.to(logits.dtype) * logits.log_softmax(dim=1)).sum(dim=1).mean()


def joined(first: MixPlan, second: MixPlan) -> MixPlan:
    """The plan of two batches that lie one after the other, each mixed within itself."""
    assert first.layer == second.layer
    assert type(first.warp) is type(second.warp)
    warp = first.warp
    if warp is not None:
        name = next(iter(vars(warp)))  # of the tensor that says where pixels come from
        warp = replace(warp, **{name: torch.cat([vars(first.warp)[name], vars(second.warp)[name]])})
    return replace(
        first,
        sources=torch.cat([first.sources, second.sources + len(first.sources)]),
        masks=torch.cat([first.dense_masks(), second.dense_masks()]),
        weights=torch.cat([first.weights, second.weights]),
        warp=warp,
    )


class Tokens(nn.Module):
    """A vision transformer of a few lines: patches, two blocks, a class token."""

    def __init__(self, channels: int = 3, classes: int = 5, side: int = 16, patch: int = 4, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) / 4)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) / 4)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens[:, 0])


class Attention(nn.Module):
    """A block of a vision transformer."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        query, key, value = self.queries(self.norm1(tokens)).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, count, width)
        tokens = tokens + self.out(seen)
        return tokens + self.mlp(self.norm2(tokens))
