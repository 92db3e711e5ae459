"""Mixing a hidden layer: in whose models it finds stages, what it hooks and for how long, and which layers it refuses."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mixsage
from helpers import assert_same_plan, seeded, small_model
from mixsage import ManifoldMixup, accumulate, models
from mixsage.hidden import find_stages, mixed_at
from plain_passes import Tokens, assert_gradients, gradients, plain_passes, precise


def batch(size=4, side=16, dtype=torch.float32):
    generator = seeded(100)
    images = torch.randn(size, 3, side, side, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(5, (size,), generator=generator)


def torchvision_model(name, **options):
    return pytest.importorskip("torchvision").models.get_model(name, num_classes=5, **options)


def timm_model(name, **options):
    # On the meta device, as below, the oldest supported timm cannot build: it reads the rates of its blocks out of a tensor.
    with torch.device("cpu"):
        return pytest.importorskip("timm").create_model(name, num_classes=5, **options)


def timm_vit(depth=3):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "num_heads": 3}
    return timm_model("vit_tiny_patch16_224", depth=depth, **sizes)


def hooked(model):
    """The modules that carry a hook of any kind."""
    return [
        name
        for name, module in model.named_modules()
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._forward_hooks_with_kwargs
    ]


# -------------------------------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda: models.preactresnet18(width=8), ["stage1", "stage2", "stage3", "stage4"]),
        (lambda: models.wrn16_8(width=16), ["stage1", "stage2", "stage3"]),
        (lambda: models.resnext29_4_24(width=8), ["stage1", "stage2", "stage3"]),
        (lambda: models.resnet12(width=8), ["stage1", "stage2", "stage3", "stage4"]),
        (lambda: models.small_convnet(width=4), ["stage1", "stage2", "stage3"]),
        (Tokens, ["blocks.0", "blocks.1"]),
        (lambda: torchvision_model("resnet18"), ["layer1", "layer2", "layer3", "layer4"]),
        (lambda: torchvision_model("convnext_tiny"), ["features.0", "features.1", "features.2"]),
        (lambda: torchvision_model("densenet121"), ["features.denseblock1", "features.denseblock2"]),
        (
            lambda: torchvision_model("vit_b_16", image_size=32),
            ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"],
        ),
        (lambda: timm_model("resnet18"), ["layer1", "layer2", "layer3", "layer4"]),
        (lambda: timm_model("convnext_atto"), ["stages.0", "stages.1", "stages.2", "stages.3"]),
        (timm_vit, ["blocks.0", "blocks.1", "blocks.2"]),
    ],
)
def test_stages_of_models_people_use(make, first):
    with torch.device("meta"):
        model = make()
    assert find_stages(model)[: len(first)] == first


def test_stages_are_in_the_order_of_their_numbers():
    model = nn.Sequential()
    model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(12))
    assert find_stages(model) == [f"blocks.{number}" for number in range(12)]


def test_a_model_without_stages_asks_for_layers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    images, labels = batch()
    with pytest.raises(ValueError, match=r"no stages were found in the model; name the layers to mix: ManifoldMixup\(layers="):
        accumulate(ManifoldMixup(), model, images, labels)
    step = accumulate(ManifoldMixup(layers=("1",)), model, images, labels)
    assert step.plan.layer == "1"


def test_layers_drawn_are_the_input_and_two_stages():
    model, (images, labels), generator = models.preactresnet18(width=8, num_classes=5), batch(2), seeded(0)
    drawn = [accumulate(ManifoldMixup(), model, images, labels, generator=generator).plan.layer for _ in range(60)]
    counts = {layer: drawn.count(layer) for layer in set(drawn)}
    assert counts.keys() == {None, "stage1", "stage2"}
    assert min(counts.values()) >= 9  # 20 expected; three standard deviations


# ------------------------------------------------------------------------------------------------------------------------- mixing


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (lambda: models.preactresnet18(width=8, num_classes=5), "stage2"),
        (lambda: models.small_convnet(5, 3, 4), "stage1"),
        (lambda: torchvision_model("resnet18"), "layer1"),
        (lambda: torchvision_model("resnet18"), "layer2.0.conv1"),
        (timm_vit, "blocks.1"),
        (timm_vit, "patch_embed"),
        (Tokens, "blocks.0"),
    ],
)
def test_gradient_is_that_of_a_model_with_the_mixing_written_in(make, layer):
    images, labels = batch(dtype=torch.float64)
    torch.manual_seed(0)
    model = make().double()
    alone = make().double()
    alone.load_state_dict(model.state_dict())
    step = accumulate(ManifoldMixup(layers=(layer,)), model, images, labels, criterion=precise, generator=seeded(3))
    assert step.plan.layer == layer
    assert hooked(model) == []
    assert_gradients(model, plain_passes(alone, images, labels, step.plan, precise).mixed, rtol=1e-8)


def test_a_plan_without_a_layer_hooks_nothing():
    model = small_model()
    with mixed_at(model, mixsage.Mixup().plan(batch()[0])) as forward_is_over:
        assert hooked(model) == []
        forward_is_over()


def test_the_hook_lives_as_long_as_the_step():
    model, (images, labels), seen = small_model(), batch(), []

    def criterion(logits, targets):
        seen.append(hooked(model))
        return precise(logits, targets)

    accumulate(ManifoldMixup(layers=("stage1",)), model, images, labels, criterion=criterion)
    assert seen == [["stage1"]]
    assert hooked(model) == []


def test_hooks_of_others_stay_and_run():
    model, (images, labels), seen = small_model(), batch(), []
    model.stage1.register_forward_hook(lambda *_: seen.append("before"))
    accumulate(ManifoldMixup(layers=("stage1",)), model, images, labels)
    assert seen == ["before"]
    assert len(model.stage1._forward_hooks) == 1


@pytest.mark.parametrize("fails", ["forward", "criterion", "backward"])
def test_nothing_stays_hooked_after_an_exception(fails):
    model, (images, labels) = small_model(), batch()

    def fail(*_):
        raise ArithmeticError("on purpose")

    criterion = fail if fails == "criterion" else precise
    if fails == "forward":
        handle = model.head.register_forward_hook(fail)
    elif fails == "backward":
        handle = model.head.weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        accumulate(ManifoldMixup(layers=("stage1",)), model, images, labels, criterion=criterion)
    if fails != "criterion":
        handle.remove()
    assert hooked(model) == []


@pytest.mark.parametrize("make", [small_model, Tokens])
def test_dtype_and_memory_format_of_the_layer_are_kept(make):
    layer = "stage1" if make is small_model else "blocks.0"
    model, (images, labels), seen = make().to(memory_format=torch.channels_last), batch(), []
    images = images.to(memory_format=torch.channels_last)
    model.get_submodule(layer).register_forward_hook(lambda _m, _i, output: seen.append(output))
    following = model.stage2 if make is small_model else model.blocks[1]
    following.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        accumulate(ManifoldMixup(layers=(layer,)), model, images, labels)
    before, after = seen
    assert after.dtype == before.dtype
    assert after.shape == before.shape
    assert after.stride() == before.stride()
    assert not torch.equal(before, after)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_is_mixed_again_when_backward_runs_it_again(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_model().double()

        def forward(self, images):
            inner = self.inner
            maps = inner.stem(images)  # the older kind takes no gradient to a part whose input needs none
            for part in (inner.stage1, inner.stage2):
                maps = checkpoint(part, maps, use_reentrant=reentrant)
            return inner.head(maps.mean(dim=(2, 3)))

    images, labels = batch(dtype=torch.float64)
    for layer in ("stage1", "stage2", "stage1.0"):
        model, alone = Checkpointed(), small_model().double()
        step = accumulate(ManifoldMixup(layers=(f"inner.{layer}",)), model, images, labels, criterion=precise, generator=seeded(3))
        plan = mixsage.MixPlan(sources=step.plan.sources, masks=step.plan.masks, weights=step.plan.weights, layer=layer)
        assert_gradients(model.inner, plain_passes(alone, images, labels, plan, precise).mixed)
        assert hooked(model.inner.stage1) == []


def test_a_model_that_checkpoints_itself():
    model, alone, (images, labels) = timm_vit(), timm_vit(), batch()
    alone.load_state_dict(model.state_dict())
    model.set_grad_checkpointing()
    step = accumulate(ManifoldMixup(layers=("blocks.1",)), model, images, labels, criterion=precise, generator=seeded(3))
    assert_gradients(model, plain_passes(alone, images, labels, step.plan, precise).mixed, rtol=1e-4, atol=1e-5)


def test_a_hidden_step_is_replayed():
    images, labels = batch()
    one, other = small_model(), small_model()
    step = accumulate(ManifoldMixup(layers=("stage2",)), one, images, labels, generator=seeded(3))
    again = accumulate(ManifoldMixup(), other, images, labels, plan=step.plan)
    assert_gradients(other, gradients(one), rtol=0, atol=0)
    assert_same_plan(again.plan, step.plan)


# ---------------------------------------------------------------------------------------------------------- layers that are refused


def test_a_name_that_is_not_there_gets_the_nearest():
    images, labels = batch()
    with pytest.raises(ValueError, match=r"unknown layer 'stage_1'; did you mean 'stage1'\?"):
        accumulate(ManifoldMixup(layers=("input", "stage_1")), small_model(), images, labels)
    plan = accumulate(ManifoldMixup(layers=("stage1",)), small_model(), images, labels).plan
    with pytest.raises(ValueError, match=r"unknown layer 'stage1'; .*valid: blocks"):
        accumulate(mixsage.Mixup(), Tokens(), images, labels, plan=plan)


class Odd(nn.Module):
    """A model with layers that nobody can mix."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Conv2d(3, 3, 3, padding=1)
        self.unused = nn.Conv2d(3, 3, 3)
        self.pair = Pair()
        self.sequence = nn.Linear(3, 3)
        self.single = Mean()
        self.head = nn.Linear(3, 5)

    def forward(self, images):
        maps = self.twice(self.twice(images))
        maps, offset = self.pair(maps)
        tokens = self.sequence(maps.flatten(2).permute(2, 0, 1))  # [T, B, D], as transformers once had it
        return self.head(tokens.mean(dim=0) + offset) + self.single(tokens)


