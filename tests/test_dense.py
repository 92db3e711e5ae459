"""Class maps, boxes and several labels an image, mixed: against loops over pixels, written by the definition."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import mixsage
from helpers import nothing_may_wait, seeded, small_model
from mixsage import Blocks, Boxes, MixPlan, Shift
from mixsage.loss import pixel_cross_entropy
from plain_passes import gradients
from plans import BATCH, BOXED, FORMS, HEIGHT, POOL, WIDTH, offsets, plan_of, rand, share_at, shares, source_place

CLASSES, IGNORE = 3, 255


# ----------------------------------------------------------------------------------------------------------------------------- oracles


def class_maps_of(pool=POOL, height=HEIGHT, width=WIDTH, *, classes=CLASSES, ignore=IGNORE, seed=2):
    """Classes, and here and there a pixel without one."""
    maps = torch.randint(classes + 1, (pool, height, width), generator=seeded(seed))
    return torch.where(maps == classes, ignore, maps)


def sources_at(plan, class_maps, b, i, j, ignore):
    """Share and class of every source at a pixel; from outside comes the ignore label."""
    height, width = class_maps.shape[1:]
    for k in range(plan.sources.shape[1]):
        place = source_place(plan.warp, b, k, i, j, height, width)
        found = ignore if place is None else int(class_maps[plan.sources[b, k], place[0], place[1]])
        yield share_at(plan.masks, b, k, i, j, height, width), found


def soft_by_hand(plan, class_maps, classes=CLASSES, ignore=IGNORE):
    out = torch.zeros(len(plan.sources), classes, *class_maps.shape[1:], dtype=torch.float64)
    for b, i, j in itertools.product(range(len(plan.sources)), *map(range, class_maps.shape[1:])):
        for share, found in sources_at(plan, class_maps, b, i, j, ignore):
            if found != ignore:
                out[b, found, i, j] += share
    return out


def hard_by_hand(plan, class_maps, ignore=IGNORE):
    out = torch.zeros(len(plan.sources), *class_maps.shape[1:], dtype=torch.int64)
    for b, i, j in itertools.product(range(len(plan.sources)), *map(range, class_maps.shape[1:])):
        out[b, i, j] = max(sources_at(plan, class_maps, b, i, j, ignore), key=lambda source: source[0])[1]
    return out


def assert_maps_by_hand(plan, class_maps, ignore=IGNORE):
    soft = plan.apply_masks(class_maps, CLASSES, ignore=ignore)
    assert soft.dtype == torch.float32
    torch.testing.assert_close(soft.double(), soft_by_hand(plan, class_maps, ignore=ignore), rtol=0, atol=1e-6)
    hard = plan.apply_masks(class_maps, hard=True, ignore=ignore)
    assert hard.dtype == torch.int64
    assert torch.equal(hard, hard_by_hand(plan, class_maps, ignore))


FINE = 4
"""Parts of a pixel that the corners of the tests' boxes lie on, so that a loop can count what shows."""


def cells(box):
    """The quarter pixels inside a box, as (row, column)."""
    left, top, right, bottom = (round(float(side) * FINE) for side in box)
    return {(i, j) for i in range(top, bottom) for j in range(left, right)}


