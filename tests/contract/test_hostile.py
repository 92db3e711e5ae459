"""Numbers that break things: a finite, valid plan or a clear error, and never NaN out of finite images, whatever the method."""

import pytest
import torch
from torch import nn

import mixsage
from helpers import assert_valid_plan, seeded
from mixsage import SAGE, Full, NoShift, Paste, Uniform, available, get, sampling

CLASSES = 5
INF, NAN = float("inf"), float("nan")
MIXERS = {name: get(name)(prob=1.0, num_classes=CLASSES) for name in available()} | {
    "one by one": SAGE(num_classes=CLASSES, per_sample=True),
    "pasted": SAGE(num_classes=CLASSES, blend=Paste()),
    "all shifts": SAGE(num_classes=CLASSES, search=Full()),
    "no rearrangement": SAGE(num_classes=CLASSES, search=NoShift()),
    "uniform maps": SAGE(num_classes=CLASSES, saliency=Uniform()),
}
LOOKING = [name for name, mixer in MIXERS.items() if mixer.source is not None and mixer.source.needs_gradient]
IMAGES, LABELS = torch.randn(4, 3, 16, 12, generator=seeded()), torch.tensor([0, 1, 2, 0])


def spot(value, base=0.0):
    maps = torch.full((4, 16, 12), base)
    maps[:, 5, 7] = value
    return maps


MAPS = {
    "nothing": spot(0.0),
    "one pixel": spot(1.0),
    "one pixel, tiny": spot(1e-30),
    "one pixel, denormal": spot(1e-44),
    "all denormal": torch.full((4, 16, 12), 1e-44),
    "one pixel, huge": spot(3e38, 1.0),
    "all huge": torch.full((4, 16, 12), 3e38),
    "inf": spot(INF, 1.0),
    "-inf": spot(-INF, 1.0),
    "NaN": spot(NAN, 1.0),
    "all inf": torch.full((4, 16, 12), INF),
    "all -inf": torch.full((4, 16, 12), -INF),
    "all NaN": torch.full((4, 16, 12), NAN),
    "negative": spot(-1.0, -2.0),
    "of both signs": torch.randn(4, 16, 12, generator=seeded()),
    "one bad map among good ones": torch.rand(4, 16, 12, generator=seeded()).index_fill(0, torch.tensor(1), NAN),
    "one map of nothing among good ones": torch.rand(4, 16, 12, generator=seeded()).index_fill(0, torch.tensor(2), 0.0),
}


def assert_fit_to_use(mixer, images=IMAGES, labels=LABELS, **options):
    """Plan, mixed images and targets of several draws."""
    for seed in range(3):
        plan = mixer.plan(images, labels, **options, generator=seeded(seed))
        assert_valid_plan(plan, len(images))
        for value in (plan.apply(images), plan.targets(labels, CLASSES)):
            assert value.isfinite().all()


def maps_for(mixer, maps):
    return {"saliency": maps} if mixer.source is not None and mixer.source.needs_gradient else {}


@pytest.mark.parametrize("maps", MAPS)
@pytest.mark.parametrize("name", MIXERS)
def test_maps(name, maps):
    assert_fit_to_use(MIXERS[name], saliency=MAPS[maps])


@pytest.mark.parametrize("maps", ["nothing", "inf", "NaN", "-inf", "all huge"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", LOOKING)
def test_maps_of_other_dtypes(name, dtype, maps):
    assert_fit_to_use(MIXERS[name], saliency=MAPS[maps].to(dtype))


@pytest.mark.parametrize("maps", ["nothing", "inf", "all NaN"])
def test_a_map_that_says_nothing_is_the_uniform_one(maps):
    for blend in (mixsage.Guided(), Paste()):
        plan = SAGE(blend=blend).plan(IMAGES, LABELS, saliency=MAPS[maps], generator=seeded())
        expected = SAGE(blend=blend, saliency=Uniform()).plan(IMAGES, LABELS, generator=seeded())
        assert torch.equal(plan.warp.offsets, expected.warp.offsets)
        torch.testing.assert_close(plan.masks, expected.masks)


@pytest.mark.parametrize("share", [0.0, 1e-30, 1e-12, 0.5, 1.0])
@pytest.mark.parametrize("maps", ["nothing", "one pixel", "one bad map among good ones"])
@pytest.mark.parametrize("name", MIXERS)
def test_shares_at_the_ends(monkeypatch, name, maps, share):
    """λ = 0 and λ = 1, from whichever distribution the method draws it."""
    for distribution in ("beta", "uniform"):
        monkeypatch.setattr(sampling, distribution, lambda high, count, generator=None: torch.full((count,), share))
    mixer = MIXERS[name]
    assert_fit_to_use(mixer, **maps_for(mixer, MAPS[maps]))


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("value", ["alike", "constant", "zero", "large", "smallest"])
def test_pictures_without_content(name, value):
    images = {
        "alike": IMAGES[:1].expand(4, -1, -1, -1),
        "constant": torch.full_like(IMAGES, 0.3),
        "zero": torch.zeros_like(IMAGES),
        "large": torch.full_like(IMAGES, 1e30),
        "smallest": torch.full_like(IMAGES, 1e-44),
    }[value]
    mixer = MIXERS[name]
    assert_fit_to_use(mixer, images, **maps_for(mixer, MAPS["of both signs"].abs()))
    if value == "alike" and mixer.plan(images, LABELS, **maps_for(mixer, MAPS["nothing"]), generator=seeded()).warp is None:
        mixed, _ = mixer(images, LABELS, **maps_for(mixer, MAPS["nothing"]), generator=seeded())
        torch.testing.assert_close(mixed, images)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 2), (3, 3)])
