"""What the figures show is what the methods do."""

import numpy as np
import pytest
import torch

import mixsage
from mixsage.data import CLASSES, MEAN, STD, load_sample
from mixsage.evaluation.explain import Subject, as_mix, maps_of, pairs
from mixsage.evaluation.story import story, sweep
from mixsage.models import small_convnet
from mixsage.plan import MixPlan
from mixsage.rearrange import all_shifts
from mixsage.reports import figures
from mixsage.saliency import normalise, smooth


@pytest.fixture(scope="module")
def subject():
    images, labels = load_sample("test")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small_convnet(num_classes=10)
    return Subject(images=images[:5], labels=labels[:5], names=CLASSES, mean=MEAN, std=STD, model=model)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


MIXERS = {
    "Mixup": mixsage.Mixup(),
    "CutMix": mixsage.CutMix(),
    "SAGE": mixsage.SAGE(search=mixsage.Full()),
    "plain": mixsage.Clean(),
}


def test_every_image_meets_its_partner_under_every_method(subject):
    found = pairs(subject, MIXERS, generator=generator(), least_share=0.2)
    assert len(found) == 5
    for i, pair in enumerate(found):
        assert list(pair.mixes) == list(MIXERS)
        assert pair.names == (CLASSES[subject.labels[i]], CLASSES[subject.labels[(i + 1) % 5]])
        np.testing.assert_allclose(pair.image[..., 0], subject.images[i, 0] / 255, atol=1e-6)
        for name in ("Mixup", "CutMix", "SAGE"):
            mix = pair.mixes[name]
            assert sum(mix.shares) == pytest.approx(1)
            assert min(mix.shares) >= 0.2
            assert mix.shares[0] == pytest.approx(float(mix.mask.mean()), abs=1e-5)
        assert pair.mixes["plain"].shares == (1.0,)


def test_a_mix_is_mask_times_image_and_the_rest_of_the_shifted_partner(subject):
    (pair, *_) = pairs(subject, MIXERS, generator=generator(3), least_share=0.2)
    mix = pair.mixes["SAGE"]
    down, right = mix.offset
    expected = np.empty_like(pair.image)
    for row in range(28):
        for column in range(28):
            inside = 0 <= row - down < 28 and 0 <= column - right < 28
            moved = pair.partner[row - down, column - right] if inside else MEAN[0]
            share = mix.mask[row, column]
            expected[row, column] = share * pair.image[row, column] + (1 - share) * moved
    np.testing.assert_allclose(mix.picture, expected, atol=1e-5)


def test_saliency_is_a_distribution_of_each_image(subject):
    for pair in pairs(subject, {"Mixup": mixsage.Mixup()}, generator=generator()):
        for values in pair.saliency:
            assert values.shape == (28, 28)
            assert values.sum() == pytest.approx(1, rel=1e-5)


def test_the_model_and_the_global_generator_stay_as_they_were(subject):
    subject.model.train()
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    state = torch.get_rng_state()
    pairs(subject, MIXERS, generator=generator())
    story(subject, generator=generator())
    assert torch.equal(state, torch.get_rng_state())
    assert subject.model.training
    assert all(torch.equal(before[name], value) for name, value in subject.model.state_dict().items())


def test_the_same_generator_gives_the_same_pictures(subject):
    first, second = (pairs(subject, MIXERS, generator=generator(7)) for _ in range(2))
    assert all(
        np.array_equal(a.mixes[name].picture, b.mixes[name].picture) for a, b in zip(first, second, strict=True) for name in MIXERS
    )


def test_hidden_layers_are_shown_as_mixes_of_the_input(subject):
    mixer = mixsage.ManifoldMixup(layers=("input", "stage1"))
    found = pairs(subject, {"Manifold Mixup": mixer}, generator=generator())
    assert all(0 < pair.mixes["Manifold Mixup"].shares[0] < 1 for pair in found)


def test_a_method_that_mixes_many_shows_the_pair_together_in_the_company_of_the_others(subject):
    """Alone, Co-Mixup gives one of two outputs to each of two images."""
    mixer, others = mixsage.CoMixup(saliency=mixsage.FineGrained()), {}
    for image in (1, 4):
        (pair,) = pairs(subject, {"Co-Mixup": mixer}, shown=[image], generator=generator(), least_share=0.2)
        mix = pair.mixes["Co-Mixup"]
        assert min(mix.shares[:2]) >= 0.2
        assert sum(mix.shares) == pytest.approx(1, abs=1e-5)
        assert mix.names[:2] == pair.names == (CLASSES[subject.labels[image]], CLASSES[subject.labels[(image + 1) % 5]])
        assert len(mix.names) == len(mix.shares)
        assert mix.shares[0] == pytest.approx(float(mix.mask.mean()), abs=1e-5)
        own = mix.mask == 1
        assert own.any()
        np.testing.assert_allclose(mix.picture[own], pair.image[own], atol=1e-5)
        alone = Subject(
            images=subject.images[[image, (image + 1) % 5]],
            labels=subject.labels[[image, (image + 1) % 5]],
            names=CLASSES,
            mean=MEAN,
            std=STD,
        )
        others[image] = pairs(alone, {"Co-Mixup": mixer}, generator=generator(), least_share=0.2)[0].mixes["Co-Mixup"].shares
    assert all(shares == (1.0, 0.0) for shares in others.values())


