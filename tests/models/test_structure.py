"""Every model against the same network written out, step by step, from its weights: where each norm, bias and stride stands."""

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, conv2d, leaky_relu, max_pool2d, relu

from mixsage import models


def settled(name, **options):
    """A small model in float64 and evaluation mode, whose norms all do something."""
    torch.manual_seed(1)
    model = models.create(name, 3, **{"width": 8, **options}).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
            nn.init.normal_(module.running_mean, 0, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def norm(maps, weights, at):
    mean, variance, scale, bias = (
        weights[f"{at}.{key}"].view(1, -1, 1, 1) for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (maps - mean) / (variance + 1e-5).sqrt() * scale + bias


def head(maps, weights):
    return maps.mean(dim=(2, 3)) @ weights["head.weight"].T + weights["head.bias"]


def images(side=(19, 11)):
    return torch.randn(2, 3, *side, dtype=torch.float64)


@pytest.mark.parametrize("final_norm", [False, True])
def test_preactresnet18(final_norm):
    model = settled("preactresnet18", final_norm=final_norm)
    weights, x = model.state_dict(), images()
    maps = conv2d(x, weights["stem.weight"], padding=1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            active = relu(norm(maps, weights, f"{at}.norm1"))
            residual = conv2d(active, weights[f"{at}.conv1.weight"], stride=stride, padding=1)
            residual = conv2d(relu(norm(residual, weights, f"{at}.norm2")), weights[f"{at}.conv2.weight"], padding=1)
            if stride == 2:
                maps = conv2d(active, weights[f"{at}.shortcut.weight"], stride=2) + residual
            else:
                maps = maps + residual
    if final_norm:
        maps = relu(norm(maps, weights, "tail.0"))
    torch.testing.assert_close(model(x), head(maps, weights))


def test_preactresnet18_normalises_the_last_stage_only_if_asked():
    plain, normed = models.preactresnet18(width=8), models.preactresnet18(width=8, final_norm=True)
    assert isinstance(plain.tail, nn.Identity)
    assert [type(module) for module in normed.tail] == [nn.BatchNorm2d, nn.ReLU]
    assert normed.tail[0].num_features == 64


def test_wrn16_8():
    model = settled("wrn16_8")
    weights, x = model.state_dict(), images()

    def convolve(maps, at, **options):
        return conv2d(maps, weights[f"{at}.weight"], weights[f"{at}.bias"], **options)

    maps = convolve(x, "stem", padding=1)
    for stage in (1, 2, 3):
        for block in (0, 1):
            at = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            residual = convolve(relu(norm(maps, weights, f"{at}.norm1")), f"{at}.conv1", padding=1)
            residual = convolve(relu(norm(residual, weights, f"{at}.norm2")), f"{at}.conv2", stride=stride, padding=1)
            changes = f"{at}.shortcut.weight" in weights
            assert changes == (stride == 2)  # at this width the stem is as wide as the first stage
            maps = (convolve(maps, f"{at}.shortcut", stride=stride) if changes else maps) + residual
    torch.testing.assert_close(model(x), head(relu(norm(maps, weights, "tail.0")), weights))


def test_wrn16_8_as_published():
    with torch.device("meta"):
        model = models.wrn16_8()
    assert model.stem.out_channels == 16
    assert [getattr(model, f"stage{number}")[1].conv2.out_channels for number in (1, 2, 3)] == [128, 256, 512]
    assert model.stage1[0].shortcut.kernel_size == (1, 1)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [module.momentum for module in norms] == [0.1] * 12 + [0.9]
    assert norms[-1] is model.tail[0]
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


def test_resnext29_4_24():
    model = settled("resnext29_4_24")
    weights, x = model.state_dict(), images()
    maps = relu(norm(conv2d(x, weights["stem.0.weight"], padding=1), weights, "stem.1"))
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            at = f"stage{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            residual = relu(norm(conv2d(maps, weights[f"{at}.reduce.weight"]), weights, f"{at}.norm1"))
            groups = [
                conv2d(part, kernel, stride=stride, padding=1)
                for part, kernel in zip(residual.chunk(4, 1), weights[f"{at}.conv.weight"].chunk(4), strict=True)
            ]
            residual = relu(norm(torch.cat(groups, 1), weights, f"{at}.norm2"))
            residual = norm(conv2d(residual, weights[f"{at}.expand.weight"]), weights, f"{at}.norm3")
            if block == 0:
                maps = norm(conv2d(maps, weights[f"{at}.shortcut.0.weight"], stride=stride), weights, f"{at}.shortcut.1")
            maps = relu(maps + residual)
    torch.testing.assert_close(model(x), head(maps, weights))


def test_resnext29_4_24_as_published():
    torch.manual_seed(0)
    model = models.resnext29_4_24()
    assert [getattr(model, f"stage{number}")[0].conv.out_channels for number in (1, 2, 3)] == [96, 192, 384]
    assert model.head.in_features == 1024
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            he = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            assert module.weight.std().item() == pytest.approx(he, rel=0.08)
            assert module.bias is None
    assert model.head.weight.std().item() == pytest.approx((2 / 1024) ** 0.5, rel=0.05)
    assert not model.head.bias.any()


def test_resnet12():
    model = settled("resnet12")
    weights, x = model.state_dict(), images((35, 84))
    maps = x
    for stage in (1, 2, 3, 4):
        at = f"stage{stage}"
        residual = maps
        for number in (1, 2, 3):
            residual = norm(conv2d(residual, weights[f"{at}.conv{number}.weight"], padding=1), weights, f"{at}.norm{number}")
            if number < 3:
                residual = leaky_relu(residual, 0.1)
        shortcut = norm(conv2d(maps, weights[f"{at}.shortcut.0.weight"]), weights, f"{at}.shortcut.1")
        maps = max_pool2d(leaky_relu(shortcut + residual, 0.1), 2)
    assert maps.shape[2:] == (2, 5)
    torch.testing.assert_close(model(x), head(maps, weights))


def test_resnet12_as_published():
    with torch.device("meta"):
        model = models.resnet12(64)
    assert [getattr(model, f"stage{number}").conv3.out_channels for number in (1, 2, 3, 4)] == [64, 160, 320, 640]


@pytest.mark.parametrize("with_norm", [True, False])
def test_small_convnet(with_norm):
    model = settled("small_convnet", norm=with_norm)
    weights, x = model.state_dict(), images()
    maps = x
    for stage in (1, 2, 3):
        maps = conv2d(maps, weights[f"stage{stage}.0.weight"], weights.get(f"stage{stage}.0.bias"), padding=1)
        maps = max_pool2d(relu(norm(maps, weights, f"stage{stage}.1") if with_norm else maps), 2)
    torch.testing.assert_close(model(x), head(maps, weights))
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == with_norm


@pytest.mark.parametrize("name", ["preactresnet18", "wrn16_8", "resnext29_4_24"])
def test_at_32_pixels_the_pool_is_the_published_one(name):
    """The authors pool windows of 4 or 8 pixels, which at 32x32 pixels is the whole map."""
    model = settled(name)
    x, maps = images((32, 32)), []
    model.tail.register_forward_hook(lambda module, inputs, output: maps.append(output))
    features = model.features(x)
    window = 4 if name == "preactresnet18" else 8
    torch.testing.assert_close(features, avg_pool2d(maps[0], window).flatten(1))