@pytest.mark.parametrize("name", MIXERS)
def test_pictures_of_a_few_pixels(name, size):
    """A valid plan, or a message that says what size it takes."""
    mixer, images = MIXERS[name], torch.rand(3, 3, *size, generator=seeded())
    try:
        assert_fit_to_use(mixer, images, LABELS[:3], **maps_for(mixer, torch.rand(3, *size, generator=seeded())))
    except ValueError as error:
        assert f"{size[0]}×{size[1]}" in str(error) or str(list(size)) in str(error) or str(list(images.shape)) in str(error), error  # noqa: PT017


@pytest.mark.parametrize("name", MIXERS)
def test_a_batch_of_one(name):
    mixer = MIXERS[name]
    maps = maps_for(mixer, torch.rand(1, 16, 12))
    if mixer.min_batch == 1:
        assert_fit_to_use(mixer, IMAGES[:1], LABELS[:1], **maps)
        return
    method = type(mixer).__name__
    for call in (lambda: mixer.plan(IMAGES[:1], **maps), lambda: mixer(IMAGES[:1], LABELS[:1], **maps)):
        with pytest.raises(
            ValueError, match=rf"{method} mixes at least {mixer.min_batch} images, got 1; set drop_last=True in the loader"
        ):
            call()


@pytest.mark.parametrize("name", MIXERS)
def test_an_empty_batch(name):
    mixer = MIXERS[name]
    with pytest.raises(ValueError, match=rf"{type(mixer).__name__} mixes .*got (\[0, 3, 16, 12\]|0)"):
        mixer(IMAGES[:0], LABELS[:0], **maps_for(mixer, torch.rand(0, 16, 12)))


# ------------------------------------------------------------------------------------------------------------------------------- models


class Odd(nn.Module):
    """A model by a formula of the mean of each picture [B], one logit a class; one parameter, so that there is something to train."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, images):
        return self.formula(images.mean(dim=(1, 2, 3))) * self.factor


def by_class(mean, factors):
    return mean[:, None] * torch.tensor(factors, dtype=mean.dtype)


MODELS = {
    "saturated and right": lambda mean: by_class(mean * 0, [1.0] * 5) + torch.nn.functional.one_hot(LABELS, 5) * 1e4,
    "saturated and wrong": lambda mean: by_class(mean * 0, [1.0] * 5) + torch.nn.functional.one_hot(LABELS + 1, 5) * 1e4,
    "blind": lambda mean: by_class(mean * 0, [1.0] * 5),
    "infinite gradient": lambda mean: by_class((mean - mean.detach()).sqrt(), [1.0, 2.0, 3.0, 4.0, 5.0]),
    "gradient of NaN": lambda mean: by_class((mean - mean.detach()).sqrt() * 0, [1.0] * 5),
    "huge gradient": lambda mean: by_class(mean - mean.detach(), [1e30, -1e30, 1e29, 1e28, 1e30]),
    "tiny gradient": lambda mean: by_class(mean, [1e-30, -1e-30, 0.0, 1e-38, 1e-25]),
    "logits of NaN": lambda mean: by_class(mean, [NAN] * 5),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("criterion", [mixsage.cross_entropy, mixsage.binary_cross_entropy])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", MIXERS)
def test_models(name, model, criterion):
    mixed, targets = MIXERS[name](IMAGES, LABELS, model=Odd(MODELS[model]), criterion=criterion, generator=seeded())
    for value in (mixed, targets):
        assert value.isfinite().all()
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(4))


@pytest.mark.parametrize("model", ["saturated and right", "blind", "infinite gradient", "gradient of NaN", "tiny gradient"])
@pytest.mark.parametrize("name", MIXERS)
def test_a_whole_step(name, model):
    """The plan of the step is valid whatever the gradient was; where the loss is finite in both passes, so it is in the record."""
    mixer = MIXERS[name]
    if name == "manifold":
        mixer = type(mixer)(layers=("input",))
    step = mixsage.accumulate(mixer, Odd(MODELS[model]), IMAGES, LABELS, generator=seeded())
    assert_valid_plan(step.plan, 4)
    assert step.plan.apply(IMAGES).isfinite().all()
    assert step.loss.isfinite()