class Pair(nn.Module):
    def forward(self, maps):
        return maps, maps.mean()


class Mean(nn.Module):
    def forward(self, tokens):
        return tokens.mean()


@pytest.mark.parametrize(
    ("layer", "error", "message"),
    [
        ("twice", RuntimeError, r"'twice' ran more than once in one pass.*choose another layer"),
        ("unused", RuntimeError, r"'unused' did not run in this pass, so nothing was mixed; choose a layer"),
        ("pair", TypeError, r"'pair' returned tuple, only a tensor can be mixed; choose another layer"),
        (
            "sequence",
            ValueError,
            r"'sequence' returned \[64, 4, 3\] for a batch of 4; only an output whose first axis is the batch",
        ),
        ("single", ValueError, r"'single' returned \[\] for a batch of 4"),
    ],
)
def test_a_layer_that_cannot_be_mixed_is_refused_before_any_gradient(layer, error, message):
    model, (images, labels) = Odd(), batch(side=8)
    with pytest.raises(error, match=message):
        accumulate(ManifoldMixup(layers=(layer,)), model, images, labels)
    assert hooked(model) == []
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("layers", ["stage1", (), ["stage1"], (1,)])
def test_layers_are_a_tuple_of_names(layers):
    with pytest.raises(ValueError, match="layers must name at least one layer in a tuple"):
        ManifoldMixup(layers=layers)


def test_the_context_by_itself():
    model, (images, _labels) = small_model().eval(), batch()
    plan = mixsage.MixPlan(sources=torch.tensor([[1], [0], [3], [2]]), masks=torch.ones(4, 1, 1, 1), layer="stage1")
    with torch.no_grad(), mixed_at(model, plan) as forward_is_over:
        logits = model(images)
        forward_is_over()
        again = model(images)  # as backward does where activations are checkpointed
    with torch.no_grad(), nullcontext():
        expected = model(images)[[1, 0, 3, 2]]
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(again, expected)
