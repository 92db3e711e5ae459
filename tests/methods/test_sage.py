"""SAGE against one literal, slow transcription of the paper's steps; its settings, presets, controls and ablations."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

import mixsage
from helpers import assert_same_plan, assert_valid_plan, seeded, small_model
from mixsage import SAGE, Full, Guided, InputGradient, NoShift, Paste, Sampled, Shift, Uniform, sampling

# --------------------------------------------------------------------------------------------------------------------- the slow original


def zeros(height, width):
    return [[0.0] * width for _ in range(height)]


def places(height, width):
    return itertools.product(range(height), range(width))


def bounce(place, size):
    """Reflected borders: the border pixel itself is not repeated."""
    while size > 1 and not 0 <= place < size:
        place = -place if place < 0 else 2 * (size - 1) - place
    return place if size > 1 else 0


def smoothed(z, height, width):
    """Step 2: Gaussian blur, variance 1, 5×5."""
    weights = {(k, l): math.exp(-(k * k + l * l) / 2) for k in range(-2, 3) for l in range(-2, 3)}
    total, out = sum(weights.values()), zeros(height, width)
    for i, j in places(height, width):
        out[i][j] = sum(w * z[bounce(i + k, height)][bounce(j + l, width)] for (k, l), w in weights.items()) / total
    return out


def normalised(z, height, width):
    """Step 3: a distribution over pixels, uniform where there is nothing to go by."""
    values = [x for row in z for x in row]
    total = math.fsum(values)
    if not math.isfinite(total) or total == 0:
        return [[1 / (height * width)] * width for _ in range(height)]
    return [[x / total for x in row] for row in z]


def translated(z, shift, height, width):
    """Step 5: T(z, τ)[i, j] = z[i - τi, j - τj], zero outside."""
    out = zeros(height, width)
    for i, j in places(height, width):
        if 0 <= i - shift[0] < height and 0 <= j - shift[1] < width:
            out[i][j] = z[i - shift[0]][j - shift[1]]
    return out


def mask_of(a, b, shift, height, width, hard):
    """Step 6: M = s0 / (s0 + T(s1, τ) + ζ), or the ablation's hard mask: 0 where the shifted image lies, 1 outside."""
    moved = translated(b, shift, height, width)
    out = zeros(height, width)
    for i, j in places(height, width):
        if hard:
            out[i][j] = 0.0 if 0 <= i - shift[0] < height and 0 <= j - shift[1] < width else 1.0
        else:
            out[i][j] = a[i][j] / max(a[i][j] + moved[i][j], 1e-16)
    return out, moved


def total(a, b, shift, height, width, hard):
    """Step 7: v(τ) = Σ M·s0 + (1 - M)·T(s1, τ)."""
    mask, moved = mask_of(a, b, shift, height, width, hard)
    return math.fsum(mask[i][j] * a[i][j] + (1 - mask[i][j]) * moved[i][j] for i, j in places(height, width))


def sage_by_hand(images, labels, maps, *, partners, shares, shifts, classes, hard=False):
    """Steps 2 to 8 for a whole batch, in Python's own numbers: shifts, masks, mixed images, label shares and targets."""
    batch, channels, height, width = images.shape
    ready = [normalised(smoothed(maps[b].tolist(), height, width), height, width) for b in range(batch)]
    found = SimpleNamespace(shifts=[], masks=[], mixed=torch.zeros(images.shape, dtype=torch.float64), weights=[], targets=[])
    for b in range(batch):
        partner, share = partners[b], shares[b if len(shares) > 1 else 0]
        a = [[share * x for x in row] for row in ready[b]]
        s1 = [[(1 - share) * x for x in row] for row in ready[partner]]
        values = [total(a, s1, shift, height, width, hard) for shift in shifts]
        best = shifts[values.index(max(values))]
        mask, _ = mask_of(a, s1, best, height, width, hard)
        for c in range(channels):
            other = translated(images[partner, c].tolist(), best, height, width)
            for i, j in places(height, width):
                found.mixed[b, c, i, j] = mask[i][j] * float(images[b, c, i, j]) + (1 - mask[i][j]) * other[i][j]
        weight = math.fsum(x for row in mask for x in row) / (height * width)
        target = [0.0] * classes
        target[labels[b]] += weight
        target[labels[partner]] += 1 - weight
        found.shifts.append(list(best))
        found.masks.append(mask)
        found.weights.append(weight)
        found.targets.append(target)
    return found