def boxes_by_hand(plan, boxes, labels, height, width, threshold):
    """Every box, as a set of cells: moved cell by cell, kept inside the picture, each weighted by the share of its pixel."""
    picture = cells((0, 0, width, height))
    out = []
    for b in range(len(plan.sources)):
        kept = []
        for k in range(plan.sources.shape[1]):
            row = int(plan.sources[b, k])
            down, right = (0, 0) if plan.warp is None else (FINE * int(x) for x in plan.warp.offsets[b, k])
            for box, label in zip(boxes[row], labels[row], strict=True):
                whole = cells(box) & picture
                here = {(i + down, j + right) for i, j in whole} & picture
                shown = sum(share_at(plan.masks, b, k, i // FINE, j // FINE, height, width) for i, j in here)
                if isinstance(plan.masks, Boxes) and k == 1:
                    here = {c for c in here if share_at(plan.masks, b, 1, c[0] // FINE, c[1] // FINE, height, width)}
                if whole and shown and shown / len(whole) >= threshold:
                    rows, columns = zip(*here, strict=True)
                    corners = [min(columns), min(rows), max(columns) + 1, max(rows) + 1]
                    kept.append(([c / FINE for c in corners], int(label), shown / len(whole)))
        out.append(kept)
    return out


def boxes_of(counts, height, width, *, beyond=0, seed=3):
    """Boxes whose corners lie on quarters of a pixel, some of them ``beyond`` the picture."""
    generator = seeded(seed)
    high = torch.tensor([width, height]) * FINE
    found = []
    for count in counts:
        ends = (torch.rand(count, 2, 2, generator=generator) * (high + 2 * beyond * FINE)).round() - beyond * FINE
        found.append(ends.sort(dim=1).values.flatten(1) / FINE)
    return found, [torch.randint(9, (count,), generator=generator) for count in counts]


def assert_boxes_by_hand(plan, boxes, labels, height, width, threshold):
    mixed = plan.apply_boxes(boxes, labels, (height, width), threshold=threshold)
    expected = boxes_by_hand(plan, boxes, labels, height, width, threshold)
    for found, wanted in zip(mixed.per_image(), expected, strict=True):
        assert found["labels"].tolist() == [label for _, label, _ in wanted]
        torch.testing.assert_close(found["boxes"].tolist(), [corners for corners, _, _ in wanted], rtol=0, atol=1e-5)
        torch.testing.assert_close(found["weights"].tolist(), [weight for _, _, weight in wanted], rtol=0, atol=1e-5)


# -------------------------------------------------------------------------------------------------------------------------- class maps


@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_class_maps_are_the_loop(masks, warp):
    class_maps = class_maps_of()
    before = class_maps.clone()
    for count in (2,) if "box" in masks else (1, 2, 3):
        assert_maps_by_hand(plan_of(masks, warp, count), class_maps)
    assert torch.equal(class_maps, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_dtypes_of_class_maps(dtype):
    plan, class_maps = plan_of("pixels", "shift"), class_maps_of()
    for hard in (False, True):
        assert torch.equal(
            plan.apply_masks(class_maps.to(dtype), CLASSES, hard=hard), plan.apply_masks(class_maps, CLASSES, hard=hard)
        )


@pytest.mark.parametrize("ignore", [-1, -100, 0, 1, 7])
def test_any_ignore_label(ignore):
    """Also one that does not fit the maps' dtype, and one of the classes: then that class is ignored."""
    assert_maps_by_hand(plan_of("pixels", "shift"), class_maps_of(ignore=ignore), ignore)
    nothing_ignored = torch.randint(CLASSES, (POOL, HEIGHT, WIDTH), generator=seeded()).to(torch.uint8)
    assert_maps_by_hand(plan_of("pixels", "shift"), nothing_ignored, ignore)


@pytest.mark.parametrize("hard", [False, True])
def test_what_is_shifted_in_is_ignored(hard):
    away = Shift(torch.tensor([[[2, 0]], [[0, -WIDTH]]]))
    plan = MixPlan(sources=torch.tensor([[0], [1]]), masks=torch.ones(2, 1, 1, 1), warp=away)
    mixed = plan.apply_masks(torch.ones(2, HEIGHT, WIDTH, dtype=torch.int64), 2, hard=hard)
    known = mixed != IGNORE if hard else mixed.sum(dim=1) > 0
    assert not known[0, :2].any()
    assert known[0, 2:].all()
    assert not known[1].any()


def test_of_equal_shares_the_first_wins():
    plan = MixPlan(sources=torch.tensor([[2, 0, 1]]), masks=torch.tensor([0.25, 0.375, 0.375]).view(1, 3, 1, 1))
    class_maps = torch.arange(3).view(3, 1, 1).expand(-1, 2, 3)
    assert plan.apply_masks(class_maps, hard=True).unique().tolist() == [0]


@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_shares_of_classes_go_through_apply(masks, warp):
    """Maps that are soft already are mixed by `apply`, to the same end."""
    plan, class_maps = plan_of(masks, warp), class_maps_of()
    known = class_maps != IGNORE
    shares_of_classes = functional.one_hot(class_maps.where(known, 0), CLASSES).movedim(3, 1) * known[:, None].float()
    torch.testing.assert_close(plan.apply_masks(class_maps, CLASSES), plan.apply(shares_of_classes), rtol=0, atol=1e-6)


def test_a_blend_of_a_hidden_layer_blends_the_classes():
    plan = mixsage.ManifoldMixup(layers=("stage1",)).plan(rand(4, 3, 6, 8), generator=seeded())
    assert plan.layer == "stage1"
    class_maps = class_maps_of(4, 6, 8)
    assert_maps_by_hand(plan, class_maps)
    boxes, labels = boxes_of((1, 2, 0, 3), 6, 8)
    assert_boxes_by_hand(plan, boxes, labels, 6, 8, 0.0)


@pytest.mark.parametrize("name", mixsage.available())
def test_every_method_mixes_class_maps(name):
    """Where all pixels have a class and nothing moves, shares sum to one; the mixed classes are those of the mixed images."""
    mixer = mixsage.get(name)()
    images, class_maps = rand(4, 3, 8, 10), class_maps_of(4, 8, 10)
    saliency = torch.rand(4, 8, 10, generator=seeded()) if mixer.source else None
    assert_maps_by_hand(mixer.bind(small_model()).plan(images, torch.arange(4), saliency=saliency, generator=seeded(1)), class_maps)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_plan_on_any_class_maps(data):
    height, width, batch, count = (
        data.draw(st.integers(1, high), label=name) for name, high in [("H", 6), ("W", 6), ("B", 3), ("K", 3)]
    )
    pool = data.draw(st.integers(batch, 5), label="P")
    masks = data.draw(
        st.sampled_from(["blend", "pixels", "boxes", "one box"] if count == 2 else ["blend", "pixels"]), label="masks"
    )
    warps = [None] if "box" in masks else [None, "shift", *(["blocks"] if min(height, width) > 1 else [])]
    warp = data.draw(st.sampled_from(warps), label="warp")
    plan = plan_of(masks, warp, count, batch=batch, pool=pool, height=height, width=width)
    assert_maps_by_hand(plan, class_maps_of(pool, height, width, seed=data.draw(st.integers(0, 99), label="seed")))


@pytest.mark.parametrize(
    ("class_maps", "options", "error", "message"),
    [
        (
            torch.zeros(5, 5, 7),
            {},
            TypeError,
            r"whole numbers \[P, H, W\], got \[5, 5, 7\] float32; .*mix shares .* with plan.apply",
        ),
        (torch.zeros(5, 5, 7, dtype=torch.bool), {}, TypeError, r"got \[5, 5, 7\] bool; pass class_maps.long\(\)"),
        (class_maps_of()[:, None], {}, ValueError, r"must be \[P, H, W\].*\[5, 1, 5, 7\].*pass class_maps.squeeze\(1\)"),
        (class_maps_of(), {"num_classes": None}, ValueError, "num_classes is missing.*or hard=True for an index map"),
        (class_maps_of(), {"num_classes": 0}, ValueError, "num_classes must be at least 1, got 0"),
        (class_maps_of(), {"num_classes": 2}, ValueError, r"values from 2 to 2 that are neither one of 2 classes \(0 to 1\)"),
        (class_maps_of(), {"num_classes": 2, "hard": True}, ValueError, "values from 2 to 2 that are neither"),
        (class_maps_of(ignore=-1), {}, ValueError, "values from -1 to -1 .* nor the ignore label 255; set num_classes or ignore"),
        (class_maps_of(), {"ignore": 255.0}, TypeError, "ignore must be a whole number, got 255.0; for example 255"),
        (class_maps_of(2), {}, ValueError, "the plan mixes 3 images, got only 2 class maps; apply it to the batch"),
        (class_maps_of(height=3), {}, ValueError, "drawn for a grid of 5×7, the class maps are 3×7; draw a plan for this size"),
        (class_maps_of().to("meta"), {}, ValueError, r"the plan lies on cpu, the class maps on meta; .*plan.to\('meta'\)"),
    ],
)
def test_class_maps_that_do_not_fit(class_maps, options, error, message):
    with pytest.raises(error, match=message):
        plan_of("pixels").apply_masks(class_maps, **{"num_classes": CLASSES, **options})


def test_a_shift_of_a_hidden_layer_is_refused():
    plan = dataclasses.replace(plan_of("blend", "shift"), layer="stage1")
    boxes, labels = boxes_of([1] * POOL, HEIGHT, WIDTH)
    for verb in (lambda p: p.apply_masks(class_maps_of(), CLASSES), lambda p: p.apply_boxes(boxes, labels, (HEIGHT, WIDTH))):
        with pytest.raises(ValueError, match=r"shifts the output of the layer 'stage1'.*dataclasses.replace\(plan, layer=None\)"):
            verb(plan)
        verb(dataclasses.replace(plan, layer=None))


# ------------------------------------------------------------------------------------------------------------------------------- boxes


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("beyond", [0, 2])
@pytest.mark.parametrize(("masks", "warp"), [form for form in FORMS + BOXED if form[1] in {None, "shift"}])
def test_boxes_are_the_loop(masks, warp, beyond, threshold):
    boxes, labels = boxes_of((3, 0, 1, 4, 2), HEIGHT, WIDTH, beyond=beyond)
    before = [part.clone() for part in boxes]
    for count in (2,) if "box" in masks else (1, 2, 3):
        assert_boxes_by_hand(plan_of(masks, warp, count), boxes, labels, HEIGHT, WIDTH, threshold)
    assert all(map(torch.equal, boxes, before))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_plan_on_any_boxes(data):
    height, width, batch, count = (
        data.draw(st.integers(1, high), label=name) for name, high in [("H", 7), ("W", 7), ("B", 3), ("K", 3)]
    )
    pool = data.draw(st.integers(batch, 4), label="P")
    masks = data.draw(
        st.sampled_from(["blend", "pixels", "boxes", "one box"] if count == 2 else ["blend", "pixels"]), label="masks"
    )
    warp = None if "box" in masks else data.draw(st.sampled_from([None, "shift"]), label="warp")
    plan = plan_of(masks, warp, count, batch=batch, pool=pool, height=height, width=width)
    counts = [data.draw(st.integers(0, 3), label="N") for _ in range(pool)]
    boxes, labels = boxes_of(counts, height, width, beyond=1, seed=data.draw(st.integers(0, 99), label="seed"))
    assert_boxes_by_hand(plan, boxes, labels, height, width, 0.0)
    mixed = plan.apply_boxes(boxes, labels, (height, width))
    assert mixed.boxes.shape == (batch, count * max(counts), 4)
    assert mixed.weights.isfinite().all()
    assert ((mixed.weights == 0) | ((mixed.weights >= 0.1) & (mixed.weights <= 1))).all()


def test_boxes_stay_what_they_are_where_nothing_is_mixed():
    boxes, labels = boxes_of((2, 0, 3), 9, 6)
    for found, corners, names in zip(
        MixPlan.identity(3).apply_boxes(boxes, labels, (9, 6)).per_image(), boxes, labels, strict=True
    ):
        torch.testing.assert_close(found["boxes"], corners)
        assert torch.equal(found["labels"], names)
        assert torch.equal(found["weights"], torch.ones(len(names)))


def test_no_boxes_at_all():
    mixed = plan_of("pixels", "shift").apply_boxes(
        [torch.zeros(0, 4)] * POOL, [torch.zeros(0, dtype=torch.int64)] * POOL, (HEIGHT, WIDTH)
    )
    assert mixed.boxes.shape == (BATCH, 0, 4)
    assert [found["boxes"].shape for found in mixed.per_image()] == [(0, 4)] * BATCH


def test_boxes_without_area_are_dropped():
    boxes = [torch.tensor([[1.0, 1.0, 1.0, 4.0], [0.0, 0.0, 2.0, 2.0], [-5.0, 0.0, -1.0, 3.0]])]
    mixed = MixPlan.identity(1).apply_boxes(boxes, [torch.arange(3)], (5, 5), threshold=0)
    assert mixed.weights.tolist() == [[0.0, 1.0, 0.0]]
    assert mixed.per_image()[0]["labels"].tolist() == [1]


def test_boxes_under_autocast_keep_their_precision():
    plan = plan_of("pixels", "shift")
    boxes, labels = boxes_of((3, 0, 1, 4, 2), HEIGHT, WIDTH)
    outside = plan.apply_boxes(boxes, labels, (HEIGHT, WIDTH))
    with torch.autocast("cpu", torch.bfloat16):
        inside = plan.apply_boxes(boxes, labels, (HEIGHT, WIDTH))
    assert torch.equal(inside.weights, outside.weights)


FIVE = ([torch.tensor([[0.0, 0.0, 2.0, 2.0]])] * POOL, [torch.tensor([1])] * POOL)


@pytest.mark.parametrize(
    ("plan", "boxes", "labels", "options", "error", "message"),
    [
        (plan_of("blend", "blocks"), *FIVE, {}, ValueError, r"leaves no box whole; use .*PuzzleMix\(moved_block=None\)"),
        (plan_of(), *FIVE, {"threshold": 1.5}, ValueError, r"threshold must lie in \[0, 1\].*got 1.5"),
        (
            plan_of(),
            *FIVE,
            {"size": (3, 5, 7)},
            ValueError,
            r"size must be the height and width.*got \[3, 5, 7\]; .*images.shape\[-2:\]",
        ),
        (plan_of(), torch.zeros(5, 2, 4), FIVE[1], {}, TypeError, "boxes must be a list, one entry for each image.*got Tensor"),
        (plan_of(), FIVE[0], torch.zeros(5, 2), {}, TypeError, "labels must be a list.*got Tensor"),
        (plan_of(), FIVE[0], FIVE[1][:4], {}, ValueError, "got boxes of 5 images and labels of 4; every image needs both"),
        (plan_of(), FIVE[0][:2], FIVE[1][:2], {}, ValueError, "the plan mixes 3 images, got only 2 lists of boxes"),
        (plan_of(), [], [], {}, ValueError, "the plan mixes 3 images, got only 0 lists of boxes"),
        (plan_of(), [torch.zeros(2)] * 5, FIVE[1], {}, ValueError, r"boxes of image 0 must be \[N, 4\].*got \[2\] float32"),
        (plan_of(), FIVE[0], [torch.zeros(2)] * 5, {}, ValueError, r"image 0 has 1 boxes and labels \[2\] float32"),
        (plan_of(), [torch.tensor([[9.0, 9.0, 3.0, 3.0]])] * 5, FIVE[1], {}, ValueError, "end before they begin.*box_convert"),
        (plan_of("boxes"), *FIVE, {"size": (7, 5)}, ValueError, "drawn for a grid of 5×7, the pictures are 7×5"),
        (plan_of(), [part.to("meta") for part in FIVE[0]], FIVE[1], {}, ValueError, "the plan lies on cpu, the boxes on meta"),
        (plan_of(), FIVE[0], [part.to("meta") for part in FIVE[1]], {}, ValueError, "the labels of the boxes on meta"),
    ],
)
def test_boxes_that_do_not_fit(plan, boxes, labels, options, error, message):
    with pytest.raises(error, match=message):
        plan.apply_boxes(boxes, labels, **{"size": (HEIGHT, WIDTH), **options})


# --------------------------------------------------------------------------------------------------------- several labels an image


@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_several_labels_an_image(masks, warp):
    """Each output has the weighted mean of its sources' labels, each of which may have none, one, or all classes."""
    labels = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]]).float()
    plan = plan_of(masks, warp)
    expected = torch.zeros(BATCH, 4, dtype=torch.float64)
    for b, k, c in itertools.product(range(BATCH), range(2), range(4)):
        expected[b, c] += float(plan.weights[b, k]) * float(labels[plan.sources[b, k], c])
    torch.testing.assert_close(plan.targets(labels, 4).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mixer", [mixsage.Mixup(), mixsage.CutMix(), mixsage.SAGE(), mixsage.SAGE(mixed_share=1.0)])
def test_a_step_with_several_labels_an_image(mixer):
    """With a binary loss for each class; SAGE's saliency and clean gradient come of the same loss."""
    criterion = functional.binary_cross_entropy_with_logits
    images, labels = rand(4, 3, 8, 10), torch.tensor([[1.0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]])
    model = small_model(norm=False)
    step = mixsage.accumulate(mixer, model, images, labels, criterion=criterion, generator=seeded())
    done = gradients(model)

    twin = small_model(norm=False)
    loss = criterion(twin(step.plan.apply(images)), step.plan.targets(labels, 5)) * mixer.mixed_weight
    if mixer.clean:
        loss = loss + criterion(twin(images), labels) * mixer.clean.weight
    loss.backward()
    for name, gradient in gradients(twin).items():
        torch.testing.assert_close(done[name], gradient, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------------- the loss


def test_the_loss_of_pixels_is_the_loop():
    plan = plan_of("pixels", "shift")
    logits, targets = rand(BATCH, CLASSES, HEIGHT, WIDTH) * 5, plan.apply_masks(class_maps_of(), CLASSES)
    total = weight = 0.0
    for b, i, j in itertools.product(range(BATCH), range(HEIGHT), range(WIDTH)):
        log_share = logits[b, :, i, j].double().log_softmax(0)
        for c in range(CLASSES):
            total -= float(targets[b, c, i, j]) * float(log_share[c])
            weight += float(targets[b, c, i, j])
    assert float(pixel_cross_entropy(logits, targets)) == pytest.approx(total / weight, rel=1e-5)


def test_the_loss_of_pixels_without_mixing_is_the_one_with_an_ignored_index():
    class_maps, logits = class_maps_of(), rand(POOL, CLASSES, HEIGHT, WIDTH)
    targets = MixPlan.identity(POOL).apply_masks(class_maps, CLASSES)
    torch.testing.assert_close(
        pixel_cross_entropy(logits, targets), functional.cross_entropy(logits, class_maps, ignore_index=IGNORE)
    )


def test_the_loss_of_nothing_is_zero_and_so_is_its_gradient():
    logits = rand(1, 2, 3, 3).requires_grad_()
    loss = pixel_cross_entropy(logits, torch.zeros(1, 2, 3, 3))
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_pixels_without_a_class_have_no_gradient():
    plan, logits = plan_of("pixels", "shift"), rand(BATCH, CLASSES, HEIGHT, WIDTH).requires_grad_()
    targets = plan.apply_masks(class_maps_of(), CLASSES)
    pixel_cross_entropy(logits, targets).backward()
    silent = targets.sum(dim=1) == 0
    assert silent.any()
    assert not logits.grad.movedim(1, -1)[silent].any()
    assert logits.grad.movedim(1, -1)[~silent].abs().sum(dim=-1).min() > 0


def test_the_loss_of_pixels_in_half_precision_is_formed_in_float32():
    logits, targets = rand(1, 2, 8, 8).half() * 9, torch.full((1, 2, 8, 8), 0.5)
    loss = pixel_cross_entropy(logits, targets.half())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, pixel_cross_entropy(logits.float(), targets))


@pytest.mark.parametrize(("logits", "targets"), [((2, 3), (2, 3)), ((2, 3, 4, 4), (2, 3, 8, 8)), ((2, 3, 4, 4), (2, 4, 4))])
def test_losses_of_shapes_that_differ(logits, targets):
    with pytest.raises(ValueError, match=r"must both be \[B, C, H, W\].*interpolate.*plan.apply_masks"):
        pixel_cross_entropy(torch.zeros(logits), torch.zeros(targets))


# --------------------------------------------------------------------------------------------------------------------------- on a device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_no_wait_on_a_device(masks, warp):
    plan, class_maps = plan_of(masks, warp), class_maps_of()
    boxes, labels = boxes_of((3, 0, 1, 4, 2), HEIGHT, WIDTH)
    there = plan.to("cuda"), class_maps.cuda(), [part.cuda() for part in boxes], [part.cuda() for part in labels]
    with nothing_may_wait():
        soft, hard = (there[0].apply_masks(there[1], CLASSES, hard=hard) for hard in (False, True))
        loss = pixel_cross_entropy(torch.zeros_like(soft), soft)
        found = None if warp and "blocks" in warp else there[0].apply_boxes(there[2], there[3], (HEIGHT, WIDTH))
    torch.testing.assert_close(soft.cpu(), plan.apply_masks(class_maps, CLASSES), rtol=0, atol=1e-6)
    assert torch.equal(hard.cpu(), plan.apply_masks(class_maps, CLASSES, hard=True))
    assert loss.isfinite()
    if found is not None:
        torch.testing.assert_close(found.weights.cpu(), plan.apply_boxes(boxes, labels, (HEIGHT, WIDTH)).weights, rtol=0, atol=1e-5)


def test_nothing_looks_at_values():
    """The meta device has no values: whatever looks at one fails there, as it would wait on a device."""
    shifted = MixPlan(
        sources=torch.zeros(2, 2, dtype=torch.int64),
        masks=shares(seeded(), 2, 2, 4, 6),
        warp=Shift(offsets(seeded(), 2, 2, 4, 6)),
    ).to("meta")
    class_maps = torch.zeros(2, 4, 6, dtype=torch.int64, device="meta")
    boxes, labels = [torch.zeros(3, 4, device="meta")] * 2, [torch.zeros(3, device="meta")] * 2
    for plan in (shifted, plan_of("boxes", batch=2, height=4, width=6).to("meta")):
        assert plan.apply_masks(class_maps, CLASSES).shape == (2, CLASSES, 4, 6)
        assert plan.apply_masks(class_maps, hard=True).shape == (2, 4, 6)
        assert plan.apply_boxes(boxes, labels, (4, 6)).weights.shape == (2, 6)
    moved = Blocks(torch.zeros(2, 2, 4, dtype=torch.int64, device="meta"))
    assert dataclasses.replace(shifted, warp=moved).apply_masks(class_maps, CLASSES).shape == (2, CLASSES, 4, 6)