def test_the_shares_are_those_of_the_pictures_whatever_order_the_plan_has():
    """Each picture has one colour, so that the colour of the mix tells how much of each is in it."""
    colours = torch.eye(3)[:, :, None, None].expand(3, 3, 4, 4)
    plan = MixPlan(
        sources=torch.tensor([[2, 0, 1], [1, 2, 1]]), masks=torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]])[..., None, None]
    )
    for output, names, shares in ((0, ("a", "b", "c"), (0.3, 0.2, 0.5)), (1, ("b", "c"), (0.3, 0.7))):
        mix = as_mix(plan, colours, (0.0, 0.0, 0.0), ("a", "b", "c"), output=output)
        assert mix.names == names
        assert mix.shares == pytest.approx(shares)
        seen = dict(zip(names, shares, strict=True))
        np.testing.assert_allclose(mix.picture[0, 0], [seen.get(name, 0.0) for name in "abc"], atol=1e-6)


def test_a_tint_tells_image_and_partner_apart(subject):
    (pair, *_) = pairs(subject, {"CutMix": mixsage.CutMix()}, generator=generator(), tint=True)
    bright = pair.image[..., 0] > 0.2
    assert (pair.image[bright][:, 2] > pair.image[bright][:, 0]).all()  # blue
    bright = pair.partner[..., 0] > 0.2
    assert (pair.partner[bright][:, 0] > pair.partner[bright][:, 2]).all()  # orange


def test_the_surface_holds_every_rearrangement(subject):
    found = story(subject, 1, 3, share=0.4, generator=generator())
    assert found.surface.shape == (55, 55)
    looks = normalise(smooth(maps_of(subject, mixsage.SAGE())))
    first, second = 0.4 * looks[1], 0.6 * looks[3]
    for row, column in ((0, 0), (-5, 9), (27, -27), (13, 2)):
        kept = 0.0
        for i in range(28):
            for j in range(28):
                inside = 0 <= i - row < 28 and 0 <= j - column < 28
                a, b = float(first[i, j]), float(second[i - row, j - column]) if inside else 0.0
                share = a / max(a + b, 1e-16)
                kept += share * a + (1 - share) * b
        assert found.surface[27 + row, 27 + column] == pytest.approx(kept, rel=1e-4)


def test_the_best_is_the_best_of_what_was_tried(subject):
    found = story(subject, generator=generator(), portion=0.01)
    assert len(found.tried) == 30
    values = [found.surface[27 + int(row), 27 + int(column)] for row, column in found.tried]
    row, column = found.best.mix.offset
    assert found.best.value == pytest.approx(max(values), rel=1e-5)
    assert found.best.value == pytest.approx(found.surface[27 + row, 27 + column], rel=1e-5)
    assert found.others[0].mix.offset == (0, 0)
    assert found.others[0].value == pytest.approx(found.surface[27, 27], rel=1e-5)
    everything = story(subject, generator=generator(), portion=1.0)
    assert everything.best.value == pytest.approx(found.surface.max(), rel=1e-5)


def test_a_story_is_what_sage_does(subject):
    """The mix of the story is that of SAGE's own plan with the same share and shifts."""
    mixer = mixsage.SAGE(search=mixsage.Full())
    inputs = subject.inputs()[:2]
    saliency = maps_of(subject, mixer)[:2]
    for seed in range(20):
        source = generator(seed)
        plan = mixer.plan(inputs, saliency=saliency, generator=source)
        if plan.sources[0].tolist() == [0, 1]:
            break
    share = 0.6 * float(torch.rand(1, generator=_after_partners(seed)))
    found = story(subject, 0, 1, mixer=mixer, share=share, portion=1.0)
    assert tuple(plan.warp.offsets[0, 1].tolist()) == found.best.mix.offset
    np.testing.assert_allclose(found.best.mix.mask, plan.masks[0, 0], atol=1e-5)
    assert found.best.mix.shares[0] == pytest.approx(float(plan.weights[0, 0]), rel=1e-4)


def _after_partners(seed):
    source = generator(seed)
    torch.randperm(2, generator=source)
    return source


def test_the_share_rises(subject):
    steps = sweep(subject, shares=(0.0, 0.3, 0.7, 1.0))
    weights = [mix.shares[0] for _, mix in steps]
    assert weights[0] == 0
    assert weights[-1] == 1
    assert weights == sorted(weights)


def test_colour_images_and_odd_sizes_are_drawn():
    source = generator()
    colour = Subject(
        images=torch.rand(3, 3, 9, 14, generator=source),
        labels=torch.tensor([0, 1, 1]),
        names=("a", "b"),
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.2, 0.2),
        model=small_convnet(num_classes=2, in_channels=3, width=4),
    )
    mixers = {"Mixup": mixsage.Mixup(), "SAGE": mixsage.SAGE()}
    assert figures.as_svg(figures.gallery(pairs(colour, mixers, generator=source)))
    assert story(colour, generator=source).surface.shape == (17, 27)
    assert len(all_shifts(9, 14)) == 17 * 27


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: pairs(Subject(images=s.images, labels=s.labels, names=CLASSES, mean=MEAN, std=STD), {"SAGE": mixsage.SAGE()}),
            "give the subject a model",
        ),
        (lambda s: pairs(s, {"Mixup": mixsage.Mixup()}, least_share=0.6), "lower least_share"),
        (lambda s: pairs(s, {"Mixup": mixsage.Mixup()}, partners=[0, 1, 2, 3, 4]), "partners must name another"),
        (lambda s: story(s, share=1.2), r"must lie in \[0, 1\], got 1\.2"),
        (lambda s: Subject(images=s.images[:1], labels=s.labels[:1], names=CLASSES, mean=MEAN, std=STD), "at least 2 images"),
        (lambda s: Subject(images=s.images, labels=s.labels, names=("a",), mean=MEAN, std=STD), "needs a label below 1"),
    ],
)
def test_what_cannot_be_shown_is_said(subject, call, message):
    with pytest.raises(ValueError, match=message):
        call(subject)