def draws(mixer, batch, height, width, seed):
    """What the method draws from its generator, in the order of METHODS: partners, λ, the shifts that are tried."""
    generator = seeded(seed)
    partners = sampling.partners(batch, generator).tolist()
    shares = sampling.uniform(mixer.truncation, batch if mixer.per_sample else 1, generator).clamp(min=1e-12).double().tolist()
    every = [(i, j) for i in range(1 - height, height) for j in range(1 - width, width)]
    if isinstance(mixer.search, NoShift):
        return partners, shares, [(0, 0)]
    if isinstance(mixer.search, Full):
        return partners, shares, every
    return partners, shares, [every[n] for n in sampling.subset(len(every), mixer.search.portion, generator).tolist()]


def problem(batch=4, channels=3, height=6, width=5, seed=0):
    generator = seeded(seed)
    images = torch.randn(batch, channels, height, width, generator=generator)
    maps = torch.rand(batch, height, width, generator=generator) ** 4
    return images, torch.randint(5, (batch,), generator=generator), maps


COMPOSED = {
    "as published": SAGE(),
    "one λ an image": SAGE(per_sample=True),
    "a tenth": SAGE(search=Sampled(0.1), truncation=1.0),
    "all shifts": SAGE(search=Full()),
    "no rearrangement": SAGE(search=NoShift()),
    "pasted": SAGE(blend=Paste(), search=Sampled(0.2)),
    "pasted, all shifts": SAGE(blend=Paste(), search=Full()),
    "pasted, no rearrangement": SAGE(blend=Paste(), search=NoShift()),
    "λ = 0": SAGE(truncation=0.0, search=Sampled(0.2)),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("height", "width"), [(6, 5), (4, 7), (1, 6)])
