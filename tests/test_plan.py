"""A plan applied is the formula Σ_k mask_k · source_k, pixel by pixel, whatever the form of the plan and the layout of the pool."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mixsage
from helpers import assert_same_plan, assert_valid_plan, seeded, small_model, tensors_of
from mixsage import Blocks, Boxes, MixPlan, Shift
from plans import BATCH, BOXED, FORMS, HEIGHT, POOL, WIDTH, mixed_by_hand, orders, plan_of, rand, share_at, shares

LAYOUTS = {
    "maps": lambda: rand(POOL, HEIGHT, WIDTH),
    "images": lambda: rand(POOL, 3, HEIGHT, WIDTH),
    "channels last": lambda: rand(POOL, 3, HEIGHT, WIDTH).to(memory_format=torch.channels_last),
    "one channel, channels last": lambda: rand(POOL, 1, HEIGHT, WIDTH).to(memory_format=torch.channels_last),
    "clips": lambda: rand(POOL, 2, 3, HEIGHT, WIDTH),
    "clips, channels last": lambda: rand(POOL, 2, 3, HEIGHT, WIDTH).to(memory_format=torch.channels_last_3d),
    "every second column": lambda: rand(POOL, 3, HEIGHT, 2 * WIDTH)[..., ::2],
    "transposed": lambda: rand(POOL, 3, WIDTH, HEIGHT).transpose(2, 3),
    "expanded": lambda: rand(POOL, 1, HEIGHT, WIDTH).expand(-1, 3, -1, -1),
    "a slice of a batch": lambda: rand(2 * POOL, 3, HEIGHT, WIDTH)[POOL:],
}


# -------------------------------------------------------------------------------------------------------------------------------- apply


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_apply_is_the_formula(masks, warp, layout):
    pool = LAYOUTS[layout]()
    before = pool.clone()
    for own_first in (False, True):
        plan = plan_of(masks, warp, own_first=own_first)
        mixed = plan.apply(pool)
        torch.testing.assert_close(mixed.double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)
        assert mixed.dtype == pool.dtype
        assert torch.equal(pool, before)
        mixed.fill_(7)
        assert torch.equal(pool, before), "the mixed batch shares memory with the pool"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("masks", "warp"), FORMS)
def test_any_number_of_sources(masks, warp, count):
    plan, pool = plan_of(masks, warp, count), LAYOUTS["images"]()
    torch.testing.assert_close(plan.apply(pool).double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8), (torch.float32, 1e-6), (torch.float64, 1e-14)]
)
@pytest.mark.parametrize(
    ("masks", "warp"), [("blend", None), ("pixels", "shift"), ("grid", "finer blocks"), ("boxes", None), ("one box", None)]
)
@pytest.mark.parametrize("layout", ["images", "channels last"])
def test_dtypes(dtype, tolerance, masks, warp, layout):
    """Half precision is rounded once, at the end: sums are formed in float32, so that no value leaves the range of the inputs."""
    pool = LAYOUTS[layout]().to(dtype)
    plan = plan_of(masks, warp, count=2 if warp is None else 3) if masks not in {"boxes", "one box"} else plan_of(masks)
    mixed = plan.apply(pool)
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), mixed_by_hand(plan, pool), rtol=0, atol=tolerance)


def test_equal_images_stay_what_they_are_in_half_precision():
    pool = torch.full((POOL, 3, HEIGHT, WIDTH), 0.9, dtype=torch.bfloat16)
    for count in (2, 3):
        assert torch.equal(plan_of("pixels", count=count).apply(pool), pool[:BATCH])


@pytest.mark.parametrize(("height", "width"), [(3, 4), (4, 3), (1, 5), (5, 1), (2, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_shift(height, width, channels_last):
    """All that leave something in the picture, and those that leave nothing."""
    every = torch.tensor(list(itertools.product(range(-height - 1, height + 2), range(-width - 1, width + 2))))
    batch = len(every)
    moves = torch.stack([torch.zeros_like(every), every], dim=1)
    generator = seeded()
    plan = MixPlan(
        sources=torch.randint(3, (batch, 2), generator=generator),
        masks=shares(generator, batch, 2, height, width),
        warp=Shift(moves),
    )
    pool = rand(batch, 2, height, width)
    if channels_last:
        pool = pool.to(memory_format=torch.channels_last)
    torch.testing.assert_close(plan.apply(pool).double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(4, 4), (4, 6), (5, 7), (3, 9), (2, 8)])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_blocks_of_any_side(height, width, n):
    generator = seeded(n)
    plan = MixPlan(
        sources=torch.tensor([[0, 1], [1, 0]]), masks=shares(generator, 2, 2, 1, 1), warp=Blocks(orders(generator, 2, 2, n))
    )
    pool = rand(2, 2, height, width)
    if n <= min(height, width):
        torch.testing.assert_close(plan.apply(pool).double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)
    if height % n == width % n == 0:
        moved_only = dataclasses.replace(plan, masks=torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(2, -1, -1, -1), weights=None)
        assert torch.equal(moved_only.apply(pool).flatten(1).sort(dim=1).values, pool.flatten(1).sort(dim=1).values), (
            "blocks that divide the sides only change places"
        )


@pytest.mark.parametrize("sides", [(2, 2), (3, 3), (6, 6), (2, 3), (1, 3), (6, 1), (4, 5)])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (6, 9), (9, 6)])
def test_masks_of_any_grid(sides, height, width):
    plan = MixPlan(sources=torch.tensor([[0, 1], [1, 0]]), masks=shares(seeded(), 2, 2, *sides))
    pool = rand(2, 3, height, width)
    torch.testing.assert_close(plan.apply(pool).double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(POOL,), (POOL, 6), (POOL, 4, 6), (POOL, 2, 4, 6), (POOL, 2, 2, 4, 6)])
def test_a_blend_fits_features_of_any_rank(shape):
    plan, pool = plan_of("blend"), rand(*shape)
    expected = torch.stack(
        [sum(float(plan.masks[b, k]) * pool[plan.sources[b, k]].double() for k in range(2)) for b in range(BATCH)]
    )
    torch.testing.assert_close(plan.apply(pool).double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["images", "channels last", "clips", "clips, channels last"])
@pytest.mark.parametrize(
    ("masks", "warp"),
    [("blend", None), ("pixels", None), ("pixels", "shift"), ("grid", "blocks"), ("boxes", None), ("one box", None)],
)
def test_memory_format_is_kept(layout, masks, warp):
    pool = LAYOUTS[layout]()
    for own_first in (False, True):
        mixed = plan_of(masks, warp, own_first=own_first).apply(pool)
        assert mixed.stride() == pool.contiguous(memory_format=_format_of(pool))[:BATCH].stride()


def _format_of(pool):
    if pool.is_contiguous():
        return torch.contiguous_format
    return torch.channels_last if pool.ndim == 4 else torch.channels_last_3d


@pytest.mark.parametrize("layout", ["images", "channels last", "clips, channels last"])
@pytest.mark.parametrize(
    ("masks", "warp"), [("blend", None), ("pixels", "shift"), ("grid", "blocks"), ("boxes", None), ("one box", None)]
)
@pytest.mark.parametrize("own_first", [False, True])
def test_gradients_flow_to_the_pool(layout, masks, warp, own_first):
    shape = (4, 2, 3, 4) if layout != "clips, channels last" else (4, 2, 2, 3, 4)
    pool = rand(*shape, dtype=torch.float64)
    if "last" in layout:
        pool = pool.to(memory_format=torch.channels_last if pool.ndim == 4 else torch.channels_last_3d)
    plan = plan_of(masks, warp, pool=4, height=3, width=4, own_first=own_first)
    assert torch.autograd.gradcheck(plan.apply, pool.requires_grad_())


def test_gradient_in_float32_is_the_share_that_shows():
    pool = rand(POOL, 2, HEIGHT, WIDTH).requires_grad_()
    plan = plan_of("pixels", "shift", 3)
    weight = rand(BATCH, 2, HEIGHT, WIDTH, seed=9)
    (plan.apply(pool) * weight).sum().backward()
    twin = pool.detach().double().requires_grad_()
    (plan.apply(twin) * weight).sum().backward()
    torch.testing.assert_close(pool.grad.double(), twin.grad, rtol=0, atol=1e-6)


def test_replay_is_exact():
    plan, pool = plan_of("pixels", "shift"), LAYOUTS["images"]()
    assert torch.equal(plan.apply(pool), plan.apply(pool))


# ------------------------------------------------------------------------------------------------------------------- identity and boxes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_identity(layout):
    pool = LAYOUTS[layout]()
    plan = MixPlan.identity(len(pool))
    assert plan.is_identity
    assert_valid_plan(plan, len(pool))
    mixed = plan.apply(pool)
    assert torch.equal(mixed, pool)
    assert mixed.data_ptr() != pool.data_ptr()
    labels = torch.tensor([0, 2, 1, 2, 0])
    assert torch.equal(plan.targets(labels, 3), torch.nn.functional.one_hot(labels).float())


@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_a_plan_that_mixes_is_no_identity(masks, warp):
    assert not plan_of(masks, warp).is_identity


def test_a_plan_of_one_source_is_applied_in_a_step():
    """One source an output may still be another image: left where they are, images would get the labels of others."""
    plan = MixPlan(sources=torch.tensor([[1], [0]]), masks=torch.ones(2, 1, 1, 1))
    images, labels = rand(2, 3, 6, 6), torch.tensor([0, 1])
    gradients = []
    for replayed, batch, wanted in [(plan, images, labels), (MixPlan.identity(2), images.flip(0), labels.flip(0))]:
        model = small_model(norm=False)
        mixsage.accumulate(mixsage.Clean(), model, batch, wanted, plan=replayed)
        gradients.append(model.stem.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("form", ["boxes", "one box"])
def test_boxes_are_dense_masks_kept_short(form):
    plan, pool = plan_of(form), LAYOUTS["images"]()
    dense = plan.dense_masks()
    for b, k, i, j in itertools.product(range(BATCH), range(2), range(HEIGHT), range(WIDTH)):
        assert dense[b, k, i, j] == share_at(plan.masks, b, k, i, j, HEIGHT, WIDTH)
    assert torch.equal(dataclasses.replace(plan, masks=dense).apply(pool), plan.apply(pool))
    torch.testing.assert_close(plan.weights, dense.mean(dim=(2, 3)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("box", [(0, 0, 0, 0), (0, 0, HEIGHT, WIDTH), (2, 3, 2, 6), (0, 0, 1, WIDTH), (4, 6, 5, 7)])
def test_empty_and_whole_boxes(box):
    for count in (1, BATCH):
        masks = Boxes(torch.tensor([box] * count), HEIGHT, WIDTH)
        plan, pool = MixPlan(sources=torch.tensor([[0, 1], [1, 2], [2, 0]]), masks=masks), LAYOUTS["images"]()
        assert_valid_plan(plan, POOL)
        assert torch.equal(plan.apply(pool).double(), mixed_by_hand(plan, pool))


def test_weights_are_the_mean_of_the_masks_unless_said_otherwise():
    generator = seeded()
    masks = shares(generator, 2, 3, 4, 5)
    plan = MixPlan(sources=torch.tensor([[0, 1, 1], [1, 0, 0]]), masks=masks)
    torch.testing.assert_close(plan.weights, masks.double().mean(dim=(2, 3)).float(), rtol=0, atol=1e-6)
    own = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    assert torch.equal(MixPlan(sources=plan.sources, masks=masks, weights=own).weights, own)


# ------------------------------------------------------------------------------------------------------------------------------ targets


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_targets_of_class_indices(count, dtype):
    plan = plan_of("pixels", count=count)
    labels = torch.tensor([3, 0, 3, 1, 2], dtype=dtype)
    expected = torch.zeros(BATCH, 4, dtype=torch.float64)
    for b, k in itertools.product(range(BATCH), range(count)):
        expected[b, int(labels[plan.sources[b, k]])] += float(plan.weights[b, k])
    targets = plan.targets(labels, 4)
    assert targets.dtype == torch.float32
    torch.testing.assert_close(targets.double(), expected, rtol=0, atol=1e-6)


def test_an_image_that_meets_its_own_class_keeps_all_of_it():
    plan = MixPlan(sources=torch.tensor([[0, 1], [1, 1]]), masks=torch.tensor([0.25, 0.75]).view(1, 2, 1, 1).expand(2, -1, -1, -1))
    assert torch.equal(plan.targets(torch.tensor([2, 2]), 3), torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_targets_of_soft_labels(count, dtype):
    plan = plan_of("pixels", count=count)
    labels = shares(seeded(3), POOL, 4).to(dtype)
    before = labels.clone()
    expected = torch.zeros(BATCH, 4, dtype=torch.float64)
    for b, k in itertools.product(range(BATCH), range(count)):
        expected[b] += float(plan.weights[b, k]) * labels[plan.sources[b, k]].double()
    targets = plan.targets(labels, 4)
    assert targets.dtype == torch.float32
    torch.testing.assert_close(targets.double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(labels, before)


def test_indices_and_their_one_hot_rows_give_the_same_targets():
    plan, labels = plan_of("grid", count=3), torch.tensor([3, 0, 3, 1, 2])
    one_hot = torch.nn.functional.one_hot(labels, 4).float()
    torch.testing.assert_close(plan.targets(labels, 4), plan.targets(one_hot, 4), rtol=0, atol=1e-7)


# ------------------------------------------------------------------------------------------------------------------------------- moving


@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_to_moves_every_tensor(masks, warp):
    plan = dataclasses.replace(plan_of(masks, warp), layer="stage1")
    elsewhere = plan.to("meta")
    assert tensors_of(elsewhere).keys() == tensors_of(plan).keys()
    assert {tensor.device.type for tensor in tensors_of(elsewhere).values()} == {"meta"}
    assert elsewhere.layer == "stage1"
    assert_same_plan(plan.to("cpu"), plan)


@pytest.mark.parametrize(("masks", "warp"), [("pixels", "shift"), ("grid", "blocks"), ("boxes", None)])
def test_the_way_back_to_the_host_waits(masks, warp, monkeypatch):
    """A copy from a device that does not wait leaves values that are not there yet; one to a device may go on."""
    plan, waits = plan_of(masks, warp), []
    elsewhere = plan.to("meta")

    def recorded(tensor, device, non_blocking=False):
        waits.append(not non_blocking)
        return torch.zeros_like(tensor, device=device)

    monkeypatch.setattr(torch.Tensor, "to", recorded)
    elsewhere.to("cpu")
    assert len(waits) == len(tensors_of(plan)) and all(waits)
    waits.clear()
    plan.to("meta")
    assert len(waits) == len(tensors_of(plan)) and not any(waits)


@pytest.mark.parametrize("still", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("masks", "warp"), [("pixels", "shift"), ("grid", "blocks")])
def test_a_source_that_stays_is_not_moved(masks, warp, layout, still):
    plan, pool = plan_of(masks, warp), LAYOUTS[layout]()
    assert all(plan.warp.moves(k) for k in range(2))
    if warp == "shift":
        plan.warp.offsets[:, still] = 0
    else:
        plan.warp.order[:, still] = torch.arange(plan.warp.order.shape[2])
    assert [plan.warp.moves(k) for k in range(2)] == [k != still for k in range(2)]
    before = pool.clone()
    torch.testing.assert_close(plan.apply(pool).double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)
    assert torch.equal(pool, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("masks", "warp"), FORMS + BOXED)
def test_the_same_on_a_gpu(masks, warp, layout, dtype):
    plan, pool = plan_of(masks, warp), LAYOUTS[layout]().to(dtype)
    expected = plan.apply(pool)
    moved_plan = plan.to("cuda")
    assert_same_plan(moved_plan.to("cpu"), plan)
    mixed = moved_plan.apply(pool.cuda())
    assert mixed.device.type == "cuda"
    torch.testing.assert_close(mixed.cpu(), expected, rtol=0, atol={torch.float32: 1e-6}.get(dtype, 0.01))
    labels = torch.tensor([0, 2, 1, 2, 0])
    torch.testing.assert_close(moved_plan.targets(labels.cuda(), 3).cpu(), plan.targets(labels, 3))


def test_a_plan_cannot_be_changed():
    plan = plan_of()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.layer = "stage1"


def test_a_plan_survives_a_file(tmp_path):
    """By the loader that runs no code."""
    for masks, warp in [("pixels", "shift"), ("grid", "blocks"), ("boxes", None)]:
        plan = plan_of(masks, warp)
        torch.save(plan, tmp_path / "plan.pt")
        with torch.serialization.safe_globals([MixPlan, Shift, Blocks, Boxes]):
            assert_same_plan(torch.load(tmp_path / "plan.pt"), plan)


# ------------------------------------------------------------------------------------------------------------------------------- errors


SOURCES, BLEND = torch.tensor([[0, 1], [1, 0]]), torch.full((2, 2, 1, 1), 0.5)
BOX = torch.tensor([[0, 0, 2, 2]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": torch.tensor([0, 1])}, r"sources must be \[B, K\] int64, got \[2\] int64"),
        ({"sources": SOURCES.float()}, r"sources must be \[B, K\] int64, got \[2, 2\] float32"),
        ({"sources": SOURCES.int()}, r"sources must be \[B, K\] int64, got \[2, 2\] int32"),
        (
            {"masks": torch.full((2, 2), 0.5), "weights": torch.full((2, 2), 0.5)},
            r"masks must be \[B, K, h, w\] = \[2, 2, h, w\] float32, got \[2, 2\]",
        ),
        ({"masks": torch.ones(3, 2, 1, 1)}, r"masks must be \[B, K, h, w\] = \[2, 2, h, w\] float32, got \[3, 2, 1, 1\]"),
        ({"masks": torch.ones(2, 3, 1, 1)}, r"masks must be \[B, K, h, w\] = \[2, 2, h, w\] float32, got \[2, 3, 1, 1\]"),
        ({"masks": torch.ones(2, 2, 1, 1).double()}, r"masks must be .* float32, got \[2, 2, 1, 1\] float64"),
        ({"masks": torch.ones(2, 2, 1, 1).long()}, r"masks must be .* float32, got \[2, 2, 1, 1\] int64"),
        ({"weights": torch.ones(2)}, r"weights must be \[B, K\] = \[2, 2\] float32, got \[2\]"),
        ({"weights": torch.ones(2, 2).double()}, r"weights must be .* float32, got \[2, 2\] float64"),
        (
            {"warp": Shift(torch.zeros(2, 2, dtype=torch.int64))},
            r"Shift offsets must be \[B, K, 2\] = \[2, 2, 2\] int64, got \[2, 2\] int64",
        ),
        ({"warp": Shift(torch.zeros(2, 2, 2))}, r"Shift offsets must be \[B, K, 2\] = \[2, 2, 2\] int64, got \[2, 2, 2\] float32"),
        (
            {"warp": Blocks(torch.zeros(2, 4, dtype=torch.int64))},
            r"Blocks order must be \[B, K, n·n\] = \[2, 2, n·n\] int64, got \[2, 4\] int64",
        ),
        (
            {"warp": Blocks(torch.zeros(2, 2, 4))},
            r"Blocks order must be \[B, K, n·n\] = \[2, 2, n·n\] int64, got \[2, 2, 4\] float32",
        ),
        ({"warp": Blocks(torch.zeros(2, 2, 5, dtype=torch.int64))}, r"Blocks order names 5 blocks an image.*n·n"),
        (
            {"masks": Boxes(torch.zeros(3, 4, dtype=torch.int64), 4, 4)},
            r"Boxes mix 2 sources and are corners \[2, 4\] or \[1, 4\] int64; got 2 sources, \[3, 4\]",
        ),
        ({"masks": Boxes(BOX.float(), 4, 4)}, r"\[1, 4\] int64; got 2 sources, \[1, 4\] float32"),
        ({"masks": Boxes(BOX, 4, 4), "sources": torch.tensor([[0], [1]])}, r"Boxes mix 2 sources.*got 1 sources"),
        (
            {"masks": Boxes(BOX, 4, 4), "warp": Shift(torch.zeros(2, 2, 2, dtype=torch.int64))},
            "Boxes do not go with a warp; use dense masks",
        ),
    ],
)
def test_a_plan_that_does_not_fit_together(fields, message):
    with pytest.raises(ValueError, match=message):
        MixPlan(**{"sources": SOURCES, "masks": BLEND, **fields})


@pytest.mark.parametrize(
    ("plan", "pool", "error", "message"),
    [
        (
            plan_of(),
            torch.zeros(POOL, 3, 5, 7, dtype=torch.uint8),
            TypeError,
            r"floating-point values, got torch.uint8.*images.float\(\) / 255",
        ),
        (
            plan_of(),
            torch.zeros(POOL, 3, 5, 7, device="meta"),
            ValueError,
            r"the plan lies on cpu, the pool on meta.*plan.to\('meta'\)",
        ),
        (plan_of(), torch.zeros(2, 3, 5, 7), ValueError, "the plan mixes 3 images, got only 2 rows; apply it to the batch"),
        (
            plan_of("grid"),
            torch.zeros(POOL, 8),
            ValueError,
            r"needs rows and columns, got \[5, 8\] float32; expected \[P, …, H, W\]",
        ),
        (plan_of("blend", "shift"), torch.zeros(POOL, 8), ValueError, "needs rows and columns"),
        (plan_of("boxes"), torch.zeros(POOL, 8), ValueError, "needs rows and columns"),
        (
            plan_of("boxes"),
            torch.zeros(POOL, 3, 7, 5),
            ValueError,
            "drawn for a grid of 5×7, the pool has 7×5; draw a plan for this size",
        ),
        (plan_of("one box"), torch.zeros(POOL, 3, 5, 8), ValueError, "drawn for a grid of 5×7, the pool has 5×8"),
        (plan_of("pixels"), torch.zeros(POOL, 3, 4, 7), ValueError, "drawn for a grid of 5×7, the pool has 4×7"),
        (plan_of("blend", "finer blocks"), torch.zeros(POOL, 3, 3, 7), ValueError, "drawn for a grid of 4×4, the pool has 3×7"),
    ],
)
def test_a_pool_that_does_not_fit(plan, pool, error, message):
    with pytest.raises(error, match=message):
        plan.apply(pool)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 2, 3, 4]), r"labels range from 0 to 4, but there are 4 classes \(0 to 3\); set num_classes"),
        (torch.tensor([0, -1, 2, 3, 3]), r"labels range from -1 to 3, but there are 4 classes.*number the classes from 0"),
        (
            torch.zeros(5, dtype=torch.bool),
            r"labels must be class indices \[B\] or soft labels \[B, C\] in floating point, got \[5\] bool",
        ),
        (
            torch.zeros(5, 4, dtype=torch.int64),
            r"labels must be class indices \[B\] or soft labels \[B, C\] in floating point, got \[5, 4\] int64",
        ),
        (torch.zeros(5, 3), r"soft labels must be \[B, 4\], got \[5, 3\]; pass class indices \[B\], or shares for every class"),
        (torch.zeros(5), r"soft labels must be \[B, 4\], got \[5\]"),
        (torch.zeros(2, dtype=torch.int64), "the plan mixes 3 images, got only 2 labels; apply it to the batch"),
        (torch.zeros(2, 4), "the plan mixes 3 images, got only 2 labels; apply it to the batch"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(ValueError, match=message):
        plan_of().targets(labels, 4)


# --------------------------------------------------------------------------------------------------------------------------- properties


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_plan_on_any_pool(data):
    """Sizes, forms and memory layouts as they come: the formula holds, and shares stay shares."""
    height, width, batch, count = (
        data.draw(st.integers(1, high), label=name) for name, high in [("H", 6), ("W", 6), ("B", 3), ("K", 3)]
    )
    pool_rows = data.draw(st.integers(batch, 5), label="P")
    masks = data.draw(
        st.sampled_from(["blend", "pixels", "boxes", "one box"] if count == 2 else ["blend", "pixels"]), label="masks"
    )
    warp = (
        data.draw(st.sampled_from([None, "shift", *(["blocks"] if min(height, width) > 1 else [])]), label="warp")
        if "box" not in masks
        else None
    )
    plan = plan_of(
        masks,
        warp,
        count,
        batch=batch,
        pool=pool_rows,
        height=height,
        width=width,
        own_first=data.draw(st.booleans(), label="own first"),
    )
    assert_valid_plan(plan, pool_rows)
    pool = rand(pool_rows, data.draw(st.integers(1, 3), label="C"), height, width)
    if data.draw(st.booleans(), label="channels last"):
        pool = pool.to(memory_format=torch.channels_last)
    mixed = plan.apply(pool)
    torch.testing.assert_close(mixed.double(), mixed_by_hand(plan, pool), rtol=0, atol=1e-6)
    low, high = min(0.0, float(pool.min())), max(0.0, float(pool.max()))
    assert low - 1e-6 <= mixed.min()
    assert mixed.max() <= high + 1e-6


def test_public_names():
    for name in mixsage.__all__:
        assert getattr(mixsage, name) is not None


def test_a_source_that_is_known_to_stay_is_not_looked_at(monkeypatch):
    """On a device a look at the offsets would be waited for; to the same images."""
    images, offsets = torch.randn(4, 3, 6, 5), torch.tensor([[[0, 0], [1, -2]]]).expand(4, -1, -1)
    masks = torch.rand(4, 2, 6, 5)
    sources = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    plain = MixPlan(sources=sources, masks=masks, warp=Shift(offsets)).apply(images)
    known = Shift(offsets, still=(0,)).to("cpu")
    monkeypatch.setattr(torch.Tensor, "any", lambda *_: pytest.fail("the offsets of a source that stays were looked at"))
    assert not known.moves(0)
    monkeypatch.undo()
    assert torch.equal(MixPlan(sources=sources, masks=masks, warp=known).apply(images), plain)
    plan = mixsage.SAGE(passes=1).plan(images)
    assert plan.warp.still == (0,) and not plan.warp.offsets[:, 0].any()
