"""The verb: a batch in, gradients out."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from mixsage import sampling
from mixsage.hidden import check_layers, mixed_at
from mixsage.host import Host
from mixsage.loss import cross_entropy, logits_of, scalar_of
from mixsage.methods.base import CleanPass, Mixer, check_kind, check_labels, soft_targets, without_autocast
from mixsage.plan import MixPlan
from mixsage.saliency import Criterion, arrived, detached, evaluating

_WAY_OUT = "give a host whose forward(model, images) returns them"


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """What a step was; tensors are detached and stay on their device."""

    loss: Tensor
    """The combined loss, as its gradient is in `.grad` (not scaled by ``weight``)."""
    clean_loss: Tensor | None
    """Loss of the clean pass, where there was one."""
    mixed_loss: Tensor
    """Loss on the mixed batch."""
    logits: Tensor
    """Logits [B, C] of the mixed batch."""
    clean_logits: Tensor | None
    """Logits [B, C] of the clean pass, where there was one."""
    plan: MixPlan
    """What was mixed; hand it to `accumulate` again to replay the step."""


def accumulate(
    mixer: Mixer,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    criterion: Criterion = cross_entropy,
    weight: float = 1.0,
    plan: MixPlan | None = None,
    generator: Generator | None = None,
    host: Host | None = None,
) -> Step:
    """One training step's gradients: the clean pass where the method needs one, the plan, the mixed pass.

    The combined gradient is added to `.grad`; whatever the loop had accumulated there stays.

    Args:
        mixer: the method.
        model: any module from images to logits [B, C].
        images: [B, C, H, W] floating point.
        labels: class indices [B], or soft labels [B, C].
        criterion: ``criterion(logits, soft_targets [B, C]) -> scalar``, for both passes.
        weight: factor on the step's gradient, for microbatches.
        plan: a plan to replay; drawn if left out.
        generator: a CPU generator; torch's default one if left out.
        host: what a loop that owns the passes does instead of ``model(images)`` and ``loss.backward()``.

    Example:
        >>> import mixsage
        >>> model = mixsage.models.preactresnet18(num_classes=10, width=8)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> images, labels = torch.rand(8, 3, 32, 32), torch.arange(8)
        >>> step = accumulate(mixsage.SAGE(), model, images, labels)
        >>> optimizer.step(); optimizer.zero_grad(set_to_none=True)
    """
    check_kind("mixer", mixer, Mixer, "SAGE() or Mixup(alpha=0.2)")
    check_kind("host", host or Host(), Host, "ScalerHost(scaler)")
    if not callable(model):
        raise TypeError(f"model must be a module from images to logits, got {model!r}")
    if not callable(criterion):
        raise TypeError(f"criterion must be a loss of logits and soft targets, such as mixsage.cross_entropy, got {criterion!r}")
    mixer = mixer.bind(model)
    host = (host or Host()).bind(model)
    _check(mixer, model, images, labels, plan, generator)
    images = detached(images)
    mixing, generator = _begin(mixer, plan, generator, host)
    clean = mixer.clean if mixing else None

    with torch.enable_grad():
        first = _clean_pass(clean, mixer, model, images, labels, criterion, weight, plan is None, host) if clean else _NO_PASS
        if plan is None:
            plan = (
                mixer.draw_from(images, labels, None, first.gradient, generator)
                if mixing
                else MixPlan.identity(len(images), images.device)
            )
        mixed_weight = mixer.mixed_weight if mixing else 1.0
        logits, mixed_loss = _mixed_pass(plan, model, images, labels, criterion, mixed_weight * weight, host)

    combined = mixed_loss * mixed_weight
    if clean and clean.weight and first.loss is not None:
        combined = combined + first.loss * clean.weight
    return Step(loss=combined, clean_loss=first.loss, mixed_loss=mixed_loss, logits=logits, clean_logits=first.logits, plan=plan)


@dataclass(frozen=True, eq=False)
class _Pass:
    logits: Tensor | None = None
    loss: Tensor | None = None
    gradient: Tensor | None = None


_NO_PASS = _Pass()


def _begin(mixer: Mixer, plan: MixPlan | None, generator: Generator | None, host: Host) -> tuple[bool, Generator | None]:
    """Whether this step mixes, and the generator of its choices. A batch that is not mixed is an ordinary step, without a clean pass."""
    if plan is not None:
        return not plan.is_identity, None
    # Before the processes part ways: where they were seeded alike they mix the same steps, so that none runs a pass (and waits in its
    # synchronised BatchNorm) that the others do not.
    mixing = sampling.coin(mixer.prob, generator)
    return mixing, host.choices(generator)


def _clean_pass(
    clean: CleanPass,
    mixer: Mixer,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    criterion: Criterion,
    weight: float,
    drawing: bool,
    host: Host,
) -> _Pass:
    wants_maps = drawing and mixer.source is not None and mixer.source.needs_gradient
    if not wants_maps and not clean.weight:
        return _NO_PASS
    leaf = images.detach().requires_grad_(wants_maps)
    # The forward lies inside no_sync too, as DistributedDataParallel decides to reduce when it goes forward.
    with host.no_sync(), evaluating(model) if clean.mode == "eval" else nullcontext():
        logits = logits_of(host.forward(model, leaf), _WAY_OUT)
        loss = scalar_of((clean.criterion or criterion)(logits, soft_targets(labels, logits.shape[1])))
        with without_autocast(images):
            if clean.weight:
                host.backward(loss * (clean.weight * weight))
                gradient = arrived(leaf.grad) if wants_maps else None
            else:
                gradient = host.input_gradient(loss, leaf)
    return _Pass(logits.detach(), loss.detach(), gradient)


def _mixed_pass(
    plan: MixPlan, model: nn.Module, images: Tensor, labels: Tensor, criterion: Criterion, weight: float, host: Host
) -> tuple[Tensor, Tensor]:
    inputs = plan.apply(images) if plan.layer is None else images
    with mixed_at(model, plan) as forward_is_over:
        logits = logits_of(host.forward(model, inputs), _WAY_OUT)
        forward_is_over()
        loss = scalar_of(criterion(logits, plan.targets(labels, logits.shape[1])))
        with without_autocast(images):
            host.backward(loss * weight)
    return logits.detach(), loss.detach()


def _check(
    mixer: Mixer, model: nn.Module, images: Tensor, labels: Tensor, plan: MixPlan | None, generator: Generator | None
) -> None:
    if torch.is_inference_mode_enabled():
        raise RuntimeError("accumulate computes gradients, but torch.inference_mode() is on; call it outside of that context")
    mixer.check(images, generator)
    check_labels(labels, images)
    if plan is None:
        return
    check_kind("plan", plan, MixPlan, "the plan of an earlier step")
    if len(plan.sources) != len(images):
        raise ValueError(
            f"the plan mixes {len(plan.sources)} images, got {len(images)}; replay it on the batch that it was drawn for"
        )
    # All that a replay may stumble over, before the clean pass leaves its gradients.
    if plan.layer is None:
        plan.check_pool(images)
    else:
        check_layers(model, (plan.layer,))