@pytest.mark.parametrize("name", COMPOSED)
def test_plan_and_mix_are_those_of_the_paper(name, height, width, seed):
    mixer = COMPOSED[name]
    images, labels, maps = problem(height=height, width=width, seed=seed)
    plan = mixer.plan(images, labels, saliency=maps, generator=seeded(seed))
    partners, shares, shifts = draws(mixer, 4, height, width, seed)
    expected = sage_by_hand(
        images,
        labels.tolist(),
        maps,
        partners=partners,
        shares=shares,
        shifts=shifts,
        classes=5,
        hard=isinstance(mixer.blend, Paste),
    )

    assert plan.sources.tolist() == [[b, partner] for b, partner in enumerate(partners)]
    assert (plan.warp.offsets[:, 0] == 0).all()
    assert plan.warp.offsets[:, 1].tolist() == expected.shifts
    torch.testing.assert_close(
        plan.dense_masks()[:, 0].double(), torch.tensor(expected.masks, dtype=torch.float64), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(plan.weights[:, 0].double(), torch.tensor(expected.weights, dtype=torch.float64), rtol=0, atol=1e-5)
    torch.testing.assert_close(plan.apply(images).double(), expected.mixed, rtol=0, atol=2e-5)
    torch.testing.assert_close(
        plan.targets(labels, 5).double(), torch.tensor(expected.targets, dtype=torch.float64), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("criterion", [mixsage.cross_entropy, mixsage.binary_cross_entropy])
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_the_plain_call_takes_the_gradient_of_the_loss(criterion, norm):
    """Step 1: the norm over colours of the gradient of the full training loss, here taken in the plainest way."""
    images, labels, _ = problem(height=8, width=6)
    model = small_model(norm=False)
    leaf = images.clone().requires_grad_()
    criterion(model(leaf), torch.nn.functional.one_hot(labels, 5).float()).backward()
    maps = leaf.grad.norm(dim=1) if norm == "l2" else leaf.grad.abs().mean(dim=1)
    mixer = SAGE(num_classes=5, saliency=InputGradient(norm=norm), search=Sampled(0.1))
    expected = mixer(images, labels, saliency=maps, generator=seeded())
    mixed = mixer(images, labels, model=model, criterion=criterion, generator=seeded())
    for one, other in zip(expected, mixed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_scale_of_the_maps_does_not_matter():
    """Saliency is normalised: a loss that is scaled, summed or averaged gives the same plan."""
    images, labels, maps = problem()
    expected = SAGE().plan(images, labels, saliency=maps, generator=seeded())
    for scale in (1e-30, 2.0**-20, 2.0**20, 1e30):
        plan = SAGE().plan(images, labels, saliency=maps * scale, generator=seeded())
        torch.testing.assert_close(plan.masks, expected.masks, rtol=0, atol=1e-5)


def test_one_share_a_batch_or_one_an_image():
    """Of two maps that are alike everywhere, the mask without rearrangement is λ itself."""
    images, labels, _ = problem(batch=16)
    maps = torch.ones(16, 6, 5)
    for per_sample, count in [(False, 1), (True, 16)]:
        plan = SAGE(search=NoShift(), per_sample=per_sample).plan(images, labels, saliency=maps, generator=seeded())
        shares = plan.weights[:, 0]
        assert len(shares.round(decimals=4).unique()) == count
        assert shares.max() < 0.6
        generator = seeded()
        sampling.partners(16, generator)
        torch.testing.assert_close(shares, sampling.uniform(0.6, count, generator).expand(16), rtol=1e-4, atol=1e-6)


def test_no_share_exceeds_the_truncation():
    images, labels, _ = problem(batch=64)
    maps = torch.ones(64, 6, 5)
    generator = seeded()
    for truncation in (0.1, 0.6, 1.0):
        mixer = SAGE(truncation=truncation, search=NoShift(), per_sample=True)
        shares = torch.cat([mixer.plan(images, labels, saliency=maps, generator=generator).weights[:, 0] for _ in range(20)])
        assert shares.max() <= truncation + 1e-6
        assert shares.max() > 0.95 * truncation
        assert float(shares.mean()) == pytest.approx(truncation / 2, abs=0.02)


def test_uniform_maps_are_a_control():
    """No model, no maps, no clean pass beside the reuse of its gradient; the rest of the method as it is."""
    images, labels, maps = problem()
    mixer = SAGE(saliency=Uniform(), num_classes=5)
    plan = mixer.plan(images, labels, generator=seeded())
    assert_same_plan(plan, SAGE().plan(images, labels, saliency=torch.full_like(maps, 3.0), generator=seeded()))
    assert mixer.clean is not None
    assert SAGE(saliency=Uniform(), mixed_share=1.0).clean is None
    mixed, targets = mixer(images, labels, generator=seeded())
    assert torch.equal(mixed, plan.apply(images))
    assert torch.equal(targets, plan.targets(labels, 5))


def test_maps_handed_in_win_over_a_source_and_a_model():
    images, labels, maps = problem()
    expected = SAGE(num_classes=5)(images, labels, saliency=maps, generator=seeded())
    for mixer, model in [(SAGE(num_classes=5, saliency=Uniform()), None), (SAGE(num_classes=5), small_model())]:
        mixed = mixer(images, labels, model=model, saliency=maps, generator=seeded())
        assert torch.equal(mixed[0], expected[0])


def test_no_rearrangement_is_no_shift():
    images, labels, maps = problem()
    plan = SAGE(search=NoShift()).plan(images, labels, saliency=maps, generator=seeded())
    assert torch.equal(plan.warp.offsets, torch.zeros(4, 2, 2, dtype=torch.int64))


def test_pasting_shows_one_image_or_the_other():
    images, labels, maps = problem()
    plan = SAGE(blend=Paste(), search=Sampled(0.3)).plan(images, labels, saliency=maps, generator=seeded())
    assert set(plan.masks.unique().tolist()) <= {0.0, 1.0}
    moved = Shift(plan.warp.offsets)
    for b in range(4):
        _, inside = moved.index(1, 6, 5)
        assert torch.equal(plan.masks[b, 1] == 1, inside[b])


def test_settings_as_published():
    mixer = SAGE()
    assert (mixer.truncation, mixer.mixed_share) == (0.6, 0.7)
    assert mixer.search == Sampled(0.01)
    assert mixer.saliency == InputGradient(norm="l2", mode="train")
    assert mixer.blend == Guided()
    assert not mixer.per_sample
    assert mixer.prob == 1


@pytest.mark.parametrize(
    ("name", "truncation", "mixed_share"),
    [
        ("cifar10/preactresnet18", 0.6, 0.7),
        ("cifar100/preactresnet18", 0.5, 0.7),
        ("cifar100/wrn16_8", 0.6, 0.7),
        ("cifar100/resnext29_4_24", 0.7, 0.5),
    ],
)
def test_presets(name, truncation, mixed_share):
    mixer = SAGE.preset(name)
    assert (mixer.truncation, mixer.mixed_share) == (truncation, mixed_share)
    assert SAGE.preset(name, truncation=0.1, num_classes=7) == SAGE(truncation=0.1, mixed_share=mixed_share, num_classes=7)


def test_a_preset_that_is_not_there():
    with pytest.raises(
        ValueError,
        match=r"unknown preset of SAGE 'cifar100/wrn16-8'; did you mean 'cifar100/wrn16_8'\? valid: cifar10/preactresnet18",
    ):
        SAGE.preset("cifar100/wrn16-8")
    with pytest.raises(ValueError, match="did you mean 'cifar10/preactresnet18'"):
        SAGE.preset("cifar10")


@pytest.mark.parametrize("mixed_share", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_gradient_reuse_is_told_to_the_step(mixed_share, mode):
    mixer = SAGE(mixed_share=mixed_share, saliency=InputGradient(mode=mode))
    assert mixer.mixed_weight == mixed_share
    assert mixer.clean.weight == pytest.approx(1 - mixed_share)
    assert mixer.clean.mode == mode
    assert mixer.clean.criterion is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"truncation": -0.1}, r"truncation must lie in \[0, 1\], got -0.1"),
        ({"truncation": 1.1}, r"truncation must lie in \[0, 1\], got 1.1"),
        ({"truncation": float("nan")}, r"truncation must lie in \[0, 1\], got nan"),
        ({"mixed_share": 0.0}, r"mixed_share must lie in \(0, 1\], got 0.0"),
        ({"mixed_share": 1.5}, r"mixed_share must lie in \(0, 1\], got 1.5"),
        ({"search": "full"}, r"search must be a Search, such as Sampled\(0.01\), Full\(\) or NoShift\(\), got 'full'"),
        ({"search": NoShift}, r"search must be a Search, .*got <class .*NoShift'>"),
        ({"saliency": "uniform"}, r"saliency must be a Saliency, such as InputGradient\(\) or Uniform\(\), got 'uniform'"),
        ({"blend": Paste}, r"blend must be a Blend, such as Guided\(\) or Paste\(\), got <class"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        SAGE(**settings)


def test_without_maps_and_model():
    images, labels, _ = problem()
    with pytest.raises(ValueError, match=r"SAGE needs to know where to look: pass saliency=maps \[B, H, W\], or model=…"):
        SAGE().plan(images, labels)


def test_a_large_picture_gives_a_valid_plan():
    """At 224×224 a pixel's saliency is tiny: shares stay shares."""
    images = torch.rand(2, 3, 224, 224, generator=seeded())
    maps = torch.rand(2, 224, 224, generator=seeded(1)) ** 8
    plan = SAGE(search=Sampled(0.0001)).plan(images, saliency=maps, generator=seeded())
    assert_valid_plan(plan, 2)
